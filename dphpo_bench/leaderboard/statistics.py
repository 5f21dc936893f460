"""Ranks by bootstrap, with equal drawings of seeds for all entries.

The same values give the same result on every machine: sums are exact, random numbers come from a bit stream that never
changes, and ranks compare whole numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dphpo_bench.leaderboard.values import Ranks
from dphpo_bench.records.estimates import CONFIDENCE, quantile

DRAWS = 2000
UNIT, EQUAL = 10**12, 10**5
"""Scores are whole numbers in units of 1e-12, whose sums have no rounding; means that agree to 1e-7 are equal."""

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Scores of entries on one task at one ε.

    Attributes:
        values: shape (entries, seeds), in units of 1e-12; 0 where there is none.
        present: shape (entries, seeds), 1 where there is a score, else 0. Each entry has at least one.
    """

    values: Integers
    present: Integers

    @classmethod
    def of(cls, scores: Sequence[Sequence[float | None]]) -> "Scores":
        """Return scores in [−1, 1], of shape (entries, seeds), as whole numbers; None where there is no run."""
        values = [[0 if score is None else round(score * UNIT) for score in row] for row in scores]
        present = [[int(score is not None) for score in row] for row in scores]
        return cls(np.asarray(values, dtype=np.int64), np.asarray(present, dtype=np.int64))

    @property
    def means(self) -> Reals:
        means: Reals = self.values.sum(axis=1) / self.present.sum(axis=1)
        return means

    @property
    def ranks(self) -> Reals:
        return ranks(np.rint(self.means / EQUAL))

    def resampled_ranks(self, weights: Integers) -> Reals:
        """Return ranks of the entries in each resampling, 1 is best.

        Means of n seeds drawn from n seeds spread less than means of n new seeds, and lack Student's heavy tails.
        Deviations from the mean are therefore widened by √(n/(n−1)) · t / z, as Hesterberg's (2015) expanded percentile
        interval does for means: their middle 95 % is as wide as the t interval. If none of an entry's seeds is
        drawn, it keeps its mean.
        """
        counts = weights @ self.present.T
        means = self.means
        drawn = np.where(counts > 0, (weights @ self.values.T) / np.maximum(counts, 1), means)
        widening = np.array([_widening(seeds) for seeds in self.present.sum(axis=1).tolist()])
        return ranks(np.rint((means + widening * (drawn - means)) / EQUAL))


def ranks(scores: Reals) -> Reals:
    """Return ranks along the last axis, 1 for the highest score; equal scores share the mean of their ranks."""
    from scipy.stats import rankdata

    ranked: Reals = rankdata(-scores, axis=-1)
    return ranked


def draw(items: int, stream: int, draws: int = DRAWS) -> Integers:
    """Draw as many items as there are (at most 2³²), with replacement: counts of shape (draws, items)."""
    raw = np.random.PCG64(stream).random_raw(draws * items)
    chosen = ((raw >> np.uint64(32)) * np.uint64(items) >> np.uint64(32)).astype(np.int64).reshape(draws, items)
    flat = chosen + items * np.arange(draws, dtype=np.int64)[:, None]
    return np.bincount(flat.ravel(), minlength=draws * items).reshape(draws, items).astype(np.int64)


def middle_ranks(resampled: Reals) -> list[Ranks]:
    return [Ranks(math.floor(low), math.ceil(high)) for low, high in middle(resampled)]


def middle(resampled: Reals) -> list[tuple[float, float]]:
    ordered = np.sort(resampled, axis=0)
    cut = math.floor((1 - CONFIDENCE) / 2 * len(ordered))
    return list(zip(ordered[cut].tolist(), ordered[-1 - cut].tolist(), strict=True))


@cache
def _widening(count: int) -> float:
    if count < 2:
        return 1.0
    return math.sqrt(count / (count - 1)) * quantile(count - 1) / NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
