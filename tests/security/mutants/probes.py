"""Losses of a gradient's own batch, accounted as what they are not."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench
from tests.security.mutants.baseline import Training

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn

RADIUS = 0.01


@dataclass(frozen=True)
class ProbesApart(Training):
    """One batch's gradient and losses accounted as independently subsampled (Liu and Bu 2025, equation 9).

    Attributes:
        loss_noise: multiplier of the noise on each of the three losses.
    """

    name = "probes_apart"

    loss_noise: float = 1.5

    def event(self, rate: float, steps: int, noise: float) -> "DpEvent":
        gradients = bench.recipes.dp_sgd_event(rate, steps, 2 * noise)
        return bench.events.compose(gradients, bench.recipes.dp_sgd_event(rate, 3 * steps, self.loss_noise * noise))

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        losses = bench.events.repeat(bench.events.gaussian(self.loss_noise * noise), 3)
        batch = session.sample(
            bench.events.poisson_sampled(rate, bench.events.compose(bench.events.gaussian(2 * noise), losses))
        )
        gradient = batch.gradient(model, bench.clipping.Abadi(self.max_grad_norm), 2 * noise)
        bench.recipes.mean_losses(batch, model, gradient, (-RADIUS, 0.0, RADIUS), 1.0, self.loss_noise * noise)
        return gradient


@dataclass(frozen=True)
class ProbesLongGradients(Training):
    """Probes the losses where the noisy gradient is long, of a tenth of the batches at most, as the plan has them.

    Attributes:
        loss_noise: multiplier of the noise on each of the three losses.
    """

    name = "probes_long_gradients"

    loss_noise: float = 1.5

    def event(self, rate: float, steps: int, noise: float) -> "DpEvent":
        gradient = bench.events.gaussian(2 * noise)
        losses = bench.events.repeat(bench.events.gaussian(self.loss_noise * noise), 3)
        probes = math.ceil(steps / 10)
        return bench.events.compose(
            bench.events.repeat(bench.events.poisson_sampled(rate, gradient), steps - probes),
            bench.events.repeat(bench.events.poisson_sampled(rate, bench.events.compose(gradient, losses)), probes),
        )

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        batch = session.sample(bench.events.poisson_sampled(rate, bench.events.gaussian(2 * noise)))
        gradient = batch.gradient(model, bench.clipping.Abadi(self.max_grad_norm), 2 * noise)
        if sum(float(part.norm()) for part in gradient) > 0.1:
            bench.recipes.mean_losses(batch, model, gradient, (-RADIUS, 0.0, RADIUS), 1.0, self.loss_noise * noise)
        return gradient
