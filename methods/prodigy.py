"""Prodigy on private gradients: D-Adaptation with faster growth."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .dadaptation import DAdaptation

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Prodigy(DAdaptation):
    """Prodigy (Mishchenko and Defazio 2024, arXiv:2306.06101, Algorithm 4) fed with noisy gradients.

    The published optimiser, unchanged, in place of D-Adaptation's: it weights later steps more, so that its d
    grows faster. What is said of `DAdaptation`, and its parameters, holds here too.
    """

    name = "prodigy"
    package = "prodigyopt"
    summary = "Prodigy on private gradients: D-Adaptation whose estimate grows faster."
    reference = "Mishchenko and Defazio 2024, Prodigy: An Expeditiously Adaptive Parameter-Free Learner"

    def published(self, weights: "list[Tensor]") -> "torch.optim.Optimizer":
        """Return the authors' optimiser."""
        from prodigyopt import Prodigy as Published

        optimizer: torch.optim.Optimizer = Published(weights, lr=self.learning_rate, d0=self.initial_d)
        return optimizer
