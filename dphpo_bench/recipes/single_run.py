"""Methods that train, those whose budget goes into a single run, and single runs with an optimiser of their own."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from dphpo_bench.base.errors import require_extra
from dphpo_bench.contract.method import Method, Outcome, P, Plan
from dphpo_bench.contract.parameters import Count, Decay, Positive
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import ClippingRule, DpSgd, trainable, training_steps
from dphpo_bench.session.session import Session

if TYPE_CHECKING:
    import torch
    from torch import Tensor


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
        """Return the facts with this method's batch size and epochs."""
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
        """Return the run but for its noise."""
        return DpSgd.of(self.scheduled(facts), clipping=self.clipping, averaging=self.averaging)

    def plan(self, facts: TaskFacts, budget: PrivacyBudget) -> Plan[DpSgd]:
        """Plan T steps at the smallest noise that meets the budget."""
        return self.training(facts).calibrated(budget).as_plan(facts, budget)

    def run(self, plan: Plan[DpSgd], session: Session) -> Outcome:
        """Train for T steps."""
        training = plan.parameters
        return Outcome(training.train(session), {"learning_rate": training.learning_rate})


REPORTED = 20
"""About how many values of each estimate a record holds."""


@dataclass(frozen=True)
class OptimizerRun(SingleRun):
    """A single run of any PyTorch optimiser, fed with noisy gradients.

    All that the optimiser sees are the noisy mean gradients of T × Poisson(q; Gaussian σ), so whatever it makes of
    them is post-processing: what it tunes costs nothing.

    The parameters are those of every `SingleRun`.

    Attributes:
        package: that holds the published optimiser, of the extra `optimizers`; "": none.
    """

    package: ClassVar[str] = ""

    def training(self, facts: TaskFacts) -> DpSgd:
        """Return the run but for its noise.

        Raises:
            MissingExtraError: if the package is not installed.
        """
        if self.package:
            require_extra("optimizers", f"The method {self.name} needs", self.package)
        return replace(super().training(facts), optimizer=type(self).__name__, learning_rate=1.0)

    @abstractmethod
    def published(self, weights: "list[Tensor]") -> "torch.optim.Optimizer":
        """Return the optimiser that its authors published, of these weights."""

    @abstractmethod
    def estimates(self, optimizer: "torch.optim.Optimizer") -> dict[str, float]:
        """Return the optimiser's estimates so far by name, such as its step size; for the record."""

    def finish(self, optimizer: "torch.optim.Optimizer") -> None:
        """After the last step, turn the weights into those to release."""

    def run(self, plan: Plan[DpSgd], session: Session) -> Outcome:
        """Train for T steps."""
        training, model = plan.parameters, session.build_model()
        weights = trainable(model)
        optimizer = self.published(weights)
        path: list[dict[str, float]] = []
        state, decays = [optimizer, path], [training.averaging]
        for taken in training_steps(session, training.steps, [model], decays, state=state):
            step = taken + 1
            for weight, value in zip(weights, training.gradient(session, model), strict=True):
                weight.grad = value
            optimizer.step()
            if step % math.ceil(training.steps / REPORTED) == 0 or step == training.steps:
                path.append({"step": step, **self.estimates(optimizer)})
        self.finish(optimizer)
        return Outcome(model, {**self.estimates(optimizer), "path": path})
