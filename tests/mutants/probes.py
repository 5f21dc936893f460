"""Losses of a gradient's own batch, accounted as if they had been sampled by themselves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench
from tests.mutants.baseline import Training

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn

RADIUS = 0.01


@dataclass(frozen=True)
class ProbesApart(Training):
    """One batch's gradient and losses accounted as independently subsampled (Liu and Bu 2025, equation 9).

    Algorithm 1 of that paper asks the losses of the gradient's batch. The session charges a batch as one sample of
    all that is asked of it, and the ledger does not find that in the plan.

    Attributes:
        loss_noise: multiplier of the noise on each of the three losses.
    """

    name = "probes_apart"

    loss_noise: float = 1.5

    def event(self, rate: float, steps: int, noise: float) -> "DpEvent":
        gradients = bench.dp_sgd_event(rate, steps, 2 * noise)
        return bench.compose(gradients, bench.dp_sgd_event(rate, 3 * steps, self.loss_noise * noise))

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        batch = session.sample(rate)
        gradient = batch.gradient(model, bench.Abadi(self.max_grad_norm), 2 * noise)
        batch.losses(model, gradient, (-RADIUS, 0.0, RADIUS), 1.0, self.loss_noise * noise)
        return gradient
