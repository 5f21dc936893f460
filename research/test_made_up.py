"""Made-up tasks: the same from the same number, all kinds and sizes among any few dozen, published cases by name."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

import dphpo_bench as bench
from research.made_up import CASES, DEVELOPMENT, MOST_WORK, STRATA, Draw, set_hash, task

DRAWS = [Draw.of(str(number)) for number in DEVELOPMENT]
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
    records = Draw.of(name).records("train")
    assert isinstance(records.inputs, torch.Tensor)
    seen = (*records.inputs[0].flatten()[:2].tolist(), float(records.targets.double().mean()))
    assert seen == pytest.approx(first, rel=1e-4)


def test_every_kind_at_every_size() -> None:
    """Of the numbers 0 to 95: twelve rounds of eight kinds, two at each of six levels of N."""
    few = DRAWS[:96]
    assert Counter(draw.shape for draw in few) >= Counter({shape: 6 for shape, _ in STRATA})
    for low, high in ((100, 282), (282, 794), (794, 2_237), (2_237, 6_300), (6_300, 17_750), (17_750, 50_001)):
        level = [draw for draw in few if low <= draw.n_records < high]
        assert len(level) == 16
        assert {draw.stratum.split("-")[1][:3] for draw in level} == {"lin", "mlp", "cnn"}
        assert len({draw.stratum for draw in level if "mlp" in draw.stratum}) >= 5
        assert any(draw.n_outputs >= min(10, draw.n_records // 20) > 2 for draw in level)
    assert {draw.tails for draw in few} == {"normal", "records", "inputs"}
    assert {len(draw.hidden) for draw in few if draw.hidden} == {1, 2, 3}


def test_ranges_are_those_of_the_docs() -> None:
    for draw in DRAWS:
        assert 100 <= draw.n_records <= 50_000
        assert 2 <= draw.n_inputs <= 500
        assert 1 <= draw.n_outputs <= 50
        assert 30 <= draw.steps <= 500
        assert 50 <= draw.batch_size <= min(draw.n_records, 4_096)
        assert draw.positives is None or 0.01 <= draw.positives <= 0.2
        assert draw.steps * draw.batch_size * draw.n_inputs * draw.n_outputs <= MOST_WORK
    for property_ in ("decay", "offset", "label_noise"):
        assert {bool(getattr(draw, property_)) for draw in DRAWS if draw.shape == "teacher"} == {True, False}
    assert max(draw.n_outputs for draw in DRAWS) > 40


@pytest.mark.parametrize(
    ("name", "facts", "spread"),
    [("gaussian_200", (8_000, 200, 10, 2_000, 20.0), 0.2), ("gaussian_50", (2_000, 50, 5, 500, 20.0), 0.35)],
)
def test_the_published_cases(name: str, facts: tuple[float, ...], spread: float) -> None:
    """Centres `spread` times normal, inputs (centre + normal) / 4."""
    made_up = task(name)
    n, d, classes = made_up.facts.n_records, made_up.draw.n_inputs, made_up.facts.n_classes
    assert (n, d, classes, made_up.facts.batch_size, made_up.facts.epochs) == facts
    assert classes is not None
    records = made_up.load_train(bench.DataSource.resolve())
    assert isinstance(records.inputs, torch.Tensor)
    means = torch.stack([records.inputs[records.targets == label].mean(0) for label in range(classes)])
    within = records.inputs - means[records.targets]
    assert float(within.std()) == pytest.approx(1 / 4, rel=0.02)  # fixed records: no chance
    between = math.sqrt((spread / 4) ** 2 + classes / n / 16)
    assert float(means.std()) == pytest.approx(between, rel=0.15)


def test_parts_and_numbers_differ_and_repeat() -> None:
    draw = Draw.of("8")
    train, again, test = (draw.records(part).inputs for part in ("train", "train", "test"))  # type: ignore[arg-type]
    assert isinstance(train, torch.Tensor)
    assert isinstance(test, torch.Tensor)
    assert torch.equal(train, again)
    assert len(test) == draw.n_test
    assert not torch.equal(train[:50], test[:50])
    assert len({other.fingerprint for other in DRAWS}) == len(DRAWS)
    assert replace(draw, seed=1).fingerprint != draw.fingerprint


@pytest.mark.parametrize(
    ("name", "property_", "low", "high"),
    [("3", "records", 0, 0.3), ("19", "records", 0.01, 0.1), ("10", "deviation", 0.2, 2)],
)
def test_labels_are_as_declared(name: str, property_: str, low: float, high: float) -> None:
    """Fixed records, so nothing is left to chance: a rare class is rare, a target is of the order of its bound."""
    targets = Draw.of(name).records("test").targets
    assert isinstance(targets, torch.Tensor)
    assert low < float(targets.mean() if property_ == "records" else targets.std()) < high
