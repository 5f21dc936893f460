"""Print how far the board's order holds, and how many more runs its undecided pairs would need.

python research/robustness.py [LEADERBOARD]

The order over all tasks is made again without a task, without a seed, and by other scores. Statistical power follows
from the measured standard errors. docs/scoring.md says what the figures mean.
"""

import math
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean, median

import numpy as np

from dphpo_bench.data.source import DataSource
from dphpo_bench.leaderboard.answers import (
    ALL_KINDS,
    FAMILY_ERROR,
    Claims,
    Subject,
    claims_of,
    groups_of,
    task_models_of,
)
from dphpo_bench.leaderboard.entries import Contest, Entry, Member, Standard, compared, contests_of
from dphpo_bench.leaderboard.means import POINT, Mean, ranks
from dphpo_bench.leaderboard.reruns import read_checked
from dphpo_bench.leaderboard.submissions import Submissions
from dphpo_bench.leaderboard.tables import counted_contests
from dphpo_bench.records.measure import change_text

ORACLE, NONPRIVATE = "the oracle", "nonprivate"

POWER = 0.8
"""Target statistical power."""

TIMES = (2, 4, 10)
MOST_TIMES = 100

Scores = Mapping[Entry, float]


@dataclass(frozen=True)
class Compared:
    """The claims of a board, and the tables that they rest on."""

    claims: tuple[Claims, ...]
    subjects: tuple[Subject, ...]
    counted: tuple[Contest, ...]

    @classmethod
    def of(cls, submissions: Submissions, standard: Standard) -> "Compared":
        contests = contests_of(compared(submissions.runs, standard), standard)
        counted = counted_contests(contests, standard)
        subjects = (*groups_of(counted), *task_models_of(contests))
        return cls(claims_of(subjects, counted, standard), subjects, tuple(counted))

    @property
    def first(self) -> list[Claims]:
        return [claims for claims in self.claims if claims.subject == self.claims[0].subject]

    def tables(self, claims: Claims) -> list[Contest]:
        return next(subject for subject in self.subjects if subject.name == claims.subject).at(claims.epsilon)


@dataclass(frozen=True)
class Variation:
    """A group of other ways to make the board, and what becomes of an order in them.

    Attributes:
        firsts: who is first, and in how many of the ways; the most frequent one first.
        swapped: how many of them change places, in the way that changes most.
        reversed: how many of the significant ones change places, in the way that changes most of these.
    """

    epsilon: float
    title: str
    firsts: tuple[tuple[Entry, int], ...]
    pairs: int
    swapped: int
    reversed: int
    worst: str


@dataclass(frozen=True)
class _Way:
    group: str
    name: str
    scores: Scores


def variations_of(compared: Compared) -> tuple[Variation, ...]:
    """Return what becomes of the order of the first subject's claims, at each ε, in each group of ways."""
    variations = []
    for claimed in compared.first:
        if claimed.complete:
            contests = compared.tables(claimed)
            others = [each for each in compared.counted if each.target == claimed.epsilon and each not in contests]
            complete = [contest for contest in others if all(contest.compares(who) for who in claimed.order)]
            ways = list(_ways(contests, complete, claimed.order))
            groups = dict.fromkeys(way.group for way in ways)
            variations += [_variation(claimed, group, [way for way in ways if way.group == group]) for group in groups]
    return tuple(variations)


def _ways(contests: Sequence[Contest], others: Sequence[Contest], order: Sequence[Entry]) -> Iterator[_Way]:
    """Yield the ways to make a board of these tables; scores without a unit can also be of tables of other metrics."""

    def averaged(group: str, name: str, of: Callable[[Contest], Scores], chosen: Sequence[Contest] = contests) -> _Way:
        scores = [of(contest) for contest in chosen]
        return _Way(group, name, {who: fmean(each[who] for each in scores) for who in order})

    task_models = list(dict.fromkeys(contest.title for contest in contests))
    for title in task_models if len(task_models) > 1 else ():
        rest = [contest for contest in contests if contest.title != title]
        yield averaged("without one task", f"without {title}", partial(_means, order=order), rest)
    for at in range(max(len(_seeds(contest)) for contest in contests)):
        yield averaged(
            "without one seed of each task", f"without seed {at + 1}", partial(_means, order=order, left_out=at)
        )
    if len(task_models) == 1 and not others:
        return  # one table has one order, whatever it is measured by
    yield averaged("by mean rank", "", partial(_ranks, order=order), [*contests, *others])
    middles = [_means(contest, order) for contest in contests]
    yield _Way("by the median task", "", {who: median(each[who] for each in middles) for who in order})
    for top in (ORACLE, NONPRIVATE):
        measured = [contest for contest in (*contests, *others) if _has_way(contest, top)]
        if measured:
            yield averaged(
                f"by the share of the way from untuned to {top}", "", partial(_shares, order=order, top=top), measured
            )


def _seeds(contest: Contest) -> list[int]:
    return sorted({seed for member in contest.ranked for seed in member.by_seed()})


def _mean(member: Member, without: int | None = None) -> float:
    scores = member.by_seed()
    return fmean([score for seed, score in scores.items() if seed != without] or scores.values())


def _means(contest: Contest, order: Sequence[Entry], left_out: int | None = None) -> Scores:
    seeds = _seeds(contest)
    without = None if left_out is None or left_out >= len(seeds) else seeds[left_out]
    return {who: _mean(contest.by_entry[who], without) for who in order}


def _ranks(contest: Contest, order: Sequence[Entry]) -> Scores:
    means = np.array([round(mean, 9) for mean in _means(contest, order).values()])
    return dict(zip(order, (-ranks(means)).tolist(), strict=True))


