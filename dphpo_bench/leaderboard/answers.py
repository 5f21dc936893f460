"""Answers: which method, at my ε, for my kind of task? Distances to the oracle for each kind, setting and ε."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dphpo_bench.leaderboard.contestants import Contest, Entry, mean_over, median
from dphpo_bench.leaderboard.values import Contestant, Estimate
from dphpo_bench.records.measure import SEVERAL, Measure

ALL_KINDS = "all tasks"
UNTUNED = "untuned auto_clipping"


@dataclass(frozen=True)
class Subject:
    name: str
    measure: Measure
    contests: tuple[Contest, ...]

    @property
    def several(self) -> bool:
        return len({contest.setting for contest in self.contests}) > 1

    def at(self, target: float | None) -> list[Contest]:
        return [contest for contest in self.contests if target in (None, contest.target)]

    @property
    def targets(self) -> list[float]:
        return sorted({contest.target for contest in self.contests})


@dataclass(frozen=True)
class Part:
    """A value that a mean is over, such as that of one seed or of one table."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Place:
    """A contestant's line in an answer.

    Attributes:
        parts: what `lead` is over, the best first: seeds if it is about a single table, else tables.
        untuned: 1 if it is better than untuned `auto_clipping` with 95 % confidence, −1 if worse, else 0.
        calibration: by how much its cross entropy is better, hence smaller, than the anchor's.
        cost: examples processed, relative to untuned `auto_clipping`; median over the tables.
    """

    contestant: Contestant
    lead: Estimate
    parts: tuple[Part, ...]
    untuned: int
    tied: bool
    cross_entropy: Estimate | None
    calibration: Estimate | None
    cost: float | None
    tuning_share: float


@dataclass(frozen=True)
class Absent:
    """A contestant in some of an answer's tables: its lead over the anchor there, and that of the answer's first."""

    contestant: Contestant
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
    settings: tuple[str, ...]
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


def answers_of(subjects: Sequence[Subject]) -> tuple[Answer, ...]:
    answers = []
    for subject in subjects:
        for target in (*subject.targets, None) if len(subject.targets) > 1 else subject.targets:
            answer = _answer(subject, target)
            if answer.places:
                answers.append(answer)
    return tuple(answers)


def subjects_of(contests: Sequence[Contest], counted: Sequence[Contest]) -> tuple[Subject, ...]:
    """Return all counted tables, those of each kind, then each setting; metrics that are no shares stand apart."""
    kinds = sorted({kind for contest in counted for kind in contest.setting.kinds})
    several: dict[tuple[int, ...], Subject] = {}
    for kind in ("", *kinds):
        chosen = [contest for contest in counted if kind in ("", *contest.setting.kinds)]
        for subject in _averaged(kind or ALL_KINDS, chosen):
            if subject.several:
                several.setdefault(tuple(map(id, subject.contests)), subject)
    titles = dict.fromkeys(contest.title for contest in contests)
    single = ([contest for contest in contests if contest.title == title] for title in titles)
    return (
        *several.values(),
        *(Subject(chosen[0].title, chosen[0].setting.measure, tuple(chosen)) for chosen in single),
    )


def _averaged(name: str, contests: Sequence[Contest]) -> Iterator[Subject]:
    measures = sorted({contest.setting.measure for contest in contests})
    shares = [measure for measure in measures if measure.share and measure.higher_is_better]
    groups = [shares, *([measure] for measure in measures if measure not in shares)]
    for group in filter(None, groups):
        measure = group[0] if len(group) == 1 else SEVERAL
        alike = tuple(contest for contest in contests if contest.setting.measure in group)
        by = f" by {measure.title if len(group) == 1 else 'metrics in points'}"
        yield Subject(name if len(group) == len(measures) else f"{name}{by}", measure, alike)


