"""A model may say how many records it takes at once; results do not depend on it."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.evaluation import all_outputs
from dphpo_bench.training.layerwise import LayerwiseEngine
from tests.training.models import flat


class Remembering(nn.Module):
    """A network that remembers how many records it was given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        SEEN.append(len(inputs))
        outputs: Tensor = self.layers(inputs)
        return outputs


class Limited(Remembering):
    rows_at_once = 3


SEEN: list[int] = []


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


def results(model: nn.Module) -> list[Tensor]:
    records = bench.Records(torch.arange(40).view(10, 4).float() / 40, torch.arange(10) % 3)
    engine = LayerwiseEngine(model, bench.losses.cross_entropy)
    sums = flat(engine.clipped_sum(records.inputs, records.targets, AutoS()))
    return [all_outputs(model, records), engine.losses(records.inputs, records.targets), sums]


def test_no_more_than_it_says() -> None:
    wanted = results(Remembering())
    assert max(SEEN) == 10
    SEEN.clear()
    for found, expected in zip(results(Limited()), wanted, strict=True):
        torch.testing.assert_close(found, expected)
    assert set(SEEN) == {1, 3}
