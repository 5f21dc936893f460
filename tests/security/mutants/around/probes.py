"""Charged as two samples, drawn as one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench
from tests.security.mutants.probes import RADIUS
from tests.security.mutants.probes import ProbesApart as Planned

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class ProbesApart(Planned):
    """Gives the rows of the gradient's batch to batches that are charged by themselves, as the plan has it."""

    name = "probes_apart"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        batch = session.sample(bench.poisson_sampled(rate, bench.gaussian(2 * noise)))
        gradient = batch.gradient(model, bench.Abadi(self.max_grad_norm), 2 * noise)
        for step in (-RADIUS, 0.0, RADIUS):
            probe = session.sample(bench.poisson_sampled(rate, bench.gaussian(self.loss_noise * noise)))
            probe._indices = batch._indices
            probe.losses(model, gradient, (step,), 1.0, self.loss_noise * noise)
        return gradient
