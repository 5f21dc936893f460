"""A method's plan, checked: the harness computes its cost, which is within the budget."""

import math
import warnings
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.checks import check_file_name, typed
from dphpo_bench.base.displays import Display, Displayed
from dphpo_bench.base.errors import InvalidValueError, PlanOverBudgetError, SealedDataError
from dphpo_bench.base.tensors import RECORD
from dphpo_bench.contract.method import Method, Plan, sibling_of
from dphpo_bench.contract.registry import method_of, task_of
from dphpo_bench.contract.seals import sealed
from dphpo_bench.contract.task import Task, TaskFacts, usual_delta
from dphpo_bench.harness.cache import Cache
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.accountants.report import EpsilonReport
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.events import non_private
from dphpo_bench.privacy.risk import CERTAIN, Risk
from dphpo_bench.records.record import bounds_text, unit_rows

MEANINGLESS = 20.0  # above this ε, one record may change the odds of what is released by more than 10^8


@dataclass(frozen=True, repr=False)
class CheckedPlan(Displayed):
    """A plan whose cost the harness has computed, and which is within the budget.

    Attributes:
        method: the method that made it.
        epsilon: ε of the whole procedure.
        tuning_share: 1 − ε(training releases alone) / ε(all releases), in [0, 1].
        end_to_end_private: as the method said when it was asked for its plan.
        cache: of ε and risk.
    """

    method: Method
    facts: TaskFacts
    plan: Plan
    epsilon: EpsilonReport
    tuning_share: float
    end_to_end_private: bool
    cache: Cache = field(default_factory=Cache, compare=False)

    def display(self) -> Display:
        """Return the ε of the whole procedure, and the plan in short."""
        plan, facts = self.plan, self.facts
        rows = [
            *unit_rows(facts.unit, facts.n_records),
            ("budget", f"ε = {plan.budget.epsilon:g}, δ = {plan.budget.delta:.3g}"),
            ("ε of the whole procedure", bounds_text(self.epsilon.by_accountant, self.epsilon.quoted)),
            ("share spent on tuning", f"{self.tuning_share:.2%}"),
            *plan.display()[1],
        ]
        return f"Plan: {self.method.name} on {facts.task} ({facts.model})", rows

    def to_json(self) -> dict[str, Any]:
        """Return the plan, its ε and its risk as JSON values."""
        values, facts = self.plan.to_json(), self.facts
        return {
            "method": self.method.name,
            "method_parameters": self.method.parameters,
            "task": facts.task,
            "model": facts.model,
            "unit": facts.unit,
            "budget": values["budget"],
            "epsilon": self.epsilon.epsilon,
            "accountant": self.epsilon.quoted,
            "epsilon_by_accountant": dict(self.epsilon.by_accountant),
            "tuning_share": self.tuning_share,
            "risk": asdict(self.risk),
            **{name: values[name] for name in ("parameters", "releases", "cost", "event")},
        }

    @cached_property
    def risk(self) -> Risk:
        """Return what an attack on one unit can achieve against the whole procedure."""
        return self.cache.risk(self.plan.event, self.plan.budget.delta) if self.end_to_end_private else CERTAIN


