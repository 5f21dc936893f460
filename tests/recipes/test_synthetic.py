"""Made-up tasks: the same from the same number, all kinds and sizes among any few dozen, published cases by name."""

from dataclasses import replace

import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.recipes.synthetic import CASES, DEVELOPMENT, SyntheticDraw, set_hash

DRAWS = [SyntheticDraw.of(str(number)) for number in DEVELOPMENT]
PINNED = "9126ae9a45b9cf3d58cebcd09c69b9393abe0e73151503c82ff0c1dcbe320c50"
"""Of the development set: curves and constants rest on it. Another hash is another `VERSION`, and new curves."""


def test_the_development_set_stays() -> None:
    assert set_hash([*CASES.values(), *DRAWS]) == PINNED


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("3", (0.702119, 0.240008, 0.113208)),
        ("4", (-0.201413, 0.345083, 0.528662)),
        ("7", (0.263712, 0.0571821, 4.11297)),
        ("18", (0.0906053, 0.66964, 0.00749529)),
        ("32", (-0.0536904, -0.167503, 1.00601)),
    ],
)
def test_records_stay(name: str, first: tuple[float, ...]) -> None:
    """Up to rounding: the generator's integers and normal numbers are exact, sums of them are not."""
    records = SyntheticDraw.of(name).records("train")
    assert isinstance(records.inputs, torch.Tensor)
    seen = (*records.inputs[0].flatten()[:2].tolist(), float(records.targets.double().mean()))
    assert seen == pytest.approx(first, rel=1e-4)


def test_parts_and_numbers_differ_and_repeat() -> None:
    draw = SyntheticDraw.of("8")
    train, again, test = (draw.records(part).inputs for part in ("train", "train", "test"))  # type: ignore[arg-type]
    assert isinstance(train, torch.Tensor)
    assert isinstance(test, torch.Tensor)
    assert torch.equal(train, again)
    assert len(test) == draw.n_test
    assert not torch.equal(train[:50], test[:50])
    assert len({other.fingerprint for other in DRAWS}) == len(DRAWS)
    assert replace(draw, seed=1).fingerprint != draw.fingerprint


@pytest.mark.parametrize("name", ["", "-1", "007", "1e3", "gaussian", "9999999999", "٣"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match=r"^Expected a number from 0 to 999999999 or one of"):
        bench.make_task("synthetic", name)
