"""Does the order hold if the board is made in another way: without a task, without a seed, by another score?"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

import numpy as np

from dphpo_bench.leaderboard.claims import Claims
from dphpo_bench.leaderboard.contestants import Contest, Entry
from dphpo_bench.leaderboard.statistics import ranks
from dphpo_bench.leaderboard.subjects import Subject
from dphpo_bench.leaderboard.values import Contestant

ORACLE, NONPRIVATE = "the oracle", "nonprivate"

Scores = Mapping[Contestant, float]


@dataclass(frozen=True)
class Variation:
    """A group of other ways to make the board, and what becomes of an order in them.

    Attributes:
        firsts: who is first, and in how many of the ways; the most frequent one first.
        swapped: how many of them change places, in the way that changes most.
        reversed: how many of those that are told apart change places, in the way that changes most of these.
    """

    epsilon: float
    title: str
    firsts: tuple[tuple[Contestant, int], ...]
    pairs: int
    swapped: int
    reversed: int
    worst: str


@dataclass(frozen=True)
class _Way:
    group: str
    name: str
    scores: Scores


def variations_of(
    claims: Sequence[Claims], subjects: Sequence[Subject], counted: Sequence[Contest]
) -> tuple[Variation, ...]:
    """Return what becomes of the order of the first subject's claims, at each ε, in each group of ways."""
    variations = []
    for claimed in claims:
        if claimed.subject == claims[0].subject and claimed.complete:
            contests = next(subject for subject in subjects if subject.name == claimed.subject).at(claimed.epsilon)
            others = [contest for contest in counted if contest.target == claimed.epsilon and contest not in contests]
            complete = [contest for contest in others if all(contest.compares(who) for who in claimed.order)]
            ways = list(_ways(contests, complete, claimed.order))
            groups = dict.fromkeys(way.group for way in ways)
            variations += [_variation(claimed, group, [way for way in ways if way.group == group]) for group in groups]
    return tuple(variations)


def _ways(contests: Sequence[Contest], others: Sequence[Contest], order: Sequence[Contestant]) -> Iterator[_Way]:
    """Yield the ways to make a board of these tables; scores without a unit can also be of tables of other metrics."""

    def averaged(group: str, name: str, of: Callable[[Contest], Scores], chosen: Sequence[Contest] = contests) -> _Way:
        scores = [of(contest) for contest in chosen]
        return _Way(group, name, {who: fmean(each[who] for each in scores) for who in order})

    settings = list(dict.fromkeys(contest.title for contest in contests))
    for title in settings if len(settings) > 1 else ():
        rest = [contest for contest in contests if contest.title != title]
        yield averaged("without one task", f"without {title}", partial(_means, order=order), rest)
    for at in range(max(len(_seeds(contest)) for contest in contests)):
        yield averaged(
            "without one seed of each task", f"without seed {at + 1}", partial(_means, order=order, left_out=at)
        )
    if len(settings) == 1 and not others:
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
    return sorted({seed for entry in contest.ranked for seed in entry.by_seed()})


def _mean(entry: Entry, without: int | None = None) -> float:
    scores = entry.by_seed()
    return fmean([score for seed, score in scores.items() if seed != without] or scores.values())


def _means(contest: Contest, order: Sequence[Contestant], left_out: int | None = None) -> Scores:
    seeds = _seeds(contest)
    without = None if left_out is None or left_out >= len(seeds) else seeds[left_out]
    return {who: _mean(contest.by_contestant[who], without) for who in order}


def _ranks(contest: Contest, order: Sequence[Contestant]) -> Scores:
    means = np.array([round(mean, 9) for mean in _means(contest, order).values()])
    return dict(zip(order, (-ranks(means)).tolist(), strict=True))


def _shares(contest: Contest, order: Sequence[Contestant], top: str) -> Scores:
    assert contest.untuned is not None
    start, end = _mean(contest.untuned), _mean(_top(contest, top)[0])
    return {who: (mean - start) / (end - start) for who, mean in _means(contest, order).items()}


def _top(contest: Contest, top: str) -> list[Entry]:
    if top == ORACLE:
        return [contest.oracle] if contest.oracle else []
    return [entry for entry in contest.entries if entry.contestant.method == top][:1]


def _has_way(contest: Contest, top: str) -> bool:
    """Return True if the distance from untuned is significantly above zero, so that shares of it mean something."""
    ends = _top(contest, top)
    if not ends or contest.untuned is None:
        return False
    alone = Subject(contest.title, contest.setting.measure, (contest,))
    lead = alone.lead(ends[0].contestant, contest.untuned.contestant)
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
