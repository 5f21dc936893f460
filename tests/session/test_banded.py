"""Gradients with correlated noise: what a record can change, the noise, the price, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, OverBudgetError
from dphpo_bench.clipping import Abadi
from dphpo_bench.privacy.event_trees import multiset
from dphpo_bench.privacy.events import compose, gaussian, on_part, poisson_sampled, repeat
from dphpo_bench.privacy.holdout import cyclic
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.banded import BandedGradients
from dphpo_bench.session.session import Session
from dphpo_bench.training.noise import BandedNoise
from dphpo_bench.training.randomness import Streams
from tests.conftest import TinyTask, session_on

BANDS = (1.0, 0.7, 0.6)
STEPS = 9
C = np.array([[BandedNoise(BANDS, STEPS).entry(row, column) for column in range(STEPS)] for row in range(STEPS)])
NO_NOISE = 1e-9


class Wide(TinyTask):
    """A linear layer without a bias, of many weights; float64, so that the cast of a release costs nothing."""

    name = "wide"

    @property
    def facts(self) -> bench.TaskFacts:
        return bench.TaskFacts(
            task="wide", model="linear", n_records=60, inputs=bench.recipes.Input((400,)), n_classes=3,
            batch_size=20, epochs=3, optimizer="SGD", learning_rate=1.0,
        )  # fmt: skip

    def build_model(self) -> nn.Module:
        return nn.Linear(400, 3, bias=False).double()


def records(scale: float = 1.0, n: int = 60) -> bench.Records:
    generator = torch.Generator().manual_seed(n)
    return bench.Records(scale * torch.randn(n, 400, generator=generator), torch.randint(3, (n,), generator=generator))


def released(session: Session, kind: Any, steps: int = STEPS, model: nn.Module | None = None) -> np.ndarray:
    """All gradients at one place, times the expected batch size: shape (steps, weights)."""
    gradients = BandedGradients(session, kind, BANDS, steps, Abadi(1.0))
    model = model or session.build_model()
    rows = [torch.cat([part.flatten() for part in gradients.next(model)]) for _ in range(steps)]
    rate = kind.sampling_probability
    return torch.stack(rows).double().numpy() * session.expected_records / len(BANDS) * rate


def noise_of(session: Session, sigma: float) -> np.ndarray:
    return released(session, poisson_sampled(1.0, gaussian(sigma)))


def test_its_noise_is_white_once_multiplied_by_the_matrix() -> None:
    """Records of zeros have gradients of zero. False alarms: below 1e-8 each, at six standard errors."""
    white = C @ noise_of(session_on(Wide(), records(0.0)), 2.5) / 2.5
    assert white.std() == pytest.approx(1, abs=6 / np.sqrt(2 * white.size))
    covariance = white @ white.T / white.shape[1]
    np.testing.assert_allclose(covariance, np.eye(STEPS), atol=6 * np.sqrt(2 / white.shape[1]))


@pytest.mark.parametrize("row", range(8))
def test_a_record_moves_each_of_its_batches_by_the_threshold(row: int) -> None:
    """Two runs of equal noise, with and without a gradient of a record: the difference, multiplied by the matrix."""
    kind, both = poisson_sampled(1.0, gaussian(NO_NOISE)), []
    model = session_on(Wide(), records()).build_model()
    for there in (True, False):
        data = records()
        data.inputs[row] *= float(there)
        both.append(released(session_on(Wide(), data), kind, model=model))
    moved = np.linalg.norm(C @ (both[0] - both[1]), axis=1)
    apart = np.linalg.norm(both[0] - both[1], axis=1) > 1e-6
    assert apart.sum() == STEPS // len(BANDS)
    assert len(set(np.flatnonzero(apart) % len(BANDS))) == 1  # its group's steps
    for start in np.flatnonzero(apart):
        assert np.linalg.norm(moved[start : start + len(BANDS)]) == pytest.approx(1, abs=1e-6)
    assert np.linalg.norm(moved) == pytest.approx(np.sqrt(apart.sum()), abs=1e-6)


def test_batches_are_samples_of_groups_that_share_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    session, seen = session_on(Wide(), records()), []
    clipped_sum = type(session._access.raw).clipped_sum

    def watching(self: Any, engine: Any, held: Any, indices: torch.Tensor, *others: Any) -> Any:
        seen.append(set(indices.tolist()))
        return clipped_sum(self, engine, held, indices, *others)

    monkeypatch.setattr(type(session._access.raw), "clipped_sum", watching)
    released(session, poisson_sampled(0.5, gaussian(1.0)), steps=60)
    groups = [set().union(*seen[k::3]) for k in range(3)]
    assert sum(map(len, groups)) == len(set().union(*groups)) == 60
    sizes = np.array([len(batch) for batch in seen])
    assert abs(sizes.sum() - 60 * 10) < 6 * np.sqrt(60 * 5)
    assert len({frozenset(batch) for batch in seen}) > 50


def test_a_single_band_is_the_gradient_of_a_batch_to_the_bit() -> None:
    kind = poisson_sampled(0.3, gaussian(2.0))
    plain, banded = (session_on(TinyTask("mlp"), TinyTask()._split(600, 1)) for _ in range(2))
    model = plain.build_model()
    gradients = BandedGradients(banded, kind, (1.0,), 3, Abadi(0.5))
    for _ in range(3):
        expected = plain.sample(kind).gradient(model, Abadi(0.5), 2.0)
        assert all(map(torch.equal, expected, gradients.next(model)))
    assert banded._access.ledger.event == plain._access.ledger.event


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_the_ledger_pays_for_what_each_group_was_asked(rate: float) -> None:
    kind = poisson_sampled(rate, gaussian(2.0))
    ledger = Ledger(allowance=cyclic(kind, 3, STEPS))
    session = session_on(Wide(), records(), ledger)
    gradients, model = BandedGradients(session, kind, BANDS, STEPS, Abadi(1.0)), session.build_model()
    for _ in range(4):
        gradients.next(model)
    turns = [repeat(on_part("cycle of 3", str(group), kind), count) for group, count in enumerate((2, 1, 1))]
    assert multiset(ledger.event) == multiset(compose(*turns))
    for _ in range(4, STEPS):
        gradients.next(model)
    assert multiset(ledger.event) == multiset(cyclic(kind, 3, STEPS))
    with pytest.raises(InvalidValueError, match="9 steps"):
        gradients.next(model)
    assert ledger.refused is None


@pytest.mark.parametrize(
    "allowance",
    [
        cyclic(poisson_sampled(0.5, gaussian(2.0)), 2, STEPS),  # fewer groups than bands
        cyclic(poisson_sampled(0.5, gaussian(2.1)), 3, STEPS),
        cyclic(poisson_sampled(0.4, gaussian(2.0)), 3, STEPS),
        repeat(poisson_sampled(0.5, gaussian(2.0)), STEPS),  # all records, as if there were no groups
        repeat(poisson_sampled(0.5 / 3, gaussian(2.0)), STEPS),
        cyclic(poisson_sampled(0.5, gaussian(2.0)), 3, STEPS - 1),
    ],
)
def test_a_plan_for_something_else_is_refused(allowance: Any) -> None:
    session = session_on(Wide(), records(), Ledger(allowance=allowance))
    with pytest.raises(OverBudgetError, match="does not cover"):
        released(session, poisson_sampled(0.5, gaussian(2.0)))


def test_the_threshold_is_that_of_the_first_step() -> None:
    """The noise of a step covers what the steps before it have added."""
    rule = Abadi(1.0)
    session = session_on(Wide(), records())
    gradients = BandedGradients(session, poisson_sampled(1.0, gaussian(NO_NOISE)), (1.0, 0.5), 2, rule)
    model = session.build_model()
    before = gradients.next(model)[0].norm()
    object.__setattr__(rule, "max_grad_norm", 100.0)
    assert gradients.next(model)[0].norm() < 3 * before


@pytest.mark.parametrize(
    ("kind", "bands", "steps", "reason"),
    [
        (gaussian(1.0), BANDS, 3, "kind of batches"),
        (poisson_sampled(0.5, repeat(gaussian(1.0), 2)), BANDS, 3, "one Gaussian query"),
        (poisson_sampled(0.5, gaussian(1.0)), (1.0,) * 65, 3, "number of coefficients from 1 to 64"),
        (poisson_sampled(0.5, gaussian(1.0)), (0.5, 1.0), 3, "coefficients that fall"),
        (poisson_sampled(0.5, gaussian(1.0)), BANDS, 0, "steps"),
    ],
)
def test_mistakes_are_refused_before_anything_is_released(kind: Any, bands: Any, steps: int, reason: str) -> None:
    session = session_on(Wide(), records())
    with pytest.raises(InvalidValueError, match=reason):
        BandedGradients(session, kind, bands, steps, Abadi(1.0))
    assert not multiset(session._access.ledger.event)


def test_secure_noise_covers_rounding_in_all_rows_of_a_column() -> None:
    """Noise of a row is of the grid, and no less than σ (Δ + g √(d b)), g being the spacing."""
    pytest.importorskip("opendp")
    sigma, asked = 2.0, []
    session = session_on(Wide(), records(0.0), streams=Streams(1 << 255, (), True))
    with_noise = type(session._access).with_noise

    def watching(self: Any, sums: Any, noise: float, sensitivity: float, purpose: str) -> Any:
        asked.append(sensitivity)
        return with_noise(self, sums, noise, sensitivity, purpose)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(session._access), "with_noise", watching)
        white = C @ noise_of(session, sigma) / sigma
    assert white.std() == pytest.approx(1, abs=6 / np.sqrt(2 * white.size))
    grid = 2.0**-48 * sigma * asked[0]  # the largest that it can be
    coordinates = white.shape[1]
    assert asked == [asked[0]] * STEPS
    assert asked[0] + grid * np.sqrt(coordinates) >= 1 + grid * np.sqrt(coordinates * len(BANDS))
    assert asked[0] < 1 + 1e-12
