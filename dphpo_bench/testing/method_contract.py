"""What holds for every method, as tests to inherit."""

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from dphpo_bench.base.errors import BudgetTooSmallError, DphpoBenchError, PlanOverBudgetError, SealedDataError
from dphpo_bench.contract.method import Method
from dphpo_bench.testing.expectations import ContractError, expect, expect_version, shortened
from dphpo_bench.testing.new_process import SLOW
from dphpo_bench.testing.runs import (
    DELTA,
    EPSILON,
    Bench,
    ask_new_process,
    difference,
    import_name,
    observed,
    other_global_randomness,
    plan_from_json,
    threads,
)
from dphpo_bench.testing.small_tasks import Blobs
from dphpo_bench.testing.source_scan import private_accesses

if TYPE_CHECKING:
    from dphpo_bench.harness.attempt import Attempt

DECLARED = ("name", "version", "summary", "reference", "tuning", "end_to_end_private")
NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")
ROUNDING = 1e-9
NEVER = "Draw from session.uniform, session.candidate and the session's releases only, and keep nothing between runs."


class MethodContract:
    """Tests of one method, on small Gaussian blobs: its plan, its runs, what it leaves behind, its source.

    Inherit, and give it a fixture `method` that returns an instance. `dphpo-bench check` does the same.

    Attributes:
        epsilons: at which plans and runs are made.
        tiny_epsilons: at which a method may refuse.
        least_epsilon_share: what share of the budget a plan uses at least. Using less is no breach of privacy, only a
            waste, so that 0 is the default.
    """

    epsilons: ClassVar[tuple[float, ...]] = (1.0, EPSILON, 8.0)
    tiny_epsilons: ClassVar[tuple[float, ...]] = (1e-6, 0.05)
    least_epsilon_share: ClassVar[float] = 0.0

    # ------------------------------------------------------------------------------------------ what it says

    def test_declarations(self, method: Method) -> None:
        """Name, version, summary, reference, tuning and end_to_end_private are declared."""
        cls = type(method)
        for name in DECLARED:
            expect(hasattr(cls, name), f"{cls.__name__} has no class attribute {name}. Set it, as Method explains.")
        for name in ("name", "summary", "reference"):
            value = getattr(cls, name)
            ok = isinstance(value, str) and value.strip() == value != "" and "\n" not in value
            expect(ok, f"Expected {name} to be one line of text, got {shortened(value)}.")
        expect(
            NAME.fullmatch(cls.name) is not None,
            f"Expected a name of lower-case letters, digits and underscores that starts with a letter, got "
            f"{cls.name!r}. It is what --method, suites and folders of records are given.",
        )
        expect_version(cls)
        ok = isinstance(cls.tuning, tuple) and all(isinstance(name, str) for name in cls.tuning)
        expect(ok, f"Expected tuning to be a tuple of names of hyperparameters, got {shortened(cls.tuning)}.")
        expect(
            isinstance(cls.end_to_end_private, bool),
            f"Expected end_to_end_private to be True or False, got {shortened(cls.end_to_end_private)}.",
        )

    def test_parameters_are_fields_of_a_frozen_dataclass(self, method: Method) -> None:
        """The parameters are the fields of a frozen dataclass, each with a default."""
        cls = type(method)
        way_out = "Decorate the class with @dataclass(frozen=True)."
        expect(is_dataclass(cls), f"{cls.__name__} is no dataclass, so its parameters are not known. {way_out}")
        expect(
            cls.__dataclass_params__.frozen,  # type: ignore[attr-defined]
            f"{cls.__name__} is a dataclass that is not frozen: a run could change its own identity. {way_out}",
        )
        parameters = fields(cls)  # type: ignore[arg-type]
        declared = sorted(set(DECLARED) & {field.name for field in parameters})
        expect(
            not declared,
            f"{', '.join(declared)} of {cls.__name__} are annotated, which makes parameters of them. Leave out the "
            "annotation.",
        )
        own = set(vars(cls).get("__annotations__", ())) - set(DECLARED)
        lost = sorted(own - {field.name for field in parameters} - set(_class_variables(cls)))
        expect(not lost, f"{', '.join(lost)} of {cls.__name__} are annotated but no fields. {way_out}")
        for field in parameters:
            has_default = field.default is not MISSING or field.default_factory is not MISSING
            expect(
                has_default or not field.init,
                f"The parameter {field.name} has no default, so the method cannot be made from its name alone. Give "
                "it the paper's value.",
            )

    def test_parameters_come_back_from_json(self, method: Method) -> None:
        """The parameters are JSON values, and the same method can be made from them."""
        from dphpo_bench.contract.registry import read_parameters

        try:
            text = json.dumps(method.parameters, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"Expected parameters that JSON holds (numbers, texts, lists, None), got {error}."
            ) from None
        again = type(method)(**read_parameters(type(method), json.loads(text)))
        expect(
            again.parameters == method.parameters,
            f"The parameters {shortened(method.parameters)} come back from a record as {shortened(again.parameters)}. "
            "Do not change a field in __post_init__; compute what follows from it in a property.",
        )

    def test_source_keeps_out_of_the_private_parts_of_others(self, method: Method) -> None:
        """The source uses no attribute that begins with an underscore, but the method's own."""
        findings = private_accesses(type(method), Method)
        expect(
            not findings,
            f"{'; '.join(map(str, findings))}. What begins with an underscore is not for methods: of a session it is "
            "the private records, their rows and the noise. Use what Session offers without one.",
        )

    def test_importing_the_module_is_cheap(self, method: Method) -> None:
        """Importing the module does not import torch or another slow package."""
        module, qualname = import_name(type(method))
        slow = ask_new_process(
            "dphpo_bench.testing.new_process", {"what": "import", "module": module, "qualname": qualname}
        )["slow"]
        expect(
            not slow,
            f"Importing {module} imports {', '.join(slow)}, though dphpo-bench list and plan import every plug-in. Of "
            f"{', '.join(SLOW)}, import what you need inside the functions that need it.",
        )

    # ------------------------------------------------------------------------------------------------ its plan

    def test_plan_is_made_from_public_facts_alone(self, method: Method) -> None:
        """The plan reads no data, draws nothing, and is the same after a run."""
        from dphpo_bench.privacy.budget import PrivacyBudget

        bench = Bench(method, Blobs())
        try:
            with _quiet():
                checked = bench.planned()
                with other_global_randomness(1):
                    again = method.plan(bench.task.facts, PrivacyBudget(EPSILON, DELTA))
                bench.run(1, Blobs(draw=2), checked)
                after = bench.planned().plan
        except SealedDataError as error:
            raise ContractError(f"The plan reads data: {error}") from None
        expect(
            checked.plan == again,
            f"Two plans from the same facts and budget differ: {_plan_difference(checked.plan, again)}. A plan depends "
            "on nothing else.",
        )
        expect(
            checked.plan == after,
            f"After a run the plan is another: {_plan_difference(checked.plan, after)}. A plan that remembers a run "
            "depends on private data.",
        )

    def test_plan_comes_back_from_json(self, method: Method) -> None:
        """The plan comes back from its JSON form as the same plan, and leads to the same run."""
        bench = Bench(method, Blobs())
        with _quiet():
            checked = bench.planned()
            try:
                again = plan_from_json(checked.plan, method)
            except (TypeError, ValueError, KeyError, DphpoBenchError) as error:
                raise ContractError(
                    f"The plan is not JSON: {error}. Let its parameters be a frozen dataclass of JSON values, and name "
                    "it in Method[...]."
                ) from None
            expect(
                again == checked.plan,
                f"The plan comes back from JSON as another: {_plan_difference(checked.plan, again)}. Let the types "
                "of its parameters say what they are.",
            )
            found = difference(
                observed(bench.run(checked=checked)), observed(bench.run(checked=replace(checked, plan=again)))
            )
        expect(found is None, f"A run from a plan that was kept in a file is another: {found}.")

    def test_releases_cost_no_more_than_the_plan_and_the_plan_no_more_than_the_budget(self, method: Method) -> None:
        """ε of the ledger ≤ ε of the plan ≤ the budget, computed afresh, at several ε."""
        from dphpo_bench.privacy.accountants.report import epsilon as epsilon_of

        for target in self.epsilons:
            bench = Bench(method, Blobs(), target)
            with _quiet():
                try:
                    checked = bench.planned()
                except PlanOverBudgetError as error:
                    raise ContractError(f"{error} Calibrate the event of the whole procedure.") from None
                if not method.end_to_end_private:
                    continue
                planned = epsilon_of(checked.plan.event, DELTA, accountant=checked.plan.accountant).epsilon
                attempt = bench.run(checked=checked)
            expect(planned <= target, f"The plan costs ε={planned:.6g}, more than the budget {target:g}.")
            expect(
                planned >= self.least_epsilon_share * target,
                f"The plan costs ε={planned:.6g}, less than {self.least_epsilon_share:g} of the budget {target:g}: "
                "with less noise the method would do better. Calibrate the whole event.",
            )
            spent = attempt.recomputed.epsilon if attempt.recomputed else math.inf
            expect(
                spent <= planned + ROUNDING,
                f"The run released what costs ε={spent:.6g}, more than its plan's {planned:.6g} at a budget of "
                f"{target:g}: {attempt.error}",
            )

    def test_reference_that_is_not_private_says_so(self, method: Method) -> None:
        """A method that is not private end to end has ε = ∞ in its record."""
        if method.end_to_end_private:
            return  # then the tests of ε hold it to its word
        privacy = _record(method).privacy
        found = privacy.epsilon if privacy is not None else math.nan
        expect(
            found == math.inf,
            f"The method says end_to_end_private=False, yet its record's ε is {found:g}, which readers would believe. "
            "Plan for non_private() and get the records from session.nonprivate().",
        )

    # ------------------------------------------------------------------------------------------------ its runs

    def test_run_ends_with_a_model(self, method: Method) -> None:
        """A run ends with a finite model and released values that JSON holds."""
        with _quiet():
            attempt = Bench(method, Blobs()).run()
        expect(
            attempt.status in ("ok", "over_budget"),  # the latter is another test's
            f"Expected a finished run on {Blobs.summary.lower()} Got: {attempt.status}: {attempt.error}",
        )

    def test_run_releases_only_what_the_plan_says(self, method: Method) -> None:
        """Every release is in the plan."""
        from dphpo_bench.privacy.events import repeat
        from dphpo_bench.privacy.ledger import Ledger

        bench = Bench(method, Blobs())
        with _quiet():
            checked = bench.planned()
            attempt = bench.run(checked=checked)
        expect(attempt.status != "over_budget", str(attempt.error))
        expect(attempt.ledger.refused is None, str(attempt.ledger.refused))
        covered = Ledger(allowance=checked.plan.event)
        for event, count in attempt.ledger.entries:
            covered.charge(repeat(event, count))

    def test_record_comes_back_from_json(self, method: Method) -> None:
        """The record of a run comes back from its JSON form as the same record."""
        from dphpo_bench.records.record import RunRecord

        try:
            record = _record(method)
        except ValueError as error:
            raise ContractError(f"The run cannot be recorded: {error}") from None
        again = RunRecord.model_validate_json(record.to_json())
        for what, first, second in (
            ("identity", record.identity.model_dump(), again.identity.model_dump()),
            ("ledger", record.privacy and record.privacy.ledger, again.privacy and again.privacy.ledger),
            ("released values", record.released, again.released),
        ):
            expect(
                json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True),
                f"Of the record, the {what} {shortened(first)} come back from JSON as {shortened(second)}. JSON holds "
                "finite numbers, texts, lists, and dictionaries by text.",
            )

    def test_seed_repeats_a_run(self, method: Method) -> None:
        """A seed repeats a run exactly."""
        bench = Bench(method, Blobs())
        with _quiet():
            found = difference(observed(bench.run(3)), observed(bench.run(3)))
        expect(found is None, f"Two runs at one seed differ: {found}. {NEVER}")

    def test_global_randomness_and_threads_change_nothing(self, method: Method) -> None:
        """Neither the global random generators nor the number of threads changes a run."""
        bench = Bench(method, Blobs())
        with _quiet():
            with other_global_randomness(11), threads(1):
                one = observed(bench.run())
            with other_global_randomness(12), threads(2):
                two = observed(bench.run())
        found = difference(one, two)
        expect(found is None, f"With other global random states and threads a run differs: {found}. {NEVER}")

    def test_order_of_trials_changes_nothing(self, method: Method) -> None:
        """Whether the independent trials of a selection run forwards or backwards changes nothing."""
        bench = Bench(method, Blobs())
        with _quiet():
            checked = bench.planned()
        for seed in range(6):
            with _quiet():
                counts, order = _counting()
                one = observed(bench.run(seed, checked=checked, order=order))
                if not counts:  # it has no such trials
                    return
                two = observed(bench.run(seed, checked=checked, order=lambda count: range(count)[::-1]))
            found = difference(one, two)
            expect(
                found is None,
                f"With its {max(counts)} trials in reverse order a run differs: {found}. The proofs of private "
                "selection take independent trials: draw from the trial's own session, and keep nothing between them.",
            )
            if max(counts) > 2:
                return

    def test_trials_that_lost_change_nothing(self, method: Method) -> None:
        """What a run lets out is what it would if the winner of its selection had been the only trial."""
        bench = Bench(method, Blobs())
        with _quiet():
            checked = bench.planned()
        for seed in range(6):
            counts, order = _counting()
            with _quiet():
                whole = observed(bench.run(seed, checked=checked, order=order))
            if len(counts) != 1:  # no selection of independent trials, or several, with a winner each
                return
            if counts[0] > 2:
                break
        found = None
        for index in range(counts[0]):
            with _quiet():
                found = difference(whole, observed(bench.run(seed, checked=checked, order=_only(index))))
            if found is None:
                return
        expect(
            found is None,
            f"No trial alone leads to what all {counts[0]} of them release: {found}. Scores, losers, their number and "
            "what was learned from them are secret: release the winner's outcome and nothing else.",
        )

    def test_earlier_runs_change_nothing(self, method: Method) -> None:
        """What ran before in this process, on other records and at another ε, changes nothing."""
        bench = Bench(method, Blobs())
        with _quiet():
            one = observed(bench.run())
            Bench(method, Blobs(), self.epsilons[0]).run(1)
            bench.run(2, Blobs(draw=2))
            two = observed(bench.run())
        found = difference(one, two)
        expect(
            found is None,
            f"After a run on other records a run differs: {found}. What a run leaves behind is a release that nobody "
            f"accounts for. {NEVER}",
        )

    def test_new_process_gives_the_same_run(self, method: Method) -> None:
        """A new process, in which nothing ran before, gives the same run."""
        module, qualname = import_name(type(method))
        bench = Bench(method, Blobs())
        with _quiet():
            bench.run(2, Blobs(draw=2))
            here = observed(bench.run())
        request = {"what": "run", "module": module, "qualname": qualname, "parameters": method.parameters}
        there = ask_new_process("dphpo_bench.testing.new_process", request)
        found = difference(here, there)
        expect(
            found is None,
            f"Here, after a run on other records, and in a new process a run differs: {found}. {NEVER} Sets of texts "
            "have another order in every process: sort them.",
        )

    # ---------------------------------------------------------------------------------------- what may go wrong

    def test_empty_batches_are_survived(self, method: Method) -> None:
        """A sample rate so small that batches are empty is survived."""
        task = Blobs(batch_size=1, epochs=0.03)
        with _quiet():
            try:
                attempt = Bench(method, task).run()
            except BudgetTooSmallError:
                return
        _expect_ended_well(attempt, "With batches of one record expected, of which a third are empty, the run")

    def test_records_and_models_without_numbers_are_survived(self, method: Method) -> None:
        """Records that hold NaN or infinities, and a model that gives NaN, are survived."""
        cases = {
            "On records of which some hold NaN and infinities,": Blobs(odd_records=True),
            "With a model whose outputs are NaN,": Blobs("undefined"),
        }
        for case, task in cases.items():
            with _quiet():
                attempt = Bench(method, task).run()
            if method.end_to_end_private:
                _expect_ended_well(attempt, f"{case} the run")
            else:  # a reference has no clipping to save it
                expect(attempt.status in ("ok", "failed"), f"{case} the run is {attempt.status}: {attempt.error}")

    def test_tiny_budgets_are_refused_or_kept(self, method: Method) -> None:
        """At a tiny ε a method refuses with BudgetTooSmallError, or stays within it."""
        for target in self.tiny_epsilons:
            bench = Bench(method, Blobs(), target)
            with _quiet():
                try:
                    checked = bench.planned()
                except BudgetTooSmallError:
                    continue
                except Exception as error:  # whatever a method raises
                    reason = f"{type(error).__name__}: {error}"
                    raise ContractError(f"At ε={target:g}: {reason} Let it be a BudgetTooSmallError.") from None
                attempt = bench.run(checked=checked)
            expect(attempt.status == "ok", f"At ε={target:g} the run is {attempt.status}: {attempt.error}")
            spent = attempt.recomputed.epsilon if attempt.recomputed else math.inf
            expect(
                spent <= target or not method.end_to_end_private,
                f"At ε={target:g} the run released what costs ε={spent:.6g}.",
            )


