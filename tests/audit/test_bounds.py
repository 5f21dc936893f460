"""Lower bounds on ε from guesses: published values, exact coverage, and mechanisms whose ε is known."""

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from scipy.stats import binom

from dphpo_bench.audit.bounds import (
    SIDES,
    Curve,
    Guesses,
    LowerBound,
    best_bounds,
    guess,
    p_value,
    refuted_epsilon,
    refutes,
)


def test_published_p_value() -> None:
    assert p_value(Guesses(100, 100, 75), math.log(3), 0.0) == pytest.approx(0.55347, abs=1e-5)


@pytest.mark.parametrize(
    ("canaries", "guessed", "correct", "delta", "expected"),
    [
        (100, 100, 75, 0.0, 0.702214),
        (1000, 100, 75, 1e-4, 0.672985),
        (100_000, 1510, 1439, 1e-5, 2.675851),
        (1000, 600, 600, 1e-5, 5.2704),
        (5000, 5000, 5000, 1e-5, 7.28),
    ],
)
def test_published_bounds(canaries: int, guessed: int, correct: int, delta: float, expected: float) -> None:
    """Of Theorem 5.2 alone, whose p-value crosses 5 % there; the bound is at least that."""
    digits = len(str(expected).partition(".")[2])
    guesses, rounding = Guesses(canaries, guessed, correct), 0.6 * 10**-digits
    assert p_value(guesses, expected - rounding, delta) < 0.05 < p_value(guesses, expected + rounding, delta)
    assert refuted_epsilon(guesses, delta) > expected - rounding


@pytest.mark.parametrize("guessed", [1, 10, 250])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_all_right_without_delta_in_closed_form(guessed: int, confidence: float) -> None:
    expected = max(0.0, -math.log((1 - confidence) ** (-1 / guessed) - 1))
    assert refuted_epsilon(Guesses(guessed, guessed, guessed), 0.0, 1 - confidence) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("canaries", "epsilon", "wrong"),
    [(100, 1.0, 0.0441), (1000, 1.0, 0.0463), (1000, 3.0, 0.0477)],
)
def test_exact_coverage_on_randomised_response(canaries: int, epsilon: float, wrong: float) -> None:
    """Each coin is reported, and flipped with probability 1 / (1 + e^ε): the number of right guesses is binomial."""
    counts = np.arange(canaries + 1)
    chances = binom.pmf(counts, canaries, 1 / (1 + math.exp(-epsilon)))
    guesses = [Guesses(canaries, canaries, int(v)) for v in counts]
    above = np.array([p_value(some, epsilon, 0.0) < 0.05 for some in guesses])
    refuted = [refutes(some, [(epsilon, 0.0)], 0.05) for some in guesses]  # by the other theorem
    assert refuted == sorted(refuted)
    assert 0 < chances[np.array(refuted)].sum() <= 0.05
    assert chances[above].sum() == pytest.approx(wrong, abs=6e-5)
    assert chances[above.argmax() - 1 :].sum() > 0.05  # one right guess less would be one too few


@pytest.mark.parametrize("canaries", [1, 3, 12, 200])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-3, 0.05])
def test_the_theorem_on_exact_mechanisms_with_delta(canaries: int, epsilon: float, delta: float) -> None:
    """Randomised response that reveals each coin, or all of them at once, with probability δ is (ε, δ)-DP."""
    right = 1 / (1 + math.exp(-epsilon))
    counts = np.arange(canaries + 1)
    each = binom.sf(counts - 1, canaries, delta + (1 - delta) * right)
    at_once = delta + (1 - delta) * binom.sf(counts - 1, canaries, right)
    bounds = np.array([p_value(Guesses(canaries, canaries, int(v)), epsilon, delta) for v in counts])
    assert (each <= bounds + 1e-12).all()
    assert (at_once <= bounds + 1e-12).all()
    assert (np.diff(bounds) <= 1e-12).all()