def _shares(contest: Contest, order: Sequence[Entry], top: str) -> Scores:
    assert contest.untuned is not None
    start, end = _mean(contest.untuned), _mean(_top(contest, top)[0])
    return {who: (mean - start) / (end - start) for who, mean in _means(contest, order).items()}


def _top(contest: Contest, top: str) -> list[Member]:
    if top == ORACLE:
        return [contest.oracle] if contest.oracle else []
    return [member for member in contest.members if member.entry.method == top][:1]


def _has_way(contest: Contest, top: str) -> bool:
    """Return True if the distance from untuned is significantly above zero, so that shares of it mean something."""
    ends = _top(contest, top)
    if not ends or contest.untuned is None:
        return False
    alone = Subject(contest.title, contest.task_model.measure, (contest,))
    lead = alone.lead(ends[0].entry, contest.untuned.entry)
    return bool(lead and lead.low and lead.low > 0)


def _variation(claims: Claims, group: str, ways: Sequence[_Way]) -> Variation:
    # Of equal ones, the first on the board.
    firsts = Counter(max(claims.order, key=lambda who: round(way.scores[who], 9)) for way in ways)
    changed = [_changed(claims, way.scores) for way in ways]
    most = max(changed)
    return Variation(
        epsilon=claims.epsilon,
        title=group,
        firsts=tuple(sorted(firsts.items(), key=lambda item: (-item[1], item[0].label))),
        pairs=len(claims.complete),
        swapped=most[0],
        reversed=max(wrong for _, wrong in changed),
        worst=ways[changed.index(most)].name if len(ways) > 1 else "",
    )


def _changed(claims: Claims, scores: Scores) -> tuple[int, int]:
    changed = [pair for pair in claims.complete if round(scores[pair.better] - scores[pair.worse], 9) < 0]
    return len(changed), sum(pair.significant for pair in changed)


@dataclass(frozen=True)
class Power:
    """The data that would make more pairs significant, if their spreads and leads are what was measured.

    Attributes:
        smallest: the lead that is significant in four of five boards like this one, for the median pair.
        times_for_point: how many times the data show a lead of 0.01 for this pair; None for more than are tried.
        by_times: how many of the undecided pairs so many times the data would settle.
    """

    seeds: int
    smallest: float
    times_for_point: float | None
    by_times: tuple[tuple[int, int], ...]


def powers(compared: Compared) -> list[tuple[Claims, Power]]:
    """Return the power of each claim's tests, at the p-value that Holm's procedure asks of the next pair."""
    overall = [claims.subject.startswith(ALL_KINDS) for claims in compared.claims]
    sizes: Counter[bool] = Counter()
    for claims, level in zip(compared.claims, overall, strict=True):
        sizes[level] += len(claims.pairs)
    weights = [1 / sizes[level] / len(sizes) for level in overall]
    undecided = math.fsum(
        weight * (len(claims.pairs) - len(claims.significant))
        for claims, weight in zip(compared.claims, weights, strict=True)
    )
    known = []
    for claims, weight in zip(compared.claims, weights, strict=True):
        leads = [pair.lead for pair in claims.pairs]
        open_leads = [pair.lead for pair in claims.pairs if not pair.significant]
        everyone = (*claims.order, *claims.others)
        members = [contest.by_entry.get(who) for contest in compared.tables(claims) for who in everyone]
        seeds = min(len(member.runs) for member in members if member and not member.lacks)
        power = power_of(leads, open_leads, seeds, FAMILY_ERROR * (weight / undecided if undecided else 1.0))
        known += [(claims, power)] if power else []
    return known


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
    from scipy.special import chdtri, ndtr, stdtrit

    needed = -float(stdtrit(dof, level / 2))
    # Quantiles of the measured standard error. The chance to see the wrong sign is negligible at this power.
    errors = np.sqrt(chdtri(dof, (np.arange(400) + 0.5) / 400) / dof)
    low, high = 0.0, 10 * needed + 10
    while high - low > 1e-9 * high:
        shift = (low + high) / 2
        low, high = (low, shift) if np.mean(ndtr(shift - needed * errors)) >= POWER else (shift, high)
    return high


def report(compared: Compared) -> str:
    """Return both parts as Markdown."""
    lines = [
        "# Does the order hold?",
        "",
        "| ε | the board made | first (times) | pairs that change places | of the significant |",
    ]
    lines += ["| --: | :-- | :-- | --: | --: |"]
    variations = variations_of(compared)
    for each in variations:
        firsts = ", ".join(f"{who.label} ({count})" for who, count in each.firsts)
        worst = f" ({each.worst})" if each.worst else ""
        swapped = f"{each.swapped} of {each.pairs}{worst}"
        lines.append(f"| {each.epsilon:g} | {each.title} | {firsts} | {swapped} | {each.reversed} |")
    settled = [f"settled by {times} times the data" for times in TIMES]
    header = ["tables", "seeds", "undecided pairs", "typical lead seen", "times the data for a point", *settled]
    lines += ["", "# What would settle the rest?", "", f"| {' | '.join(header)} |", f"|{' --: |' * len(header)}"]
    for claims, power in powers(compared):
        undecided = len(claims.pairs) - len(claims.significant)
        times = f"more than {MOST_TIMES}" if power.times_for_point is None else f"{power.times_for_point:g}"
        smallest = change_text(power.smallest, claims.measure).lstrip("+")
        cells = [claims.title, power.seeds, undecided, smallest, times, *(count for _, count in power.by_times)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main(folder: Path) -> None:
    suite = folder / "suites/core.toml"
    standard = Standard.of_suites(*([suite] if suite.is_file() else []))
    submissions = read_checked([folder / "results"], DataSource.resolve(None).cache_dir / "epsilons")
    sys.stdout.write(report(Compared.of(submissions, standard)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "leaderboard"))
