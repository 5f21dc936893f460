"""Mutants that go around the session by its private attributes: honest in the ledger, wrong in what they release.

Each repeats by private attributes what a mutant of the same name is refused through the session, where its docstring
says where that is seen. The contract's test of the source catches them, and so does the audit.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dphpo_bench as bench
from dphpo_bench.privacy.ledger import Ledger
from tests.security.mutants.baseline import Training
from tests.security.mutants.clipping import Unclipped

if TYPE_CHECKING:
    from torch import Tensor, nn


def raw_sum(
    session: "bench.Session", model: "nn.Module", rate: float, noise: float, rule: bench.clipping.Clipping
) -> "list[Tensor]":
    batch = session.sample(bench.events.poisson_sampled(rate, bench.events.gaussian(noise)))
    batch._account.charge(bench.events.gaussian(noise))
    train, engine = session._access.raw.train, session._access.raw.own_model().engine(model)
    return engine.clipped_sum(train.inputs, train.targets, rule, indices=batch._indices)


def noised(total: "list[Tensor]", session: "bench.Session", deviation: float, size: float) -> "list[Tensor]":
    import torch

    generator = torch.Generator().manual_seed(int(session.uniform("noise of its own") * 2**53))
    return [(part + deviation * torch.randn(part.shape, generator=generator)) / size for part in total]


@dataclass(frozen=True)
class NoNoise(Training):
    """Charges for the noise and does not add it."""

    name = "no_noise"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        total = raw_sum(session, model, rate, noise, bench.clipping.Abadi(self.max_grad_norm))
        return [part / (session.expected_records * rate) for part in total]


@dataclass(frozen=True)
class NoiseNotScaled(Training):
    """Noise of deviation σ on gradients that are clipped to C, far above 1."""

    name = "noise_not_scaled"

    max_grad_norm: float = 50.0

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        total = raw_sum(session, model, rate, noise, bench.clipping.Abadi(self.max_grad_norm))
        return noised(total, session, noise, session.expected_records * rate)


@dataclass(frozen=True)
class FooledLedger(Training):
    """Charges a ledger of its own, as when an accountant is made twice, and asks for next to no noise."""

    name = "fooled_ledger"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        kept, session._access = session._access, replace(session._access, ledger=Ledger())
        batch = session.sample(bench.events.poisson_sampled(rate, bench.events.gaussian(1e-3)))
        session._access = kept
        return batch.gradient(model, bench.clipping.Abadi(self.max_grad_norm), 1e-3)


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
