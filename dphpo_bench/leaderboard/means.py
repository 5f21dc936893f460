"""Means over seeds and tables, with the one test that the board has for them: Welch's, and an allowance for collapses.

A search may collapse in a run of ten, and three runs mostly do not show it. So the runs that collapsed are
treated apart. Their rate is taken from more runs than the mean, with the exact interval of Clopper and Pearson (1934).
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import NormalDist, fmean, median_high

import numpy as np
from numpy.typing import NDArray

from dphpo_bench.records.measure import CONFIDENCE, Estimate, Measure, quantile, variance_of_mean

POINT = 0.01
"""A point: a hundredth of a share; of a perplexity a hundredth of a nat, hence 1 %."""

COLLAPSE, COLLAPSE_IN_NATS = 0.1, 0.5
"""A run that ends so far below the median of its method's runs in its table, or at a smaller ε, has collapsed."""

FEWEST = 3
"""With fewer runs, none of them can be said to have collapsed rather than the other."""


@dataclass(frozen=True)
class Mean:
    """A mean or a difference of means.

    Attributes:
        error: its standard error, None if too little is known.
        dof: the degrees of freedom of the error.
        below: by how much the mean of all runs to come may lie below `value` because of collapses alone.
        above: the same for above.
    """

    value: float
    error: float | None = None
    dof: float = 0.0
    below: float = 0.0
    above: float = 0.0

    def __neg__(self) -> "Mean":
        return replace(self, value=-self.value, below=self.above, above=self.below)

    @property
    def estimate(self) -> Estimate:
        if self.error is None:
            return Estimate(self.value)
        half = quantile(self.dof) * self.error
        return Estimate(self.value, self.value - self.below - half, self.value + self.above + half)

    @property
    def beyond_collapses(self) -> float:
        """The distance from zero that collapses leave; zero at least."""
        return max(0.0, abs(self.value) - (self.below if self.value > 0 else self.above))

    @property
    def p_value(self) -> float:
        """The p-value of a two-sided test of zero, which is 5 % where the interval ends at zero; 1 without an error."""
        from scipy.special import stdtr

        if self.error is None or not self.beyond_collapses:
            return 1.0
        return 2 * float(stdtr(self.dof, -self.beyond_collapses / self.error)) if self.error else 0.0


@dataclass(frozen=True)
class Rate:
    """A share of runs, with the exact 95 % interval of Clopper and Pearson (1934)."""

    count: int
    runs: int

    @property
    def mean(self) -> float | None:
        return self.count / self.runs if self.runs else None

    @property
    def low(self) -> float:
        return _clopper_pearson(self.count, self.runs)[0]

    @property
    def high(self) -> float:
        return _clopper_pearson(self.count, self.runs)[1]


@cache
def _clopper_pearson(count: int, runs: int) -> tuple[float, float]:
    from scipy.special import betaincinv

    low, high = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    return (
        float(betaincinv(count, runs - count + 1, low)) if count else 0.0,
        float(betaincinv(count + 1, runs - count, high)) if count < runs else 1.0,
    )


@dataclass(frozen=True)
class Falls:
    """The bounds of an entry's collapses in a table.

    Attributes:
        limit: a value this far below the median is a collapse; ∞ where the metric has no such distance.
        deepest: by how much it ever fell in a table of its metric's unit; 0 if it never collapsed.
        lowest: the lowest value that any entry's run has in this task–model pair.
        expected: the entry's largest median on this task–model pair at a smaller ε; −∞ if there is none. More ε
            excuses no collapse, not even of all runs.
    """

    limit: float = math.inf
    deepest: float = 0.0
    lowest: float = -math.inf
    expected: float = -math.inf


NO_FALLS = Falls()


def fall_limit(measure: Measure) -> float:
    return COLLAPSE if measure.share else COLLAPSE_IN_NATS if measure.logarithmic else math.inf


