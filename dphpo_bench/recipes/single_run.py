"""Methods that train, those whose budget goes into a single run, and those with an optimiser of their own."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dphpo_bench.contract.method import Method, Outcome, P, Plan
from dphpo_bench.contract.parameters import Count, Decay, Positive
from dphpo_bench.contract.session import Session
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import ClippingRule, DpSgd, trainable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

REPORTED = 20
"""About how many values of each estimate a record holds."""


@dataclass(frozen=True)
class TrainingMethod(Method[P]):
    """A method that trains on the task's schedule, or on one of its own.

    Attributes:
        batch_size: expected batch size; default: the task's.
        epochs: expected passes over the data of one run; default: the task's.
        averaging: decay of the exponential average of weights that a run returns; 0 returns the last ones.
    """

    batch_size: Count | None = None
    epochs: Positive | None = None
    averaging: Decay = 0.99

    def scheduled(self, facts: TaskFacts) -> TaskFacts:
        """The facts with this method's batch size and epochs."""
        return facts.with_schedule(self.batch_size, self.epochs)


@dataclass(frozen=True)
class SingleRun(TrainingMethod[DpSgd]):
    """A method whose budget goes into one run, T × Poisson(q; Gaussian σ).

    The other parameters are those of every `TrainingMethod`.

    Attributes:
        clipping: "auto_s", "auto_s:γ", "auto_v" or "abadi:C" with threshold C.
    """

    clipping: ClippingRule = "auto_s"

    def training(self, facts: TaskFacts) -> DpSgd:
        """The run but for its noise."""
        return DpSgd.of(self.scheduled(facts), clipping=self.clipping, averaging=self.averaging)

    def plan(self, facts: TaskFacts, budget: PrivacyBudget) -> Plan[DpSgd]:
        """T steps at the smallest noise that meets the budget."""
        return self.training(facts).calibrated(budget).as_plan(facts, budget)

    def run(self, plan: Plan[DpSgd], session: Session) -> Outcome:
        """Train for T steps."""
        training = plan.parameters
        return Outcome(training.train(session), {"learning_rate": training.learning_rate})


@dataclass(frozen=True)
class OptimizerRun(SingleRun):
    """A single run of any PyTorch optimiser, fed with noisy gradients.

    All that the optimiser sees are the noisy mean gradients of T × Poisson(q; Gaussian σ), so whatever it makes of
    them is post-processing: what it tunes costs nothing.

    The parameters are those of every `SingleRun`.
    """

    def training(self, facts: TaskFacts) -> DpSgd:
        """The run but for its noise."""
        return replace(super().training(facts), optimizer=type(self).__name__, learning_rate=1.0)

    @abstractmethod
    def published(self, weights: "list[Tensor]") -> "torch.optim.Optimizer":
        """The optimiser that its authors published, of these weights."""

    @abstractmethod
    def estimates(self, optimizer: "torch.optim.Optimizer") -> dict[str, float]:
        """What the optimiser has found by now, such as its step size, by name; for the record."""

    def finish(self, optimizer: "torch.optim.Optimizer") -> None:
        """After the last step, turn the weights into those to release."""

    def run(self, plan: Plan[DpSgd], session: Session) -> Outcome:
        """Train for T steps."""
        training, model = plan.parameters, session.build_model()
        weights = trainable(model)
        optimizer = self.published(weights)
        path = []
        for step, gradient in enumerate(training.gradients(session, model), start=1):
            for weight, value in zip(weights, gradient, strict=True):
                weight.grad = value
            optimizer.step()
            if step % math.ceil(training.steps / REPORTED) == 0 or step == training.steps:
                path.append({"step": step, **self.estimates(optimizer)})
        self.finish(optimizer)
        return Outcome(model, {**self.estimates(optimizer), "path": path})
