"""A model may say how many records it takes at once; results do not depend on it."""

import torch
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.evaluation import all_outputs
from dphpo_bench.training.functional import Level
from dphpo_bench.training.layerwise import LayerwiseEngine
from tests.training.models import flat, mlp, vectors

SEEN: list[int] = []


class Limited(nn.Module):
    """A network that takes three records at once, and remembers how many it was given."""

    rows_at_once = 3

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, inputs: Tensor) -> Tensor:
        level = Level.of([inputs])
        SEEN.append(1 if level is None else level.n)
        outputs: Tensor = self.layers(inputs)
        return outputs


def results(model: nn.Module) -> list[Tensor]:
    records = bench.Records(*vectors(10))
    engine = LayerwiseEngine(model, bench.losses.cross_entropy)
    sums = flat(engine.clipped_sum(records.inputs, records.targets, AutoS()))
    return [all_outputs(model, records), sums]


def test_no_more_than_it_says() -> None:
    SEEN.clear()
    torch.testing.assert_close(results(Limited()), results(mlp()))
    assert max(SEEN) == 3
