"""Snapshots of a training loop's state: what was written back goes on to the same bits."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.optimizer_names import published
from dphpo_bench.training.optimizers import UpdateRule, WeightAverage
from dphpo_bench.training.snapshots import restore, snapshot


def copied(saved: list[Any]) -> list[Any]:
    """Return what comes back from a file, in which no code runs."""
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=True)  # type: ignore[no-any-return]


class Loop:
    """A few steps of an optimiser on noise, with an average of the weights."""

    def __init__(self, optimizer: str) -> None:
        self.weights = [torch.ones(3, 2), torch.zeros(2)]
        self.update = UpdateRule(optimizer, self.weights)
        self.average = WeightAverage(self.weights, 0.9)
        self.generator = torch.Generator().manual_seed(3)
        self.state = [self.weights, self.update, self.average, self.generator]

    def advance(self, steps: int) -> list[Tensor]:
        for _ in range(steps):
            gradients = [torch.randn(weight.shape, generator=self.generator) for weight in self.weights]
            self.update.apply(self.update.direction(gradients), 0.01)
            self.average.update()
        return [*self.weights, *self.average.average]


@pytest.mark.parametrize("optimizer", sorted(published()))
def test_every_optimiser_goes_on_to_the_same_bits(optimizer: str) -> None:
    try:
        whole, first, second = (Loop(optimizer) for _ in range(3))
        whole.advance(4)
    except (InvalidValueError, RuntimeError):
        pytest.skip("no map from a gradient to an update")
    first.advance(4)
    restore(second.state, copied(snapshot(first.state)))
    pairs = zip(whole.advance(3), second.advance(3), strict=True)
    assert all(torch.equal(weight, other) and weight.dtype == other.dtype for weight, other in pairs)
