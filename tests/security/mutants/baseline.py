"""Two methods with nothing wrong; each mutant overrides one step of one of them."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import dphpo_bench as bench
from dphpo_bench.base.errors import BudgetTooSmallError

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn


@dataclass(frozen=True)
class Planned:
    """What is planned: T steps at a sample rate, with this noise."""

    sample_rate: float
    steps: int
    noise_multiplier: float


@dataclass(frozen=True)
class Training(bench.Method[Planned]):
    """DP-SGD (Abadi et al. 2016, Algorithm 1), with nothing wrong."""

    name = "training"
    summary = "DP-SGD with nothing wrong."
    reference = "Abadi et al. 2016, Deep Learning with Differential Privacy, Algorithm 1"
    tuning: ClassVar[tuple[str, ...]] = ()
    end_to_end_private = True

    max_grad_norm: float = 1.0
    learning_rate: float = 0.5

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        rate, steps = facts.sample_rate, facts.steps
        noise = calibrated_noise(rate, steps, budget)
        event = self.event(rate, steps, noise)
        return bench.Plan(
            budget=budget,
            event=event,
            training_event=event,
            parameters=Planned(rate, steps, noise),
            releases=(bench.Release("clipped gradient sum", steps, noise, rate),),
            cost=bench.Cost(runs=1, steps=steps, examples=float(steps * facts.batch_size)),
        )

    def event(self, rate: float, steps: int, noise: float) -> "DpEvent":
        return bench.recipes.dp_sgd_event(rate, steps, noise)

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        model = session.build_model()
        for _ in range(plan.parameters.steps):
            gradient = self.planned_gradient(plan, session, model)
            descend(model, gradient, self.learning_rate)
        return bench.Outcome(model, {"learning_rate": self.learning_rate})

    def planned_gradient(self, plan: bench.Plan, session: "bench.Session", model: "nn.Module") -> "list[Tensor]":
        return self.gradient(session, model, plan.parameters.sample_rate, plan.parameters.noise_multiplier)

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        return self.asked(session, model, rate, noise, bench.clipping.Abadi(self.max_grad_norm))

    def asked(
        self, session: "bench.Session", model: "nn.Module", rate: float, noise: float, clipping: bench.clipping.Clipping
    ) -> "list[Tensor]":
        """The same under a clipping rule."""
        kind = bench.events.poisson_sampled(rate, bench.events.gaussian(noise))
        return session.sample(kind).gradient(model, clipping, noise)


@dataclass(frozen=True)
class Search(bench.Method):
    """The best of a random number of trials (Papernot and Steinke 2022), with nothing wrong.

    A trial takes two full-batch steps on one half of the records and is scored on the other.
    """

    name = "search"
    summary = "Best of a random number of trials, with nothing wrong."
    reference = "Papernot and Steinke 2022, Hyperparameter tuning with Rényi differential privacy"
    tuning = ("learning rate",)
    end_to_end_private = True

    steps: ClassVar[int] = 2
    noise: ClassVar[float] = 16.0
    score_noise: ClassVar[float] = 12.0
    validation: ClassVar[float] = 0.5

    @property
    def runs(self) -> "bench.search.RunCount":
        return bench.search.UniformCount(3, 6)

    @property
    def trial_event(self) -> "DpEvent":
        """What one trial releases, each record being in one of the two parts."""
        training = bench.events.repeat(bench.events.gaussian(self.noise), self.steps)
        return bench.events.held_out(training, bench.events.gaussian(self.score_noise), self.validation)

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        event = self.event()
        if bench.events.epsilon(event, budget.delta).epsilon > budget.epsilon:
            raise BudgetTooSmallError(f"Expected a budget that the noise of {self.name} meets, got {budget}.")
        return bench.Plan(
            budget=budget,
            event=event,
            training_event=event,
            parameters=None,
            releases=(bench.Release("clipped gradient sum", self.steps, self.noise, 1.0),),
            cost=bench.Cost(round(self.runs.expected), self.steps, self.steps * float(facts.n_records)),
        )

    def event(self) -> "DpEvent":
        return bench.events.best_of(self.trial_event, self.runs)

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        best = session.best_of(self.trial, self.runs, self.trial_event)
        return self.outcome(best, session)

    def trial(self, session: "bench.Session") -> "bench.search.TrialResult":
        training, validation = session.holdout(self.validation)
        model, rate = self.train(training, session.candidate())
        return bench.search.TrialResult((model, rate), bench.recipes.mean_score(validation, model, self.score_noise))

    def train(self, session: "bench.Session", candidate: Any) -> "tuple[nn.Module, float]":
        model, rate = session.build_model(), candidate["learning_rate"]
        everybody = bench.events.poisson_sampled(1.0, bench.events.gaussian(self.noise))
        for _ in range(self.steps):
            descend(model, session.sample(everybody).gradient(model, bench.clipping.AutoS(), self.noise), rate)
        return model, rate

    def outcome(self, best: "tuple[nn.Module, float] | None", session: "bench.Session") -> bench.Outcome:
        model, rate = best or (session.build_model(), None)
        return bench.Outcome(model, {"learning_rate": rate})


def descend(model: "nn.Module", gradient: "list[Tensor]", learning_rate: float) -> None:
    import torch

    with torch.no_grad():
        for weights, slope in zip(bench.recipes.trainable(model), gradient, strict=True):
            weights -= learning_rate * slope


@cache
def calibrated_noise(rate: float, steps: int, budget: bench.PrivacyBudget) -> float:
    """σ of T steps of DP-SGD; kept, because the mutants ask for the same ones."""
    return bench.events.calibrate(lambda noise: bench.recipes.dp_sgd_event(rate, steps, noise), budget)
