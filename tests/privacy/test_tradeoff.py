"""The trade-off curve of proven points against exact attacks on finite mechanisms."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dphpo_bench.privacy.risk import TradeOff
from tests.privacy import brute_force
from tests.privacy.brute_force import Array, Pair

ROUNDING = 1e-12  # of sums of probabilities
ALARMS = np.r_[0.0, np.geomspace(1e-6, 1, 60)]


def most_hits(pair: Pair, alarms: Array) -> Array:
    """The largest true positives of all tests of `without` against `with_record`, by Neyman and Pearson's lemma."""
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-pair.with_record / pair.without)
    false = np.r_[0.0, np.cumsum(pair.without[order])]
    return np.interp(alarms, false, np.r_[0.0, np.cumsum(pair.with_record[order])])


def pairs(count: int) -> list[Pair]:
    generator = np.random.default_rng(5)
    shapes = generator.choice([0.2, 1.0, 5.0], count)
    return [Pair(*generator.dirichlet([shape] * (2 + number), 2)) for number, shape in enumerate(shapes)]


def curve_of(pair: Pair, epsilons: Array) -> TradeOff:
    return TradeOff.of(epsilons, np.array([brute_force.delta(pair, epsilon) for epsilon in epsilons]))


@pytest.mark.parametrize("pair", pairs(12))
def test_no_attack_on_a_finite_mechanism_exceeds_the_curve(pair: Pair) -> None:
    curve = curve_of(pair, np.linspace(0, 5, 11))
    bound = np.array([curve.hits(alarm) for alarm in ALARMS])
    exact = np.maximum(most_hits(pair, ALARMS), most_hits(pair.reversed(), ALARMS))
    assert np.all(exact <= bound + ROUNDING)
    assert curve.advantage >= np.max(exact - ALARMS) - ROUNDING


points = st.lists(st.tuples(st.floats(0, 20), st.floats(0, 1)), min_size=1, max_size=8)


@given(points)
@settings(max_examples=40)
def test_gaussian_dp_of_mu_allows_all_that_the_curve_allows(given_points: list[tuple[float, float]]) -> None:
    epsilons, deltas = np.array(given_points).T
    curve, smallest = TradeOff.of(epsilons, deltas), 1e-6
    mu = curve.mu(smallest)
    if mu == math.inf:
        assert curve.advantage > 1 - 1e-9
        return
    alarms = np.linspace(smallest, 1, 400)
    bound = np.minimum([curve.hits(alarm) for alarm in alarms], max(1 - smallest, (1 + curve.advantage) / 2))
    assert np.all(norm.cdf(norm.ppf(alarms) + mu) >= bound - 1e-9)


@given(points)
@settings(max_examples=30)
def test_regret_is_the_distance_along_the_diagonal(given_points: list[tuple[float, float]]) -> None:
    epsilons, deltas = np.array(given_points).T
    curve = TradeOff.of(epsilons, deltas)
    mu = curve.mu(1e-6)
    if mu in (0.0, math.inf):
        return
    regret = curve.regret(mu)
    alarms = np.linspace(0, 1, 2001)
    gaussian = norm.cdf(norm.isf(alarms) - mu)
    misses = np.array([1 - curve.hits(min(1.0, alarm + regret)) for alarm in alarms])
    assert np.all(misses - regret <= gaussian + 1e-9)
    less = 0.9 * regret - 1e-3  # attained, up to the grid of alarms
    if less > 0:
        assert any(1 - curve.hits(min(1.0, one + less)) - less > g for one, g in zip(alarms, gaussian, strict=True))
