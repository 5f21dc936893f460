"""D-Adaptation on private gradients: an optimiser that estimates its own step size."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    import torch
    from torch import Tensor

REPORTED = 20
"""How many values of d, about, a record keeps."""


@dataclass(frozen=True)
class DAdaptation(bench.SingleRun):
    """DAdaptAdam (Defazio and Mishchenko 2023, arXiv:2301.07733, Algorithm 5) fed with noisy gradients.

    The published optimiser, unchanged. It grows a lower bound d of the distance from the first weights to a
    solution and steps in proportion. All it sees are the noisy mean gradients of T × Poisson(q; Gaussian σ),
    so d is post-processing: no tuning cost.

    The theory behind d is about gradients with far less noise: how well d, a ratio of sums of them, measures a
    distance under DP is not known. Liu and Bu 2025 report that it grows too slowly.

    The other parameters are those of every `SingleRun`.

    Attributes:
        initial_d: d₀.
        learning_rate: a factor on the estimated step size; the authors advise 1.
    """

    name = "dadaptation"
    summary = "D-Adaptation's Adam on private gradients: estimates its step size from them."
    reference = "Defazio and Mishchenko 2023, Learning-Rate-Free Learning by D-Adaptation; package dadaptation"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    initial_d: bench.Positive = 1e-6
    learning_rate: bench.Positive = 1.0

    def training(self, facts: bench.TaskFacts) -> bench.DpSgd:
        """The run but for its noise."""
        return replace(super().training(facts), optimizer=type(self).__name__, learning_rate=self.learning_rate)

    def run(self, plan: bench.Plan[bench.DpSgd], session: "bench.Session") -> bench.Outcome:
        """Train for T steps."""
        training, model = plan.parameters, session.build_model()
        weights = bench.trainable(model)
        optimizer = self.published(weights)
        path = []
        for step, gradient in enumerate(training.gradients(session, model), start=1):
            for weight, value in zip(weights, gradient, strict=True):
                weight.grad = value
            optimizer.step()
            if step % math.ceil(training.steps / REPORTED) == 0 or step == training.steps:
                path.append({"step": step, "d": float(optimizer.param_groups[0]["d"])})
        return bench.Outcome(model, {"d": path[-1]["d"], "path": path})

    def published(self, weights: "list[Tensor]") -> "torch.optim.Optimizer":
        """The authors' optimiser."""
        from dadaptation import DAdaptAdam

        optimizer: torch.optim.Optimizer = DAdaptAdam(weights, lr=self.learning_rate, d0=self.initial_d)
        return optimizer
