"""DoG on private gradients: the step is the distance moved so far over the gradients seen so far."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class DoG(bench.recipes.OptimizerRun):
    """DoG (Ivgi, Hinder and Carmon 2023, arXiv:2302.12022, section 3) fed with noisy gradients.

    The published optimiser, unchanged: SGD with step size max over i ≤ t of ‖wᵢ − w₀‖ / √(Σ ‖gᵢ‖²), where the first
    distance is r_ε (1 + ‖w₀‖). All it sees are released gradients, so nothing is spent on tuning.

    The paper needs an average of the weights, by polynomial decay with γ = 8. That is the warm-up of the average here,
    (1 + t) / (10 + t), which a decay of 0.9999 leaves alone for 90,000 steps.

    The distance grows fast while steps agree. Where a gradient is mostly noise they hardly do: on noise alone it grows
    like √t, from 1e-6 to 2e-5 in 800 steps, so a run under DP may end before it has left its start.

    The other parameters are those of every `SingleRun`.

    Attributes:
        initial_distance: r_ε; the paper's.
    """

    name = "dog"
    package = "dog"
    summary = "DoG on private gradients: SGD with steps of distance moved over gradients seen."
    reference = "Ivgi, Hinder and Carmon 2023, DoG is SGD's Best Friend; package dog-optimizer"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    averaging: bench.parameters.Decay = 0.9999
    initial_distance: bench.parameters.Positive = 1e-6

    def published(self, weights: "list[Tensor]") -> "torch.optim.Optimizer":
        """Return the authors' optimiser."""
        from dog import DoG as Published

        optimizer: torch.optim.Optimizer = Published(weights, reps_rel=self.initial_distance)
        return optimizer

    def estimates(self, optimizer: "torch.optim.Optimizer") -> dict[str, float]:
        """Return the largest distance, and the largest step size of a layer."""
        (group,) = optimizer.param_groups
        return {"distance": float(group["rbar"].norm()), "step_size": max(map(float, group["eta"]))}