def bounds_of(attacks: list[Any], delta: float, curves: list[Curve] | None = None) -> list[LowerBound]:
    """At equal shares of an error probability of 5 %."""
    weights = [1 / len(attacks)] * len(attacks)
    return best_bounds(attacks, delta, 0.95, weights, curves or [()] * len(attacks))


def gaussian_sum(mu: float, canaries: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A vector that has one coordinate for each canary, with noise of standard deviation 1/μ."""
    members = rng.random(canaries) < 0.5
    return members + rng.normal(0, 1 / mu, canaries), members


def test_bounds_on_a_gaussian_sum_are_right_as_often_as_they_say() -> None:
    """False-alarm rate: each bound is wrong with probability 5 % at most, so more than
    `allowed` of 200 are wrong with probability below 1e-7."""
    rng = np.random.default_rng(0)
    delta, mu = 1e-5, 1.0
    epsilon = get_epsilon_gaussian(1 / mu, delta)
    bounds = [bounds_of([gaussian_sum(mu, 400, rng)], delta)[0].epsilon for _ in range(200)]
    allowed = binom.isf(1e-7, 200, 0.05)
    assert sum(bound > epsilon for bound in bounds) <= allowed < 40
    assert max(bounds) > 0


def test_several_attacks_pay_for_their_number() -> None:
    attack = (np.arange(100.0), np.arange(100) >= 50)
    (alone,) = bounds_of([attack], 0.0)
    assert alone.guesses == Guesses(100, 100, 100)
    assert alone.epsilon == pytest.approx(refuted_epsilon(alone.guesses, 0.0, 0.05 / len(SIDES)))
    first, second = best_bounds([attack, attack], 0.0, 0.95, [0.9, 0.1], [(), ()])
    assert second.epsilon < first.epsilon < alone.epsilon
    assert first.epsilon == pytest.approx(refuted_epsilon(alone.guesses, 0.0, 0.9 * 0.05 / len(SIDES)))


@pytest.mark.parametrize(("canaries", "delta"), [(100, 0.0), (1000, 1e-4), (3000, 3.4e-4)])
def test_the_ceiling_is_what_right_guesses_show(canaries: int, delta: float) -> None:
    """And what wrong ones cannot exceed."""
    scores, members = np.arange(float(canaries)), np.arange(canaries) >= canaries // 2
    right, wrong = bounds_of([(scores, members), (scores, members[::-1])], delta)
    assert right.epsilon == right.ceiling == wrong.ceiling > 1
    assert wrong.epsilon == 0


def test_a_curve_is_refuted_by_more_right_guesses_than_it_allows() -> None:
    """1,000 right guesses of 1,000, under randomised response of ε = 1 and of ε = 8."""
    scores, members = np.arange(2000.0), np.arange(2000) >= 1000
    small, large = bounds_of([(scores, members)] * 2, 1e-4, [[(1.0, 1e-4)], [(8.0, 1e-4)]])
    assert (small.refutes, small.refutable) == (True, True)
    assert (large.refutes, large.refutable) == (False, False)
    (nothing,) = bounds_of([(scores, members[::-1])], 1e-4, [[(1.0, 1e-4)]])
    assert (nothing.refutes, nothing.refutable) == (False, True)


def test_guesses_are_the_extremes() -> None:
    scores = np.array([0.1, 5.0, -3.0, 0.2, np.nan, 4.0, -2.0, 0.0])
    members = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)
    assert guess(scores, members, (0.25, 0.25)) == Guesses(8, 4, 2)  # in: 1 and 5; out: 2 and 6
    assert guess(scores, members, (0.25, 0.0)) == Guesses(8, 2, 1)  # in: 1 and 5
    assert guess(scores, members, (0.005, 0.005)) == Guesses(8, 2, 1)
    assert guess(np.full(8, np.nan), members, (0.5, 0.5)).guessed == 8
    assert guess(np.array([np.inf, -np.inf]), np.array([True, False]), (0.5, 0.5)) == Guesses(2, 2, 2)
