"""L-DoG on private gradients: DoG with a step size for each layer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .dog import DoG

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class LDoG(DoG):
    """L-DoG (Ivgi, Hinder and Carmon 2023, arXiv:2302.12022, section 3.3) fed with noisy gradients.

    DoG's formula for each tensor of weights by itself. What is said of `DoG`, and its parameters, holds here too.
    """

    name = "ldog"
    summary = "L-DoG on private gradients: DoG with a step size for each layer."

    def published(self, weights: "list[Tensor]") -> "torch.optim.Optimizer":
        """Return the authors' optimiser."""
        from dog import LDoG as Published

        optimizer: torch.optim.Optimizer = Published(weights, reps_rel=self.initial_distance)
        return optimizer
