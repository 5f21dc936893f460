"""Answers: which method, at my ε, for my kind of task? Distances to the oracle for each kind, task–model pair and ε."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dphpo_bench.leaderboard.claims import FAMILY_ERROR, Claims
from dphpo_bench.leaderboard.entries import Contest, Member, median
from dphpo_bench.leaderboard.means import POINT, Mean, over_tasks
from dphpo_bench.leaderboard.subjects import Subject
from dphpo_bench.leaderboard.values import BEHIND, EQUIVALENT, UNCERTAIN, Entry
from dphpo_bench.records.estimates import Estimate
from dphpo_bench.records.measure import Measure

UNTUNED = "untuned auto_clipping"


@dataclass(frozen=True)
class Part:
    """A value that a mean is over, such as that of one seed or of one table."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Place:
    """An entry's line in an answer.

    Attributes:
        parts: what `lead` is over, the best first: seeds if it is about a single table, else tables.
        over_tasks: the same lead with an interval about other tasks like these; None for fewer than two tasks.
        untuned: 1 if it is significantly better than untuned `auto_clipping`, −1 if worse, else 0.
        verdict: "equivalent" to the first, within a point; else "behind" if significantly; else "uncertain".
        calibration: by how much its cross entropy is better, hence smaller, than the anchor's.
        cost: examples processed, relative to untuned `auto_clipping`; median over the tables.
    """

    entry: Entry
    lead: Estimate
    parts: tuple[Part, ...]
    over_tasks: Estimate | None
    untuned: int
    verdict: str
    cross_entropy: Estimate | None
    calibration: Estimate | None
    cost: float | None
    tuning_share: float


@dataclass(frozen=True)
class Absent:
    """An entry in some of an answer's tables: its lead over the anchor there, and that of the answer's first."""

    entry: Entry
    tables: int
    lead: Estimate | None
    first: Estimate | None


@dataclass(frozen=True)
class Answer:
    """An answer which method is best on some tables of one metric, by its distance to an anchor.

    Attributes:
        epsilon: of the tables; None for all.
        anchor: "the oracle", or "untuned auto_clipping" where there is no oracle.
    """

    subject: str
    epsilon: float | None
    measure: Measure
    anchor: str
    task_models: tuple[str, ...]
    tables: int
    places: tuple[Place, ...]
    references: tuple[Place, ...]
    absent: tuple[Absent, ...]

    @property
    def nearly(self) -> tuple[Absent, ...]:
        return tuple(absent for absent in self.absent if 2 * absent.tables >= self.tables)

    @property
    def title(self) -> str:
        return f"{self.subject}, {'all ε' if self.epsilon is None else f'ε = {self.epsilon:g}'}"

    @property
    def everyone(self) -> tuple[Place, ...]:
        return self.places + self.references


def answers_of(subjects: Sequence[Subject], claims: Sequence[Claims]) -> tuple[Answer, ...]:
    """Return the answers of the subjects at each ε and over all; who is significant is as in the claims."""
    tested = {(each.subject, each.epsilon): each for each in claims}
    answers = []
    for subject in subjects:
        for target in (*subject.targets, None) if len(subject.targets) > 1 else subject.targets:
            of_target = tested.get((subject.name, target)) if target is not None else None
            answer = _answer(subject, target, of_target)
            if answer.places:
                answers.append(answer)
    return tuple(answers)


@dataclass(frozen=True)
class _Test:
    """The board's test of two entries: adjusted by Holm as in the claims, else for each comparison with the first.

    Comparisons with the first are as many as there are others, so that with 95 % confidence the best one is not behind.
    """

    subject: Subject
    target: float | None
    p_values: Mapping[frozenset[Entry], float]
    others: int

    def sign(self, who: Entry, other: Entry) -> int:
        """Return 1 if the first is significantly better, −1 if worse, else 0."""
        mean = self.subject.mean(who, other, self.target) if who != other else None
        if mean is None:
            return 0
        p_value = self.p_values.get(frozenset((who, other)), self.others * mean.p_value)
        return 0 if p_value > FAMILY_ERROR else 1 if mean.value > 0 else -1

    def verdict(self, who: Entry, first: Entry) -> str:
        if who == first:
            return EQUIVALENT
        behind = self.subject.lead(first, who, self.target)
        if behind and behind.low is not None and behind.high is not None:
            margin = self._margin(first)
            if -margin <= behind.low and behind.high <= margin:
                return EQUIVALENT
        return BEHIND if self.sign(first, who) == 1 else UNCERTAIN

    def _margin(self, first: Entry) -> float:
        """Return a point; of a metric that has no points, as much of the first's mean."""
        measure, mean = self.subject.measure, self.subject.mean(first, None, self.target)
        return POINT if measure.share or measure.logarithmic else POINT * abs(mean.value if mean else 0.0)


