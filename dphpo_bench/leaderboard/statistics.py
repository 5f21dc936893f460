"""The statistics of the leaderboard: intervals over seeds, ratios of differences, ranks by paired bootstrap.

The same values give the same result on every machine: sums are exact, random numbers come from a bit stream that never
changes, and ranks compare whole numbers.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist, fmean

import numpy as np
from numpy.typing import NDArray

from dphpo_bench.leaderboard.values import Estimate, Ranks
from dphpo_bench.records.measure import Measure

CONFIDENCE = 0.95
DRAWS = 2000
UNIT, EQUAL = 10**12, 10**5
"""Scores are whole numbers in units of 1e-12, whose sums have no rounding; means that agree to 1e-7 are equal."""

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error, None if too little is known, and the error's degrees of freedom."""

    value: float
    error: float | None = None
    dof: float = 0.0

    @property
    def estimate(self) -> Estimate:
        if self.error is None:
            return Estimate(self.value)
        half = _t(self.dof) * self.error
        return Estimate(self.value, self.value - half, self.value + half)

    @property
    def p_value(self) -> float:
        """The p-value of a two-sided t-test of zero; 1 without an error to compare with."""
        from scipy.special import stdtr

        if self.error is None or not self.value:
            return 1.0
        return 2 * float(stdtr(self.dof, -abs(self.value) / self.error)) if self.error else 0.0


def mean_interval(values: Sequence[float]) -> Estimate:
    return mean_of_tables([dict(enumerate(values))]).estimate


def metric_mean(values: Sequence[float], measure: Measure) -> Estimate:
    """Return the mean of a metric over runs, with its interval; by logarithms for a logarithmic metric."""
    return mean_interval([measure.score(value) for value in values]).through(measure.value)


def mean_of_tables(tables: Sequence[Mapping[int, float]]) -> Mean:
    """Return the mean over tables, each the mean over its own seeds, which may be other ones in other tables.

    Values of one seed may depend on each other: the same seed draws the same trials everywhere. Tables with the same
    seeds are averaged seed by seed, which gives Student's t interval if all have the same ones. Else the variances of
    these groups are added, with the covariances over the seeds that two of them share, if those are above zero. The
    degrees of freedom are those of Welch and Satterthwaite, but one less than there are seeds, for each set of groups
    that have seeds in common, is the most.
    """
    alike: defaultdict[tuple[int, ...], list[Mapping[int, float]]] = defaultdict(list)
    for table in tables:
        alike[tuple(sorted(table))].append(table)
    shares = [len(group) / len(tables) for group in alike.values()]
    by_seed = [{seed: fmean(table[seed] for table in group) for seed in seeds} for seeds, group in alike.items()]
    value = math.fsum(share * fmean(group.values()) for share, group in zip(shares, by_seed, strict=True))
    if min(map(len, by_seed)) < 2:
        return Mean(value)
    variances = [
        share**2 * _covariance([*group.values()], [*group.values()]) / len(group)
        for share, group in zip(shares, by_seed, strict=True)
    ]
    shared = (
        2 * shares[i] * shares[j] * _covariance_of_means(by_seed[i], by_seed[j])
        for j in range(len(by_seed))
        for i in range(j)
    )
    most = float(len(set().union(*alike)) - _separate(alike))
    below = math.fsum(each**2 / (len(group) - 1) for each, group in zip(variances, by_seed, strict=True))
    dof = min(most, math.fsum(variances) ** 2 / below) if len(variances) > 1 and below else most
    return Mean(value, math.sqrt(math.fsum([*variances, *shared])), dof)


def not_steadier_than_together(leads: Sequence[Mean | None]) -> list[Mean | None]:
    """Return the leads at several ε, none with an error below the root mean square of all.

    A search that collapses in one run of ten often does not in five, and then looks steady: its error is far too small
    just where it is ahead. Other ε have seen more of its runs.
    """
    errors = [lead.error for lead in leads if lead and lead.error is not None]
    together = math.sqrt(fmean(error**2 for error in errors)) if errors else 0.0
    return [lead and replace(lead, error=max(lead.error or 0.0, together)) for lead in leads]


def holm(p_values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return adjusted p-values of Holm (1979), with weights: the family-wise error rate is at most α."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place] / weights[place])
    adjusted = [1.0] * len(p_values)
    left, reached = math.fsum(weights), 0.0
    for place in order:
        reached = max(reached, p_values[place] / weights[place] * left)
        adjusted[place] = min(1.0, reached)
        left -= weights[place]
    return adjusted


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate | None:
    """Return the ratio of two means over pairs, with Fieller's (1954) interval.

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
    scale = _t(count - 1) ** 2 / count
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
        values: shape (contestants, seeds), in units of 1e-12; 0 where there is none.
        present: shape (contestants, seeds), 1 where there is a score, else 0. Each contestant has at least one.
    """

    values: Integers
    present: Integers

    @classmethod
    def of(cls, scores: Sequence[Sequence[float | None]]) -> "Scores":
        """Return scores in [−1, 1], of shape (contestants, seeds), as whole numbers; None where there is no run."""
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
        """Return ranks of the contestants in each resampling, 1 is best.

        Means of n seeds drawn from n seeds spread less than means of n new seeds, and lack Student's heavy tails.
        Deviations from the mean are therefore widened by √(n/(n−1)) · t / z, as Hesterberg's (2015) expanded percentile
        interval does for means: their middle 95 % is as wide as the t interval. If none of a contestant's seeds is
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


def _covariance(first: Sequence[float], second: Sequence[float]) -> float:
    mean_first, mean_second = fmean(first), fmean(second)
    products = ((a - mean_first) * (b - mean_second) for a, b in zip(first, second, strict=True))
    return math.fsum(products) / (len(first) - 1)


def _separate(groups: Iterable[Sequence[int]]) -> int:
    """Return how many sets of groups there are that have no seed in common."""
    sets: list[set[int]] = []
    for group in groups:
        meeting = [seeds for seeds in sets if seeds & set(group)]
        sets = [seeds for seeds in sets if seeds not in meeting] + [set(group).union(*meeting)]
    return len(sets)


def _covariance_of_means(first: Mapping[int, float], second: Mapping[int, float]) -> float:
    """Return the covariance of two means over seeds, by the seeds in both; not below zero, the cautious side."""
    both = sorted(set(first) & set(second))
    if not both:
        return 0.0
    if len(both) == 1:  # no covariance can be seen: the largest that there may be
        spreads = _covariance([*first.values()], [*first.values()]) * _covariance(
            [*second.values()], [*second.values()]
        )
        covariance = math.sqrt(spreads)
    else:
        covariance = _covariance([first[seed] for seed in both], [second[seed] for seed in both])
    return max(0.0, covariance) * len(both) / (len(first) * len(second))


@cache
def _t(dof: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(dof, (1 + CONFIDENCE) / 2))


@cache
def _widening(count: int) -> float:
    if count < 2:
        return 1.0
    return math.sqrt(count / (count - 1)) * _t(count - 1) / NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
