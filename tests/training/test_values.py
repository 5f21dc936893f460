"""Sums of bounded values: losses at other weights beside a plain loop, and values that are not finite."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.training.losses import Objective, correct_predictions, cross_entropy
from dphpo_bench.training.values import Query, RecordModel
from tests.training.models import linear, mlp, pictures, tanh_cnn, vectors

STEPS = (-0.1, 0.0, 0.3)
OBJECTIVE = Objective(cross_entropy, correct_predictions)


class Branching(nn.Module):
    """A network that vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs if float(inputs.sum()) > 0 else -inputs)


@pytest.mark.parametrize("build", [linear, mlp, tanh_cnn, Branching])
@pytest.mark.parametrize("rows", [None, torch.tensor([4, 1])])
def test_losses_along_a_line(build: Callable[[], nn.Module], rows: Tensor | None) -> None:
    model = build()
    inputs, targets = pictures(6) if build is tanh_cnn else vectors(6)
    next(model.parameters()).requires_grad_(requires_grad=build is linear)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    generator = torch.Generator().manual_seed(3)
    direction = [torch.randn(p.shape, generator=generator) for p in trained]
    before = [p.detach().clone() for p in model.parameters()]
    query = Query(lambda model, x, y: model.losses_along(direction, STEPS, x, y), 100.0, len(STEPS))
    sums = query.total(model, OBJECTIVE, Records(inputs, targets), rows)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    some = slice(None) if rows is None else rows
    for step, total in zip(STEPS, sums, strict=True):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for p, g in zip((p for p in moved.parameters() if p.requires_grad), direction, strict=True):
                p.sub_(step * g)
            pairs = zip(inputs[some], targets[some], strict=True)
            parts = [nn.functional.cross_entropy(moved(x[None]), y[None]) for x, y in pairs]
        torch.testing.assert_close(total, torch.stack(parts).double().sum(), rtol=1e-5, atol=1e-5)


def test_each_value_is_held_to_the_bound_and_nan_counts_as_it() -> None:
    numbers = torch.tensor([0.5, -0.5, 7.0, -7.0, math.nan, math.inf, -math.inf])
    records = Records(numbers[:, None], torch.zeros(7))

    def total(values: Callable[[RecordModel, Tensor, Tensor], Tensor], count: int = 2) -> Tensor:
        return Query(values, 2.0, count).total(
            nn.Linear(1, 1), OBJECTIVE, records, None, torch.full((7,), 0.5).double()
        )

    assert total(lambda *record: torch.cat([record[1], record[1].square()], dim=1)).tolist() == [1.0, 0.5 * (0.5 + 10)]
    with pytest.raises(InvalidValueError, match="Expected 2 values of each record"):
        total(lambda *record: record[1])
    empty = Query(lambda *_: torch.zeros(1, 2), 2.0, 2).total(nn.Linear(1, 1), OBJECTIVE, records, torch.arange(0))
    assert empty.tolist() == [0.0, 0.0]
