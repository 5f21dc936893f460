"""Composition under an exponential tilt: an upper bound, and a tight one, at δ from 1e-5 to 1e-18."""

import math

import numpy as np
import pytest
from dp_accounting.dp_event import DpEvent
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dphpo_bench.privacy.accountants import liu_talwar, tilted
from dphpo_bench.privacy.accountants import rdp as renyi
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.event_rules import simplify
from dphpo_bench.privacy.events import best_of, compose, gaussian, laplace, no_op, poisson_sampled, pure_dp, repeat
from dphpo_bench.privacy.run_counts import CappedGeometric
from tests.privacy import contour

DELTAS = (1e-5, 1e-10, 1e-15, 1e-18)


def sgd(noise: float, rate: float, steps: int) -> DpEvent:
    return repeat(poisson_sampled(rate, gaussian(noise)), steps)


def log_delta_of_gaussian(epsilon: float, noise: float) -> float:
    """ln δ(ε) = ln(Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)), μ = 1/σ (Dong, Roth and Su 2022, Corollary 2.13)."""
    first = log_ndtr(-epsilon * noise + 0.5 / noise)
    with np.errstate(divide="ignore"):
        return float(first + np.log(-np.expm1(epsilon + log_ndtr(-epsilon * noise - 0.5 / noise) - first)))


def is_just_above(steps: list[contour.Step], epsilon: float, delta: float) -> None:
    """The contour integral at ε is at most δ, and above it at an ε smaller by 1e-4 of itself."""
    assert contour.delta(steps, epsilon) <= delta * (1 + 1e-6)
    assert contour.delta(steps, epsilon * (1 - 1e-4)) > delta


class TestGaussians:
    @pytest.mark.parametrize("delta", DELTAS)
    @pytest.mark.parametrize("noise", [0.1, 0.5, 1.0, 3.0, 10.0])
    def test_agrees_with_the_closed_form(self, noise: float, delta: float) -> None:
        exact = brentq(lambda eps: log_delta_of_gaussian(eps, noise) - math.log(delta), 1e-3, 500, xtol=1e-12)
        found = tilted.epsilon(gaussian(noise), delta)
        assert exact <= found <= exact * (1 + 1e-4)

    @pytest.mark.parametrize("noise", [0.02, 300.0, 1e100])
    def test_extremes_are_bounded(self, noise: float) -> None:
        assert log_delta_of_gaussian(tilted.epsilon(gaussian(noise), 1e-15), noise) <= math.log(1e-15)


class TestSampledGaussians:
    @pytest.mark.parametrize("delta", DELTAS)
    @pytest.mark.parametrize(
        ("noise", "rate", "steps"),
        [(1.8785542, 0.02, 500), (0.8, 0.02, 500), (4.0, 0.2, 250)],
    )
    def test_is_just_above_the_contour_integral(self, noise: float, rate: float, steps: int, delta: float) -> None:
        is_just_above([(noise, rate, steps)], tilted.epsilon(sgd(noise, rate, steps), delta), delta)

    @pytest.mark.parametrize("delta", [1e-12, 1e-15])
    def test_several_kinds_of_steps(self, delta: float) -> None:
        steps = [(8.0, 0.1638, 293), (20.0, 0.08, 73), (30.0, 1.0, 1)]
        event = compose(*(sgd(*step) for step in steps[:2]), gaussian(30.0))
        is_just_above(steps, tilted.epsilon(simplify(event), delta), delta)

    @pytest.mark.parametrize("delta", [1e-5, 1e-15])
    @pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
    def test_one_step_is_just_above_quadrature(self, rate: float, delta: float) -> None:
        # In the tail, δ of the mixture is q times that of the Gaussian at β = (e^ε − 1 + q)/q.
        noise = 1.5

        def excess(eps: float) -> float:
            inner = math.log1p(math.expm1(eps) / rate)
            return log_delta_of_gaussian(inner, noise) + math.log(rate) - math.log(delta)

        exact = brentq(excess, 1e-3, 100, xtol=1e-12)
        assert exact <= tilted.epsilon(poisson_sampled(rate, gaussian(noise)), delta) <= exact * (1 + 2e-3)


def test_what_is_supported() -> None:
    assert tilted.supports(simplify(compose(sgd(1.0, 0.1, 3), gaussian(2.0), gaussian(3.0))))
    for event in (no_op(), laplace(1.0), compose(gaussian(1.0), pure_dp(1.0)), poisson_sampled(0.1, laplace(1.0))):
        assert not tilted.supports(simplify(event))


@pytest.mark.parametrize(("mean", "expected", "by_renyi"), [(10, 6.4123, 6.6783), (100, 6.9791, 7.2575)])
def test_liu_and_talwars_theorem_for_approximate_dp(mean: int, expected: float, by_renyi: float) -> None:
    """A run of ε = 1 at δ = 1e-5, a tenth of δ for the hard stop; the run is then asked at δ near 1e-15."""
    asked: list[tuple[float, float]] = []
    base = sgd(1.8785542, 0.02, 500)

    def tight(delta: float) -> float:
        asked.append((delta, tilted.epsilon(base, delta)))
        return asked[-1][1]

    runs = CappedGeometric(mean, math.ceil(math.log(1 / 1e-6) * mean))
    found = epsilon(best_of(base, runs), 1e-5, accountant="liu_talwar").epsilon
    assert found == liu_talwar.random_stopping(runs, 1e-5, tight) == pytest.approx(expected, abs=1e-4)
    (delta, of_run) = asked[0]
    assert 1e-17 < delta < 1e-14
    is_just_above([(1.8785542, 0.02, 500)], of_run, delta)
    loose = liu_talwar.random_stopping(runs, 1e-5, lambda delta: renyi.epsilon(base, delta))
    assert loose == pytest.approx(by_renyi, abs=1e-4)


@pytest.mark.parametrize("delta", [1e-14, 3.8e-16, 1e-17])
def test_a_window_narrower_than_a_cell(delta: float) -> None:
    """Far in the tail of one release; here δ(ε) is known: of removal, beyond the x where the loss is ε."""
    mu, rate = 1 / 0.15, 0.5

    def exact(epsilon: float) -> float:
        x = (math.log((math.exp(epsilon) - 1 + rate) / rate) + mu**2 / 2) / mu
        with_it = (1 - rate) * math.exp(log_ndtr(-x)) + rate * math.exp(log_ndtr(mu - x))
        return with_it - math.exp(epsilon + log_ndtr(-x))

    found = tilted.epsilon(poisson_sampled(rate, gaussian(1 / mu)), delta)
    assert exact(found) <= delta <= exact(found - 0.01)
