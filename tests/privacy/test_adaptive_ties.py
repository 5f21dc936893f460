"""Adaptive trials whose scores tie, computed exactly: the bounds hold where the earlier trial wins."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dphpo_bench.privacy.accountants import rdp as renyi
from dphpo_bench.privacy.accountants.profiles import best_of_profile
from dphpo_bench.privacy.run_counts import geometric
from tests.privacy import brute_force
from tests.privacy.brute_force import Array, Pair

LOW, HIGH = 0.5, 1.5
PRIOR = np.array([0.5, 0.5])
SCORES = np.array([0, 0, 1, 0, 1, 1])
"""Outputs are (hyperparameter, one of three); two scores only, so that most pairs tie."""
RUNS = geometric(3)


def winner(outputs: Array, proposals: NDArray[np.float64]) -> Array:
    """Distribution of the released output, of shape (6,).

    `outputs` are the probabilities of a trial's outputs under the prior, `proposals[best, last]` those of the first
    hyperparameter. Trials end after 150; the geometric number of them is larger with a probability below 1e-26.
    """
    count = len(outputs)
    states = np.diag(outputs)  # probability of (best so far, last output)
    released = np.zeros(count)
    better = SCORES[None, :] > SCORES[:, None]
    for probability in RUNS.probability(np.arange(1, 151)):
        released += probability * states.sum(axis=1)
        after = np.zeros((count, count))
        shares = np.stack([proposals, 1 - proposals], axis=-1) / PRIOR  # relative density, shape (best, last, 2)
        drawn = states[:, :, None] * np.repeat(shares, 3, axis=-1) * outputs  # (best, last, next)
        step = drawn.sum(axis=1)
        for best in range(count):
            for following in range(count):
                after[following if better[best, following] else best, following] += step[best, following]
        states = after
    return released


def averaged_weights(outputs: Array, factor: float) -> Array:
    """∫ w(min(1, factor u_t)) dt, u_t from the probability to exceed a score to that to reach it: shape (6,)."""
    above = np.array([outputs[score < SCORES].sum() for score in SCORES])
    not_below = np.array([outputs[score <= SCORES].sum() for score in SCORES])
    t = (np.arange(4000) + 0.5) / 4000
    u = np.minimum(1, factor * (above[:, None] + t * (not_below - above)[:, None]))
    return np.asarray(
        np.mean(RUNS.mean * (RUNS.gamma / (RUNS.gamma + (1 - RUNS.gamma) * u)) ** (RUNS.shape + 1), axis=1)
    )


@pytest.mark.parametrize("seed", range(3))
def test_densities_of_the_winner(seed: int) -> None:
    """C Q ∫ w(c u_t) dt bounds the winner's density from above, c Q ∫ w(min(1, C u_t)) dt from below."""
    rng = np.random.default_rng(seed)
    outputs = 0.5 * np.r_[rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3))]
    independent = winner(outputs, np.full((6, 6), 0.5))
    assert independent == pytest.approx(outputs * averaged_weights(outputs, 1), rel=1e-6)
    upper, lower = HIGH * outputs * averaged_weights(outputs, LOW), LOW * outputs * averaged_weights(outputs, HIGH)
    for _ in range(100):
        released = winner(outputs, rng.choice([LOW / 2, HIGH / 2], size=(6, 6)))
        assert np.all(lower * (1 - 1e-6) <= released)
        assert np.all(released <= upper * (1 + 1e-6))


@pytest.mark.parametrize("seed", range(4))
def test_the_bounds_hold_where_the_earlier_of_equals_wins(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # One hyperparameter's outputs hide the record, the other's show it: a proposal for the latter is worst.
    pair = Pair(*(0.5 * np.r_[rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3))] for _ in range(2)))
    base = brute_force.profile(pair)
    bound = best_of_profile(base, RUNS, LOW, HIGH)
    orders = np.array([1.5, 2.0, 4.0, 8.0, 16.0])
    curve = np.array([brute_force.renyi(pair, order) for order in orders])
    divergences = renyi.best_of(curve, orders, RUNS, LOW, HIGH)
    epsilons = np.linspace(0, base.reach + 4, 40)
    limits = bound(epsilons)
    for _ in range(40):
        proposals = rng.choice([LOW / 2, HIGH / 2], size=(6, 6))
        released = Pair(winner(pair.with_record, proposals), winner(pair.without, proposals))
        assert released.with_record.sum() == pytest.approx(1, abs=1e-12)
        for epsilon, limit in zip(epsilons, limits, strict=True):
            assert brute_force.delta(released, epsilon) <= limit + 1e-12
        for order, limit in zip(orders, divergences, strict=True):
            assert brute_force.renyi(released, order) <= limit + 1e-9
