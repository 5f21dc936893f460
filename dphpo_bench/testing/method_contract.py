"""Tests that hold for every method, to inherit: declarations, source, plans, runs and what they leave behind."""

import ast
import inspect
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import ClassVar

from dphpo_bench.base.errors import BudgetTooSmallError, InvalidValueError
from dphpo_bench.contract.method import Method
from dphpo_bench.testing.new_process import ask_new_process
from dphpo_bench.testing.runs import (
    EPSILON,
    Bench,
    ContractError,
    difference,
    empty_folder,
    expect,
    expect_line,
    expect_name_and_version,
    other_global_randomness,
    recorded,
    shortened,
    threads,
)
from dphpo_bench.testing.small_tasks import blobs_for

PUBLIC = ("_asdict", "_fields", "_field_defaults", "_make", "_replace")
"""Names of named tuples that begin with an underscore and are meant for others."""


class MethodDeclarations:
    """Tests of declarations, a part of `MethodContract`: nothing is planned or run."""

    def test_declarations(self, method: Method) -> None:
        """The class is a frozen dataclass with name, version, summary, reference, tuning and end_to_end_private."""
        cls = type(method)
        for name in ("name", "summary", "reference"):
            expect_line(name, getattr(cls, name))
        expect_name_and_version(cls, "--method")
        ok = isinstance(cls.tuning, tuple) and all(isinstance(name, str) for name in cls.tuning)
        expect(ok, f"Expected tuning to be a tuple of names of hyperparameters, got {shortened(cls.tuning)}.")
        expect(
            isinstance(cls.end_to_end_private, bool),
            f"Expected end_to_end_private to be True or False, got {shortened(cls.end_to_end_private)}.",
        )
        expect(
            is_dataclass(cls) and cls.__dataclass_params__.frozen,
            f"{cls.__name__} is no frozen dataclass: a run could change its own identity. Decorate the class with "
            "@dataclass(frozen=True).",
        )

    def test_parameters_come_back_from_json(self, method: Method) -> None:
        """The parameters are JSON values, and the same method can be made from them."""
        from dphpo_bench.contract.registry import read_parameters

        text = json.dumps(method.parameters, allow_nan=False)
        again = type(method)(**read_parameters(type(method), json.loads(text)))
        expect(
            again.parameters == method.parameters,
            f"The parameters {shortened(method.parameters)} come back from a record as {shortened(again.parameters)}. "
            "Do not change a field in __post_init__; compute what follows from it in a property.",
        )

    def test_source_keeps_out_of_the_private_parts_of_others(self, method: Method) -> None:
        """The source uses no attribute that begins with an underscore, but the method's own."""
        uses = _private_names(type(method))
        expect(
            not uses,
            f"{'; '.join(uses)}. Names that begin with an underscore are not for methods: in a session "
            "they hold the private records, their rows and the noise. Use what Session offers without one.",
        )


def _private_names(cls: type) -> list[str]:
    """Return where a class's module uses names of others with an underscore; torch's fused operations have one, too."""
    try:
        path = inspect.getsourcefile(cls) or ""
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, TypeError, SyntaxError):
        return []
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)[:100]}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if node.attr not in PUBLIC and ast.unparse(node.value) not in ("self", "cls", "torch", "super()")
    ]


NEVER = "Draw from session.uniform, session.candidate and the session's releases only, and keep nothing between runs."

MOST_WINNERS = 64  # Where a run has several selections: the largest number of sets of winners that are tried


