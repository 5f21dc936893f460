"""Answers: which method, at my ε, for my kind of task, and who beats whom.

Subjects are groups of tables that questions are about. Claims compare all pairs of entries on the same tables, with one
family-wise error rate. Answers are distances to the oracle for each subject and ε.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from statistics import fmean

from dphpo_bench.leaderboard.entries import FEW_SEEDS, Contest, Entry, Member, Standard, median
from dphpo_bench.leaderboard.means import POINT, Mean, Rate, Sample, holm, means_of, over_tasks, rate_of
from dphpo_bench.records.measure import SEVERAL, Estimate, Measure

EQUIVALENT, BEHIND, UNCERTAIN = "equivalent", "behind", "uncertain"
"""Verdicts on an entry beside the first: within a point of it, significantly worse, or neither can be said."""

ALL_KINDS = "all tasks"
TESTS = "test tasks"
UNTOUCHED = "untouched tables"
OTHERS = "all other tasks"
"""All tables but the untouched ones, which no list mixes with others."""


@dataclass(frozen=True, eq=False)
class Subject:
    """Tables of one measure, each of one task at one ε."""

    name: str
    measure: Measure
    contests: tuple[Contest, ...]
    _means: dict[tuple[Entry, Entry | None, str], dict[float | None, Mean]] = field(default_factory=dict)

    @property
    def several(self) -> bool:
        return len({contest.task_model for contest in self.contests}) > 1

    def at(self, target: float | None) -> list[Contest]:
        return [contest for contest in self.contests if target in (None, contest.target)]

    @cached_property
    def targets(self) -> list[float]:
        return sorted({contest.target for contest in self.contests})

    def on(self, titles: frozenset[str]) -> "Subject":
        """Return the part of these task–model pairs."""
        return Subject(self.name, self.measure, tuple(each for each in self.contests if each.title in titles))

    def mean(
        self, who: Entry, other: Entry | None = None, target: float | None = None, column: str = "score"
    ) -> Mean | None:
        """Return the mean of an entry over the tables at one ε, less that of another; by the board's one test.

        Args:
            who: the entry.
            other: who to subtract; None: nobody.
            target: the ε; None for all tables.
            column: as `Entry.by_seed` knows it.

        Returns:
            None if either is not in all of the tables.
        """
        key = who, other, column
        if key not in self._means:
            self._means[key] = self._means_of(who, other, column)
        return self._means[key].get(target)

    def _means_of(self, who: Entry, other: Entry | None, column: str) -> dict[float | None, Mean]:
        """Return the means at each ε where all tables have both, and over all tables if that is everywhere."""
        sides = [{at: self._samples(side, at, column) for at in self.targets} for side in (who, other) if side]
        common = [target for target in self.targets if all(side[target] for side in sides)]
        if not common:
            return {}
        means = means_of(*({target: side[target] for target in common} for side in sides))
        if len(common) < len(self.targets):
            del means[None]
        return means

    def _samples(self, who: Entry, target: float, column: str) -> list[Sample]:
        """Return the samples in each of the tables; none if it lacks in one."""
        members = [contest.by_entry.get(who) for contest in self.at(target)]
        samples = [member.sample(column) for member in members if member]
        known = [sample for sample in samples if sample]
        return known if len(known) == len(members) else []

    def lead(self, who: Entry | None, other: Entry | None, target: float | None = None) -> Estimate | None:
        """Return by how much the first is ahead, if both are known and different."""
        if who is None or other is None or who == other:
            return None
        mean = self.mean(who, other, target)
        return self.bounded(mean.estimate) if mean else None

    def bounded(self, difference: Estimate) -> Estimate:
        """Return a difference with an interval that differences of this measure can have."""
        return difference.inside(-1.0, 1.0) if self.measure.share else difference

    def cross_entropy(self, who: Entry, target: float | None) -> Estimate | None:
        mean = self.mean(who, None, target, "cross_entropy")
        return mean.estimate.inside(0.0, math.inf) if mean else None

    def collapses(self, who: Entry) -> Rate:
        """Return how many of the entry's runs in the tables collapsed, at all ε; of metrics that know a collapse."""
        members = (contest.by_entry.get(who) for contest in self.contests)
        samples = (sample for member in members if member and (sample := member.sample()))
        return rate_of([sample for sample in samples if sample.falls.limit < math.inf])


