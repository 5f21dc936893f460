"""D-Adaptation on private gradients: an optimiser that estimates its own step size."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class DAdaptation(bench.recipes.OptimizerRun):
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
    package = "dadaptation"
    summary = "D-Adaptation's Adam on private gradients: estimates its step size from them."
    reference = "Defazio and Mishchenko 2023, Learning-Rate-Free Learning by D-Adaptation; package dadaptation"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    initial_d: bench.parameters.Positive = 1e-6
    learning_rate: bench.parameters.Positive = 1.0

    def training(self, facts: bench.TaskFacts) -> bench.recipes.DpSgd:
        """Return the run without its noise."""
        return replace(super().training(facts), learning_rate=self.learning_rate)

    def published(self, weights: "list[Tensor]") -> "torch.optim.Optimizer":
        """Return the authors' optimiser."""
        from dadaptation import DAdaptAdam

        optimizer: torch.optim.Optimizer = DAdaptAdam(weights, lr=self.learning_rate, d0=self.initial_d)
        return optimizer

    def estimates(self, optimizer: "torch.optim.Optimizer") -> dict[str, float]:
        """Return the distance d."""
        return {"d": float(optimizer.param_groups[0]["d"])}
