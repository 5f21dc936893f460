"""Reject models that watch or keep records; accept models that do not."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.training.losses import Objective, correct_predictions, cross_entropy
from dphpo_bench.training.model_checks import differs_in_batches, refuse_keeping, refuse_watchers
from dphpo_bench.training.own_model import OwnModel

RECORDS = torch.zeros(7, 6)
MADE_UP = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
OBJECTIVE = Objective(cross_entropy, correct_predictions)


class Own(nn.Module):
    """Two layers with something of one's own between them."""

    def __init__(self, d: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(d, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))
        self.seen: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.between(self.first(inputs)))

    def between(self, hidden: Tensor) -> Tensor:
        return torch.tanh(hidden)


class KeepsAMean(Own):
    def between(self, hidden: Tensor) -> Tensor:
        self.mean += 0.1 * hidden.detach().mean(0)
        return torch.tanh(hidden)


class KeepsAll(Own):
    def between(self, hidden: Tensor) -> Tensor:
        self.seen.append(hidden.detach())
        return torch.tanh(hidden)


class KeepsTheFirstOutOfSight(Own):
    """Statistics of the first batch, as layers with data-dependent initial weights take them."""

    _mean: Tensor | None = None

    def between(self, hidden: Tensor) -> Tensor:
        self._mean = hidden.detach().mean(0) if self._mean is None else self._mean
        return hidden - self._mean


class KeepsInEvaluation(KeepsAll):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden if self.training else super().between(hidden)


@pytest.mark.parametrize("build", [KeepsAMean, KeepsAll, KeepsTheFirstOutOfSight, KeepsInEvaluation])
def test_models_that_keep_are_refused(build: Any) -> None:
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InvalidValueError, match="keeps nothing"):
        refuse_keeping(model, MADE_UP)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_what_changes_with_the_weights_alone_is_found_before_they_change() -> None:
    """Its estimate has converged at the initial weights: a run would be refused after it was counted."""
    for _ in range(20):
        with pytest.raises(InvalidValueError, match="keeps nothing"):
            refuse_keeping(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 2)), MADE_UP)


def test_frozen_weights_of_any_type_stay() -> None:
    model = nn.Sequential(nn.Linear(6, 2))
    model.register_parameter("places", nn.Parameter(torch.tensor([1, 0]), requires_grad=False))
    refuse_keeping(model, MADE_UP)


class DropsAlways(Own):
    def between(self, hidden: Tensor) -> Tensor:
        return functional.dropout(hidden, 0.5)


class KeepsAConstant(Own):
    """What is made at first use from shapes alone, as masks are."""

    mask: Tensor | None = None

    def between(self, hidden: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.ones(hidden.shape[1])
        return torch.tanh(hidden) * self.mask


def frozen_norm() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model[1].eval()
    return model


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(6, 3),
        Own(),
        Own().double(),
        nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(8, 3)),
        nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
        DropsAlways(),
        KeepsAConstant(),
        frozen_norm(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_models_that_do_not_are_accepted(model: nn.Module) -> None:
    modes = [module.training for module in model.modules()]
    shape = (7, 4, 6) if isinstance(model, nn.TransformerEncoderLayer) else (7, 6)
    inputs = torch.randn(shape).to(next(model.parameters()).dtype)
    refuse_keeping(model, inputs)
    refuse_watchers(model)
    assert not differs_in_batches(model, inputs)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize(
    "register",
    [
        lambda model: model.first.register_forward_hook(lambda *_: None),
        lambda model: model.first.register_full_backward_hook(lambda *_: None),
        lambda model: model.first.weight.register_hook(lambda *_: None),
    ],
)
def test_hooks_are_refused(register: Any) -> None:
    model = Own()
    refuse_watchers(model)
    register(model)
    with pytest.raises(InvalidValueError, match="model without hooks"):
        refuse_watchers(model)


class NoisyByNumpy(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs + torch.as_tensor(np.random.standard_normal(inputs.shape), dtype=inputs.dtype))


def test_a_model_whose_random_numbers_come_from_elsewhere_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="from torch's global generator, as dropout does"):
        refuse_keeping(nn.Sequential(NoisyByNumpy(6, 8), nn.Linear(8, 3)), MADE_UP)


@pytest.mark.parametrize("first", ["like", "engine"])
@pytest.mark.parametrize("weight", [float("nan"), 1e38, 0.0])
def test_weights_that_blind_the_checks_do_not_help(weight: float, first: str) -> None:
    """A model is checked once for all weights: those it has by then may make all outputs equal, or no numbers."""
    own = OwnModel(KeepsAMean, Records(RECORDS, torch.zeros(len(RECORDS), dtype=torch.int64)), OBJECTIVE)
    blinding = KeepsAMean()
    with torch.no_grad():
        for parameter in blinding.parameters():
            parameter.fill_(weight)
    with pytest.raises(InvalidValueError, match="keeps nothing"):
        getattr(own, first)(blinding)