@dataclass(frozen=True)
class Sample:
    """An entry's values by seed in one table, of which there is at least one; larger is better.

    Attributes:
        more: values of further runs, which say how often runs collapse, and nothing else.
    """

    by_seed: Mapping[int, float]
    falls: Falls = NO_FALLS
    task_model: str = ""
    more: tuple[float, ...] = ()

    @cached_property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @cached_property
    def all_runs(self) -> "Sample":
        """The sample with the further runs among the others, by numbers."""
        return replace(self, by_seed=dict(enumerate([*self.by_seed.values(), *self.more])), more=())

    @cached_property
    def middle(self) -> float:
        """The median; −∞ of too few runs."""
        return median_high(self.by_seed.values()) if len(self.by_seed) >= FEWEST else -math.inf

    @cached_property
    def drops(self) -> list[float]:
        """Distances of the runs that are far below the median: at most half, and at most one of three."""
        return self._below(self.middle)

    @cached_property
    def collapsed(self) -> list[float]:
        """Distances of the collapsed runs below the median, or below what is expected if that is larger."""
        return self._below(max(self.middle, self.falls.expected))

    def _below(self, level: float) -> list[float]:
        return [level - value for value in self.by_seed.values() if level - value > self.falls.limit]

    @cached_property
    def sound(self) -> list[float]:
        """The values of the other runs."""
        return sorted(self.by_seed.values())[len(self.drops) :]

    @property
    def lost(self) -> float:
        """Loss of the mean to collapses."""
        return fmean(self.sound) - self.mean

    @property
    def depth(self) -> float:
        """The depth that a collapse may have here: as any of this entry's, but no run of the pair is lower."""
        return min(self.falls.deepest, fmean(self.sound) - self.falls.lowest)

    @cached_property
    def variance(self) -> float | None:
        """The variance of the mean of the runs that did not collapse; None of a single one."""
        return variance_of_mean(self.sound)

    @property
    def dof(self) -> int:
        return len(self.sound) - 1


def mean_of(samples: Sequence[Sample], others: Sequence[Sample] = ()) -> Mean:
    """Return the mean over tables, less that of another entry in the same tables, by Welch's unpaired test.

    Tables in which an entry has the same seeds are averaged seed by seed first: one seed draws equal trials of a
    search in all of them. All else counts as independent. The error is that of the runs that did not collapse.
    """
    value = fmean(sample.mean for sample in samples)
    if others:
        value -= fmean(sample.mean for sample in others)
    blocks = [(len(block) / len(side), _together(block)) for side in (samples, others) for block in _blocks(side)]
    variances = [share**2 * block.variance for share, block in blocks if block.variance is not None]
    if len(variances) < len(blocks):
        return Mean(value)
    total = math.fsum(variances)
    dof = [block.dof for _, block in blocks]
    below = math.fsum(variance**2 / each for variance, each in zip(variances, dof, strict=True))
    # Of values so close together that the squares vanish, all degrees of freedom count.
    return Mean(value, math.sqrt(total), total**2 / below if below else float(sum(dof)))


def _blocks(samples: Sequence[Sample]) -> list[list[Sample]]:
    by_seeds: defaultdict[tuple[int, ...], list[Sample]] = defaultdict(list)
    for sample in samples:
        by_seeds[tuple(sorted(sample.by_seed))].append(sample)
    return [*by_seeds.values()]


def _together(block: Sequence[Sample]) -> Sample:
    if len(block) == 1:
        return block[0]
    return Sample({seed: fmean(sample.by_seed[seed] for sample in block) for seed in block[0].by_seed})


def means_of(
    by_epsilon: Mapping[float, Sequence[Sample]], others: Mapping[float, Sequence[Sample]] | None = None
) -> dict[float | None, Mean]:
    """Return the mean over tables at each ε and, by None, over all of them, less that of another entry.

    Args:
        by_epsilon: an entry's samples, one in each table.
        others: of the other one, in the same tables; none: subtract nothing.
    """
    sides = [by_epsilon, others] if others is not None else [by_epsilon]
    tables: dict[float | None, list[list[Sample]]] = {at: [[*side[at]] for side in sides] for at in by_epsilon}
    means = dict(zip(tables, not_steadier_than_together([mean_of(*of_all) for of_all in tables.values()]), strict=True))
    pools = [[sample for samples in side.values() for sample in samples] for side in sides]
    means[None] = mean_of(*pools) if len(tables) > 1 else next(iter(means.values()))
    tables[None] = pools
    for at, of_all in tables.items():
        (below, above), *rest = (collapses(samples, pool) for samples, pool in zip(of_all, pools, strict=True))
        below, above = below + sum(end for _, end in rest), above + sum(end for end, _ in rest)
        means[at] = replace(means[at], below=below, above=above)
    return means


