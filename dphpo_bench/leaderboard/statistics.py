"""The statistics of the leaderboard: intervals over seeds, ratios of differences, ranks by paired bootstrap.

The same values give the same result on every machine: sums are exact, random numbers come from a bit stream that never
changes, and ranks compare whole numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean

import numpy as np
from numpy.typing import NDArray

from dphpo_bench.leaderboard.board import Estimate, Ranks

CONFIDENCE = 0.95
DRAWS = 2000
UNIT = 10**6
"""Scores are compared in millionths, as whole numbers, whose sums have no rounding."""

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]


def mean_interval(values: Sequence[float]) -> Estimate:
    """The mean of independent values with Student's t interval; a single value has no interval."""
    middle, count = fmean(values), len(values)
    if count < 2:
        return Estimate(middle)
    half = _t(count) * math.sqrt(_covariance(values, values) / count)
    return Estimate(middle, middle - half, middle + half)


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate | None:
    """The ratio of two means over pairs, with Fieller's (1954) interval.

    The interval holds every ratio r for which a t-test does not reject that numerator − r · denominator is zero
    on average. It is exact for pairs from a normal distribution, unlike quotients of intervals.

    Returns:
        None if there are fewer than two pairs, or the mean of the denominators is not above zero with the same
        confidence: then no ratio can be excluded.
    """
    count = len(denominators)
    if count < 2:
        return None
    top, bottom = fmean(numerators), fmean(denominators)
    scale = _t(count) ** 2 / count
    leading = bottom**2 - scale * _covariance(denominators, denominators)
    if bottom <= 0 or leading <= 0:
        return None
    linear = top * bottom - scale * _covariance(numerators, denominators)
    constant = top**2 - scale * _covariance(numerators, numerators)
    root = math.sqrt(max(0.0, linear**2 - leading * constant))
    return Estimate(top / bottom, (linear - root) / leading, (linear + root) / leading)


@dataclass(frozen=True)
class Scores:
    """Scores of contestants on one task at one ε.

    Attributes:
        values: shape (contestants, seeds), in millionths; 0 where there is none.
        present: shape (contestants, seeds), 1 where there is a score, else 0. Each contestant has at least one.
    """

    values: Integers
    present: Integers

    @classmethod
    def of(cls, scores: Sequence[Sequence[float | None]]) -> "Scores":
        """From scores in [−1, 1], of shape (contestants, seeds), None where there is no run."""
        values = [[0 if score is None else round(score * UNIT) for score in row] for row in scores]
        present = [[int(score is not None) for score in row] for row in scores]
        return cls(np.asarray(values, dtype=np.int64), np.asarray(present, dtype=np.int64))

    @property
    def means(self) -> Reals:
        """Shape (contestants,)."""
        means: Reals = self.values.sum(axis=1) / self.present.sum(axis=1)
        return means

    def resampled_ranks(self, weights: Integers) -> Reals:
        """Ranks of the contestants in each resampling, 1 is best.

        Means of n seeds drawn from n seeds spread less than means of n new seeds, and lack Student's heavy tails.
        Deviations from the mean are therefore widened by √(n/(n−1)) · t / z, as Hesterberg's (2015) expanded percentile
        interval does for means: their middle 95 % is as wide as the t interval. If none of a contestant's seeds is
        drawn, it keeps its mean.

        Args:
            weights: shape (draws, seeds), how often each seed is drawn; see `draw`.

        Returns:
            Shape (draws, contestants).
        """
        counts = weights @ self.present.T
        means = self.means
        drawn = np.where(counts > 0, (weights @ self.values.T) / np.maximum(counts, 1), means)
        widening = np.array([_widening(seeds) for seeds in self.present.sum(axis=1).tolist()])
        return ranks(means + widening * (drawn - means))


def ranks(scores: Reals) -> Reals:
    """Ranks along the last axis, 1 for the highest score; equal scores share the mean of their ranks."""
    from scipy.stats import rankdata

    ranked: Reals = rankdata(-scores, axis=-1)
    return ranked


def draw(items: int, stream: int, draws: int = DRAWS) -> Integers:
    """Draw as many items as there are, with replacement, many times.

    Args:
        items: how many there are, at most 2³².
        stream: number of the random stream; the same stream gives the same draws.
        draws: how many times.

    Returns:
        Shape (draws, items): how often each item was drawn; rows sum to `items`.
    """
    raw = np.random.PCG64(stream).random_raw(draws * items)
    chosen = ((raw >> np.uint64(32)) * np.uint64(items) >> np.uint64(32)).astype(np.int64).reshape(draws, items)
    flat = chosen + items * np.arange(draws, dtype=np.int64)[:, None]
    return np.bincount(flat.ravel(), minlength=draws * items).reshape(draws, items).astype(np.int64)


def middle_ranks(resampled: Reals) -> list[Ranks]:
    """Each contestant's middle 95 % of ranks of shape (draws, contestants), rounded outwards to whole ranks."""
    return [Ranks(math.floor(low), math.ceil(high)) for low, high in middle(resampled)]


def middle(resampled: Reals) -> list[tuple[float, float]]:
    """The ends of the middle 95 % of each column."""
    ordered = np.sort(resampled, axis=0)
    cut = math.floor((1 - CONFIDENCE) / 2 * len(ordered))
    return list(zip(ordered[cut].tolist(), ordered[-1 - cut].tolist(), strict=True))


def _covariance(first: Sequence[float], second: Sequence[float]) -> float:
    mean_first, mean_second = fmean(first), fmean(second)
    products = ((a - mean_first) * (b - mean_second) for a, b in zip(first, second, strict=True))
    return math.fsum(products) / (len(first) - 1)


@cache
def _t(count: int) -> float:
    """The quantile of Student's t distribution for the mean of so many values."""
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))


@cache
def _widening(count: int) -> float:
    """The factor by which deviations of resampled means of so many values are widened; 1 for a single value."""
    if count < 2:
        return 1.0
    return math.sqrt(count / (count - 1)) * _t(count) / NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
