"""Who beats whom: all pairs of contestants, paired by seed, with one chance of error for all claims together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from dphpo_bench.leaderboard.answers import ALL_KINDS, Subject
from dphpo_bench.leaderboard.board import FEW_SEEDS
from dphpo_bench.leaderboard.contestants import Cell, mean_of
from dphpo_bench.leaderboard.evidence import FAMILY_ERROR, Claims, Pair
from dphpo_bench.leaderboard.power import power_of
from dphpo_bench.leaderboard.standard import Standard
from dphpo_bench.leaderboard.statistics import Mean, holm, not_steadier_than_together
from dphpo_bench.leaderboard.values import Contestant

MOST = 3 / 4
"""The share of a subject's tasks that two contestants must both be in to be compared."""


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
    adjusted = holm([pair.lead.chance for one in tested for pair in one.pairs], weights)
    undecided = sum(weight for weight, chance in zip(weights, adjusted, strict=True) if chance > FAMILY_ERROR)
    found, at = [], 0
    for one, level in zip(tested, levels, strict=True):
        chances = adjusted[at : at + len(one.pairs)]
        at += len(one.pairs)
        # What Holm's procedure asks of the next pair.
        next_level = FAMILY_ERROR / sizes[level] / len(sizes) / undecided if undecided else FAMILY_ERROR
        found.append(_claims(one, chances, next_level))
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


def _claims(tested: _Tested, chances: Sequence[float], level: float) -> Claims:
    subject = tested.subject
    cells = subject.at(tested.epsilon)
    pairs = [
        Pair(one.better, one.worse, one.lead.estimate, chance, *_ahead(one, cells))
        for one, chance in zip(tested.pairs, chances, strict=True)
    ]
    undecided = [one.lead for one, pair in zip(tested.pairs, pairs, strict=True) if not pair.told_apart]
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
