"""Guesses against privacy curves: brute force, the authors' recursion, exact mechanisms, and the curves of plans."""

import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from scipy.optimize import brentq, linprog
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dphpo_bench.audit.bounds import (
    MOST_RUNS,
    Curve,
    Guesses,
    Size,
    claimed_curve,
    default_size,
    least_total,
    refutes,
    size_for_curve,
)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Of a Gaussian mechanism (Balle and Wang 2018)."""
    return float(ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon) * ndtr(-epsilon / mu - mu / 2))


def gaussian_curve(mu: float, points: int = 60) -> Curve:
    return [(epsilon, gaussian_delta(epsilon, mu)) for epsilon in np.linspace(0, mu**2 / 2 + 6 * mu, points)]


CURVES: tuple[Curve, ...] = (
    [(0.5, 0.0)],
    [(1.0, 0.01)],
    [(2.0, 1e-3), (1.0, 0.05), (0.0, 0.3)],
    gaussian_curve(1.0, 12),
)


def p_of(guesses: Guesses, curve: Curve) -> float:
    """The largest probability that is not refuted."""
    if not refutes(guesses, curve, 1.0):
        return 1.0
    return float(brentq(lambda tail: least_total(guesses, curve, tail) - 1, 0.0, 1.0, xtol=1e-12))


def brute_force(guesses: Guesses, curve: Curve) -> float:
    """The largest probability of so many right guesses under Theorem 3.1, for all T = {i, …, r}: a linear program."""
    m, r = guesses.canaries, guesses.guessed
    rows, bounds = [], []
    for first in range(1, r + 1):
        right, wrong = np.zeros(r + 1), np.zeros(r + 1)
        for count in range(first, r + 1):
            right[count] += count / m
            wrong[count - 1] += (r - count + 1) / m
        for epsilon, delta in curve:
            rows += [right - math.exp(epsilon) * wrong, math.exp(epsilon) * right - wrong]
            bounds += [delta, math.exp(epsilon) - 1 + delta]
    wanted = -(np.arange(r + 1) >= guesses.correct).astype(float)
    found = linprog(wanted, np.array(rows), bounds, np.ones((1, r + 1)), [1.0], method="highs")
    assert found.status == 0
    return float(-found.fun)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(
    ("canaries", "guessed", "correct"), [(1, 1, 1), (8, 8, 7), (20, 10, 10), (40, 12, 9), (12, 12, 12), (30, 30, 25)]
)
def test_the_recursion_is_the_theorem(curve: Curve, canaries: int, guessed: int, correct: int) -> None:
    """It is never below the linear program of the theorem's inequalities, and not far above."""
    guesses = Guesses(canaries, guessed, correct)
    largest, found = brute_force(guesses, curve), p_of(guesses, curve)
    assert largest - 1e-7 <= found <= 1.0
    assert found == pytest.approx(largest, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("canaries", "guessed", "correct"), [(1000, 500, 480), (100_000, 1500, 1428), (300, 300, 240)])
def test_the_authors_recursion(mu: float, canaries: int, guessed: int, correct: int) -> None:
    """Their code in the appendix, for Gaussians, without lines in place of the curve."""

    def theirs(tail: float) -> float:
        right, wrong = tail * correct / canaries, tail * (guessed - correct) / canaries
        for count in range(correct - 1, -1, -1):
            more = max(wrong, float(ndtr(ndtri(right) - mu)))
            right, wrong = min(1.0, right + count / (guessed - count) * (more - wrong)), more
        return right + wrong - guessed / canaries

    guesses = Guesses(canaries, guessed, correct)
    exact = brentq(theirs, 1e-12, 1.0) if theirs(1.0) > 0 else 1.0
    assert exact * (1 - 1e-6) <= p_of(guesses, gaussian_curve(mu, 200)) <= 1.05 * exact + 1e-9


@pytest.mark.parametrize("canaries", [1, 12, 100])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
def test_mechanisms_that_use_their_delta_do_not_refute_it(canaries: int, epsilon: float, delta: float) -> None:
    """Randomised response that reveals each coin, or all of them at once, with probability δ."""
    right = 1 / (1 + math.exp(-epsilon))
    for correct in range(canaries + 1):
        each = binom.sf(correct - 1, canaries, delta + (1 - delta) * right)
        at_once = delta + (1 - delta) * binom.sf(correct - 1, canaries, right)
        for tail in (each, at_once):
            assert not refutes(Guesses(canaries, canaries, correct), [(epsilon, delta)], tail * (1 - 1e-9))


@pytest.mark.parametrize(("claim_delta", "error"), [(1e-5, 0.05), (3.4e-4, 0.04), (1e-12, 1e-7)])
def test_the_curve_of_a_plan(claim_delta: float, error: float) -> None:
    """Its points are on the curve, the claim among them."""
    mu = 1.5

    def epsilon(delta: float) -> float:
        return get_epsilon_gaussian(1 / mu, delta)

    claim = (epsilon(claim_delta), claim_delta)
    curve = claimed_curve(epsilon, claim, error)
    assert curve[0] == claim
    assert all(delta > claim_delta for _, delta in curve[1:])
    for point, delta in curve:
        assert gaussian_delta(point, mu) <= delta * (1 + 1e-6)


def test_what_is_not_claimed_is_no_point_of_a_curve() -> None:
    assert claimed_curve(lambda _: 1.0, (math.inf, 1e-5), 0.05) == ()
    assert claimed_curve(lambda _: 900.0, (1000.0, 1e-5), 0.05) == ()  # exponentials overflow
    assert claimed_curve(lambda _: math.inf, (3.0, 1e-5), 0.05) == ((3.0, 1e-5),)


def test_sizes() -> None:
    """A small ε needs no more than 1,400 canaries, a larger one several runs; what is out of reach is not tried."""
    assert default_size(gaussian_curve(1.0), 3.4e-4, 0.04, 719) == Size(700, 2)
    assert default_size(gaussian_curve(1.0), 3.4e-4, 0.04, 9000) == Size(1400, 1)
    large = default_size(gaussian_curve(2.1), 3.4e-4, 0.04, 719)
    assert large is not None
    assert 1 < large.runs <= MOST_RUNS
    assert large.canaries <= 719
    assert size_for_curve(gaussian_curve(6.0), 3.4e-4, 0.04, 719) is None
