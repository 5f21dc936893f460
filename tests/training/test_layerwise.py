"""Gradients layer by layer: every rule, every way to use a layer, and models for which they would be wrong."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dphpo_bench.base.tensors import Records
from dphpo_bench.training import layers
from dphpo_bench.training.clipping import Abadi, AutoS, AutoV
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.layerwise import LayerwiseEngine
from tests.training.models import Calls, brute_force, engine_by, relative_error

IMAGES = (5, 4, 9, 8)
WORDS = (6, 7)


def pooled(*layers: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))


def words(*layers: nn.Module, **settings: object) -> nn.Module:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)

    return nn.Sequential(nn.Embedding(10, 12, **settings), *layers, Mean(), nn.Linear(12, 5))  # type: ignore[arg-type]


def tied(model: Calls, x: Tensor) -> Tensor:
    return model.out(model.inner(model.table(x)).tanh()).mean(1)


def tied_network() -> nn.Module:
    model = Calls(tied, table=nn.Embedding(10, 12), inner=nn.Linear(12, 12), out=nn.Linear(12, 10, bias=False))
    model.out.weight = model.table.weight
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: pooled(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU(inplace=True), width=6),
    "groups": lambda: pooled(nn.Conv2d(4, 8, 3, groups=2, dilation=2, bias=False), nn.Tanh(), width=8),
    "unequal sides": lambda: pooled(
        nn.Conv2d(4, 6, (2, 3), stride=(1, 2), padding=(2, 0), dilation=(2, 1), groups=2), nn.Tanh(), width=6
    ),
    "depthwise": lambda: pooled(nn.Conv2d(4, 4, 2, groups=4), nn.Tanh(), nn.Conv2d(4, 3, 1), width=3),
    "padding by its name": lambda: pooled(nn.Conv2d(4, 6, 3, padding="same"), nn.Tanh(), nn.Conv2d(6, 30, 3), width=30),
    "group norm": lambda: pooled(nn.Conv2d(4, 6, 3), nn.GroupNorm(3, 6), nn.Tanh(), width=6),
    "instance norm": lambda: pooled(nn.Conv2d(4, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.Tanh(), width=6),
    "words": lambda: words(nn.LayerNorm(12), nn.Linear(12, 12), nn.Tanh()),
    "padding of words": lambda: words(nn.Linear(12, 12), nn.Tanh(), padding_idx=3),
    "attention": lambda: words(nn.TransformerEncoderLayer(12, 2, 40, dropout=0.0, batch_first=True)),
    "tied weights": tied_network,
    "a layer used twice": lambda: Calls(
        lambda m, x: m.head(m.inner(m.inner(m.table(x)).tanh()).mean(1)),
        table=nn.Embedding(10, 12), inner=nn.Linear(12, 12), head=nn.Linear(12, 5),
    ),
    "a parameter of its own": lambda: Calls(
        lambda m, x: m.head(m.inner(m.table(x)).tanh().mean(1)),
        table=nn.Embedding(10, 12), head=nn.Linear(12, 5),
        inner=Calls(lambda m, x: m.layer(x + m.shift), shift=nn.Parameter(torch.ones(7, 12)), layer=nn.Linear(12, 12)),
    ),
    "in place after a second layer": lambda: words(nn.Linear(12, 12), nn.Linear(12, 12), nn.ReLU(inplace=True)),
    "a layer that is not used": lambda: Calls(
        lambda m, x: m.head(m.table(x).mean(1)),
        table=nn.Embedding(10, 12), head=nn.Linear(12, 5), other=nn.Linear(3, 3),
    ),
}  # fmt: skip


def built(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model with records that suit it."""
    torch.manual_seed(0)
    model = MODELS[name]()
    takes_words = any(isinstance(module, nn.Embedding) for module in model.modules())
    inputs = torch.randint(0, 10, WORDS) if takes_words else torch.randn(IMAGES)
    return model, inputs, torch.randint(0, 5, (len(inputs),))


def by_loop(model: nn.Module, inputs: Tensor, targets: Tensor, clipping: Abadi | AutoS | AutoV) -> list[Tensor]:
    model = copy.deepcopy(model).double()
    unused = next((m for name, m in model.named_modules() if name == "other"), None)
    for parameter in unused.parameters() if unused else ():
        parameter.requires_grad_(False)
    total = brute_force(model, inputs.double() if inputs.is_floating_point() else inputs, targets, clipping)
    return [*total, *(torch.zeros_like(parameter) for parameter in (unused.parameters() if unused else ()))]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "attention"])
@pytest.mark.parametrize(("rows", "joined"), [(None, None), (2, None), (None, 2**20), (2, 200)])
def test_every_layer_agrees_with_a_loop(name: str, rows: int | None, joined: int | None, joined_as_on_a_gpu) -> None:
    model, inputs, targets = built(name)
    if joined is not None:
        joined_as_on_a_gpu(joined)
    for clipping in (Abadi(1e-2), AutoV()):
        expected = by_loop(model, inputs, targets, clipping)
        engine = engine_by("layerwise", model, rows)
        for _ in range(2):  # the second time in the memory of the first
            assert relative_error(engine.clipped_sum(inputs, targets, clipping), expected) < 1e-5
    twin = copy.deepcopy(model).double()
    exact = inputs.double() if inputs.is_floating_point() else inputs
    assert relative_error(engine_by("layerwise", twin, rows).clipped_sum(exact, targets, AutoS()), by_loop(
        model, inputs, targets, AutoS()
    )) < 1e-12  # fmt: skip


@pytest.mark.parametrize("name", ["groups", "unequal sides"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolution_is_the_same_in_pieces_and_in_any_layout(
    name: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs, targets = built(name)
    expected = by_loop(model, inputs, targets, AutoS())
    monkeypatch.setattr(LayerwiseEngine, "_fast_layout", lambda _, images: images.to(memory_format=layout))
    for cached in (1, 2000):
        monkeypatch.setattr(layers, "_CACHED", cached)
        assert (
            relative_error(engine_by("layerwise", model, None).clipped_sum(inputs, targets, AutoS()), expected) < 1e-5
        )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [True, False])
def test_auto_takes_every_network_layer_by_layer(name: str, training: bool) -> None:
    model, inputs, targets = built(name)
    model.train(training)
    engine = gradient_engine(model, like=Records(inputs, targets))
    assert isinstance(engine, LayerwiseEngine)
    assert relative_error(engine.clipped_sum(inputs, targets, AutoS()), by_loop(model, inputs, targets, AutoS())) < 1e-5


def beside(model: Calls, x: Tensor) -> Tensor:
    return nn.functional.linear(model.head(model.inner(x)).tanh(), model.head.weight)


def of_all_records(model: Calls, x: Tensor) -> Tensor:
    """A layer computes a weight for all records at once, and a norm that no gradient follows."""
    weight = model.head(torch.eye(6, dtype=x.dtype)) + model.inner.weight
    return model.inner(x) @ (weight / model.head(torch.eye(6, dtype=x.dtype)).detach().norm())


@pytest.mark.parametrize("forward", [beside, of_all_records])
def test_weights_that_are_used_beside_their_layer(forward: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    model = Calls(forward, inner=nn.Linear(6, 6), head=nn.Linear(6, 6, bias=False))
    inputs, targets = torch.randn(8, 6), torch.randint(0, 6, (8,))
    engine = gradient_engine(model, like=Records(inputs, targets))
    assert isinstance(engine, LayerwiseEngine)
    assert relative_error(engine.clipped_sum(inputs, targets, AutoS()), by_loop(model, inputs, targets, AutoS())) < 1e-5
