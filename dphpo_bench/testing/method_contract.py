"""Tests that hold for every method, to inherit."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dphpo_bench.base.errors import BudgetTooSmallError, DphpoBenchError, PlanOverBudgetError, SealedDataError
from dphpo_bench.contract.method import Method, Plan
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.testing.expectations import ContractError, expect, shortened
from dphpo_bench.testing.method_runs import MethodDeclarations, MethodRuns
from dphpo_bench.testing.new_process import ask_new_process
from dphpo_bench.testing.runs import (
    DELTA,
    EPSILON,
    Bench,
    difference,
    empty_folder,
    other_global_randomness,
    quiet,
    recorded,
)
from dphpo_bench.testing.small_tasks import Blobs

if TYPE_CHECKING:
    from dphpo_bench.harness.state import Run

ROUNDING = 1e-9


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
        bench = Bench(method, Blobs())
        try:
            checked = bench.newly_planned()
            with quiet(), other_global_randomness(1):
                again = method.plan(bench.task.facts, PrivacyBudget(EPSILON, DELTA))
            bench.run(1, Blobs(draw=2), checked)
            after = bench.newly_planned().plan
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

    def test_plan_depends_on_no_file(self, method: Method) -> None:
        """The plan opens no file, and is the same in a new process that finds results of an earlier run."""
        from dphpo_bench.records.store import RecordStore

        planned = json.loads(json.dumps(Bench(method, Blobs()).planned().plan.to_json()))
        RecordStore(Path("results")).write(recorded(method))  # this folder was empty
        answer = ask_new_process(type(method), "plan", parameters=method.parameters)
        way_out = "Earlier results are private unless they are paid for. What is public can be a parameter."
        change = difference(planned, answer["plan"])
        expect(
            change is None,
            f"Beside results of an earlier run, and in a new process, the plan is another: {change}. {way_out}",
        )
        expect(not answer["opened"], f"The plan opens {shortened(answer['opened'])}. {way_out}")

    def test_plan_comes_back_from_json(self, method: Method) -> None:
        """The plan comes back from its JSON form as the same plan, and leads to the same run."""
        bench = Bench(method, Blobs())
        checked = bench.planned()
        try:
            again = Plan.from_json(json.loads(json.dumps(checked.plan.to_json())), method.plan_parameters)
        except (TypeError, ValueError, KeyError, DphpoBenchError) as error:
            raise ContractError(
                f"The plan is not JSON: {error}. Let its parameters be a frozen dataclass of JSON values, and name it "
                "in Method[...]."
            ) from None
        expect(
            again == checked.plan,
            f"The plan comes back from JSON as another: {_plan_difference(checked.plan, again)}. Let the types "
            "of its parameters say what they are.",
        )
        change = difference(bench.seen(checked=checked), bench.seen(checked=replace(checked, plan=again)))
        expect(change is None, f"A run from a plan that was kept in a file is another: {change}.")

    def test_releases_cost_no_more_than_the_plan_and_the_plan_no_more_than_the_budget(self, method: Method) -> None:
        """ε of the ledger ≤ ε of the plan ≤ the budget, computed afresh, at several ε."""
        from dphpo_bench.privacy.accountants.report import epsilon as epsilon_of

        for target in self.epsilons:
            bench = Bench(method, Blobs(), target)
            try:
                checked = bench.planned()
            except PlanOverBudgetError as error:
                raise ContractError(f"{error} Calibrate the event of the whole procedure.") from None
            if not method.end_to_end_private:
                continue
            with quiet():
                planned = epsilon_of(checked.plan.event, DELTA, accountant=checked.plan.accountant).epsilon
            attempt = bench.run(checked=checked)
            expect(planned <= target, f"The plan costs ε={planned:.6g}, more than the budget {target:g}.")
            expect(
                planned >= self.least_epsilon_share * target,
                f"The plan costs ε={planned:.6g}, less than {self.least_epsilon_share:g} of the budget {target:g}: "
                "with less noise the method would do better. Calibrate the whole event.",
            )
            spent = _spent(attempt)
            expect(
                spent <= planned + ROUNDING,
                f"The releases of the run cost ε={spent:.6g}, more than its plan's {planned:.6g} at a budget of "
                f"{target:g}: {attempt.error}",
            )

    def test_reference_that_is_not_private_says_so(self, method: Method) -> None:
        """A method that is not private end to end has ε = ∞ in its record."""
        if method.end_to_end_private:
            return  # the tests of ε apply
        privacy = recorded(method).privacy
        change = privacy.epsilon if privacy is not None else math.nan
        expect(
            change == math.inf,
            f"The method says end_to_end_private=False, yet its record's ε is {change:g}, which readers would believe. "
            "Plan for non_private() and get the records from session.nonprivate().",
        )

    def test_empty_batches_are_survived(self, method: Method) -> None:
        """A sample rate so small that batches are empty is survived."""
        try:
            attempt = Bench(method, Blobs(batch_size=1, epochs=0.03)).run()
        except BudgetTooSmallError:
            return
        _expect_ended_well(attempt, "With batches of one record expected, of which a third are empty, the run")

    def test_records_and_models_without_numbers_are_survived(self, method: Method) -> None:
        """Records that hold NaN or infinities, and a model that gives NaN, are survived."""
        cases = {
            "On records of which some hold NaN and infinities,": Blobs(odd_records=True),
            "With a model whose outputs are NaN,": Blobs("undefined"),
        }
        if method.linear_only:  # refused before data are read, which depends on no record
            del cases["With a model whose outputs are NaN,"]
        for case, task in cases.items():
            attempt = Bench(method, task).run()
            if method.end_to_end_private:
                _expect_ended_well(attempt, f"{case} the run")
            else:  # a reference has no clipping to save it
                expect(attempt.status in ("ok", "failed"), f"{case} the run is {attempt.status}: {attempt.error}")

    def test_tiny_budgets_are_refused_or_kept(self, method: Method) -> None:
        """At a tiny ε a method refuses with BudgetTooSmallError, or stays within it."""
        for target in self.tiny_epsilons:
            bench = Bench(method, Blobs(), target)
            try:
                checked = bench.planned()
            except BudgetTooSmallError:
                continue
            except Exception as error:  # whatever a method raises
                reason = f"{type(error).__name__}: {error}"
                raise ContractError(f"At ε={target:g}: {reason} Let it be a BudgetTooSmallError.") from None
            attempt = bench.run(checked=checked)
            expect(attempt.status == "ok", f"At ε={target:g} the run is {attempt.status}: {attempt.error}")
            spent = _spent(attempt)
            expect(
                spent <= target or not method.end_to_end_private,
                f"At ε={target:g} the releases of the run cost ε={spent:.6g}.",
            )


for _test in [name for name in dir(MethodContract) if name.startswith("test_")]:
    setattr(MethodContract, _test, empty_folder()(getattr(MethodContract, _test)))


def _spent(attempt: "Run") -> float:
    return attempt.recomputed.epsilon if attempt.recomputed else math.inf


def _expect_ended_well(attempt: "Run", what: str) -> None:
    expect(
        attempt.status in ("ok", "over_budget"),  # the latter is another test's
        f"{what} is {attempt.status}: {attempt.error} A failure that depends on the records is a release: let the "
        "session compute values that may not be finite, and check those it gives you.",
    )


def _plan_difference(first: Plan, second: Plan) -> str:
    return difference(vars(first), vars(second)) or "they look alike and are not equal"