def _answer(subject: Subject, target: float | None, claims: Claims | None) -> Answer:
    contests = subject.at(target)
    oracles = [contest.oracle for contest in contests if contest.oracle]
    untuned = [contest.untuned for contest in contests if contest.untuned]
    anchor, anchors = ("the oracle", oracles) if len(oracles) == len(contests) else (UNTUNED, untuned)
    inside = Counter(member.entry for contest in contests for member in contest.members if not member.lacks)
    leads: list[tuple[Entry, Estimate]] = []
    if len(anchors) == len(contests):
        measured = anchors[0].entry
        everywhere = (who for who, tables in inside.items() if tables == len(contests))
        leads = [(who, lead) for who in everywhere if (lead := subject.lead(who, measured, target))]
    # Who has no interval, for want of a second seed, is not put first.
    leads.sort(key=lambda item: (item[1].low is None, -round(item[1].mean, 9), item[0].label))
    ranked = [who for who, _ in leads if not who.reference]
    p_values = {frozenset((pair.better, pair.worse)): pair.p_value for pair in claims.pairs} if claims else {}
    test = _Test(subject, target, p_values, max(1, len(ranked) - 1))
    places = [_place(who, lead, test, contests, anchors, ranked[0]) for who, lead in leads if ranked]
    return Answer(
        subject=subject.name,
        epsilon=target,
        measure=subject.measure,
        anchor=anchor,
        task_models=tuple(dict.fromkeys(contest.title for contest in contests)),
        tables=len(contests),
        places=tuple(place for place in places if not place.entry.reference),
        references=tuple(place for place in places if place.entry.reference),
        absent=tuple(_absent(subject, contests, anchors[0].entry, inside, ranked[0])) if ranked else (),
    )


def _absent(
    subject: Subject, contests: Sequence[Contest], anchor: Entry, inside: Counter[Entry], first: Entry
) -> Iterator[Absent]:
    for who, tables in sorted(inside.items(), key=lambda item: (-item[1], item[0].label)):
        if tables < len(contests) and not who.reference:
            there = Subject(subject.name, subject.measure, tuple(each for each in contests if each.compares(who)))
            yield Absent(who, tables, there.lead(who, anchor), there.lead(first, anchor))


def _place(
    who: Entry,
    lead: Estimate,
    test: _Test,
    contests: Sequence[Contest],
    anchors: Sequence[Member],
    first: Entry,
) -> Place:
    subject, target = test.subject, test.target
    members = [contest.by_entry[who] for contest in contests]
    untuned = [contest.untuned for contest in contests if contest.untuned]
    costs = [
        member.examples / contest.untuned.examples
        for member, contest in zip(members, contests, strict=True)
        if contest.untuned and contest.untuned.examples and member.examples
    ]
    cross_entropy = subject.mean(who, None, target, "cross_entropy")
    return Place(
        entry=who,
        lead=lead,
        parts=tuple(sorted(_parts(contests, members, anchors), key=lambda part: (-round(part.value, 9), part.name))),
        over_tasks=_over_tasks(subject, contests, members, anchors),
        untuned=test.sign(who, untuned[0].entry) if len(untuned) == len(contests) else 0,
        verdict=test.verdict(who, first),
        cross_entropy=cross_entropy.estimate.inside(0.0, math.inf) if cross_entropy else None,
        calibration=_negative(subject.mean(who, anchors[0].entry, target, "cross_entropy")),
        cost=median(costs),
        tuning_share=median(share for member in members for share in member.finished["tuning_share"]) or 0.0,
    )


def _negative(mean: Mean | None) -> Estimate | None:
    return None if mean is None else (-mean).estimate


def _over_tasks(
    subject: Subject, contests: Sequence[Contest], members: Sequence[Member], anchors: Sequence[Member]
) -> Estimate | None:
    by_task_model: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for contest, member, anchor in zip(contests, members, anchors, strict=True):
        by_task_model[contest.task_model.task, contest.title].append(_lead(member, anchor))
    by_task: defaultdict[str, list[float]] = defaultdict(list)
    for (task, _), leads in by_task_model.items():
        by_task[task].append(fmean(leads))
    return subject.bounded(over_tasks(by_task)) if len(by_task) > 1 else None


def _lead(member: Member, anchor: Member) -> float:
    return fmean(member.by_seed().values()) - fmean(anchor.by_seed().values())


def _parts(contests: Sequence[Contest], members: Sequence[Member], anchors: Sequence[Member]) -> Iterator[Part]:
    if len(contests) == 1:
        oracle = fmean(anchors[0].by_seed().values())
        yield from (Part(f"seed {seed}", score - oracle) for seed, score in sorted(members[0].by_seed().items()))
        return
    one_task_model = len({contest.title for contest in contests}) == 1
    one_target = len({contest.target for contest in contests}) == 1
    for contest, member, anchor in zip(contests, members, anchors, strict=True):
        at = f"ε = {contest.target:g}"
        name = at if one_task_model else contest.title if one_target else f"{contest.title}, {at}"
        yield Part(name, _lead(member, anchor))
