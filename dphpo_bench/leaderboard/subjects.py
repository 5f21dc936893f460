"""Subjects: groups of tables that questions are about, and the means over them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dphpo_bench.leaderboard.entries import Contest
from dphpo_bench.leaderboard.means import Mean, Rate, Sample, means_of, rate_of
from dphpo_bench.leaderboard.values import Entry
from dphpo_bench.records.estimates import Estimate
from dphpo_bench.records.measure import SEVERAL, Measure

ALL_KINDS = "all tasks"
TESTS = "test tasks"


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
        sides = [
            {target: self._samples(side, target, column) for target in self.targets} for side in (who, other) if side
        ]
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

    def lead(
        self, who: Entry | None, other: Entry | None, target: float | None = None, column: str = "score"
    ) -> Estimate | None:
        """Return by how much the first is ahead, if both are known and different."""
        if who is None or other is None or who == other:
            return None
        mean = self.mean(who, other, target, column)
        return self.bounded(mean.estimate) if mean else None

    def bounded(self, difference: Estimate) -> Estimate:
        """Return a difference with an interval that differences of this measure can have."""
        return difference.inside(-1.0, 1.0) if self.measure.share else difference

    def collapses(self, who: Entry) -> Rate:
        """Return how many of the entry's runs in the tables collapsed, at all ε."""
        members = (contest.by_entry.get(who) for contest in self.contests)
        return rate_of([sample for member in members if member and (sample := member.sample())])


def task_models_of(contests: Sequence[Contest]) -> tuple[Subject, ...]:
    titles = dict.fromkeys(contest.title for contest in contests)
    single = ([contest for contest in contests if contest.title == title] for title in titles)
    return tuple(Subject(chosen[0].title, chosen[0].task_model.measure, tuple(chosen)) for chosen in single)


def groups_of(counted: Sequence[Contest]) -> tuple[Subject, ...]:
    """Return all counted tables, the tests among them, then each kind; metrics that are no shares stand apart."""
    kinds = sorted({kind for contest in counted for kind in contest.task_model.kinds})
    tests = [contest for contest in counted if not contest.task_model.development]
    groups = [(ALL_KINDS, [*counted]), (TESTS, tests)]
    groups += [(kind, [contest for contest in counted if kind in contest.task_model.kinds]) for kind in kinds]
    several: dict[tuple[int, ...], Subject] = {}
    for name, chosen in groups:
        for subject in _averaged(name, chosen):
            if subject.several:
                several.setdefault(tuple(map(id, subject.contests)), subject)
    return (*several.values(),)


def _averaged(name: str, contests: Sequence[Contest]) -> Iterator[Subject]:
    measures = sorted({contest.task_model.measure for contest in contests})
    shares = [measure for measure in measures if measure.share and measure.higher_is_better]
    groups = [shares, *([measure] for measure in measures if measure not in shares)]
    for group in filter(None, groups):
        measure = group[0] if len(group) == 1 else SEVERAL
        together = tuple(contest for contest in contests if contest.task_model.measure in group)
        by = f" by {measure.title if len(group) == 1 else 'metrics in points'}"
        yield Subject(name if len(group) == len(measures) else f"{name}{by}", measure, together)
