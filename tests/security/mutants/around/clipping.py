"""Honest in the ledger, with gradients that are not clipped, or clipped too late."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench
from tests.security.mutants.around.noise import noised, raw_sum
from tests.security.mutants.baseline import Training
from tests.security.mutants.clipping import Unclipped

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class NoClipping(Training):
    """Adds noise for a threshold that nothing is clipped to."""

    name = "no_clipping"

    max_grad_norm: float = 0.1

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        total = raw_sum(session, model, rate, noise, Unclipped(self.max_grad_norm))
        return noised(total, session, noise * self.max_grad_norm, session.expected_records * rate)


@dataclass(frozen=True)
class ClippingAfterAveraging(Training):
    """Clips the mean, as `clip_grad_norm_` does, and scales the noise as if each record had been clipped."""

    name = "clipping_after_averaging"

    max_grad_norm: float = 0.1

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        size = session.expected_records * rate
        mean = [part / size for part in raw_sum(session, model, rate, noise, Unclipped(1.0))]
        length = sum(float(part.square().sum()) for part in mean) ** 0.5
        clipped = [part * min(1.0, self.max_grad_norm / length) for part in mean]
        return noised(clipped, session, noise * self.max_grad_norm / size, 1.0)