def _answer(subject: Subject, target: float | None) -> Answer:
    contests = subject.at(target)
    oracles = [contest.oracle for contest in contests if contest.oracle]
    untuned = [contest.untuned for contest in contests if contest.untuned]
    anchor, anchors = ("the oracle", oracles) if len(oracles) == len(contests) else (UNTUNED, untuned)
    inside = Counter(entry.contestant for contest in contests for entry in contest.entries if not entry.lacks)
    places = []
    if len(anchors) == len(contests):
        for who, tables in inside.items():
            entries = [contest.by_contestant[who] for contest in contests if who in contest.by_contestant]
            lead = mean_over(entries, anchors) if tables == len(contests) and entries[0] is not anchors[0] else None
            if lead:
                places.append(_place(who, lead, contests, entries, anchors))
    # Who has no interval, for want of a second seed, is not put first.
    places.sort(key=lambda place: (place.lead.low is None, -round(place.lead.mean, 9), place.contestant.label))
    ranked = [place for place in places if not place.contestant.reference]
    return Answer(
        subject=subject.name,
        epsilon=target,
        measure=subject.measure,
        anchor=anchor,
        settings=tuple(dict.fromkeys(contest.title for contest in contests)),
        tables=len(contests),
        places=tuple(_with_ties(ranked, contests)),
        references=tuple(place for place in places if place.contestant.reference),
        absent=tuple(_absent(contests, anchors, inside, ranked[0].contestant)) if ranked else (),
    )


def _absent(
    contests: Sequence[Contest], anchors: Sequence[Entry], inside: Counter[Contestant], first: Contestant
) -> Iterator[Absent]:
    for who, tables in sorted(inside.items(), key=lambda item: (-item[1], item[0].label)):
        if tables < len(contests) and not who.reference:
            there = [
                (contest, anchor) for contest, anchor in zip(contests, anchors, strict=True) if contest.compares(who)
            ]
            against = [anchor for _, anchor in there]
            lead, other = (
                mean_over([contest.by_contestant[compared] for contest, _ in there], against)
                for compared in (who, first)
            )
            yield Absent(who, tables, lead, other)


def _place(
    who: Contestant, lead: Estimate, contests: Sequence[Contest], entries: Sequence[Entry], anchors: Sequence[Entry]
) -> Place:
    untuned = [contest.untuned for contest in contests if contest.untuned]
    against = mean_over(entries, untuned) if len(untuned) == len(contests) else None
    costs = [
        entry.examples / contest.untuned.examples
        for entry, contest in zip(entries, contests, strict=True)
        if contest.untuned and contest.untuned.examples and entry.examples
    ]
    return Place(
        contestant=who,
        lead=lead,
        parts=tuple(sorted(_parts(contests, entries, anchors), key=lambda part: (-round(part.value, 9), part.name))),
        untuned=against.sign if against else 0,
        tied=False,
        cross_entropy=mean_over(entries, [], "cross_entropy"),
        calibration=mean_over(anchors, entries, "cross_entropy"),
        cost=median(costs),
        tuning_share=median(share for entry in entries for share in entry.finished["tuning_share"]) or 0.0,
    )


def _parts(contests: Sequence[Contest], entries: Sequence[Entry], anchors: Sequence[Entry]) -> Iterator[Part]:
    if len(contests) == 1:
        scores, others = entries[0].by_seed(), anchors[0].by_seed()
        yield from (Part(f"seed {seed}", scores[seed] - others[seed]) for seed in sorted({*scores} & {*others}))
        return
    one_setting = len({contest.title for contest in contests}) == 1
    one_target = len({contest.target for contest in contests}) == 1
    for contest, entry, anchor in zip(contests, entries, anchors, strict=True):
        lead = mean_over([entry], [anchor])
        if lead:
            at = f"ε = {contest.target:g}"
            yield Part(at if one_setting else contest.title if one_target else f"{contest.title}, {at}", lead.mean)


def _with_ties(places: Sequence[Place], contests: Sequence[Contest]) -> Iterator[Place]:
    """Mark the places that the data do not separate from the first, seed by seed."""
    if not places:
        return
    first = [contest.by_contestant[places[0].contestant] for contest in contests]
    for place in places:
        entries = [contest.by_contestant[place.contestant] for contest in contests]
        lead = mean_over(entries, first)
        yield place if lead and lead.sign else replace(place, tied=True)
