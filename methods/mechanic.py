"""Mechanic on private gradients: AdamW's updates, scaled by a factor that an online learner finds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dphpo_bench as bench

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Mechanic(bench.recipes.OptimizerRun):
    """Mechanic (Cutkosky, Defazio and Mehta 2023, arXiv:2306.00144, Algorithm 1) of AdamW, fed with noisy gradients.

    The author's optimiser: with Δ the sum of AdamW's updates at rate 1, the weights are w₀ + s·Δ. The scale s is what
    six learners of different memory win by betting against ⟨gₜ, Δₜ⟩. Fresh noise is independent of Δ, so it adds
    variance to what they see, no bias: on noise alone s stays at 1e-8.

    Δ is kept beside the weights (`store_delta`). The package's default, to work it out from (w − w₀) / s, loses it to
    rounding while s is 1e-8 and w₀ is not zero, and halves it at first, because 1e-8 is added to s.

    The other parameters are those of every `SingleRun`.

    Attributes:
        initial_scale: s at the start; the package's.
    """

    name = "mechanic"
    package = "mechanic_pytorch"
    summary = "Mechanic on private gradients: finds the scale of AdamW's updates while it trains."
    reference = (
        "Cutkosky, Defazio and Mehta 2023, Mechanic: A Learning Rate Tuner, Algorithm 1; package mechanic-pytorch"
    )
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    initial_scale: bench.parameters.Positive = 1e-8

    def published(self, weights: "list[Tensor]") -> "torch.optim.Optimizer":
        """Return the author's optimiser."""
        import torch
        from mechanic_pytorch import mechanize

        optimizer_class = mechanize(torch.optim.AdamW, s_init=self.initial_scale, store_delta=True)
        optimizer: torch.optim.Optimizer = optimizer_class(weights, lr=1.0)
        return optimizer

    def estimates(self, optimizer: "torch.optim.Optimizer") -> dict[str, float]:
        """Return the scale s, which is AdamW's learning rate."""
        state: dict[Any, Any] = optimizer.state
        return {"learning_rate": float(state["_mechanic"]["s"].sum())}
