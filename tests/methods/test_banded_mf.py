"""BandMF as a method: its matrix beside other optimisers, its choice of bands, its plan, and what it refuses."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.signal import lfilter

import dphpo_bench as bench
from dphpo_bench.methods.banded_mf import BandedMf, optimal_coefficients, squared_error
from dphpo_bench.methods.recommended import Recommended
from dphpo_bench.privacy.event_trees import multiset
from dphpo_bench.testing import Blobs

BUDGET = bench.PrivacyBudget(8.0, 1e-4)
SMALL_BATCHES = Blobs(batch_size=20, epochs=10.0)  # 300 steps, q = 1/30


def dense_error(coefficients: Any, steps: int) -> float:
    toeplitz = sum(np.diag(np.full(steps - lag, value), -lag) for lag, value in enumerate(coefficients) if lag < steps)
    noise = np.tril(np.ones((steps, steps))) @ np.linalg.inv(toeplitz)
    return float((noise**2).sum() / steps * np.dot(coefficients, coefficients))


@pytest.mark.parametrize("coefficients", [(1.0,), (1.0, 0.5), (2.0, 1.0, 0.75)])
@pytest.mark.parametrize("steps", [1, 2, 17])
def test_the_error_is_that_of_the_matrices_and_its_slopes_are_right(
    coefficients: tuple[float, ...], steps: int
) -> None:
    at = np.array(coefficients)
    if steps >= len(at):
        value, slopes = squared_error(at, steps)
        assert value == pytest.approx(dense_error(coefficients, steps), rel=1e-12)
        for k in range(len(at)):
            shift = 1e-6 * np.eye(len(at))[k]
            numeric = (squared_error(at + shift, steps)[0] - squared_error(at - shift, steps)[0]) / 2e-6
            assert slopes[k] == pytest.approx(numeric, rel=1e-5, abs=1e-7 * value)


@pytest.mark.parametrize(("bands", "steps"), [(2, 20), (4, 112), (8, 300)])
def test_no_other_toeplitz_matrix_has_less_noise(bands: int, steps: int) -> None:
    """Another optimiser, without bounds and slopes, and far less than the square root of the matrix of sums."""
    best = dense_error(optimal_coefficients(bands, steps), steps)
    root = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, bands))])

    def error(others: np.ndarray) -> float:
        with np.errstate(all="ignore"):
            sums = lfilter([1.0], [1.0, *others], np.ones(steps))
            value = (np.arange(steps, 0, -1) @ sums**2) / steps * (1 + others @ others)
        return float(np.log(value)) if np.isfinite(value) else 1e6

    options: dict[str, Any] = {"maxiter": 20_000, "maxfev": 40_000, "xatol": 1e-7, "fatol": 1e-12, "adaptive": True}
    other = minimize(error, root[1:], method="Nelder-Mead", options=options)
    assert best <= np.exp(other.fun) * (1 + 1e-4)
    assert best < 0.99 * dense_error(root, steps)


def test_one_band_is_recommended() -> None:
    plan = BandedMf(bands=1).plan(Blobs().facts, BUDGET)
    assert plan.event == Recommended().plan(Blobs().facts, BUDGET).event
    assert plan.parameters.coefficients == (1.0,)


def test_a_plan_is_turns_of_groups_at_as_many_times_the_rate() -> None:
    facts = SMALL_BATCHES.facts
    plan = BandedMf(bands=4).plan(facts, BUDGET)
    sigma, rate = plan.parameters.noise_multiplier, 4 * facts.sample_rate
    kind = bench.events.poisson_sampled(rate, bench.events.gaussian(sigma))
    assert multiset(plan.event) == multiset(bench.events.cyclic(kind, 4, 300))
    assert plan.cost.examples == pytest.approx(300 * 20)
    alone = bench.events.repeat(kind, 75)
    assert bench.events.epsilon(plan.event, BUDGET.delta).epsilon == pytest.approx(
        bench.events.epsilon(alone, BUDGET.delta).epsilon
    )


def test_by_default_no_number_of_bands_is_expected_to_have_less_noise() -> None:
    facts = SMALL_BATCHES.facts

    def noise(method: BandedMf) -> float:
        parameters: Any = method.plan(facts, BUDGET).parameters
        return float(parameters.noise_multiplier**2 * dense_error(parameters.coefficients, parameters.steps))

    least = noise(BandedMf())
    assert all(least <= noise(BandedMf(bands=bands)) * 1.01 for bands in (1, 2, 4, 8, 16))
