"""What scores can do to a private selection of Gaussian runs, by numerical integration, against the bounds quoted."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

import dphpo_bench as bench
from dphpo_bench.privacy.run_counts import Binomial, RunCount, TruncatedNegativeBinomial
from tests.privacy import brute_force
from tests.privacy.brute_force import Pair

SIGMA, DELTA = 3.730632, 1e-5
WIDTH = 1e-3
X = (np.arange(-12_000, 12_000) + 0.5) * WIDTH  # the middles of cells: a threshold is an edge
Array = NDArray[np.float64]
Beaten = Callable[[float], Array]


def achieved(count: RunCount, beaten: Beaten) -> float:
    """ε of the released winner: its densities are w(u) times those of one run, N(1/σ, 1) or N(0, 1).

    Args:
        count: the number of runs.
        beaten: mean of a run's output → probability that a run beats each output of `X`.
    """
    pair = [count.weight(beaten(mean)) * norm.pdf(X - mean) * WIDTH for mean in (1 / SIGMA, 0.0)]
    assert [part.sum() for part in pair] == pytest.approx([1, 1], abs=1e-5)

    return epsilon_of(Pair(*pair), DELTA)


def epsilon_of(pair: Pair, delta: float) -> float:
    return float(brentq(lambda e: brute_force.delta(pair, e) - delta, 0.01, 8))


def falling(mean: float) -> Array:
    """The higher the loss, the better the score."""
    return np.asarray(norm.sf(X - mean))


def low_block_first(threshold: float) -> Beaten:
    """Losses below a threshold beat those above; each part is ordered by falling loss."""

    def beaten(mean: float) -> Array:
        below = norm.cdf(threshold - mean)
        return np.asarray(np.where(threshold >= X, below - norm.cdf(X - mean), below + norm.sf(X - mean)))

    return beaten


@pytest.mark.parametrize(
    ("count", "any_order", "by_loss", "gap"),
    [
        (TruncatedNegativeBinomial(10, 0), 1.447, 1.143, 1.024),
        (Binomial(10, 20), 2.159, 1.485, 1.045),
        pytest.param(TruncatedNegativeBinomial(10, 1), 1.531, 1.143, 1.024, marks=pytest.mark.slow),
        pytest.param(TruncatedNegativeBinomial(30, 1), 1.782, 1.206, 1.024, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_little_is_left_to_gain(count: RunCount, any_order: float, by_loss: float, gap: float) -> None:
    """The table in research/selection.md: no bound for all scores can be much below `layer_cake`."""
    attack = max(achieved(count, low_block_first(threshold)) for threshold in np.linspace(-4, 4, 41))
    assert attack == pytest.approx(any_order, abs=2e-3)
    assert achieved(count, falling) == pytest.approx(by_loss, abs=2e-3)
    quoted = bench.events.epsilon(bench.events.best_of(bench.events.gaussian(SIGMA), count), DELTA).epsilon
    assert attack <= quoted <= gap * attack
