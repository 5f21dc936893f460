"""Who beats whom: all pairs of contestants, paired by seed, with one chance of error for all claims together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from dphpo_bench.leaderboard.answers import ALL_KINDS, Subject
from dphpo_bench.leaderboard.board import FEW_SEEDS
from dphpo_bench.leaderboard.contestants import Cell, mean_of
from dphpo_bench.leaderboard.evidence import FAMILY_ERROR, Claims, Pair
from dphpo_bench.leaderboard.power import power_of
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

    `order` has those that are in all of its tables, `others` those that are in most.
    """

    subject: Subject
    epsilon: float
    order: list[Contestant]
    others: list[Contestant]
    pairs: list[_Compared]
    seeds: int


def claims_of(subjects: Sequence[Subject], counted: Sequence[Cell]) -> tuple[Claims, ...]:
    """The claims about the subjects of several settings; where there are none, about each setting that counts.

    Two contestants are compared on the tasks that both are in, at every ε and with at least three seeds, if these are
    three quarters of the subject's tasks or more.
    Half of the error is for the claims about all tasks, half for those about kinds of task, if there are both.
    """
    several = [subject for subject in subjects if subject.several]
    titles = {cell.title for cell in counted}
    chosen = several or [subject for subject in subjects if subject.name in titles]
    tested = [one for subject in chosen for one in _tested(subject) if one.pairs]
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


def _tested(subject: Subject) -> Iterator[_Tested]:
    """The pairs at each ε, the better one first."""
    tasks = frozenset(cell.title for cell in subject.cells)
    known = dict.fromkeys(who for cell in subject.cells for who in cell.by_contestant)
    inside = {who: tasks - {cell.title for cell in subject.cells if not _takes_part(who, cell)} for who in known}
    everyone = [who for who in known if len(inside[who]) >= MOST * len(tasks)]
    complete = [who for who in everyone if inside[who] == tasks]
    leads = [
        (first, second, shared, _leads(first, second, subject, shared))
        for first, second in combinations(everyone, 2)
        if len(shared := inside[first] & inside[second]) >= MOST * len(tasks)
    ]
    for at, target in enumerate(subject.targets):
        entries = {who: [cell.by_contestant[who] for cell in subject.at(target)] for who in complete}
        means = {who: mean for who, own in entries.items() if (mean := mean_of(own, []))}
        yield _Tested(
            subject,
            target,
            order=sorted(means, key=lambda who: (-round(means[who].value, 9), who.label)),
            others=[who for who in everyone if who not in complete],
            pairs=[
                _Compared(first, second, shared, lead)
                if lead.value >= 0
                else _Compared(second, first, shared, replace(lead, value=-lead.value))
                for first, second, shared, found in leads
                if (lead := found[at])
            ],
            seeds=min((len(entry.runs) for own in entries.values() for entry in own), default=0),
        )


def _takes_part(who: Contestant, cell: Cell) -> bool:
    """Whether claims are about it: more of them need more evidence each, so a run or two do not make any."""
    return who in cell.by_contestant and not who.reference and len(cell.by_contestant[who].runs) >= FEW_SEEDS


def _leads(first: Contestant, second: Contestant, subject: Subject, tasks: frozenset[str]) -> list[Mean | None]:
    """The mean difference over these tasks at each ε; None without a standard error."""
    shared = replace(subject, cells=tuple(cell for cell in subject.cells if cell.title in tasks))
    return not_steadier_than_together([_difference(first, second, shared.at(target)) for target in subject.targets])


def _difference(first: Contestant, second: Contestant, cells: Sequence[Cell]) -> Mean | None:
    if not cells:
        return None
    lead = mean_of([cell.by_contestant[first] for cell in cells], [cell.by_contestant[second] for cell in cells])
    return lead if lead and lead.error is not None else None


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