class MethodRuns:
    """Tests of runs, a part of `MethodContract`.

    Attributes:
        epsilons: at which plans and runs are made.
    """

    epsilons: ClassVar[tuple[float, ...]] = (1.0, EPSILON, 8.0)

    def test_seed_repeats_a_run(self, method: Method) -> None:
        """A seed repeats a run exactly, whatever the global random generators and the number of threads."""
        bench = Bench(method, blobs_for(method))
        with other_global_randomness(11), threads(1):
            first = bench.seen(3)
        with other_global_randomness(12), threads(2):
            second = bench.seen(3)
        change = difference(first, second)
        expect(
            change is None,
            f"Two runs at one seed, with other global random states and threads, differ: {change}. {NEVER}",
        )

    def test_order_of_trials_changes_nothing(self, method: Method) -> None:
        """The independent trials of a selection may run forwards or backwards; that changes nothing."""
        bench = Bench(method, blobs_for(method))
        checked = bench.planned()
        for seed in range(6):
            counts, order = _counting()
            first = bench.seen(seed, checked=checked, order=order)
            if not counts:  # it has no such trials
                return
            change = difference(first, bench.seen(seed, checked=checked, order=lambda count: range(count)[::-1]))
            expect(
                change is None,
                f"With its {max(counts)} trials in reverse order a run differs: {change}. The proofs of private "
                "selection take independent trials: draw from the trial's own session, and keep nothing between them.",
            )
            if max(counts) > 2:
                return

    def test_trials_that_lost_change_nothing(self, method: Method) -> None:
        """A run lets out the same as if the winner of its selection had been the only trial."""
        bench = Bench(method, blobs_for(method))
        checked = bench.planned()
        for seed in range(6):
            counts, order = _counting()
            whole = bench.seen(seed, checked=checked, order=order)
            if not counts or (len(counts) > 1 and math.prod(counts) > MOST_WINNERS):  # none, or too many could have won
                return
            if min(counts) > 2:
                break
        change = None
        for winners in itertools.product(*map(range, counts)):
            change = difference(whole, bench.seen(seed, checked=checked, order=_only(winners)))
            if change is None:
                return
        expect(
            change is None,
            f"No trial alone leads to what all {sum(counts)} of them release: {change}. Scores, losers, their number "
            "and what was learned from them are secret: release the winner's outcome and nothing else.",
        )

    def test_earlier_runs_change_nothing(self, method: Method) -> None:
        """A run after others, on other records and at another ε, is the same as in a new process."""
        bench = Bench(method, blobs_for(method))
        Bench(method, blobs_for(method), self.epsilons[0]).run(1)
        bench.run(2, blobs_for(method, draw=2))
        change = difference(bench.seen(), ask_new_process(type(method), "run", parameters=method.parameters))
        expect(
            change is None,
            f"Here, after a run on other records, and in a new process a run differs: {change}. Anything that a run "
            f"leaves behind is a release that nobody accounts for. {NEVER} Sets of texts have another order in every "
            "process: sort them.",
        )

    def test_killed_run_continues_to_the_same_model(self, method: Method) -> None:
        """A run that is killed and continues from its checkpoint is the run that was not killed."""
        from dphpo_bench.privacy.event_trees import has_selection
        from dphpo_bench.testing.killing import NO_STATE, checkpoints_in, killed

        bench = Bench(method, blobs_for(method))
        checked = bench.planned()
        if checked.plan.cost.runs != 1 or has_selection(checked.plan.event):  # it has no checkpoints
            return
        try:
            if not killed(bench, Path.cwd()):
                return
        except InvalidValueError as error:
            if str(error) == NO_STATE:  # it says so to whoever asks for checkpoints
                return
            raise
        change = difference(bench.seen(), bench.seen(**checkpoints_in(Path.cwd())))
        expect(
            change is None,
            f"Killed in the middle of its steps and continued from a checkpoint, a run differs: {change}. Name all "
            "that the training loop changes: training_steps(state=...).",
        )


def _counting() -> tuple[list[int], Callable[[int], Sequence[int]]]:
    """Return a list, and an order that changes nothing and fills it with the number of trials per selection."""
    counts: list[int] = []

    def order(count: int) -> Sequence[int]:
        counts.append(count)
        return range(count)

    return counts, order


def _only(winners: Sequence[int]) -> Callable[[int], Sequence[int]]:
    rest = iter(winners)

    def order(count: int) -> Sequence[int]:
        index = next(rest, count)
        return [index] if index < count else []

    return order


