"""Sums of clipped gradients by unit, with every engine: against brute force, and against the stated sensitivity."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from dphpo_bench.base.tensors import Tensors, call, each, take
from dphpo_bench.training.clipping import Abadi, AutoS, AutoV, Clipping
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.gradients import LoopEngine
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.linear import LinearEngine
from dphpo_bench.training.losses import PerRecord, cross_entropy
from dphpo_bench.training.units import Units
from tests.training.models import flat, flat_linear, linear, mlp, relative_error, vectors
from tests.training.test_lengths import SEEN, SaysLengths, classes

CLIPPINGS = (Abadi(0.1), AutoV())
ENGINES = [
    (linear, LinearEngine),
    (flat_linear, LinearEngine),
    (linear, LoopEngine),
    (linear, LayerwiseEngine),
    (mlp, LoopEngine),
    (mlp, LayerwiseEngine),
]
IDS = torch.tensor([3, 1, 1, 0, 3, 3, 2, *[5] * 8, 7, 7, 7, 9])


def engine_of(kind: type[GradientEngine], model: nn.Module, unit_rows: int | None = None) -> GradientEngine:
    """An engine of this kind; its micro-batches of units of this many records, if a number is given."""
    if unit_rows is not None:
        kind = type("Cut", (kind,), {"_unit_rows": unit_rows})
    return kind(model) if issubclass(kind, LinearEngine) else kind(model, cross_entropy)


def by_units(
    model: nn.Module, loss: PerRecord, inputs: Tensors, targets: Tensors, ids: Tensor, clipping: Clipping
) -> list[Tensor]:
    """The sum over units of the clipped mean of their records' gradients, by one backward pass for each record."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter, requires_grad=False) for parameter in parameters]
    for unit in torch.unique(ids):
        rows = (ids == unit).nonzero()[:, 0]
        mean = [torch.zeros_like(parameter, requires_grad=False) for parameter in parameters]
        for row in rows:
            x, y = (each(lambda tensor: take(tensor, row[None]), part) for part in (inputs, targets))  # noqa: B023
            own = torch.autograd.grad(loss(call(model, x), y).sum(), parameters)
            mean = [one + part / len(rows) for one, part in zip(mean, own, strict=True)]
        factor = clipping.factors(flat(mean).norm()[None])[0]
        total = [one + factor * part for one, part in zip(total, mean, strict=True)]
    return total


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=80), seed=st.integers(0, 2**20))
def test_units_of_similar_sizes_are_each_there_once(sizes: list[int], seed: int) -> None:
    ids = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]
    found, filled = [], 0
    for rows, counts in Units.of(ids).by_similar_size():
        assert counts.tolist() == sorted(counts.tolist())
        assert rows.shape == (len(counts), counts.max())
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            assert len({int(ids[one]) for one in row}) == 1  # what fills a row up is of the same unit
            assert len(set(row)) == count
            found += row[:count]
        filled += rows.numel()
    assert sorted(found) == list(range(len(ids)))
    assert filled <= 1.25 * len(ids)


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
@pytest.mark.parametrize(("build", "kind"), ENGINES)
@pytest.mark.parametrize("unit_rows", [None, 5])  # less than the largest unit, which comes in several pieces
def test_sum_is_that_of_one_backward_pass_for_each_record(build, kind, clipping, unit_rows) -> None:
    inputs, targets = vectors(len(IDS))
    expected = by_units(build().double(), cross_entropy, inputs.double(), targets, IDS, clipping)
    units = Units.of(IDS)
    actual = engine_of(kind, build(), unit_rows).clipped_unit_sum(inputs, targets, clipping, units)
    assert relative_error(actual, expected) < 1e-6
    assert all(part.dtype == torch.float64 for part in actual)
    exact = engine_of(kind, build().double(), unit_rows).clipped_unit_sum(inputs.double(), targets, clipping, units)
    assert relative_error(exact, expected) < 1e-12


