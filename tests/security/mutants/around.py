"""Mutants that go around the session by its private attributes: honest in the ledger, wrong in what they release.

Each repeats by private attributes what a mutant of the same name is refused through the session, where its docstring
says where that is seen. The contract's test of the source catches all of them; the audit shows the larger leaks.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dphpo_bench as bench
from dphpo_bench.privacy.ledger import Ledger
from tests.security.mutants import probes, selection
from tests.security.mutants.baseline import Search, Training
from tests.security.mutants.clipping import Unclipped

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dphpo_bench.session.scored import Scored


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
        kept, session._access = session._access, replace(session._access, ledger=Ledger())
        batch = session.sample(bench.poisson_sampled(rate, bench.gaussian(1e-3)))
        session._access = kept
        return batch.gradient(model, bench.Abadi(self.max_grad_norm), 1e-3)


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


@dataclass(frozen=True)
class FixedBatches(Training):
    """Replaces the rows of the Poisson batch by a fixed number of shuffled ones."""

    name = "fixed_batches"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        import torch

        batch = session.sample(bench.poisson_sampled(rate, bench.gaussian(noise)))
        n = len(session._access.raw.train)
        batch._indices = torch.randperm(n, generator=session._access.generator("sample", "shuffle"))[: round(rate * n)]
        return batch.gradient(model, bench.Abadi(self.max_grad_norm), noise)


@dataclass(frozen=True)
class DrawnBatchSize(Training):
    """Divides by the number of records drawn."""

    name = "drawn_batch_size"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        batch = session.sample(bench.poisson_sampled(rate, bench.gaussian(noise)))
        assert batch._indices is not None
        batch._expected_size = len(batch._indices)
        return batch.gradient(model, bench.Abadi(self.max_grad_norm), noise)


@dataclass(frozen=True)
class ProbesApart(probes.ProbesApart):
    """Gives the rows of the gradient's batch to batches that are charged by themselves, as the plan has it."""

    name = "probes_apart"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        batch = session.sample(bench.poisson_sampled(rate, bench.gaussian(2 * noise)))
        gradient = batch.gradient(model, bench.Abadi(self.max_grad_norm), 2 * noise)
        for step in (-probes.RADIUS, 0.0, probes.RADIUS):
            probe = session.sample(bench.poisson_sampled(rate, bench.gaussian(self.loss_noise * noise)))
            probe._indices = batch._indices
            probe.losses(model, gradient, (step,), 1.0, self.loss_noise * noise)
        return gradient


@dataclass(frozen=True)
class UnpaidValidation(selection.UnpaidValidation):
    """Counts right answers on the held-out records without noise and without charge."""

    name = "unpaid_validation"

    def trial(self, session: "bench.Session") -> "Scored":
        training, validation = session.holdout(self.validation)
        model, rate = self.train(training, session.candidate())
        own = session._access.raw.own_model().scored(model)
        return bench.Scored((model, rate), float(validation._access.total_score(own)))


@dataclass(frozen=True)
class RepeatsItsNoise(Search):
    """Gives every trial the random streams of the first, so that the difference of two trials has no noise."""

    name = "repeats_its_noise"

    def trial(self, session: "bench.Session") -> "Scored":
        session._access = replace(session._access, begun={}, streams=session._access.model_streams)
        return super().trial(session)


@dataclass(frozen=True)
class UsesRawRecords(Training):
    """Takes the raw records from the session."""

    name = "uses_raw_records"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """Look first."""
        deviation = float(session._access.raw.train.inputs.std())
        outcome = super().run(plan, session)
        return bench.Outcome(outcome.model, {"deviation": deviation})
