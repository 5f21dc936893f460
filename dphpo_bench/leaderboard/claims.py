"""Claims of who beats whom: all pairs of contestants, on the same tables, with one family-wise error rate."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

from dphpo_bench.leaderboard.contestants import FEW_SEEDS, Contest
from dphpo_bench.leaderboard.means import POINT, Mean, holm
from dphpo_bench.leaderboard.standard import Standard
from dphpo_bench.leaderboard.subjects import ALL_KINDS, Subject
from dphpo_bench.leaderboard.values import Contestant
from dphpo_bench.records.measure import Measure

FAMILY_ERROR = 0.05
"""The family-wise error rate of all claims of a board, as far as Student's t-test holds."""

MOST = 3 / 4
"""The share of a subject's tasks that two contestants must both be in to be compared."""

POWER = 0.8
"""Target statistical power."""

TIMES = (2, 4, 10)
MOST_TIMES = 100


@dataclass(frozen=True)
class Pair:
    """Two contestants on the same tables, with the adjusted p-value."""

    better: Contestant
    worse: Contestant
    lead: Mean
    p_value: float
    ahead: int
    tables: int

    @property
    def significant(self) -> bool:
        return self.p_value <= FAMILY_ERROR


@dataclass(frozen=True)
class Power:
    """The data that it takes to tell more pairs apart, if their spreads and leads are what was measured.

    Attributes:
        smallest: the lead that is told apart in four of five boards like this one, for the median pair.
        times_for_point: how many times the data show a lead of 0.01 for this pair; None for more than are tried.
        by_times: how many of the undecided pairs so many times the data would settle.
    """

    seeds: int
    smallest: float
    times_for_point: float | None
    by_times: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Claims:
    """All pairs of contestants on some tables at one ε.

    Attributes:
        order: the contestants that are in all of the tables, the best mean first.
        others: those that are compared on most of them, by label.
        pairs: each two, on the tables that both are in, if these are most.
    """

    subject: str
    epsilon: float
    measure: Measure
    tasks: int
    order: tuple[Contestant, ...]
    others: tuple[Contestant, ...]
    pairs: tuple[Pair, ...]
    seeds: int = 0
    power: Power | None = None

    @property
    def title(self) -> str:
        return f"{self.subject}, ε = {self.epsilon:g}"

    @property
    def significant(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.significant)

    @property
    def complete(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.better in self.order and pair.worse in self.order)

    def beaten(self, who: Contestant) -> list[Pair]:
        return [pair for pair in self.significant if pair.better == who]


def claims_of(subjects: Sequence[Subject], counted: Sequence[Contest], standard: Standard) -> tuple[Claims, ...]:
    """Return the claims about the subjects of several settings; without such a subject, about each counted setting.

    They are about contestants that are in all tables of a subject, at every ε, with at least three seeds, but for tasks
    from which the standard excuses them. Two are compared on the tasks that both are in, if these are three quarters.
    Half of the error is for the claims about all tasks, half for those about kinds of task, if there are both.
    """
    several = [subject for subject in subjects if subject.several]
    titles = {contest.title for contest in counted}
    chosen = several or [subject for subject in subjects if subject.name in titles]
    untested = [claims for subject in chosen for claims in _compared(subject, standard) if claims.pairs]
    levels = [claims.subject.startswith(ALL_KINDS) for claims in untested]
    sizes: Counter[bool] = Counter()
    for claims, level in zip(untested, levels, strict=True):
        sizes[level] += len(claims.pairs)
    shares = [1 / sizes[level] / len(sizes) for level in levels]
    weights = [share for claims, share in zip(untested, shares, strict=True) for _ in claims.pairs]
    adjusted = holm([pair.lead.p_value for claims in untested for pair in claims.pairs], weights)
    undecided = sum(weight for weight, p_value in zip(weights, adjusted, strict=True) if p_value > FAMILY_ERROR)
    p_values = iter(adjusted)
    tested = []
    for claims, level in zip(untested, levels, strict=True):
        pairs = tuple(replace(pair, p_value=next(p_values)) for pair in claims.pairs)
        # What Holm's procedure asks of the next pair.
        next_level = FAMILY_ERROR / sizes[level] / len(sizes) / undecided if undecided else FAMILY_ERROR
        open_leads = [pair.lead for pair in pairs if not pair.significant]
        power = power_of([pair.lead for pair in pairs], open_leads, claims.seeds, next_level)
        tested.append(replace(claims, pairs=pairs, power=power))
    return tuple(tested)