def task_models_of(contests: Sequence[Contest]) -> tuple[Subject, ...]:
    titles = dict.fromkeys(contest.title for contest in contests)
    single = ([contest for contest in contests if contest.title == title] for title in titles)
    return tuple(Subject(chosen[0].title, chosen[0].task_model.measure, tuple(chosen)) for chosen in single)


def groups_of(counted: Sequence[Contest]) -> tuple[Subject, ...]:
    """Return the untouched tables and their kinds of models, all others, the tests among them, and each of their kinds.

    Metrics that are no shares stand apart.
    """
    stages = by_stage(counted)
    groups = [(name, chosen) for name, chosen in stages.items() if name == UNTOUCHED]
    groups += _by_kind("untouched ", stages.get(UNTOUCHED, []), -1)
    others = [(name, chosen) for name, chosen in stages.items() if name != UNTOUCHED]
    groups += others + (_by_kind("", others[0][1], 0) if others else [])
    several: dict[tuple[int, ...], Subject] = {}
    for name, chosen in groups:
        for subject in _averaged(name, chosen):
            if subject.several:
                several.setdefault(tuple(map(id, subject.contests)), subject)
    return (*several.values(),)


def by_stage(counted: Sequence[Contest]) -> dict[str, list[Contest]]:
    """Return the untouched tables, all others, and the tests among these; without what is empty."""
    untouched = [contest for contest in counted if contest.task_model.stage == "untouched"]
    others = [contest for contest in counted if contest.task_model.stage != "untouched"]
    tests = [contest for contest in others if contest.task_model.stage == "test"]
    stages = {UNTOUCHED: untouched, OTHERS if untouched else ALL_KINDS: others, TESTS: tests}
    return {name: chosen for name, chosen in stages.items() if chosen}


def _by_kind(prefix: str, contests: Sequence[Contest], first: int) -> list[tuple[str, list[Contest]]]:
    kinds = sorted({kind for contest in contests for kind in contest.task_model.kinds[first:]})
    return [(prefix + kind, [each for each in contests if kind in each.task_model.kinds]) for kind in kinds]


