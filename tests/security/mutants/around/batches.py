"""Honest in the ledger, with batches that are drawn or divided otherwise."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench
from tests.security.mutants.baseline import Training

if TYPE_CHECKING:
    from torch import Tensor, nn


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