def _compared(subject: Subject, standard: Standard) -> Iterator[Claims]:
    tasks = frozenset(contest.title for contest in subject.contests)
    known = dict.fromkeys(who for contest in subject.contests for who in contest.by_contestant)
    lacking = {
        who: [
            contest
            for contest in subject.contests
            if who.reference or not contest.compares(who) or len(contest.by_contestant[who].runs) < FEW_SEEDS
        ]
        for who in known
    }
    inside = {
        who: tasks - {contest.title for contest in lacking[who]}
        for who in known
        if all(
            (who.method, contest.setting.task, contest.setting.model) in standard.excused for contest in lacking[who]
        )
    }
    compared = [
        (first, second, subject if shared == tasks else subject.on(shared))
        for first, second in combinations(inside, 2)
        if len(shared := inside[first] & inside[second]) >= MOST * len(tasks)
    ]
    complete = [who for who in inside if inside[who] == tasks]
    partial = {who for first, second, _ in compared for who in (first, second)} - {*complete}
    for target in subject.targets:
        contests = subject.at(target)
        means = {who: mean for who in complete if (mean := subject.mean(who, None, target))}
        pairs, seeds = [], []
        for first, second, part in compared:
            tables = [contest.by_contestant for contest in part.at(target)]
            lead = part.mean(first, second, target) if len(tables) >= MOST * len(contests) else None
            if lead and lead.error is not None:
                better, worse, lead = (second, first, -lead) if lead.value < 0 else (first, second, lead)
                ahead = sum(table[better].mean > table[worse].mean for table in tables)
                pairs.append(Pair(better, worse, lead, lead.p_value, ahead, len(tables)))
                seeds += [len(table[who].runs) for table in tables for who in (first, second)]
        yield Claims(
            subject=subject.name,
            epsilon=target,
            measure=subject.measure,
            tasks=len(contests),
            order=tuple(sorted(means, key=lambda who: (-round(means[who].value, 9), who.label))),
            others=tuple(sorted(partial, key=lambda who: who.label)),
            pairs=tuple(pairs),
            seeds=min(seeds, default=0),
        )


def power_of(leads: Sequence[Mean], undecided: Sequence[Mean], seeds: int, level: float) -> Power | None:
    """Return what the standard errors of these leads allow, and what more seeds, or tasks, as noisy would; `level` is
    the p-value that the next claim needs.
    """
    known = [lead for lead in leads if lead.error]
    if not known or seeds < 2:
        return None
    typical = sorted(known, key=lambda lead: _needed(lead, 1, level))[len(known) // 2]
    tenths = range(10, 10 * MOST_TIMES + 1)
    place = bisect_left(tenths, -POINT, key=lambda count: -_needed(typical, count / 10, level))
    return Power(
        seeds=seeds,
        smallest=_needed(typical, 1, level),
        times_for_point=tenths[place] / 10 if place < len(tenths) else None,
        by_times=tuple(
            (times, sum(lead.value >= _needed(lead, times, level) for lead in undecided if lead.error))
            for times in TIMES
        ),
    )


def _needed(lead: Mean, times: float, level: float) -> float:
    """Return the lead that so much data would show; what collapses leave is taken to shrink like an error."""
    assert lead.error is not None
    shown = lead.error * detectable(max(1, math.floor(lead.dof * times)), level)
    return (shown + lead.below) / math.sqrt(times)


@cache
def detectable(dof: int, level: float) -> float:
    """Return the mean that a two-sided t-test shows in 80 % of cases, in standard errors."""
    import numpy as np
    from scipy.special import chdtri, ndtr, stdtrit

    needed = -float(stdtrit(dof, level / 2))
    # Quantiles of the measured standard error. The chance to see the wrong sign is negligible at this power.
    errors = np.sqrt(chdtri(dof, (np.arange(400) + 0.5) / 400) / dof)
    low, high = 0.0, 10 * needed + 10
    while high - low > 1e-9 * high:
        shift = (low + high) / 2
        low, high = (low, shift) if np.mean(ndtr(shift - needed * errors)) >= POWER else (shift, high)
    return high
