"""Models that watch, keep or mix records are refused; models that do not are not."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.losses import Objective, correct_predictions, cross_entropy
from dphpo_bench.training.model_checks import refuse_mixing, refuse_watchers
from dphpo_bench.training.own_model import OwnModel
from dphpo_bench.training.vmap import VmapEngine

RECORDS = torch.zeros(7, 6)
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


class Centres(Own):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden - hidden.mean(0)


class CentresInTraining(Own):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden - hidden.mean(0) if self.training else hidden


class CentresBeforeZeros(Centres):
    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.last.weight)


class DividesByTheMeanNorm(Own):
    """In many dimensions made-up records of one size have nearly the same norm."""

    def __init__(self) -> None:
        super().__init__(3072)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs / (1e-6 + inputs.norm(dim=1).mean()))


class KeepsAMean(Own):
    def between(self, hidden: Tensor) -> Tensor:
        self.mean += 0.1 * hidden.detach().mean(0)
        return torch.tanh(hidden)


class KeepsAll(Own):
    def between(self, hidden: Tensor) -> Tensor:
        self.seen.append(hidden.detach())
        return torch.tanh(hidden)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Centres(), "depend on the others"),
        (CentresInTraining(), "depend on the others"),
        (CentresBeforeZeros(), "depend on the others"),
        (DividesByTheMeanNorm(), "depend on the others"),
        (nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), "keeps nothing"),
        (KeepsAMean(), "keeps nothing"),
        (KeepsAll(), "keeps nothing"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_models_that_mix_or_keep_are_refused(model: nn.Module, message: str) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InvalidValueError, match=message):
        refuse_mixing(model, torch.zeros(7, 3072) if isinstance(model, DividesByTheMeanNorm) else RECORDS)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(11, 5), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.embedding(inputs.long()).mean(1))


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
    state = torch.get_rng_state()
    modes = [module.training for module in model.modules()]
    shape = (7, 4, 6) if isinstance(model, nn.TransformerEncoderLayer) else (7, 6)
    refuse_mixing(model, torch.zeros(shape))
    refuse_watchers(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("inputs", [torch.zeros(7, 4), torch.zeros(7, 4, dtype=torch.long)])
def test_models_of_tokens_are_accepted(inputs: Tensor) -> None:
    refuse_mixing(Tokens(), inputs)


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


def test_torchs_own_hooks_are_left_alone() -> None:
    with pytest.warns(FutureWarning):
        refuse_watchers(nn.utils.weight_norm(nn.Linear(6, 3)))
    refuse_watchers(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)))
    refuse_watchers(nn.utils.spectral_norm(nn.Linear(6, 3)))


class NoisyByNumpy(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs + torch.as_tensor(np.random.standard_normal(inputs.shape), dtype=inputs.dtype))


class MixesStyles(nn.Module):
    """While it is trained, the mean of a record is that of another one, which is drawn."""

    def forward(self, hidden: Tensor) -> Tensor:
        if not self.training:
            return hidden
        mean = hidden.mean(1, keepdim=True)
        return hidden - mean + mean[torch.randperm(len(hidden))]


def test_dropout_does_not_hide_that_records_are_mixed() -> None:
    torch.manual_seed(0)
    with pytest.raises(InvalidValueError, match="treats each record alone"):
        refuse_mixing(nn.Sequential(nn.Linear(6, 8), MixesStyles(), nn.Dropout(0.1), nn.Linear(8, 3)), RECORDS)


def test_a_model_whose_random_numbers_come_from_elsewhere_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="from torch's global generator, as dropout does"):
        refuse_mixing(nn.Sequential(NoisyByNumpy(6, 8), nn.Linear(8, 3)), RECORDS)


def centres_if(condition: Any) -> nn.Module:
    class Sometimes(Own):
        def between(self, hidden: Tensor) -> Tensor:
            return hidden - hidden.mean(0) if self.training and condition(self, len(hidden)) else hidden

    model = Sometimes()
    vars(model)["generator"] = torch.Generator().manual_seed(3)
    return model


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (lambda _, n: n > 8, "treats each record alone"),
        (lambda *_: torch.rand(()) > 0.5, "treats each record alone"),
        (lambda *_: torch.rand(()) < 0.15, "treats each record alone"),
        (lambda *_: random.random() < 1e-9, "from torch's global generator"),
        (lambda *_: np.random.random() < 1e-9, "from torch's global generator"),
        (lambda model, _: torch.rand((), generator=model.generator) < 1e-9, "'generator' changes"),
    ],
)  # fmt: skip
def test_models_that_mix_at_times_are_refused(condition: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        refuse_mixing(centres_if(condition), RECORDS)


class WithLosses(Own):
    """Its outputs are small differences of large numbers, whose last bits depend on the size of a batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        values = self.last(functional.dropout(self.first(inputs), 0.5))
        return functional.cross_entropy(values, torch.zeros(len(values), dtype=torch.int64), reduction="none")


@pytest.mark.parametrize("seed", range(20, 30))
def test_rounding_of_a_model_that_draws_is_not_mistaken_for_mixing(seed: int) -> None:
    torch.manual_seed(seed)
    refuse_mixing(WithLosses(), RECORDS)


