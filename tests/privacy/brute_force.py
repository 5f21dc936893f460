"""Private selection on finite mechanisms, computed exactly, and a search for the worst of them.

A mechanism is a pair of distributions of one run's output on two neighbouring datasets. Outputs are numbered by
their score, the best one last, so the best of K runs has the distribution function f(F), where F is that of a
single run and f the generating function of K.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dphpo_bench.privacy.accountants.profiles import Profile
from dphpo_bench.privacy.run_counts import Binomial, Poisson, RunCount, TruncatedNegativeBinomial

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """Distributions of the output with and without a record, each of shape (outputs,)."""

    with_record: Array
    without: Array

    def reversed(self) -> "Pair":
        return Pair(self.without, self.with_record)

    def map(self, selection: Callable[[Array], Array]) -> "Pair":
        return Pair(selection(self.with_record), selection(self.without))


def hockey_stick(p: Array, q: Array, epsilon: float) -> float:
    return float(np.sum(np.maximum(p - np.exp(epsilon) * q, 0)))


def delta(pair: Pair, epsilon: float) -> float:
    """The larger of the two directions."""
    return max(
        hockey_stick(pair.with_record, pair.without, epsilon), hockey_stick(pair.without, pair.with_record, epsilon)
    )


def renyi(pair: Pair, order: float) -> float:
    """The larger of the two Rényi divergences; both distributions must be positive."""
    logs = np.log(pair.with_record) - np.log(pair.without)
    ways = (np.log(pair.without) + order * logs, np.log(pair.with_record) - order * logs)
    return max(float(np.logaddexp.reduce(way)) for way in ways) / (order - 1)


def profile(pair: Pair) -> Profile:
    def curve(p: Array, q: Array) -> Callable[[Array], Array]:
        def values(epsilon: Array) -> Array:
            factors = np.exp(np.minimum(epsilon, 600))
            return np.asarray(np.sum(np.maximum(p - factors[..., None] * q, 0), axis=-1))

        return values

    both = (pair.with_record > 0) & (pair.without > 0)
    reach = np.max(np.abs(np.log(pair.with_record[both] / pair.without[both])), initial=0.0)
    return Profile(curve(pair.with_record, pair.without), curve(pair.without, pair.with_record), float(reach) + 1e-3)


def generating_function(runs: RunCount) -> Callable[[Array], Array]:
    """f(z) = E[z^K], from formulas that the package does not use."""
    match runs:
        case TruncatedNegativeBinomial(shape=0.0):
            return lambda z: np.log(1 - (1 - runs.gamma) * z) / np.log(runs.gamma)
        case TruncatedNegativeBinomial(shape=shape):
            return lambda z: ((1 - (1 - runs.gamma) * z) ** -shape - 1) / (runs.gamma**-shape - 1)
        case Poisson(mean=mean):
            return lambda z: np.exp(mean * (z - 1))
        case Binomial(mean=mean, cap=cap):
            return lambda z: (1 + mean / cap * (z - 1)) ** cap
        case _:
            k = np.arange(int(runs.largest) + 1)
            probabilities = runs.probability(k)
            return lambda z: np.power.outer(z, k) @ probabilities


def best_of(runs: RunCount) -> Callable[[Array], Array]:
    """From the distribution of one run to that of the best of K, with one more output for K = 0."""
    f = generating_function(runs)
    return lambda q: np.diff(f(np.r_[0.0, np.minimum(np.cumsum(q), 1.0)]), prepend=0.0)


def threshold_search(stop: float, threshold: int) -> Callable[[Array], Array]:
    """From the distribution of one run to that of the first output from `threshold` on, the last one for none."""

    def select(q: Array) -> Array:
        hit = np.sum(q[threshold:])
        ends = stop + (1 - stop) * hit
        return np.r_[q[threshold:] / ends, stop * (1 - hit) / ends]

    return select


def random_pair(rng: np.random.Generator, outputs: int) -> Pair:
    """Distributions with masses of many magnitudes and bounded ratios, sometimes with an output of only one."""
    p = rng.dirichlet(np.full(outputs, rng.choice([0.1, 0.5, 2.0])))
    p = (p + 1e-9) / np.sum(p + 1e-9)
    q = p * np.exp(rng.uniform(-1, 1, outputs) * rng.choice([0.1, 0.5, 1.0, 2.0]))
    q /= q.sum()
    if rng.random() < 0.3:
        share = 10 ** rng.uniform(-4, -1)
        p, q = np.r_[p * (1 - share), 0.0], np.r_[q * (1 - share), 0.0]
        p[-1], q[rng.integers(outputs)] = share, q[rng.integers(outputs)]
        order = rng.permutation(outputs + 1)
        p, q = p[order], q[order]
        p, q = p / p.sum(), q / q.sum()
    return Pair(p, q)


def climb(rng: np.random.Generator, start: Pair, height: Callable[[Pair], float], steps: int) -> tuple[Pair, float]:
    """Random local search for a pair of greatest height."""
    best, top = start, height(start)
    for _ in range(steps):
        size = rng.choice([0.05, 0.3, 1.0])
        p = best.with_record * np.exp(size * rng.normal(size=len(best.with_record)) * (rng.random() < 0.7))
        q = best.without * np.exp(size * rng.normal(size=len(best.without)) * (rng.random() < 0.7))
        pair = Pair(p / p.sum(), q / q.sum())
        found = height(pair)
        if found > top:
            best, top = pair, found
    return best, top