def collapses(samples: Sequence[Sample], pool: Sequence[Sample]) -> tuple[float, float]:
    """Return by how much the mean of all runs to come may lie below and above that of the samples for collapses alone.

    The interval of their rate is from the pool: the same tables at every ε. It holds if the rate is the same in all of
    them, and if each task–model pair where one was seen has a rate of its own. An entry whose `deepest` is 0 has none.
    """
    names = {sample.task_model for sample in samples}
    by_task_model = {name: [sample for sample in pool if sample.task_model == name] for name in names}
    rates = {name: rate_of(here) for name, here in by_task_model.items()}
    sure = {name: rate_of(here, sure=True) for name, here in by_task_model.items()}
    depth, lost = fmean(sample.depth for sample in samples), fmean(sample.lost for sample in samples)
    apart = [(sample, rates[sample.task_model]) for sample in samples]
    highest = fmean(sample.depth * (rate.high if rate.count else 0.0) for sample, rate in apart)
    lowest = fmean(sample.depth * sure[sample.task_model].low for sample in samples)
    most, least = rate_of(pool).high * depth, rate_of(pool, sure=True).low * depth
    return max(0.0, max(highest, most) - lost), max(0.0, lost - min(lowest, least))


def rate_of(samples: Sequence[Sample], sure: bool = False) -> Rate:
    """Return how often runs collapse. Further runs count if all samples are of one task–model pair.

    Args:
        samples: of an entry.
        sure: count only what is far below the median of its own table.
    """
    if len({sample.task_model for sample in samples}) == 1:
        samples = [sample.all_runs for sample in samples]
    fallen = sum(len(sample.drops if sure else sample.collapsed) for sample in samples)
    return Rate(fallen, sum(len(sample.by_seed) for sample in samples))


def not_steadier_than_together(means: Sequence[Mean]) -> list[Mean]:
    """Return the means at several ε, none with an error below the root mean square of all.

    Where runs spread more at one ε than another, or only seem to, the error is far too small just where an entry is
    ahead. Other ε have seen more of its runs.
    """
    errors = [mean.error for mean in means if mean.error is not None]
    together = math.sqrt(fmean(error**2 for error in errors)) if errors else 0.0
    return [mean if mean.error is None else replace(mean, error=max(mean.error, together)) for mean in means]


def over_tasks(by_task: Mapping[str, Sequence[float]]) -> Estimate:
    """Return the mean over task–model pairs with an interval about other tasks, by Student's t over the tasks.

    Pairs of one task go together: the deviations of a task from the mean add up before they are squared. Noise of
    the seeds is within these deviations.
    """
    count = sum(map(len, by_task.values()))
    mean = math.fsum(map(math.fsum, by_task.values())) / count
    tasks = len(by_task)
    if tasks < 2:
        return Estimate(mean)
    squares = math.fsum((math.fsum(values) - mean * len(values)) ** 2 for values in by_task.values())
    half = quantile(tasks - 1) * math.sqrt(tasks / (tasks - 1) * squares) / count
    return Estimate(mean, mean - half, mean + half)


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


def ratio_interval(mine: Sequence[Sample], start: Sequence[Sample], end: Sequence[Sample]) -> Estimate | None:
    """Return (mine − start) / (end − start) of three means over the same tables, with Fieller's (1954) interval.

    The interval holds every ratio r for which a t-test does not reject that mine − start − r · (end − start) is zero,
    with the degrees of freedom of Welch and Satterthwaite for the three variances. These are of all runs, collapsed
    ones too.

    Returns:
        None if one of them has a single run, or the mean of end − start is not above zero with the same confidence:
        then no ratio can be excluded.
    """
    means = [mean_of([replace(sample, falls=NO_FALLS) for sample in side]) for side in (mine, start, end)]
    top, bottom = means[0].value - means[1].value, means[2].value - means[1].value
    errors = [mean.error for mean in means if mean.error is not None]
    if len(errors) < len(means) or bottom <= 0:
        return None
    of_mine, of_start, of_end = (error**2 for error in errors)
    below = math.fsum(error**4 / mean.dof for error, mean in zip(errors, means, strict=True))
    scale = quantile((of_mine + of_start + of_end) ** 2 / below) ** 2 if below else 0.0
    leading = bottom**2 - scale * (of_end + of_start)
    if leading <= 0:
        return None
    linear = top * bottom - scale * of_start
    constant = top**2 - scale * (of_mine + of_start)
    root = math.sqrt(max(0.0, linear**2 - leading * constant))
    return Estimate(top / bottom, (linear - root) / leading, (linear + root) / leading)


@dataclass(frozen=True)
class Ranks:
    """The best and the worst of the middle 95 % of the ranks that resampling gives to an entry; 1 is best."""

    low: int
    high: int


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