@typed
def plan(method: str | Method, task: str | Task, budget: PrivacyBudget, *, cache: Cache | None = None) -> CheckedPlan:
    """Fix a whole procedure and compute its ε; no data is read.

    Args:
        method: a method or a registered name.
        task: a task or a registered name.
        budget: (ε, δ) for tuning and training together.
        cache: of plans, ε and risk; None: they are computed anew.

    Raises:
        UnknownNameError: if a name is not registered.
        InvalidValueError: if the budget is none, the method's plan fails or is none, or the method tunes on a public
            sibling and the task declares no fit one.
        BudgetTooSmallError: if no noise within reach meets the budget.
        PlanOverBudgetError: if the method's plan costs more than the budget.
        UnsupportedEventError: if no accountant bounds the plan's event.
    """
    method, task = method_of(method), task_of(task)
    facts = task.facts
    check_file_name("a method's name", method.name)
    sibling_of(method, task)
    if method.needs_units and facts.unit == RECORD:
        raise InvalidValueError(
            f"Expected a task whose unit holds several records, such as a client, got task {task.name}: {method.name} "
            "trains on nothing else. Name the unit in the task's facts, or use dp_sgd. No data was read."
        )
    cache = cache or Cache()
    with sealed() as complaints:
        planned = cache.plan(method, task, budget)
    if complaints:
        raise SealedDataError(complaints[0])
    if type(planned) is not Plan:
        raise InvalidValueError(f"Expected method {method.name} to plan a Plan, got {type(planned).__name__}.")
    if method.needs_scores or getattr(planned.parameters, "needs_scores", False):
        task.check_scores()
    if method.linear_only:
        from dphpo_bench.training.linear import NOT_LINEAR, convex_layer
        from dphpo_bench.training.randomness import global_randomness

        with global_randomness(0):
            model = task.build_model()
        if convex_layer(model, task.objective().losses) is None:
            raise InvalidValueError(
                f"{NOT_LINEAR}, got model {task.model_name} of task {task.name}: {method.name} trains nothing else. "
                "Use another model of the task, or another method. No data was read."
            )
    planned = replace(planned)  # a copy that the method cannot reach
    if planned.budget != budget:  # noise streams and the recomputed ε depend on it
        raise InvalidValueError(f"Expected method {method.name} to plan for {budget}, got {planned.budget}.")
    total = quoted(planned.event, planned, cache)
    event_trees.from_json(event_trees.to_json(planned.event))  # refused here if no account or record can hold it
    private = bool(method.end_to_end_private)  # asked once
    # A reference that says it is not private may plan for ε = ∞; its row is apart from the others.
    if not (total.epsilon <= budget.epsilon or (not private and total.epsilon == math.inf)):
        raise PlanOverBudgetError(
            f"The plan of {method.name} costs epsilon={total.epsilon:.6g}, more than the budget "
            f"epsilon={budget.epsilon:g} at delta={budget.delta:g}. No data was read."
        )
    if not private:  # what it leaves unpaid is in no event
        total = quoted(non_private(), planned, cache)
    share = 0.0
    if planned.training_event != planned.event and 0 < total.epsilon < math.inf:
        training = cache.epsilon(planned.training_event, budget.delta)
        share = min(1.0, max(0.0, 1 - training.epsilon / total.epsilon))
    warn_of_budget(budget, facts.n_records, facts.unit)  # at last, so that a refusal is one line
    return CheckedPlan(method, facts, planned, total, share, private, cache)


def warn_of_budget(budget: PrivacyBudget, n_records: int, unit: str, stacklevel: int = 3) -> None:
    """Warn of a budget that protects nobody, or with which nothing can be learned."""
    unit, texts = "record" if unit == RECORD else f"unit ({unit})", []
    if budget.delta >= 1 / n_records:
        texts.append(
            f"delta={budget.delta:g} is not below 1/N = {1 / n_records:.3g}: such a guarantee permits "
            f"publishing a {unit}, and no leaderboard takes it. The default is {usual_delta(n_records):.3g}."
        )
    if budget.epsilon > MEANINGLESS:
        texts.append(
            f"epsilon={budget.epsilon:g} protects nobody: one {unit} may change the odds of any outcome by a factor of "
            f"e^{budget.epsilon:g}. Budgets of 1 to 8 are usual."
        )
    if budget.epsilon * n_records <= 1:
        texts.append(
            f"epsilon={budget.epsilon:g} is not above 1/N = {1 / n_records:.3g}: even a single sum over all "
            "records is hidden by its noise, so nothing can be learned. Budgets of 1 to 8 are usual."
        )
    for text in texts:
        warnings.warn(text, stacklevel=stacklevel)


def quoted(event: DpEvent, planned: Plan, cache: Cache) -> EpsilonReport:
    """Return the ε of an event at the plan's δ by every accountant; the plan's own is quoted if it supports it."""
    report, accountant = cache.epsilon(event, planned.budget.delta), planned.accountant
    if accountant is not None and accountant in report.by_accountant:
        return replace(report, epsilon=report.by_accountant[accountant], quoted=accountant)
    return report


def parameters_of(method: Method) -> dict[str, Any]:
    """Return the method's parameters; reject a method that reads data for that."""
    with sealed() as complaints:
        parameters = method.parameters
    if complaints:
        raise SealedDataError(complaints[0])
    return parameters
