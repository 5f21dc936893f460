"""Augmentation with multiplicity: sums against a loop with every engine, and what a transform may not do."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.recipes import RandomFlip, RandomShift
from dphpo_bench.training.augmentation import Augmentation, augmented_sum
from dphpo_bench.training.clipping import Abadi, AutoV, Clipping
from dphpo_bench.training.gradients import LoopEngine
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.losses import cross_entropy
from dphpo_bench.training.units import Units
from tests.training.models import flat, linear, relative_error, vectors
from tests.training.test_units import ENGINES, IDS, by_units, engine_of


class Scaled:
    """Multiplies each row by a random number, and remembers what came of it: of all rows, as the package's own."""

    __module__ = "dphpo_bench.tests"

    def __init__(self) -> None:
        self.variants: list[Tensor] = []

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        self.variants.append(inputs * torch.rand(len(inputs), 1, generator=generator).to(inputs))
        return self.variants[-1].clone()


def sum_of(
    engine: Any, transform: Any, copies: int, clipping: Clipping, units: Units, n: int = len(IDS)
) -> list[Tensor]:
    inputs, targets = vectors(n)
    records = Records(inputs, targets)
    return augmented_sum(
        engine, records, clipping, units, Augmentation(transform, copies), torch.Generator().manual_seed(3)
    )


def single(rows: Tensor) -> Units:
    return Units(rows, torch.ones_like(rows))


@pytest.mark.parametrize("clipping", [Abadi(0.1), AutoV()], ids=str)
@pytest.mark.parametrize(("build", "kind"), ENGINES)
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("several", [False, True])
def test_sum_is_that_of_one_backward_pass_for_each_variant(build, kind, clipping, copies, several) -> None:
    units = Units.of(IDS).some(torch.tensor([5, 0, 1])) if several else single(torch.tensor([4, 9, 0, 1, 17]))
    scaled = Scaled()
    actual = sum_of(engine_of(kind, build()), scaled, copies, clipping, units)
    (variants,) = scaled.variants
    rows = units.rows.repeat_interleave(copies)
    assert len(variants) == len(rows)
    whose = torch.arange(len(units)).repeat_interleave(units.sizes * copies)
    targets = vectors(len(IDS))[1][rows]
    expected = by_units(build().double(), cross_entropy, variants.double(), targets, whose, clipping)
    assert relative_error(actual, expected) < 1e-5
    assert all(part.dtype == torch.float64 for part in actual)


@pytest.mark.parametrize(("build", "kind"), ENGINES)
def test_a_record_counts_once_however_many_variants_it_has(build, kind) -> None:
    for copies in (1, 64):
        for row in range(12):
            alone = sum_of(engine_of(kind, build()), Scaled(), copies, Abadi(0.05), single(torch.tensor([row])), 12)
            assert float(flat(alone).norm()) <= 0.05 * (1 + 1e-6)


def test_a_variant_that_is_not_finite_takes_its_record_out() -> None:
    def broken(inputs: Tensor, generator: torch.Generator) -> Tensor:
        return torch.where((inputs == vectors(len(IDS))[0][0]).all(1, keepdim=True), torch.nan, inputs)

    rows = torch.arange(5)
    for kind in (LoopEngine, LayerwiseEngine):
        engine = kind(linear(), cross_entropy)
        found = sum_of(engine, broken, 3, Abadi(0.1), single(rows))
        expected = sum_of(engine, lambda inputs, _: inputs, 3, Abadi(0.1), single(rows[1:]))
        assert relative_error(found, expected) < 1e-6


def test_an_empty_batch_adds_nothing() -> None:
    for build, kind in ENGINES:
        empty = sum_of(engine_of(kind, build()), Scaled(), 4, Abadi(0.1), single(torch.arange(0)))
        assert float(flat(empty).norm()) == 0


SEEN: list[Tensor] = []


def keeps(inputs: Tensor, generator: torch.Generator) -> Tensor:
    SEEN.append(inputs.clone())
    return inputs + SEEN[0].mean() * 0 + len(SEEN) // 3


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda x, _: x + random.random(), "draws all its random numbers from the generator"),
        (keeps, "keeps nothing of what it sees|draws all its random numbers"),
        (lambda x, _: x[:, :3], r"shape \(1, 5\) of float32 on cpu, got shape \(1, 3\)"),
        (lambda x, _: x.view(6, 7), "fails on made-up records.*It gets"),
        ((RandomFlip(), lambda x, _: x[:0]), r"got shape \(0, 5\)"),
    ],
)
def test_a_transform_that_is_none_is_refused(transform: Callable[..., Any], message: str) -> None:
    SEEN.clear()
    with pytest.raises(InvalidValueError, match=message) as refusal:
        Augmentation(transform).check(torch.zeros(3, 5))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("copies", [0, -1, 1.5, True, "4", 1025])
def test_a_number_of_copies_that_is_none_is_refused(copies: Any) -> None:
    with pytest.raises(InvalidValueError, match="whole copies from 1 to 1024"):
        Augmentation(RandomFlip(), copies)


@pytest.mark.parametrize(
    ("transform", "inputs"),
    [
        (RandomFlip(), torch.zeros(1, 3, 8, 9)),
        ((RandomShift(2), RandomFlip()), torch.zeros(1, 1, 5, 5)),
        (lambda x, _: nn.functional.dropout(x, 0.3), torch.zeros(2, 5)),  # from torch's own generator
        (lambda x, _: {**x, "a": x["a"].roll(1, 1)}, {"a": torch.zeros(2, 5), "b": torch.zeros(2, dtype=torch.bool)}),
        (lambda x, _: x.mul_(2), torch.zeros(2, 5)),
    ],
)
def test_transforms_that_treat_each_record_alone_pass(transform: Any, inputs: Any) -> None:
    Augmentation(transform).check(inputs)


def test_a_picture_is_mirrored_or_not_half_of_the_time() -> None:
    pictures = torch.arange(2 * 3.0).view(1, 1, 2, 3).repeat(1000, 1, 1, 1)
    found = RandomFlip()(pictures.clone(), torch.Generator().manual_seed(0))
    mirrored = (found == pictures.flip(-1)).flatten(1).all(1)
    assert ((found == pictures).flatten(1).all(1) | mirrored).all()
    assert 400 < int(mirrored.sum()) < 600  # six standard deviations


@pytest.mark.parametrize("margin", ["reflected", "zeros"])
def test_a_shift_is_a_crop_of_the_picture_with_a_margin(margin: Any) -> None:
    pictures = torch.rand(1, 2, 6, 7, generator=torch.Generator().manual_seed(1))
    padded = nn.functional.pad(pictures, (2, 2, 2, 2), mode="reflect" if margin == "reflected" else "constant")
    crops = [padded[0, :, i : i + 6, j : j + 7] for i in range(5) for j in range(5)]
    found = RandomShift(2, margin)(pictures.repeat(500, 1, 1, 1), torch.Generator().manual_seed(0))
    places = [[torch.equal(one, crop) for crop in crops].index(True) for one in found]
    assert set(places) == set(range(25))  # one is missed with probability 25 · .96^500 < 1e-6