def _averaged(name: str, contests: Sequence[Contest]) -> Iterator[Subject]:
    measures = sorted({contest.task_model.measure for contest in contests})
    shares = [measure for measure in measures if measure.share and measure.higher_is_better]
    groups = [shares, *([measure] for measure in measures if measure not in shares)]
    for group in filter(None, groups):
        measure = group[0] if len(group) == 1 else SEVERAL
        together = tuple(contest for contest in contests if contest.task_model.measure in group)
        by = f" by {measure.title if len(group) == 1 else 'metrics in points'}"
        yield Subject(name if len(group) == len(measures) else f"{name}{by}", measure, together)


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

    They are about entries that have at least three seeds in all tables of a subject, at every ε. The standard excuses
    some methods from tasks. Two are compared on the tasks that both are in, if these are three quarters.
    Half of the error is for the claims about all tasks, half for those about tests and kinds, if there are both.
    """
    several = [subject for subject in subjects if subject.several]
    titles = {contest.title for contest in counted}
    chosen = several or [subject for subject in subjects if subject.name in titles]
    untested = [claims for subject in chosen for claims in _compared(subject, standard) if claims.pairs]
    levels = [claims.subject.startswith((ALL_KINDS, OTHERS, UNTOUCHED)) for claims in untested]
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
    inside: dict[Entry, frozenset[str]] = {}
    for who in dict.fromkeys(who for contest in subject.contests for who in contest.by_entry):
        lacking = [
            contest
            for contest in subject.contests
            if who.reference or not contest.compares(who) or len(contest.by_entry[who].runs) < FEW_SEEDS
        ]
        pairs_lacking = {(contest.task_model.task, contest.task_model.model) for contest in lacking}
        if all((who.method, *pair) in standard.excused for pair in pairs_lacking):
            inside[who] = tasks - {contest.title for contest in lacking}
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
            measure, mean = self.subject.measure, self.subject.mean(first, None, self.target)
            margin = POINT if measure.comparable else POINT * abs(mean.value if mean else 0.0)
            if -margin <= behind.low and behind.high <= margin:
                return EQUIVALENT
        return BEHIND if self.sign(first, who) == 1 else UNCERTAIN


def _answer(subject: Subject, target: float | None, claims: Claims | None) -> Answer:
    contests = subject.at(target)
    oracles = [contest.oracle for contest in contests if contest.oracle]
    untuned = [contest.untuned for contest in contests if contest.untuned]
    anchor, anchors = ("the oracle", oracles) if len(oracles) == len(contests) else (UNTUNED, untuned)
    inside = Counter(member.entry for contest in contests for member in contest.members if not member.lacks)
    leads: list[tuple[Entry, Estimate]] = []
    if len(anchors) == len(contests):
        measured = anchors[0].entry
        zeros = {each.best_grid.entry if each.best_grid else None for each in contests}  # alone, it is the oracle
        everywhere = (who for who, tables in inside.items() if tables == len(contests) and {who} != zeros)
        leads = [(who, lead) for who in everywhere if (lead := subject.lead(who, measured, target))]
    # Who has no interval, for want of a second seed, is not put first.
    leads.sort(key=lambda item: (item[1].low is None, -round(item[1].mean, 9), item[0].label))
    ranked = [who for who, _ in leads if not who.reference]
    p_values = {frozenset((pair.better, pair.worse)): pair.p_value for pair in claims.pairs} if claims else {}
    test = _Test(subject, target, p_values, max(1, len(ranked) - 1))
    places = [_place(who, lead, test, contests, anchors, ranked[0]) for who, lead in leads if ranked]
    absent = []
    for who, tables in sorted(inside.items(), key=lambda item: (-item[1], item[0].label)) if ranked else ():
        if tables < len(contests) and not who.reference:
            there = Subject(subject.name, subject.measure, tuple(each for each in contests if each.compares(who)))
            anchored = (there.lead(entry, anchors[0].entry) for entry in (who, ranked[0]))
            absent.append(Absent(who, tables, *anchored))
    return Answer(
        subject=subject.name,
        epsilon=target,
        measure=subject.measure,
        anchor=anchor,
        task_models=tuple(dict.fromkeys(contest.title for contest in contests)),
        tables=len(contests),
        places=tuple(place for place in places if not place.entry.reference),
        references=tuple(place for place in places if place.entry.reference),
        absent=tuple(absent),
    )


def _place(
    who: Entry, lead: Estimate, test: _Test, contests: Sequence[Contest], anchors: Sequence[Member], first: Entry
) -> Place:
    subject, target = test.subject, test.target
    members = [contest.by_entry[who] for contest in contests]
    untuned = [contest.untuned for contest in contests if contest.untuned]
    calibration = subject.mean(who, anchors[0].entry, target, "cross_entropy")
    by_task_model: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for contest, member, anchor in zip(contests, members, anchors, strict=True):
        by_task_model[contest.task_model.task, contest.title].append(member.mean - anchor.mean)
    by_task: defaultdict[str, list[float]] = defaultdict(list)
    for (task, _), leads in by_task_model.items():
        by_task[task].append(fmean(leads))
    return Place(
        entry=who,
        lead=lead,
        parts=tuple(sorted(_parts(contests, members, anchors), key=lambda part: (-round(part.value, 9), part.name))),
        over_tasks=subject.bounded(over_tasks(by_task)) if len(by_task) > 1 else None,
        untuned=test.sign(who, untuned[0].entry) if len(untuned) == len(contests) else 0,
        verdict=test.verdict(who, first),
        cross_entropy=subject.cross_entropy(who, target),
        calibration=(-calibration).estimate if calibration else None,
        cost=median(contest.cost(member) for contest, member in zip(contests, members, strict=True)),
        tuning_share=median(share for member in members for share in member.finished["tuning_share"]) or 0.0,
    )


def _parts(contests: Sequence[Contest], members: Sequence[Member], anchors: Sequence[Member]) -> Iterator[Part]:
    if len(contests) == 1:
        oracle = anchors[0].mean
        yield from (Part(f"seed {seed}", score - oracle) for seed, score in sorted(members[0].by_seed().items()))
        return
    one_task_model = len({contest.title for contest in contests}) == 1
    one_target = len({contest.target for contest in contests}) == 1
    for contest, member, anchor in zip(contests, members, anchors, strict=True):
        at = f"ε = {contest.target:g}"
        name = at if one_task_model else contest.title if one_target else f"{contest.title}, {at}"
        yield Part(name, member.mean - anchor.mean)
