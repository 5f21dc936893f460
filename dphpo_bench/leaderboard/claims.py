"""Who beats whom: all pairs of contestants, paired by seed, with one chance of error for all claims together."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from statistics import median

from dphpo_bench.leaderboard.answers import ALL_KINDS, Subject
from dphpo_bench.leaderboard.contestants import Cell, mean_of
from dphpo_bench.leaderboard.rows import FEW_SEEDS
from dphpo_bench.leaderboard.standard import Standard
from dphpo_bench.leaderboard.statistics import Mean, holm, not_steadier_than_together
from dphpo_bench.leaderboard.values import Contestant, Estimate
from dphpo_bench.records.measure import Measure

FAMILY_ERROR = 0.05
"""The family-wise error rate of all claims of a board, as far as Student's t-test holds."""

MOST = 3 / 4
"""The share of a subject's tasks that two contestants must both be in to be compared."""

POWER = 0.8
"""Target statistical power."""

TIMES = (2, 4, 10)
MOST_TIMES = 100
POINT = 0.01


@dataclass(frozen=True)
class Pair:
    """Two contestants on the same tables, seed by seed.

    Attributes:
        better: who is ahead, if only by luck.
        worse: the other one.
        lead: by how much, with its own 95 % interval.
        p_value: the adjusted p-value; up to `FAMILY_ERROR` it is a claim.
        ahead: in how many of the tables it is ahead.
        tables: how many both are in.
    """

    better: Contestant
    worse: Contestant
    lead: Estimate
    p_value: float
    ahead: int
    tables: int

    @property
    def significant(self) -> bool:
        """Whether the board claims that one beats the other."""
        return self.p_value <= FAMILY_ERROR


@dataclass(frozen=True)
class Power:
    """What it takes to tell more pairs apart, if their spreads and leads are what was measured.

    Attributes:
        seeds: the fewest that any of the compared have in any table.
        smallest: the lead that is told apart in four of five boards like this one, for the pair of median error.
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
        subject: as in an answer.
        epsilon: of the tables.
        measure: of the tables.
        tasks: how many settings there are.
        order: the contestants that are in all of the tables, the best mean first.
        others: those that are compared on most of them, by label.
        pairs: each two, on the tables that both are in, if these are most.
        power: what it takes to tell more apart; None if no spread is known.
    """

    subject: str
    epsilon: float
    measure: Measure
    tasks: int
    order: tuple[Contestant, ...]
    others: tuple[Contestant, ...]
    pairs: tuple[Pair, ...]
    power: Power | None

    @property
    def title(self) -> str:
        """Subject and ε."""
        return f"{self.subject}, ε = {self.epsilon:g}"

    @property
    def significant(self) -> tuple[Pair, ...]:
        """The pairs of which the board claims that one beats the other."""
        return tuple(pair for pair in self.pairs if pair.significant)

    @property
    def complete(self) -> tuple[Pair, ...]:
        """The pairs of which both are in all of the tables."""
        return tuple(pair for pair in self.pairs if pair.better in self.order and pair.worse in self.order)

    def beaten(self, who: Contestant) -> list[Pair]:
        """The pairs in which it beats the other one."""
        return [pair for pair in self.significant if pair.better == who]


@dataclass(frozen=True)
class _Compared:
    """Two contestants, and by how much the first is better on the tasks that both are in."""

    better: Contestant
    worse: Contestant
    tasks: frozenset[str]
    lead: Mean


@dataclass(frozen=True)
class _Tested:
    """The pairs of a subject at one ε, before the claims of others are known.

    `order` has those that are in all of its tables, `others` those that are compared on most of them.
    """

    subject: Subject
    epsilon: float
    order: list[Contestant]
    others: list[Contestant]
    pairs: list[_Compared]
    seeds: int


def claims_of(subjects: Sequence[Subject], counted: Sequence[Cell], standard: Standard) -> tuple[Claims, ...]:
    """The claims about the subjects of several settings; where there are none, about each setting that counts.

    They are about those who are in all tables of a subject, at every ε, with at least three seeds, but for tasks from
    which the standard excuses them. Two are compared on the tasks that both are in, if these are three quarters.
    Half of the error is for the claims about all tasks, half for those about kinds of task, if there are both.
    """
    several = [subject for subject in subjects if subject.several]
    titles = {cell.title for cell in counted}
    chosen = several or [subject for subject in subjects if subject.name in titles]
    tested = [one for subject in chosen for one in _tested(subject, standard) if one.pairs]
    levels = [one.subject.name.startswith(ALL_KINDS) for one in tested]
    sizes = {level: sum(len(one.pairs) for one, of in zip(tested, levels, strict=True) if of == level)
             for level in levels}  # fmt: skip
    weights = [1 / sizes[level] / len(sizes) for one, level in zip(tested, levels, strict=True) for _ in one.pairs]
    adjusted = holm([pair.lead.p_value for one in tested for pair in one.pairs], weights)
    undecided = sum(weight for weight, p_value in zip(weights, adjusted, strict=True) if p_value > FAMILY_ERROR)
    found, at = [], 0
    for one, level in zip(tested, levels, strict=True):
        p_values = adjusted[at : at + len(one.pairs)]
        at += len(one.pairs)
        # What Holm's procedure asks of the next pair.
        next_level = FAMILY_ERROR / sizes[level] / len(sizes) / undecided if undecided else FAMILY_ERROR
        found.append(_claims(one, p_values, next_level))
    return tuple(found)


