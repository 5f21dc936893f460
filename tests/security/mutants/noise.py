"""Too little noise, asked for openly."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dp_accounting import dp_event

import dphpo_bench as bench
from tests.security.mutants.baseline import Training

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn


@dataclass(frozen=True)
class NoNoise(Training):
    """Clips and forgets the noise, as examples do that leave a switch for debugging on."""

    name = "no_noise"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        return self.asked(session, model, rate, 0.0, bench.clipping.Abadi(self.max_grad_norm))


@dataclass(frozen=True)
class HalfNoise(Training):
    """Half of the planned noise: the deviation is taken for the distance of two neighbours, which is twice it."""

    name = "half_noise"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        return self.asked(session, model, rate, noise / 2, bench.clipping.Abadi(self.max_grad_norm))


@dataclass(frozen=True)
class NoiseNotScaled(Training):
    """Noise of deviation σ where σ · C is needed: code written for C = 1 and run with another threshold."""

    name = "noise_not_scaled"

    max_grad_norm: float = 50.0

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        return self.asked(session, model, rate, noise / self.max_grad_norm, bench.clipping.Abadi(self.max_grad_norm))


@dataclass(frozen=True)
class ClaimsMoreNoise(Training):
    """The plan's event has more noise than the run adds: a report that is computed by other code than the training."""

    name = "claims_more_noise"

    def event(self, rate: float, steps: int, noise: float) -> "DpEvent":
        return bench.recipes.dp_sgd_event(rate, steps, 4 * noise)


@dataclass(frozen=True)
class IntegerNoise(Training):
    """Composed integer multipliers in a Poisson sample, of which `dp_accounting` 0.6.0 counts the first only."""

    name = "integer_noise"

    def event(self, rate: float, steps: int, noise: float) -> "DpEvent":
        twice = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(1), dp_event.GaussianDpEvent(1)])
        return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, twice), steps)