class MethodContract(MethodRuns, MethodDeclarations):
    """Tests of one method on small Gaussian blobs: its plan, its runs, what it leaves behind, its source.

    Inherit, and give it a fixture `method` that returns an instance. `dphpo-bench check` does the same.

    Attributes:
        tiny_epsilons: at which a method may refuse.
        least_epsilon_share: the share of the budget that a plan has to use. A plan that uses less breaks no promise
            but wastes budget, so the default is 0.
    """

    tiny_epsilons: ClassVar[tuple[float, ...]] = (1e-6, 0.05)
    least_epsilon_share: ClassVar[float] = 0.0

    def test_plan_is_made_from_public_facts_alone(self, method: Method) -> None:
        """The plan reads no data, draws nothing, and is the same after a run."""
        bench = Bench(method, blobs_for(method))
        checked = bench.newly_planned()
        with other_global_randomness(1):
            again = bench.newly_planned()
        bench.run(1, blobs_for(method, draw=2), checked)
        after = bench.newly_planned()
        for when, other in (("A second time", again), ("After a run", after)):
            change = difference(vars(checked.plan), vars(other.plan))
            expect(
                change is None,
                f"{when} the plan is another: {change}. A plan depends on the facts and the budget; one that remembers "
                "a run depends on private data.",
            )

    def test_plan_depends_on_no_file(self, method: Method) -> None:
        """The plan opens no file, and is the same in a new process that finds results of an earlier run."""
        from dphpo_bench.records.store import RecordStore

        planned = json.loads(json.dumps(Bench(method, blobs_for(method)).planned().plan.to_json()))
        RecordStore(Path("results")).write(recorded(method))  # this folder was empty
        answer = ask_new_process(type(method), "plan", parameters=method.parameters)
        change = difference(planned, answer["plan"])
        opened = shortened(answer["opened"]) if answer["opened"] else "no file"
        expect(
            change is None and not answer["opened"],
            f"The plan opens {opened}. Beside results of an earlier run, in a new process: {change or 'same'}. "
            "Earlier results are private unless they are paid for. What is public can be a parameter.",
        )

    def test_runs_keep_to_the_plan_and_the_plan_to_the_budget(self, method: Method) -> None:
        """A run ends with a finite model at several ε, and ε of the ledger ≤ ε of the plan ≤ the budget."""
        for target in self.epsilons:
            bench = Bench(method, blobs_for(method), target)
            checked = bench.planned()
            attempt = bench.run(checked=checked)
            expect(attempt.status == "ok", f"At ε={target:g} the run is {attempt.status}: {attempt.error}")
            planned = checked.epsilon.epsilon
            expect(
                planned >= self.least_epsilon_share * target,
                f"The plan costs ε={planned:.6g}, less than {self.least_epsilon_share:g} of the budget {target:g}: "
                "with less noise the method would do better. Calibrate the whole event.",
            )

    def test_odd_records_are_survived(self, method: Method) -> None:
        """Empty batches, records that hold NaN or infinities, and a model that gives NaN are survived."""
        few = blobs_for(method, batch_size=1, epochs=0.03)
        cases = {
            "With batches of one record expected, of which a third are empty,": few,
            "On records of which some hold NaN and infinities,": blobs_for(method, odd_records=True),
        }
        if not method.linear_only:  # else refused before data are read, which depends on no record
            cases["With a model whose outputs are NaN,"] = blobs_for(method, "undefined")
        for case, task in cases.items():
            try:
                attempt = Bench(method, task).run()
            except BudgetTooSmallError:
                continue
            # A reference has no clipping to save it.
            expect(
                attempt.status in ("ok", "over_budget" if method.end_to_end_private else "failed"),
                f"{case} the run is {attempt.status}: {attempt.error} A failure that depends on the records is a "
                "release: let the session compute values that may not be finite, and check those it gives you.",
            )

    def test_tiny_budgets_are_refused_or_kept(self, method: Method) -> None:
        """At a tiny ε a method refuses with BudgetTooSmallError, or stays within it."""
        for target in self.tiny_epsilons:
            bench = Bench(method, blobs_for(method), target)
            try:
                checked = bench.planned()
            except BudgetTooSmallError:
                continue
            except Exception as error:  # whatever a method raises
                reason = f"{type(error).__name__}: {error}"
                raise ContractError(f"At ε={target:g}: {reason} Let it be a BudgetTooSmallError.") from None
            attempt = bench.run(checked=checked)
            expect(attempt.status == "ok", f"At ε={target:g} the run is {attempt.status}: {attempt.error}")


for _test in [name for name in dir(MethodContract) if name.startswith("test_")]:
    setattr(MethodContract, _test, empty_folder()(getattr(MethodContract, _test)))