def _tested(subject: Subject, standard: Standard) -> Iterator[_Tested]:
    """The pairs at each ε, the better one first."""
    tasks = frozenset(cell.title for cell in subject.cells)
    known = dict.fromkeys(who for cell in subject.cells for who in cell.by_contestant)
    lacking = {who: [cell for cell in subject.cells if not _takes_part(who, cell)] for who in known}
    inside = {
        who: tasks - {cell.title for cell in lacking[who]}
        for who in known
        if all((who.method, cell.setting.task, cell.setting.model) in standard.excused for cell in lacking[who])
    }
    compared = [
        (first, second, shared, _leads(first, second, subject, shared))
        for first, second in combinations(inside, 2)
        if len(shared := inside[first] & inside[second]) >= MOST * len(tasks)
    ]
    complete = [who for who in inside if inside[who] == tasks]
    partial = {who for pair in compared for who in pair[:2]} - {*complete}
    for at, target in enumerate(subject.targets):
        cells = subject.at(target)
        means = {who: mean for who in complete if (mean := mean_of([cell.by_contestant[who] for cell in cells], []))}
        pairs = [
            _Compared(first, second, shared, lead)
            if lead.value >= 0
            else _Compared(second, first, shared, replace(lead, value=-lead.value))
            for first, second, shared, found in compared
            if (lead := found[at])
        ]
        runs = (
            len(cell.by_contestant[who].runs)
            for pair in pairs
            for cell in cells
            if cell.title in pair.tasks
            for who in (pair.better, pair.worse)
        )
        yield _Tested(
            subject,
            target,
            order=sorted(means, key=lambda who: (-round(means[who].value, 9), who.label)),
            others=sorted(partial, key=lambda who: who.label),
            pairs=pairs,
            seeds=min(runs, default=0),
        )


def _takes_part(who: Contestant, cell: Cell) -> bool:
    """Whether claims are about it: more of them need more evidence each, so a run or two do not make any."""
    return cell.compares(who) and not who.reference and len(cell.by_contestant[who].runs) >= FEW_SEEDS


def _leads(first: Contestant, second: Contestant, subject: Subject, tasks: frozenset[str]) -> list[Mean | None]:
    """The mean difference over these tasks at each ε.

    None without a standard error, and where an ε has too few of them.
    """
    found: list[Mean | None] = []
    for target in subject.targets:
        cells = subject.at(target)
        entries = [cell.by_contestant for cell in cells if cell.title in tasks]
        lead = None
        if len(entries) >= MOST * len(cells):
            lead = mean_of([own[first] for own in entries], [own[second] for own in entries])
        found.append(lead if lead and lead.error is not None else None)
    return not_steadier_than_together(found)


def _claims(tested: _Tested, p_values: Sequence[float], level: float) -> Claims:
    subject = tested.subject
    cells = subject.at(tested.epsilon)
    pairs = [
        Pair(one.better, one.worse, one.lead.estimate, p_value, *_ahead(one, cells))
        for one, p_value in zip(tested.pairs, p_values, strict=True)
    ]
    undecided = [one.lead for one, pair in zip(tested.pairs, pairs, strict=True) if not pair.significant]
    return Claims(
        subject=subject.name,
        epsilon=tested.epsilon,
        measure=subject.measure,
        tasks=len(cells),
        order=tuple(tested.order),
        others=tuple(tested.others),
        pairs=tuple(pairs),
        power=power_of([one.lead for one in tested.pairs], undecided, tested.seeds, level),
    )


def _ahead(pair: _Compared, cells: Sequence[Cell]) -> tuple[int, int]:
    """In how many of the tables it is ahead, and how many both are in."""
    shared = [cell.by_contestant for cell in cells if cell.title in pair.tasks]
    leads = (mean_of([entries[pair.better]], [entries[pair.worse]]) for entries in shared)
    return sum(bool(lead and lead.value > 0) for lead in leads), len(shared)


def power_of(leads: Sequence[Mean], undecided: Sequence[Mean], seeds: int, level: float) -> Power | None:
    """What the standard errors of these leads allow, and what more data would.

    So many times the data are so many times the seeds on every task, or so many times the tasks with seeds of their
    own, as noisy and with the same leads. Errors get smaller by the square root, and there are at least so many times
    the degrees of freedom.

    Args:
        leads: of all pairs.
        undecided: those that are not told apart.
        seeds: of a task, the fewest of any.
        level: the p-value that the next claim needs.

    Returns:
        None if no lead has an error.
    """
    known = [lead for lead in leads if lead.error]
    if not known or seeds < 2:
        return None
    typical = Mean(0.0, median(lead.error for lead in known if lead.error), median(lead.dof for lead in known))
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
    """The true mean that is told apart with so many times the data."""
    assert lead.error is not None
    return lead.error / math.sqrt(times) * detectable(max(1, math.floor(lead.dof * times)), level)


@cache
def detectable(dof: int, level: float) -> float:
    """The mean that a two-sided t-test shows in 80 % of cases, in standard errors."""
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