class Named(nn.Module):
    """Takes words and a mask by name, shares its table, and trains a part of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.norm, self.head = nn.Embedding(7, 5), nn.LayerNorm(5), nn.Linear(5, 7, bias=False)
        self.head.weight = self.table.weight
        self.norm.bias.requires_grad_(False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        words = self.norm(self.table(ids)) * mask[..., None]
        outputs: Tensor = self.head(words.sum(1))
        return outputs


@pytest.mark.parametrize("kind", [LoopEngine, LayerwiseEngine])
def test_named_inputs_and_shared_weights(kind) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = {
        "ids": torch.randint(7, (len(IDS), 6), generator=generator),
        "mask": torch.rand(len(IDS), 6, generator=generator) < 0.7,
    }
    targets = torch.randint(7, (len(IDS),), generator=generator)
    expected = by_units(Named().double(), cross_entropy, inputs, targets, IDS, Abadi(0.5))
    actual = engine_of(kind, Named()).clipped_unit_sum(inputs, targets, Abadi(0.5), Units.of(IDS))
    assert relative_error(actual, expected) < 2e-6


@pytest.mark.parametrize("kind", [LoopEngine, LayerwiseEngine])
@pytest.mark.parametrize("unit_rows", [None, 2])
def test_texts_are_cut_to_the_longest_of_their_unit(kind, unit_rows) -> None:
    inputs, targets = (part[: len(IDS)] for part in classes())
    expected = by_units(SaysLengths().double(), cross_entropy, inputs, targets, IDS, AutoS())
    SEEN.clear()
    actual = engine_of(kind, SaysLengths(), unit_rows).clipped_unit_sum(inputs, targets, AutoS(), Units.of(IDS))
    assert relative_error(actual, expected) < 2e-6
    assert len({shape[1] for shape in SEEN}) > 1


@pytest.mark.parametrize(("build", "kind"), ENGINES)
def test_units_of_one_record_are_records(build, kind) -> None:
    inputs, targets = vectors(12)
    units = Units.of(torch.arange(12))
    found = engine_of(kind, build()).clipped_unit_sum(inputs, targets, AutoS(), units)
    expected = engine_of(kind, build()).clipped_sum(inputs, targets, AutoS(), indices=torch.arange(12))
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize(("build", "kind"), ENGINES)
def test_a_unit_with_a_record_that_is_not_finite_adds_exactly_nothing(build, kind, bad) -> None:
    inputs, targets = vectors(len(IDS))
    inputs[8, 3] = bad  # of unit 5
    engine, units = engine_of(kind, build()), Units.of(IDS)
    found = engine.clipped_unit_sum(inputs, targets, AutoS(), units)
    others = units.some(torch.tensor([0, 1, 2, 3, 5, 6]))
    if bad == 1e30:  # has a gradient, which is clipped
        assert float((flat(found) - flat(engine.clipped_unit_sum(inputs, targets, AutoS(), others))).norm()) <= 1
    else:
        assert all(map(torch.equal, found, engine.clipped_unit_sum(inputs, targets, AutoS(), others)))


@pytest.mark.parametrize(("build", "kind"), ENGINES)
@pytest.mark.parametrize("clipping", [Abadi(0.1), AutoV()], ids=str)
@settings(max_examples=8)
@given(size=st.integers(1, 40), seed=st.integers(0, 2**20), scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e4]))
def test_a_unit_of_any_number_of_records_moves_the_sum_by_the_sensitivity_at_most(
    build, kind, clipping, size, seed, scale
) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = vectors(len(IDS) + size)
    inputs[len(IDS) :] = scale * torch.randn(size, 20, generator=generator)
    ids = torch.cat([IDS, torch.full((size,), 4)])
    units = Units.of(ids)
    engine = engine_of(kind, build(), 16)
    with_it = engine.clipped_unit_sum(inputs, targets, clipping, units)
    without = engine.clipped_unit_sum(inputs, targets, clipping, Units.of(IDS))
    assert float((flat(with_it) - flat(without)).norm()) <= clipping.sensitivity * (1 + 1e-6)
