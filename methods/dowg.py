"""DoWG on private gradients: DoG whose gradients are weighted by the distance at which they were seen."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class DoWG(bench.recipes.OptimizerRun):
    """DoWG (Khaled, Mishchenko and Jin 2023, arXiv:2305.16284, Algorithm 1) fed with noisy gradients.

    The author's optimiser, unchanged: steps of r̄² / √(Σ r̄ᵢ² ‖gᵢ‖²), where r̄ is the largest distance from the first
    weights so far. Late gradients, seen from afar, count for more than in DoG, so that r̄ grows faster.

    On noise alone it grows exponentially, a thousandfold in 200 steps: the further a random walk has come, the longer
    its steps. So r̄ means nothing where noise is most of a gradient, and only the end of the run stops it.

    The other parameters are those of every `SingleRun`.

    Attributes:
        stability: r̄² at the start, and what is added to the denominator; the package has one number for both.
    """

    name = "dowg"
    package = "dowg"
    summary = "DoWG on private gradients: DoG with gradients weighted by distance."
    reference = "Khaled, Mishchenko and Jin 2023, DoWG Unleashed, Algorithm 1; package dowgopt"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    stability: bench.parameters.Positive = 1e-4

    def published(self, weights: "list[Tensor]") -> "torch.optim.Optimizer":
        """Return the author's optimiser."""
        from dowg import DoWG as Published

        optimizer: torch.optim.Optimizer = Published(weights, eps=self.stability)
        return optimizer

    def estimates(self, optimizer: "torch.optim.Optimizer") -> dict[str, float]:
        """Return the largest distance."""
        state: dict[str, Tensor] = optimizer.state  # type: ignore[assignment]  # the package keeps its sums by name
        return {"distance": math.sqrt(state["rt2"].item())}
