"""One more record moves a clipped sum by its own clipped gradient, by whichever engine is chosen for the model."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.training.clipping import Abadi
from dphpo_bench.training.gradients import LoopEngine
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.losses import Objective, correct_predictions, cross_entropy
from dphpo_bench.training.own_model import OwnModel
from tests.training.models import Calls, flat
from tests.training.test_layerwise import MODELS

BOUND = 0.05
SIZES = (1, 2, 3, 7, 33)
WORDS, LENGTH, PADDING = 10, 7, 2  # made-up words are 0 and 1


def texts(forward: Callable[..., Tensor], **layers: nn.Module) -> nn.Module:
    return Calls(forward, table=nn.Embedding(WORDS, 12), head=nn.Linear(12, 5), **layers)


def last_of_packed(m: Any, x: Tensor) -> Any:
    lengths = (x != PADDING).sum(1).cpu()
    packed = pack_padded_sequence(m.table(x), lengths, batch_first=True, enforce_sorted=False)
    outputs, _ = pad_packed_sequence(m.rnn(packed)[0], batch_first=True)
    return m.head(outputs.sum(1))


def by_length(m: Any, x: Tensor) -> Any:
    """Records in the order of their lengths, and back."""
    order = (x != PADDING).sum(1).argsort(stable=True)
    outputs = m.inner(m.table(x[order]))
    hidden = (outputs[0] if isinstance(outputs, tuple) else outputs).tanh().mean(1)
    return m.head(hidden[order.argsort()])


def by_length_in_python(m: Any, x: Tensor) -> Any:
    lengths = (x != PADDING).sum(1)
    order = torch.tensor(sorted(range(len(x)), key=lambda row: lengths[row]))
    return m.head(m.inner(m.table(x[order])).tanh().mean(1)[order.argsort()])


def without_padding(m: Any, x: Tensor) -> Any:
    """All words of a batch in a row."""
    is_word = x != PADDING
    hidden = m.inner(m.table(x[is_word])).tanh()
    owner = torch.arange(len(x))[:, None].expand_as(x)[is_word]
    return m.head(hidden.new_zeros(len(x), 12).index_add(0, owner, hidden))


def without_padding_in_python(m: Any, x: Tensor) -> Any:
    counts = (x != PADDING).sum(1).tolist()
    hidden = m.inner(m.table(torch.cat([row[:n] for row, n in zip(x, counts, strict=True)]))).tanh()
    return m.head(torch.stack([part.sum(0) for part in hidden.split(counts)]))


def experts(m: Any, x: Tensor) -> Any:
    """The records of each expert together, none of them dropped."""
    hidden = m.table(x).mean(1)
    chosen = m.router(hidden).argmax(1)
    order = chosen.argsort(stable=True)
    sizes = torch.bincount(chosen, minlength=2).tolist()
    parts = [expert(part) for expert, part in zip((m.a, m.b), hidden[order].split(sizes), strict=True)]
    return m.head(torch.cat(parts)[order.argsort()].tanh())


def flattened(m: Any, x: Tensor) -> Any:
    hidden = m.inner(m.table(x).flatten(0, 1)).tanh()
    return m.head(hidden.view(len(x), -1, 12).mean(1))


def positions(m: Any, x: Tensor) -> Any:
    return m.head(m.encoder(m.table(x) + m.places(torch.arange(x.shape[1]))).mean(1))


def twice() -> nn.Module:
    shared = nn.Linear(12, 12)
    return texts(lambda m, x: m.head(m.inner(m.table(x)).mean(1)), inner=nn.Sequential(shared, nn.Tanh(), shared))


def weight_norm() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        inner = nn.utils.weight_norm(nn.Linear(12, 12))
    return texts(lambda m, x: m.head(m.inner(m.table(x)).tanh().mean(1)), inner=inner)


def pruned() -> nn.Module:
    inner = nn.Linear(12, 12)
    prune.random_unstructured(inner, "weight", 0.5)  # type: ignore[no-untyped-call]
    return texts(lambda m, x: m.head(m.inner(m.table(x)).tanh().mean(1)), inner=inner)


def drops(m: Any, x: Tensor) -> Any:
    dropped = nn.functional.dropout(m.inner(m.table(x)).tanh(), 0.3, m.training)
    return m.head(m.rnn(dropped)[0].mean(1))


def scaled_weight(m: Any, x: Tensor) -> Any:
    """Call a layer with a weight that is computed."""
    weight = m.inner.weight * m.head.weight[0]
    return m.head(torch.func.functional_call(m.inner, {"weight": weight}, m.table(x)).tanh().mean(1))


MORE: dict[str, Callable[[], nn.Module]] = {
    "GRU": lambda: texts(lambda m, x: m.head(m.rnn(m.table(x))[0].mean(1)), rnn=nn.GRU(12, 12, batch_first=True)),
    "LSTM": lambda: texts(lambda m, x: m.head(m.rnn(m.table(x))[0][:, -1]), rnn=nn.LSTM(12, 12, batch_first=True)),
    "packed": lambda: texts(last_of_packed, rnn=nn.LSTM(12, 6, 2, batch_first=True, bidirectional=True)),
    "by length": lambda: texts(by_length, inner=nn.Linear(12, 12)),
    "by length, GRU": lambda: texts(by_length, inner=nn.GRU(12, 12, batch_first=True)),
    "by length, Python": lambda: texts(by_length_in_python, inner=nn.Linear(12, 12)),
    "without padding": lambda: texts(without_padding, inner=nn.Linear(12, 12)),
    "without padding, Python": lambda: texts(without_padding_in_python, inner=nn.Linear(12, 12)),
    "experts": lambda: texts(experts, router=nn.Linear(12, 2), a=nn.Linear(12, 12), b=nn.Linear(12, 12)),
    "flattened": lambda: texts(flattened, inner=nn.Linear(12, 12)),
    "positions": lambda: texts(
        positions, places=nn.Embedding(LENGTH, 12), encoder=nn.TransformerEncoderLayer(12, 2, 16, 0.0, batch_first=True)
    ),
    "dropout": lambda: texts(drops, inner=nn.Linear(12, 12), rnn=nn.GRU(12, 12, batch_first=True)),
    "a module used twice": twice,
    "a computed weight": lambda: texts(scaled_weight, inner=nn.Linear(12, 12)),
    "weight_norm": weight_norm,
    "pruned": pruned,
}


def records(model: nn.Module) -> Records:
    """Texts of one to seven words, or pictures of several sizes."""
    generator = torch.Generator().manual_seed(5)
    n = max(SIZES) + 1
    targets = torch.randint(0, 5, (n,), generator=generator)
    if not any(isinstance(module, nn.Embedding) for module in model.modules()):
        scale = 10 ** torch.linspace(-1, 1, n)[torch.randperm(n, generator=generator)]
        return Records(scale.view(-1, 1, 1, 1) * torch.randn(n, 4, 9, 8, generator=generator), targets)
    ids = torch.randint(PADDING + 1, WORDS, (n, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (n, 1), generator=generator)
    return Records(torch.where(torch.arange(LENGTH) < lengths, ids, PADDING), targets)


@pytest.mark.parametrize("name", [name for name in (*MODELS, *MORE) if name != "dropout"])
def test_one_more_record_adds_its_own_clipped_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = {**MODELS, **MORE}[name]()
    data = records(model)
    ours = OwnModel(lambda: model, data, Objective(cross_entropy, correct_predictions))
    engine = ours.engine(model)

    def clipped(engine: Any, rows: Tensor) -> Tensor:
        return flat(engine.clipped_sum(data.inputs, data.targets, Abadi(BOUND), rows))

    loop, everyone = LoopEngine(ours.model, cross_entropy), torch.arange(len(data))
    clipped(engine, everyone[:1])  # measures a record first
    alone = torch.stack([clipped(loop, everyone[row : row + 1]) for row in everyone])
    assert alone.norm(dim=1).max() <= BOUND * (1 + 1e-6)
    assert (alone.norm(dim=1) > BOUND * (1 - 1e-6)).any()
    for n in SIZES:
        before, after = clipped(engine, everyone[:n]), clipped(engine, everyone[: n + 1])
        assert (after - before - alone[n]).norm() <= 1e-4 * BOUND
        assert (after - alone[: n + 1].sum(0)).norm() <= 1e-4 * BOUND * n


@pytest.mark.parametrize("name", ["by length", "flattened", "dropout", "GRU", "positions", "weight_norm"])
def test_what_vmap_takes_goes_layer_by_layer(name: str) -> None:
    torch.manual_seed(0)
    model = MORE[name]()
    ours = OwnModel(lambda: model, records(model), Objective(cross_entropy, correct_predictions))
    assert isinstance(ours.engine(model), LayerwiseEngine)


def test_an_engine_is_chosen_without_torchs_compiler() -> None:
    """To import it takes seconds, as long as a small run does."""
    code = """
import sys, torch
from torch import nn
from dphpo_bench.base.tensors import Records
from dphpo_bench.training.losses import Objective, correct_predictions, cross_entropy
from dphpo_bench.training.own_model import OwnModel
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
like = Records(torch.zeros(7, 6), torch.zeros(7, dtype=torch.int64))
OwnModel(lambda: model, like, Objective(cross_entropy, correct_predictions)).engine(model)
sys.exit("torch._dynamo.convert_frame" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_spectral_norm_is_refused() -> None:
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 6)), nn.Linear(6, 5))
    like = Records(torch.zeros(7, 6), torch.zeros(7, dtype=torch.int64))
    with pytest.raises(InvalidValueError, match="changes when it is used"):
        OwnModel(lambda: model, like, Objective(cross_entropy, correct_predictions)).check(scores=False)
