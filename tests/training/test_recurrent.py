"""Recurrent layers by every engine, against one backward pass of torch's kernels for each record."""

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.training import recurrent
from dphpo_bench.training.clipping import Abadi, AutoS, AutoV
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.model_checks import differs_in_batches
from tests.training.models import BACKENDS, Calls, brute_force, engine_by, flat, relative_error


@pytest.fixture(params=["by steps", "by kernels"], autouse=True)
def _as_on_a_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "by kernels":
        kernels = {step: as_cudnn(kernel) for step, kernel in recurrent._KERNELS.items()}
        monkeypatch.setattr(recurrent, "_STEPPED", ())
        monkeypatch.setattr(recurrent, "_KERNELS", kernels)


def as_cudnn(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that takes what cuDNN takes: inputs and states in one piece, and weights, too, without a copy."""

    def strict(x: Tensor, state: Any, weights: list[Tensor], *settings: Any) -> Any:
        states = (state,) if isinstance(state, Tensor) else state
        assert all(part.is_contiguous() for part in (x, *states))
        assert len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
        return kernel(x, state, weights, *settings)

    return strict


N, LENGTH, WIDTH, SIZE = 5, 6, 4, 3
KINDS: dict[str, Callable[..., nn.Module]] = {
    "tanh": nn.RNN,
    "relu": lambda *sizes, **settings: nn.RNN(*sizes, nonlinearity="relu", **settings),
    "GRU": nn.GRU,
    "LSTM": nn.LSTM,
    "LSTM with projections": lambda *sizes, **settings: nn.LSTM(*sizes, proj_size=2, **settings),
}


class Sequences(nn.Module):
    """A recurrent layer, then a linear one on its outputs or its last hidden state."""

    def __init__(self, rnn: Any, last: bool = False, state: bool = False) -> None:
        super().__init__()
        self.rnn, self.last, self.state = rnn, last, state
        size = rnn.proj_size or rnn.hidden_size
        self.head = nn.Linear(size * (2 if rnn.bidirectional and not last else 1), 5)

    def forward(self, x: Tensor) -> Tensor:
        rnn, state = self.rnn, None
        if self.state:
            heads, n = rnn.num_layers * (2 if rnn.bidirectional else 1), len(x)
            before = [x.mean((1, 2)).expand(heads, size, n).mT for size in (rnn.proj_size or SIZE, rnn.hidden_size)]
            state = tuple(before) if isinstance(rnn, nn.LSTM) else before[0]
        outputs, states = rnn(x if rnn.batch_first else x.transpose(0, 1), state)
        hidden = states[0] if isinstance(states, tuple) else states
        if self.last:
            return self.head(hidden[-1])
        return self.head((outputs if rnn.batch_first else outputs.transpose(0, 1)).square().mean(1))


def sequences() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    scale = 10 ** torch.linspace(-1, 0.5, N)[:, None, None]
    return scale * torch.randn(N, LENGTH, WIDTH, generator=generator), torch.randint(0, 5, (N,), generator=generator)


def assert_right(model: nn.Module, inputs: Tensor, targets: Tensor, *backends: str) -> None:
    exact = copy.deepcopy(model).double()
    numbers = inputs.double() if inputs.is_floating_point() else inputs
    for backend, rows, clipping in product(backends or BACKENDS, (None, 2), (Abadi(1e-2), AutoV())):
        expected = brute_force(exact, numbers, targets, clipping)
        engine = engine_by(backend, model, rows)
        for _ in range(2):  # the second time in the memory of the first
            assert relative_error(engine.clipped_sum(inputs, targets, clipping), expected) < 1e-5
        again = engine_by(backend, exact, rows).clipped_sum(numbers, targets, clipping)
        assert relative_error(again, expected) < 1e-12


SETTINGS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"num_layers": 1}, "outputs"),
    ({"num_layers": 2, "bidirectional": True}, "a state given"),
    ({"num_layers": 2, "bidirectional": True, "batch_first": False}, "outputs"),
    ({"num_layers": 2, "bidirectional": True, "bias": False}, "last state"),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("settings", "use"), SETTINGS, ids=str)
def test_layers_agree_with_a_loop(kind: str, settings: dict[str, Any], use: str) -> None:
    torch.manual_seed(0)
    rnn = KINDS[kind](WIDTH, SIZE, **{"batch_first": True, **settings})
    model = Sequences(rnn, last=use == "last state", state=use == "a state given")
    inputs, targets = sequences()
    assert isinstance(gradient_engine(model, like=Records(inputs, targets)), LayerwiseEngine)
    expected = brute_force(copy.deepcopy(model).double(), inputs.double(), targets, AutoS())
    for backend, rows in product(BACKENDS, (None, 2)):
        actual = engine_by(backend, model, rows).clipped_sum(inputs, targets, AutoS())
        assert relative_error(actual, expected) < 1e-5


class Cells(nn.Module):
    """A cell, step by step, of which every other output counts."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(SIZE, 5)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        outputs = []
        for inputs in x.unbind(1):
            state = self.cell(inputs, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return self.head(torch.stack(outputs[::2], 1).square().mean(1))


def attended(model: Calls, ids: Tensor) -> Tensor:
    outputs, _ = model.rnn(model.table(ids))
    weights = model.scores(outputs).softmax(1)
    return model.head((weights * outputs).sum(1))


def in_place(model: Calls, ids: Tensor) -> Tensor:
    outputs, hidden = model.rnn(model.table(ids))
    return model.head(outputs.mul_(2).mean(1) + hidden.mul_(3)[-1])


def learned_state(model: Calls, ids: Tensor) -> Tensor:
    return model.head(model.rnn(model.table(ids), model.start.expand(1, len(ids), WIDTH).contiguous())[0].mean(1))


def packed(model: Calls, ids: Tensor) -> Tensor:
    lengths = 1 + ids[:, 0] % LENGTH
    sequences = pack_padded_sequence(model.table(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
    outputs, states = model.rnn(sequences)
    padded, _ = pad_packed_sequence(outputs, batch_first=True)
    last = torch.cat([*states[1][-2:]], -1) if isinstance(states, tuple) else states[-1]
    return model.head(padded.sum(1) + last)


def of_parts(model: Calls, ids: Tensor) -> Tensor:
    """Sequences of sequences: the first recurrence has more sequences than there are records."""
    parts = model.table(ids).unflatten(1, (2, -1)).flatten(0, 1)
    return model.head(model.other(model.rnn(parts)[1][-1].view(len(ids), 2, -1))[0][:, -1])


def texts(forward: Callable[..., Tensor], **layers: nn.Module | nn.Parameter) -> nn.Module:
    rnn = {"rnn": nn.GRU(WIDTH, WIDTH, batch_first=True)}
    return Calls(forward, table=nn.Embedding(10, WIDTH), head=nn.Linear(WIDTH, 5), **{**rnn, **layers})


MODELS: dict[str, Callable[[], nn.Module]] = {
    "RNNCell": lambda: Cells(nn.RNNCell(WIDTH, SIZE, nonlinearity="relu")),
    "GRUCell": lambda: Cells(nn.GRUCell(WIDTH, SIZE)),
    "LSTMCell": lambda: Cells(nn.LSTMCell(WIDTH, SIZE, bias=False)),
    "attention": lambda: texts(attended, scores=nn.Linear(WIDTH, 1)),
    "in place": lambda: texts(in_place),
    "a state that is learned": lambda: texts(learned_state, start=nn.Parameter(torch.randn(1, 1, WIDTH))),
    "packed": lambda: texts(packed),
    "packed, both ways": lambda: texts(packed, rnn=nn.LSTM(WIDTH, 2, 2, batch_first=True, bidirectional=True)),
    "sequences of sequences": lambda: texts(of_parts, other=nn.RNN(WIDTH, WIDTH, batch_first=True)),
}


def built(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = MODELS[name]()
    inputs, targets = sequences()
    takes_words = any(isinstance(module, nn.Embedding) for module in model.modules())
    return model, torch.randint(0, 10, (N, LENGTH)) if takes_words else inputs, targets


@pytest.mark.parametrize("name", MODELS)
def test_models_of_recurrent_layers(name: str) -> None:
    model, inputs, targets = built(name)
    engine = gradient_engine(model, like=Records(inputs, targets))
    assert isinstance(engine, LayerwiseEngine)
    assert_right(model, inputs, targets)


def test_a_layer_whose_inputs_change_in_place_is_not_taken_layer_by_layer() -> None:
    torch.manual_seed(0)

    def forward(model: Calls, ids: Tensor) -> Tensor:
        words = model.table(ids) * 1.0
        outputs, _ = model.rnn(words.detach())
        words.detach().mul_(2)
        return model.head(outputs[:, -1])

    model, ids = texts(forward), torch.randint(0, 10, (N, LENGTH))
    with pytest.raises(InvalidValueError, match="changed in place"):
        engine_by("layerwise", model).clipped_sum(ids, torch.zeros(N, dtype=torch.int64), AutoS())


def test_a_kernels_weights_do_not_count_for_each_record() -> None:
    model = Sequences(nn.LSTM(WIDTH, 64, batch_first=True))
    inputs, targets = sequences()
    one_pass = engine_by("layerwise", model)._pass(inputs[:1], targets[:1])
    of_weights = {weight.data_ptr() for weight in model.parameters()}
    kept = sum(size for place, size in one_pass.waiting.items() if place not in of_weights)
    assert kept < 256 * 256 * 4  # the identity


def test_records_along_the_second_dimension_of_time_first_inputs_are_refused() -> None:
    """`x[:, 0]` of a layer that takes time first mixes the records of a batch."""
    model = nn.Sequential(Sequences(nn.GRU(WIDTH, SIZE, batch_first=True)))
    model[0].rnn.batch_first = False
    model[0].forward = lambda x: model[0].head(model[0].rnn(x)[0][:, 0])  # type: ignore[method-assign]
    assert differs_in_batches(model, sequences()[0]) == "Build '0.rnn' (GRU) with batch_first=True."


def test_a_model_that_pads_to_the_longest_record_of_a_batch_is_another_for_a_short_one() -> None:
    def highest(model: Calls, x: Tensor) -> Tensor:
        lengths = torch.where(x[:, 0, 0] > 0, LENGTH, 1)
        outputs, _ = model.rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=model.total_length)
        return model.head(padded.amax(1))

    model = Calls(highest, rnn=nn.GRU(WIDTH, SIZE, batch_first=True), head=nn.Linear(SIZE, 5))
    inputs = sequences()[0]
    assert 0 < (inputs[:, 0, 0] > 0).sum() < N
    for model.total_length, way in ((LENGTH, ""), (None, "Pad to a length that depends on no record")):
        assert differs_in_batches(model, inputs).startswith(way)
        assert bool(differs_in_batches(model, inputs)) is bool(way)


@pytest.mark.parametrize("kind", ["GRU", "LSTM with projections"])
def test_dropout_between_layers(kind: str) -> None:
    torch.manual_seed(0)
    inputs, targets = sequences()
    model = Sequences(KINDS[kind](WIDTH, 8, 2, batch_first=True, dropout=1.0))
    assert_right(model, inputs, targets)  # a mask of zeros is the same for all
    model.rnn.dropout = 0.5
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == "rnn.weight_ih_l1")  # which meets what is masked
    same, target = inputs[:1].expand(8, -1, -1), targets[:1].expand(8)
    total = flat(engine_by("loop", model).clipped_sum(same, target, Abadi(1e-6))).norm()
    assert 1e-6 < total < 8e-6 * 0.99  # each record has a mask of its own
    model.requires_grad_(True).eval()
    assert_right(model, inputs, targets, "loop")