class Capacity(Own):
    """An expert takes a quarter of a batch, and four records at least; what comes later is dropped."""

    def between(self, hidden: Tensor) -> Tensor:
        chosen = functional.one_hot(hidden[:, :4].argmax(1), 4)
        places = (chosen.cumsum(0) * chosen).sum(1)
        return hidden * (places <= max(6, len(hidden) // 4))[:, None]


class CentredByTheFirstBatch(Own):
    """Statistics of the first batch, as layers with data-dependent initial weights take them."""

    def __init__(self, hidden: bool = False) -> None:
        super().__init__()
        self.register_buffer("is_set", torch.zeros(()))
        self.hidden = hidden
        self._mean: Tensor | None = None

    def between(self, hidden: Tensor) -> Tensor:
        if self.hidden:
            self._mean = hidden.detach().mean(0) if self._mean is None else self._mean
            return hidden - self._mean
        if not self.is_set:
            self.mean.copy_(hidden.detach().mean(0))
            self.is_set.fill_(1)
        return hidden - self.mean


def patched() -> nn.Module:
    layer = nn.Linear(6, 3)
    forward = layer.forward
    vars(layer)["forward"] = lambda inputs: forward(inputs - inputs.mean(0))
    return layer


@pytest.mark.parametrize(
    "build", [Capacity, CentredByTheFirstBatch, lambda: CentredByTheFirstBatch(hidden=True), patched]
)
def test_records_that_meet_in_larger_or_in_first_batches_are_refused(build: Any) -> None:
    torch.manual_seed(0)
    with pytest.raises(InvalidValueError, match="treats each record alone"):
        refuse_mixing(build(), RECORDS)
    own = OwnModel(build, Records(RECORDS, torch.zeros(len(RECORDS), dtype=torch.int64)), OBJECTIVE)
    with pytest.raises(InvalidValueError, match="treats each record alone"):
        own.engine(build())


def test_a_buffer_that_is_changed_has_the_model_checked_again() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, 3)
            self.register_buffer("share", torch.zeros(()))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.last(inputs + self.share * inputs.mean(0))

    own = OwnModel(Gated, Records(RECORDS, torch.zeros(len(RECORDS), dtype=torch.int64)), OBJECTIVE)
    theirs = Gated()
    own.like(theirs)
    theirs.share.fill_(1.0)
    with pytest.raises(InvalidValueError, match="treats each record alone"):
        own.like(theirs)


class Centred(nn.Module):
    """Its outputs depend on one record each; their gradients, once a buffer is set, on all of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("on", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        centre = hidden.mean(0, keepdim=True)
        outputs: Tensor = self.last(hidden + self.on * (centre - centre.detach()).expand_as(hidden) * 1e4)
        return outputs


def test_a_buffer_that_is_changed_has_the_gradients_checked_again() -> None:
    """The engine that had been made before went layer by layer: one record changed the sum by 1.9 times the bound."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(64, 6), torch.randint(3, (64,))
    own, theirs = OwnModel(Centred, Records(inputs, targets), OBJECTIVE), Centred()
    own.engine(theirs)
    theirs.on.fill_(1.0)
    engine = own.engine(theirs)

    def clipped(rows: Tensor) -> Tensor:
        return torch.cat([sums.flatten() for sums in engine.clipped_sum(inputs, targets, AutoS(), rows)])

    everyone = torch.arange(64)
    together = clipped(everyone)
    assert max(float((together - clipped(everyone[everyone != row])).norm()) for row in range(64)) <= 1.0


@pytest.mark.parametrize("first", ["like", "engine"])
@pytest.mark.parametrize("weight", [float("nan"), 1e38, 0.0])
def test_weights_that_blind_the_checks_do_not_help(weight: float, first: str) -> None:
    """A model is checked once for all weights: those it has by then may make all outputs alike, or no numbers."""
    own = OwnModel(Centres, Records(RECORDS, torch.zeros(len(RECORDS), dtype=torch.int64)), OBJECTIVE)
    blinding = Centres()
    with torch.no_grad():
        for parameter in blinding.parameters():
            parameter.fill_(weight)
    with pytest.raises(InvalidValueError, match="treats each record alone"):
        getattr(own, first)(blinding)


def test_the_engine_is_chosen_by_the_tasks_own_weights() -> None:
    """Layer by layer, gradients of one record would be those of all; outputs show nothing of it."""

    class CentredGradients(Centred):
        def __init__(self) -> None:
            super().__init__()
            self.on.fill_(1.0)

    inputs, targets = torch.randn(64, 6), torch.randint(3, (64,))
    own, theirs = OwnModel(CentredGradients, Records(inputs, targets), OBJECTIVE), CentredGradients()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.fill_(torch.nan)
    assert isinstance(own.engine(theirs), VmapEngine)


def test_a_model_whose_outputs_are_no_numbers_cannot_be_checked() -> None:
    """Set by a buffer, which the method may change as it likes."""

    class Scaled(Own):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) * (1 + self.mean.sum())

    model = Scaled()
    model.mean.fill_(float("inf"))
    with pytest.raises(InvalidValueError, match="outputs that are finite for some made-up records"):
        refuse_mixing(model, RECORDS)