def _counting() -> tuple[list[int], Callable[[int], Sequence[int]]]:
    """An order of trials that changes nothing, and the number of trials of each selection so far."""
    counts: list[int] = []

    def order(count: int) -> Sequence[int]:
        counts.append(count)
        return range(count)

    return counts, order


def _only(index: int) -> Callable[[int], list[int]]:
    """An order of trials in which there is one."""
    return lambda count: [index] if index < count else []


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of numerical libraries, which odd records cause."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _record(method: Method) -> Any:
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.harness.run import run
    from dphpo_bench.privacy.budget import PrivacyBudget

    with _quiet():
        budget, source = PrivacyBudget(EPSILON, DELTA), DataSource.resolve()
        return run(method, Blobs(), budget, seed=0, source=source, device="cpu", check=False).record


def _expect_ended_well(attempt: "Attempt", what: str) -> None:
    expect(
        attempt.status in ("ok", "over_budget"),  # the latter is another test's
        f"{what} is {attempt.status}: {attempt.error} A failure that depends on the records is a release: let the "
        "session compute what is not finite, and check what it gives you.",
    )


def _class_variables(cls: type) -> list[str]:
    annotations = vars(cls).get("__annotations__", {})
    return [name for name, kind in annotations.items() if "ClassVar" in str(kind)]


def _plan_difference(one: Any, two: Any) -> str:
    for field in fields(one):
        first, second = getattr(one, field.name), getattr(two, field.name)
        if first != second:
            return f"{field.name} is {shortened(first, 120)} once and {shortened(second, 120)} the other time"
    return "nothing that is written down"
