"""Honest in the ledger, with too little noise on what comes out."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dphpo_bench as bench
from tests.security.mutants.baseline import Training

if TYPE_CHECKING:
    from torch import Tensor, nn


def raw_sum(
    session: "bench.Session", model: "nn.Module", rate: float, noise: float, rule: bench.Clipping
) -> "list[Tensor]":
    """The clipped sum of one batch, without noise, after charging for noise."""
    batch = session.sample(bench.poisson_sampled(rate, bench.gaussian(noise)))
    batch._account.charge(bench.gaussian(noise))
    train, engine = session._access.raw.train, session._access.raw.own_model().engine(model)
    return engine.clipped_sum(train.inputs, train.targets, rule, indices=batch._indices)


def noised(total: "list[Tensor]", session: "bench.Session", deviation: float, size: float) -> "list[Tensor]":
    """The sum with noise, divided."""
    import torch

    generator = torch.Generator().manual_seed(int(session.uniform("noise of its own") * 2**53))
    return [(part + deviation * torch.randn(part.shape, generator=generator)) / size for part in total]


@dataclass(frozen=True)
class NoNoise(Training):
    """Charges for the noise and does not add it."""

    name = "no_noise"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        total = raw_sum(session, model, rate, noise, bench.Abadi(self.max_grad_norm))
        return [part / (session.expected_records * rate) for part in total]


@dataclass(frozen=True)
class HalfNoise(Training):
    """Charges for the noise and adds half of it."""

    name = "half_noise"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        total = raw_sum(session, model, rate, noise, bench.Abadi(self.max_grad_norm))
        return noised(total, session, noise / 2 * self.max_grad_norm, session.expected_records * rate)


@dataclass(frozen=True)
class NoiseNotScaled(Training):
    """Noise of deviation σ on gradients that are clipped to C, far above 1."""

    name = "noise_not_scaled"

    max_grad_norm: float = 50.0

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        total = raw_sum(session, model, rate, noise, bench.Abadi(self.max_grad_norm))
        return noised(total, session, noise, session.expected_records * rate)


@dataclass(frozen=True)
class FooledLedger(Training):
    """Charges a ledger of its own, as when an accountant is made twice, and asks for next to no noise."""

    name = "fooled_ledger"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        from dphpo_bench.privacy.ledger import Ledger

        kept, session._access = session._access, replace(session._access, ledger=Ledger())
        batch = session.sample(bench.poisson_sampled(rate, bench.gaussian(1e-3)))
        session._access = kept
        return batch.gradient(model, bench.Abadi(self.max_grad_norm), 1e-3)
