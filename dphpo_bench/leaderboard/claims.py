"""Claims of who beats whom: all pairs of entries, on the same tables, with one family-wise error rate."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from dphpo_bench.leaderboard.entries import FEW_SEEDS, Contest
from dphpo_bench.leaderboard.means import Mean, holm
from dphpo_bench.leaderboard.standard import Standard
from dphpo_bench.leaderboard.subjects import ALL_KINDS, Subject
from dphpo_bench.leaderboard.values import Entry
from dphpo_bench.records.measure import Measure

FAMILY_ERROR = 0.05
"""The family-wise error rate of all claims of a board, as far as Student's t-test holds."""

MOST = 3 / 4
"""The share of a subject's tasks that two entries must both be in to be compared."""


@dataclass(frozen=True)
class Pair:
    """Two entries on the same tables, with the adjusted p-value."""

    better: Entry
    worse: Entry
    lead: Mean
    p_value: float
    ahead: int
    tables: int

    @property
    def significant(self) -> bool:
        return self.p_value <= FAMILY_ERROR


@dataclass(frozen=True)
class Claims:
    """All pairs of entries on some tables at one ε.

    Attributes:
        order: the entries that are in all of the tables, the best mean first.
        others: those that are compared on most of them, by label.
        pairs: each two, on the tables that both are in, if these are most.
    """

    subject: str
    epsilon: float
    measure: Measure
    tasks: int
    order: tuple[Entry, ...]
    others: tuple[Entry, ...]
    pairs: tuple[Pair, ...]

    @property
    def title(self) -> str:
        return f"{self.subject}, ε = {self.epsilon:g}"

    @property
    def significant(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.significant)

    @property
    def complete(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.better in self.order and pair.worse in self.order)

    def beaten(self, who: Entry) -> list[Pair]:
        return [pair for pair in self.significant if pair.better == who]


def claims_of(subjects: Sequence[Subject], counted: Sequence[Contest], standard: Standard) -> tuple[Claims, ...]:
    """Return the claims about the subjects of several task–model pairs; without any, about each pair that counts.

    They are about entries that are in all tables of a subject, at every ε, with at least three seeds, but for tasks
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
    p_values = iter(adjusted)
    return tuple(
        replace(claims, pairs=tuple(replace(pair, p_value=next(p_values)) for pair in claims.pairs))
        for claims in untested
    )


def _compared(subject: Subject, standard: Standard) -> Iterator[Claims]:
    tasks = frozenset(contest.title for contest in subject.contests)
    known = dict.fromkeys(who for contest in subject.contests for who in contest.by_entry)
    lacking = {
        who: [
            contest
            for contest in subject.contests
            if who.reference or not contest.compares(who) or len(contest.by_entry[who].runs) < FEW_SEEDS
        ]
        for who in known
    }
    inside = {
        who: tasks - {contest.title for contest in lacking[who]}
        for who in known
        if all(
            (who.method, contest.task_model.task, contest.task_model.model) in standard.excused
            for contest in lacking[who]
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
        pairs = []
        for first, second, part in compared:
            tables = [contest.by_entry for contest in part.at(target)]
            lead = part.mean(first, second, target) if len(tables) >= MOST * len(contests) else None
            if lead and lead.error is not None:
                better, worse, lead = (second, first, -lead) if lead.value < 0 else (first, second, lead)
                ahead = sum(table[better].mean > table[worse].mean for table in tables)
                pairs.append(Pair(better, worse, lead, lead.p_value, ahead, len(tables)))
        yield Claims(
            subject=subject.name,
            epsilon=target,
            measure=subject.measure,
            tasks=len(contests),
            order=tuple(sorted(means, key=lambda who: (-round(means[who].value, 9), who.label))),
            others=tuple(sorted(partial, key=lambda who: who.label)),
            pairs=tuple(pairs),
        )
