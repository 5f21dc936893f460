"""One run again with values that were chosen elsewhere: what a choice, or the ε that it cost, was worth."""

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Interval

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

ROUNDS = 4
"""Most rounds of the search for the budget at which a method's training alone spends a given ε."""
CLOSE = 1e-3
"""The relative distance to that ε at which the search ends."""


@dataclass(frozen=True)
class Planned:
    """Parameters of a plan: a run of DP-SGD, or a method that runs again.

    Attributes:
        training: the run of DP-SGD.
        epsilon: of the whole procedure of the method that runs again.
    """

    training: bench.recipes.DpSgd | None
    epsilon: float | None


@dataclass(frozen=True)
class Replay(bench.Method[Planned]):
    """A run of DP-SGD (Abadi et al. 2016, Algorithm 1) with the values that another run found, which is not paid for.

    `dphpo-bench explain` makes two for each run that tuned: one with the run's own values and the noise of the whole
    budget, one with the oracle's values and the noise that was left for the run's training. Whatever the last
    training costs, the values come from other runs on the same records, so ε is infinite.

    A method that finds its values while it trains has none to hand over. It runs again as it is, with so much more
    ε that its training alone costs what it should.

    Attributes:
        explains: the key of the record that the run is about; empty: of none.
        values_from: the key of the record that the values are from.
        share: ε of the training as a share of the budget's.
        held_out: share of the records that are set aside, as a search does whose trials are scored on them.
        again: the method that runs again; None: DP-SGD.
        settings: its parameters, as JSON.
        sample_rate: of DP-SGD, as all that follow; default: the task's.
        steps: default: the task's.
        learning_rate: default: the task's.
        optimizer: a `torch.optim` name; default: the task's.
        clipping: as in `parse_clipping`.
        schedule: of the learning rate: "constant", "cosine" or "linear".
        averaging: decay of the exponential average of weights that is returned; 0 returns the last ones.
        weight_decay: of the optimiser; default: its own.
        momentum: of the optimiser, if it has one.
        free_step: take the last step twice, as `linear_scaling` may.
    """

    name = "replay"
    summary = "One run with values found elsewhere, which nobody paid for: a reference, its true ε is infinite."
    reference = "Abadi et al. 2016, Algorithm 1, as a counterfactual of another run"
    tuning = ()
    end_to_end_private = False

    explains: str = ""
    values_from: str = ""
    share: Annotated[float, Interval(gt=0, le=1)] = 1.0
    held_out: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    again: str | None = None
    settings: str = "{}"
    sample_rate: Annotated[float, Interval(ge=0, le=1)] | None = None
    steps: bench.parameters.Count | None = None
    learning_rate: bench.parameters.Positive | None = None
    optimizer: bench.parameters.OptimizerName | None = None
    clipping: bench.parameters.ClippingRule = "auto_s"
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    averaging: bench.parameters.Decay = 0.99
    weight_decay: Annotated[float, Interval(ge=0)] | None = None
    momentum: bench.parameters.Decay | None = None
    free_step: bool = field(default=False, metadata=bench.parameters.LATER)

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Planned]:
        """Calibrate the noise to this share of the budget; ε of the whole is infinite all the same."""
        if self.again is not None:
            whole, plan = self._enlarged(facts, budget)
            return replace(
                plan, budget=budget, event=_unpaid(plan.event), parameters=Planned(None, whole), accountant=None
            )
        training = self._training(facts).calibrated(self._for_training(budget))
        plan = training.as_plan(facts, budget)
        cost = replace(plan.cost, examples=plan.cost.examples * (1 - self.held_out))
        return replace(plan, event=_unpaid(training.event), parameters=Planned(training, None), cost=cost)

    def run(self, plan: bench.Plan[Planned], session: "bench.Session") -> bench.Outcome:
        """Train once."""
        training, whole = plan.parameters.training, plan.parameters.epsilon
        if training is not None:  # an optimiser that does not take the model or its options is refused here
            weights = bench.recipes.trainable(session.build_model())
            bench.recipes.UpdateRule(training.optimizer, weights, training.optimizer_options)
        session.nonprivate()  # where the values come from: charged, though nothing more is read
        if training is None:
            assert whole is not None
            method = self._method()
            inner = method.plan(session.facts, bench.PrivacyBudget(whole, plan.budget.delta))
            return method.run(inner, session)
        records = session.holdout(self.held_out)[0] if self.held_out else session
        return bench.Outcome(training.train(records, "Replay"), {"learning_rate": training.learning_rate})

    def _for_training(self, budget: bench.PrivacyBudget) -> bench.PrivacyBudget:
        return bench.PrivacyBudget(self.share * budget.epsilon, budget.delta)

    def _training(self, facts: bench.TaskFacts) -> bench.recipes.DpSgd:
        """Return the run without its noise."""
        run = bench.recipes.DpSgd.of(
            facts,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            clipping=self.clipping,
            schedule=self.schedule,
            averaging=self.averaging,
        )
        return replace(
            run,
            sample_rate=run.sample_rate if self.sample_rate is None else self.sample_rate,
            steps=self.steps or run.steps,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            free_step=self.free_step,
        )

    def _method(self) -> bench.Method[Any]:
        try:
            settings = json.loads(self.settings)
        except (ValueError, RecursionError):
            settings = None
        if not isinstance(settings, dict):
            raise bench.errors.InvalidValueError(f"Expected settings to be a JSON object, got {self.settings[:100]!r}.")
        method = bench.make_method(self.again or "", settings)
        if not method.end_to_end_private:
            raise bench.errors.InvalidValueError(f"Expected again to be a private method, got {self.again}.")
        return method

    def _enlarged(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> tuple[float, bench.Plan[Any]]:
        """Return the whole ε and the method's plan whose training costs about what this share of the budget allows."""
        method, target = self._method(), self._for_training(budget).epsilon
        whole = target
        plan = method.plan(facts, bench.PrivacyBudget(whole, budget.delta))
        for _ in range(ROUNDS):
            alone = bench.events.epsilon(plan.training_event, budget.delta).epsilon
            if abs(alone / target - 1) < CLOSE:
                break
            whole *= target / alone
            plan = method.plan(facts, bench.PrivacyBudget(whole, budget.delta))
        return whole, plan


def _unpaid(event: "DpEvent") -> "DpEvent":
    """Return the event after values were looked up without privacy."""
    return bench.events.compose(event, bench.events.non_private())
