"""Single runs with an optimiser of their own, such as one that finds its step size by itself."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dphpo_bench.contract.method import Outcome, Plan
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.recipes.dp_sgd import DpSgd, trainable, training_steps
from dphpo_bench.recipes.single_run import SingleRun
from dphpo_bench.session.session import Session

if TYPE_CHECKING:
    import torch
    from torch import Tensor

REPORTED = 20
"""About how many values of each estimate a record holds."""


@dataclass(frozen=True)
class OptimizerRun(SingleRun):
    """A single run of any PyTorch optimiser, fed with noisy gradients.

    All that the optimiser sees are the noisy mean gradients of T × Poisson(q; Gaussian σ), so whatever it makes of
    them is post-processing: what it tunes costs nothing.

    The parameters are those of every `SingleRun`.
    """

    def training(self, facts: TaskFacts) -> DpSgd:
        """Return the run but for its noise."""
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
