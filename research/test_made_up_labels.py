"""Made-up tasks of the second edition: the same from the same number, each kind at many sizes, labels as declared."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.contract.method import Method
from research.made_up import MOST_WORK, set_hash
from research.made_up_labels import CHANNELS, DEVELOPMENT, KINDS, SHORT, LabelDraw, draw_of, task

DRAWS = [draw_of(number) for number in DEVELOPMENT]
PINNED = "e0672aee6f50e22ba480660a3160feede1ab0c10ceb766ffa27980959e4c7cb6"
"""Of the second edition: curves and constants rest on it."""


def test_the_second_edition_stays() -> None:
    assert set_hash(DRAWS) == PINNED


def of_kind(kind: str, **settings: object) -> tuple[LabelDraw, np.ndarray, np.ndarray]:
    """A draw of a kind, and its training records in float64."""
    draw = replace(next(draw for draw in DRAWS if draw.stratum == kind), **settings)  # type: ignore[arg-type]
    records = draw.records("train")
    assert isinstance(records.inputs, torch.Tensor)
    assert isinstance(records.targets, torch.Tensor)
    return draw, records.inputs.double().numpy() / draw.scale - draw.offset, records.targets.numpy()


def test_every_kind_at_every_size() -> None:
    assert Counter(draw.stratum for draw in DRAWS) == dict.fromkeys(KINDS, len(DEVELOPMENT) // len(KINDS))
    for kind in KINDS:
        draws = [draw for draw in DRAWS if draw.stratum == kind]
        assert max(draw.n_records for draw in draws) >= 3 * min(draw.n_records for draw in draws)
        for draw in draws:
            assert 60 <= draw.n_records <= 50_000
            assert draw.steps <= (SHORT if kind in ("drawn-cnn", "waves-gru") else 500)
            assert draw.n_outputs == 1 or 2 <= draw.n_outputs <= max(2, draw.n_records // 20)
            assert draw.steps * draw.batch_size * draw.n_inputs * draw.n_outputs <= MOST_WORK


@pytest.mark.filterwarnings("ignore:No better than a constant")
@pytest.mark.parametrize("number", range(16, 16 + len(KINDS)))
def test_a_method_runs_on_each(number: int) -> None:
    made = task(str(number))
    made.draw = replace(made.draw, n_records=60, batch_size=20, steps=3)
    method: Method = bench.make_method("auto_clipping")
    record = bench.run(method, made, bench.PrivacyBudget(8.0, 1e-3), seed=0).record
    assert all(map(math.isfinite, record.metrics.values()))


def test_levels_are_equally_likely_and_ordered() -> None:
    draw, _, targets = of_kind("ordinal-linear", n_records=20_000, label_noise=0.0)
    shares = np.bincount(targets) / len(targets)
    assert shares == pytest.approx(np.full(draw.n_outputs, 1 / draw.n_outputs), abs=0.05)  # fixed records: no chance


def test_words_are_those_of_the_class() -> None:
    """A likelihood that knows the shares tells classes apart; texts have about the declared length."""
    _, inputs, targets = of_kind(
        "counts-linear", n_records=500, n_outputs=2, signal=1.0, length=100, label_noise=0.0, tails="inputs"
    )
    assert inputs.sum(1).mean() == pytest.approx(100, rel=0.02)
    assert inputs == pytest.approx(inputs.round(), abs=1e-4)
    shares = np.array([inputs[targets == label].mean(0) + 1e-3 for label in (0, 1)])
    assert ((inputs @ np.log(shares.T)).argmax(1) == targets).mean() > 0.95
    _, logarithms, _ = of_kind("counts-linear", n_records=500, n_outputs=2, tails="normal")
    assert np.exp(logarithms) == pytest.approx(np.exp(logarithms).round(), abs=1e-3)


def test_parity_is_that_of_two_signs() -> None:
    _, inputs, targets = of_kind("parity-mlp", signal=50.0, label_noise=0.0)
    assert ((inputs[:, 0] * inputs[:, 1] > 0) == (targets == 1)).all()


def test_features_have_length_1() -> None:
    draw, inputs, _ = of_kind("features-linear")
    assert np.linalg.norm(inputs, axis=1) == pytest.approx(np.ones(draw.n_records), rel=1e-5)


def test_drawn_classes_differ_where_ink_hides_the_noise() -> None:
    """Brightness is the ink's; no two shapes have the same share of it at a radius that is known."""
    _, inputs, targets = of_kind("drawn-cnn", n_records=2_000, n_outputs=6, signal=1_000.0, label_noise=0.0)
    ink = (inputs > 500).reshape(len(inputs), -1).mean(1)
    means = [ink[targets == label].mean() for label in range(6)]
    assert min(means) > 0.03
    assert max(means) < 0.5
    assert len({round(mean, 3) for mean in means}) >= 5  # bars across and upright have equal ink


def test_waves_have_the_frequency_of_their_class() -> None:
    draw, inputs, targets = of_kind("waves-gru", signal=100.0, label_noise=0.0)
    assert inputs.shape[1:] == (draw.length, CHANNELS)
    found = abs(np.fft.rfft(inputs[..., 0], axis=1)).argmax(1)
    assert len({(a, b) for a, b in zip(targets, found, strict=True)}) == draw.n_outputs
    assert len(set(found)) == draw.n_outputs


def test_units_are_not_declared() -> None:
    draw, _, targets = of_kind("units-linear", n_records=2_000)
    assert targets.std() == pytest.approx(draw.unit / 2, rel=0.3)
    assert task(draw.name).facts.error_bound == draw.unit
    assert task(draw.name).target_scale is None
