"""A model's structure as a hash: what changes it, and what does not."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from dphpo_bench.training.structure import structure_hash, weights_hash


class Net(nn.Module):
    """Tells nothing of its settings by `extra_repr`."""

    def __init__(self, activation: object = functional.relu, scale: float = 1.0, sizes: tuple[int, ...] = (3,)) -> None:
        super().__init__()
        self.activation = activation
        self.scale = scale
        self.sizes = sizes
        self.cache = {"not": "a setting"}
        self.last = nn.Linear(5, 3)


def tied(shared: bool) -> nn.Module:
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    if shared:
        two.weight = one.weight
    return nn.Sequential(one, two)


def frozen() -> nn.Module:
    model = nn.Linear(5, 3)
    model.weight.requires_grad_(False)
    return model


def with_buffer() -> nn.Module:
    model = nn.Linear(5, 3)
    model.register_buffer("mean", torch.zeros(5), persistent=False)
    return model


DIFFERENT: list[tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = [
    (lambda: nn.Linear(5, 3), lambda: nn.Linear(5, 4)),
    (lambda: nn.Linear(5, 3), lambda: nn.Linear(5, 3, bias=False)),
    (lambda: nn.Linear(5, 3), lambda: nn.Linear(5, 3).half()),
    (lambda: nn.Linear(5, 3), frozen),
    (lambda: nn.Linear(5, 3), with_buffer),
    (lambda: nn.Linear(5, 3), lambda: nn.Sequential(nn.Linear(5, 3))),
    (lambda: nn.Linear(5, 3).eval(), lambda: nn.Linear(5, 3)),
    (lambda: nn.Sequential(nn.Linear(5, 3), nn.Tanh()), lambda: nn.Sequential(nn.Linear(5, 3), nn.ReLU())),
    (lambda: nn.Dropout(0.1), lambda: nn.Dropout(0.2)),
    (lambda: nn.MultiheadAttention(8, 2), lambda: nn.MultiheadAttention(8, 4)),
    (lambda: nn.TransformerEncoderLayer(8, 2), lambda: nn.TransformerEncoderLayer(8, 2, activation=functional.gelu)),
    (Net, lambda: Net(activation=torch.tanh)),
    (Net, lambda: Net(activation=nn.Tanh)),
    (Net, lambda: Net(scale=2.0)),
    (Net, lambda: Net(sizes=(3, 3))),
    (lambda: tied(True), lambda: tied(False)),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_makes_another_model_makes_another_hash(
    one: Callable[[], nn.Module], other: Callable[[], nn.Module]
) -> None:
    assert structure_hash(one()) == structure_hash(one())  # whatever their weights
    assert structure_hash(one()) != structure_hash(other())


def test_addresses_do_not_count() -> None:
    class Told(nn.Module):
        def extra_repr(self) -> str:
            return repr(object())

    kept = [Told() for _ in range(3)]
    assert len({structure_hash(model) for model in kept}) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_count_one_by_one(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to(dtype)
    before = weights_hash(model)
    assert weights_hash(model) == before
    with torch.no_grad():
        model[1].running_mean[2] += 0.5  # type: ignore[index]
    assert weights_hash(model) != before
