"""The standard that a board measures by; entries in a contest by it, and their figures by seed.

All are made from one table with a row for each run.
"""

import hashlib
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cached_property
from itertools import count, groupby
from pathlib import Path
from typing import Any

import pandas as pd

from dphpo_bench.base.text import compact_json, one_line, value_text, varying_names
from dphpo_bench.contract.registry import make_method
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.leaderboard.means import NO_FALLS, Falls, Integers, Sample, Scores, draw, fall_limit
from dphpo_bench.leaderboard.submissions import NOT_PRIVATE, Run, TaskModel, defaults_of, task_model_of
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.records.measure import Measure
from dphpo_bench.sweep.extra_runs import ORACLE, REPLAY
from dphpo_bench.sweep.suite import Configuration, configuration_of, load_suite

REFERENCES = frozenset({"grid_composed"})
"""Methods that are references although they are private from end to end. All methods that are not private are, too."""


@dataclass(frozen=True)
class Asked:
    """A suite's demands on a task and model.

    Attributes:
        methods: a table counts if at least half of these are ranked in it.
        more_seeds: further seeds of some methods, which say how often their runs collapse.
    """

    task: Task
    budget: PrivacyBudget
    methods: frozenset[str]
    epsilons: frozenset[float]
    seeds: frozenset[int]
    more_seeds: Mapping[Configuration, frozenset[int]]

    @cached_property
    def task_model(self) -> TaskModel:
        """The task–model pair, by this machine's code: its facts, its data, its model, which is built for that."""
        of_task = task_identity(self.task, self.task.facts, DataSource.resolve())
        return task_model_of(identity_of(make_method("auto_clipping"), of_task, self.budget, 0))


@dataclass(frozen=True)
class Standard:
    """The anchors and tables that a board measures by. It comes with the code, so that no record can change it.

    Attributes:
        untuned, random: the entries that distances are measured from; a blind draw of the rate is "random".
        oracles: the grids, of which the best in a table is its oracle.
        tasks: by task and model, what is asked of the tables that may count; None for all, with any seeds.
        excused: method, task and model of what a suite leaves out, as taking too long. Who leaves out something else
            is not compared on the rest, or everybody could choose what to be judged by.
    """

    untuned: Configuration
    random: Configuration
    oracles: frozenset[Configuration]
    tasks: Mapping[tuple[str, str], Asked] | None = None
    excused: frozenset[tuple[str, str, str]] = frozenset()

    @classmethod
    def builtin(cls) -> "Standard":
        return cls(_default("auto_clipping"), _default("random_search"), frozenset({_default(ORACLE)}))

    @classmethod
    def of_suites(cls, *paths: Path) -> "Standard":
        """Return the standard of these suites, which have no task and model in common."""
        standard = cls.builtin()
        if not paths:
            return standard
        oracles, asked, excused = {*standard.oracles}, {}, set()
        for suite in map(load_suite, paths):
            every = [method for method, _ in suite.made_methods()]
            oracles |= {configuration_of(method) for method in every if method.name == ORACLE}
            methods = frozenset(method.name for method in every if method.end_to_end_private)
            for task, _ in suite.made_tasks():
                pair = task.facts.task, task.facts.model
                epsilons, seeds = frozenset(suite.epsilons), frozenset(suite.seeds_of(task))
                more = {each: frozenset(further) for each, further in suite.more_seeds_of(task).items()}
                asked[pair] = Asked(task, suite.budgets(task)[0], methods - REFERENCES, epsilons, seeds, more)
                excused |= {(name, *pair) for name in methods if not suite.runs_on(name, task)}
        return replace(standard, oracles=frozenset(oracles), tasks=asked, excused=frozenset(excused))

    def may_count(self, task_model: TaskModel, target: float) -> bool:
        """Return True if a table is one of those that may count, by this code's facts, data and model of its task."""
        return self.tasks is None or self.asked(task_model, target) is not None

    def asked(self, task_model: TaskModel, target: float) -> Asked | None:
        """Return what is asked of a table that may count, such as its seeds, so that none can choose; None: nothing."""
        asked = (self.tasks or {}).get((task_model.task, task_model.model))
        return asked if asked and target in asked.epsilons and asked.task_model == task_model else None


def _default(name: str) -> Configuration:
    return configuration_of(make_method(name))


@dataclass(frozen=True)
class Entry:
    """A method with its parameters, as compact JSON; a reference is a line to compare with, not a method to choose."""

    method: str
    label: str
    parameters: str
    end_to_end_private: bool
    reference: bool

    @property
    def identity(self) -> tuple[str, str, bool]:
        return self.method, self.parameters, self.end_to_end_private


THE_ORACLE = Entry(ORACLE, "the oracle", "", end_to_end_private=False, reference=True)

MIN_SEEDS_TO_RANK = 2
FEW_SEEDS = 3
MAX_LABEL = 60

FEW_RUNS = 30
"""With fewer runs by metrics of a unit, nothing says how deep an entry may fall by them."""

_DTYPES: Mapping[object, str] = {
    float: "float64", float | None: "float64", bool | None: "float64", int: "int64"
}  # fmt: skip
"""pandas types by the types of the fields of `Run`; others are objects."""


def frame_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a table with a row for each run: the fields of `Run`, and `task` and `model`. Numbers that a run lacks are
    NaN.
    """
    columns = {
        each.name: pd.Series([getattr(run, each.name) for run in runs], dtype=_DTYPES.get(each.type, "object"))
        for each in fields(Run)
    }
    for name in ("task", "model"):
        columns[name] = pd.Series([getattr(run.task_model, name) for run in runs], dtype="object")
    return pd.DataFrame(columns)


@dataclass(frozen=True, eq=False)
class Member:
    """An entry on one task at one ε.

    Attributes:
        entry: the method with its parameters.
        runs: a row for each run, by seed: the columns of `frame_of`, `utility` (the score of a finished run, else NaN)
            and `score` (the same, but the worst one for a failed run).
        lacks: True if it has no run of a seed that the board's suite asks for. Then it is compared with nobody: it
            could have left out what it did badly on.
        title: that of the task–model pair.
        falls: what is known of its collapses.
        more: scores of further runs that the board's suite asks of this method, which say how often runs collapse.
    """

    entry: Entry
    runs: pd.DataFrame
    lacks: bool = False
    title: str = ""
    falls: Falls = NO_FALLS
    more: tuple[float, ...] = ()
    _known: dict[str, dict[int, float]] = field(default_factory=dict)
    _samples: dict[str, Sample] = field(default_factory=dict)

    @cached_property
    def finished(self) -> pd.DataFrame:
        return self.runs[self.runs["value"].notna()]

    @cached_property
    def examples(self) -> float | None:
        return median(self.finished["examples"])

    @property
    def mean(self) -> float:
        return statistics.fmean(self.by_seed().values())

    @property
    def drops(self) -> list[float]:
        """The distances of its runs, further ones too, that are far below their median."""
        return sample.all_runs.drops if (sample := self.sample()) else []

    @property
    def ranked(self) -> bool:
        return not self.entry.reference and len(self.runs) >= MIN_SEEDS_TO_RANK and not self.lacks

    def by_seed(self, column: str = "score") -> Mapping[int, float]:
        """Return the known values of a column by seed: "score", "utility" or "cross_entropy"."""
        if column not in self._known:
            known = self.runs[self.runs[column].notna()]
            self._known[column] = dict(zip(known["seed"].tolist(), known[column].tolist(), strict=True))
        return self._known[column]

    def sample(self, column: str = "score") -> Sample | None:
        """Return the values of a column for means; None without any. Collapses are of scores and of utilities."""
        if column not in self._samples and self.by_seed(column):
            falls = NO_FALLS if column == "cross_entropy" else self.falls
            more = () if column == "cross_entropy" else self.more
            self._samples[column] = Sample(self.by_seed(column), falls, self.title, more)
        return self._samples.get(column)


@dataclass(frozen=True, eq=False)
class Contest:
    task_model: TaskModel
    title: str
    target: float
    members: Sequence[Member]
    standard: Standard

    @cached_property
    def untuned(self) -> Member | None:
        return self._anchor(self.standard.untuned, private=True)

    @cached_property
    def random(self) -> Member | None:
        return self._anchor(self.standard.random, private=True)

    @cached_property
    def best_grid(self) -> Member | None:
        """The grid with the best mean, of those that count as oracles."""
        grids = [grid for who in sorted(self.standard.oracles) if (grid := self._anchor(who, private=False))]
        return max(grids, key=lambda grid: grid.mean, default=None)

    @cached_property
    def oracle(self) -> Member | None:
        """The best grid under a name that is the same in all tables, so that means over tables can be taken."""
        return replace(self.best_grid, entry=THE_ORACLE, _known={}, _samples={}) if self.best_grid else None

    @cached_property
    def explained_by(self) -> Member | None:
        """The oracle that extra runs explain losses by: the grid at its defaults."""
        return self._anchor(_default(ORACLE), private=False)

    def _anchor(self, who: Configuration, private: bool) -> Member | None:
        """Return the member with this name, these parameters and this privacy, unless it lacks seeds."""
        known = (member for member in self.members if not member.lacks)
        return next((each for each in known if each.entry.identity == (*who, private)), None)

    @property
    def ranked(self) -> list[Member]:
        return [member for member in self.members if member.ranked]

    def compares(self, who: Entry) -> bool:
        return who in self.by_entry and not self.by_entry[who].lacks

    def cost(self, member: Member) -> float | None:
        """Return the examples that a member processes, relative to untuned training; None if that is not known."""
        untuned = self.untuned.examples if self.untuned else None
        return member.examples / untuned if untuned and member.examples else None

    @cached_property
    def by_entry(self) -> Mapping[Entry, Member]:
        oracle = [self.oracle] if self.oracle else []
        return {member.entry: member for member in (*self.members, *oracle)}


def newest(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of each task's newest version for each model, and of each entry's in a table."""
    entry = ["task_model", "target", "method", "parameters"]
    for version, group in (("task_version", ["task", "model"]), ("method_version", entry)):
        runs = runs[runs[version] == runs.groupby(group, sort=False)[version].transform("max")]
    return runs


def compared(runs: Iterable[Run], standard: Standard) -> pd.DataFrame:
    """Return the newest runs of methods; where a table may count, those of seeds alone that the standard asks for.

    What nobody asked for supersedes nothing.
    """
    frame = frame_of([run for run in runs if run.method != REPLAY])
    rows = frame[["task_model", "target", "method", "parameters", "seed"]].itertuples(index=False)
    chosen = [
        (asked := standard.asked(task_model, target)) is None
        or seed in asked.seeds
        or seed in asked.more_seeds.get((method, parameters), ())
        for task_model, target, method, parameters, seed in rows
    ]
    return newest(frame[pd.Series(chosen, index=frame.index, dtype=bool)])


def contests_of(runs: pd.DataFrame, standard: Standard) -> list[Contest]:
    runs = runs.sort_values(["method", "parameters", "seed"], kind="stable")
    runs = runs.assign(entry=_entries(runs))
    titles = _titles(set(runs["task_model"]))
    contests = []
    for (task_model, target), of_contest in runs.groupby(["task_model", "target"], sort=False):
        of_contest = _with_scores(of_contest, task_model)
        asked = standard.asked(task_model, target)
        seeds, all_more = (asked.seeds, asked.more_seeds) if asked else (frozenset(), {})
        members = []
        for who, of_who in of_contest.groupby("entry", sort=False):
            of_who = of_who.drop_duplicates("seed", keep="last")
            more = all_more.get((who.method, who.parameters), frozenset())
            further = of_who["seed"].isin(more)
            if not further.all():
                lacks = bool((seeds | more) - {*of_who["seed"]})
                falls, scores = Falls(fall_limit(task_model.measure)), tuple(of_who["score"][further].tolist())
                members.append(Member(who, of_who[~further], lacks, titles[task_model], falls, scores))
        contests.append(Contest(task_model, titles[task_model], float(target), members, standard))
    contests.sort(key=lambda contest: (contest.title, contest.target))
    return with_falls(contests, lambda contest: standard.may_count(contest.task_model, contest.target))


def _with_expected(contests: Sequence[Contest]) -> list[Contest]:
    """Return the contests, sorted by title and ε, with what each entry's runs are expected to reach at least."""
    best: defaultdict[tuple[str, Entry], float] = defaultdict(lambda: -math.inf)

    def expecting(member: Member) -> Member:
        expected = best[member.title, member.entry]
        sample = member.sample()
        best[member.title, member.entry] = max(expected, sample.all_runs.middle if sample else -math.inf)
        return replace(member, falls=replace(member.falls, expected=expected), _samples={})

    return [replace(contest, members=[*map(expecting, contest.members)]) for contest in contests]


def with_falls(contests: Sequence[Contest], counts: Callable[[Contest], bool]) -> list[Contest]:
    """Return the contests with how deep each entry may fall: as deep as it did by metrics of the same unit.

    Where some private entry fell, all may: not to have seen it of one is no proof. With few runs by metrics of a unit,
    an entry that fell by them, or by metrics of another, may fall anywhere. A run outside of the tables that count says
    nothing about those: at a very small ε every method scatters.
    """
    contests = _with_expected(contests)
    drops: defaultdict[tuple[Entry, str], list[float]] = defaultdict(list)
    runs: Counter[tuple[Entry, str]] = Counter()
    lowest: defaultdict[TaskModel, float] = defaultdict(lambda: math.inf)
    here: defaultdict[TaskModel, float] = defaultdict(float)
    for contest in filter(counts, contests):
        for member in contest.members:
            of_unit = member.entry, contest.task_model.measure.unit
            if sample := member.sample():
                drops[of_unit] += member.drops
                runs[of_unit] += len(sample.by_seed) + len(sample.more)
                lowest[contest.task_model] = min(lowest[contest.task_model], *sample.by_seed.values(), *sample.more)
                if (
                    member.entry.end_to_end_private
                    and not member.entry.reference
                    and len(member.finished) == len(member.runs)  # else the fall may be of a run that failed
                ):
                    here[contest.task_model] = max([here[contest.task_model], *member.drops])
    collapsed = {who for (who, _), of_unit in drops.items() if of_unit}

    def falling(member: Member, task_model: TaskModel) -> Member:
        who, of_unit = member.entry, (member.entry, task_model.measure.unit)
        depth = max([here[task_model] if who.end_to_end_private and not who.reference else 0.0, *drops[of_unit]])
        if who in collapsed and runs[of_unit] < FEW_RUNS:
            depth = math.inf
        least = min([lowest[task_model], *member.by_seed().values()])
        falls = replace(member.falls, deepest=max([depth, *member.drops]), lowest=least)
        return replace(member, falls=falls, _samples={})

    return [replace(each, members=[falling(member, each.task_model) for member in each.members]) for each in contests]


def _with_scores(runs: pd.DataFrame, task_model: TaskModel) -> pd.DataFrame:
    """Return the runs with their scores. A failed run has the worst value of a share, else the worst in the table."""
    measure = task_model.measure
    scores = [math.nan if math.isnan(value) else measure.score(value) for value in runs["value"].tolist()]
    worst = 0.0 if measure.higher_is_better else -1.0
    if not measure.share:
        worst = min((score for score in scores if not math.isnan(score)), default=0.0)
    utility = pd.Series(scores, index=runs.index, dtype="float64")
    return runs.assign(utility=utility, score=utility.fillna(worst))


def _entries(runs: pd.DataFrame) -> pd.Series:
    """Return the entry of each run.

    A label names the method, and the parameters that are not its defaults; of a stranger's method, whose defaults are
    unknown, those in which its entries differ. A run that could not say whether it is private counts like most of
    its kind.
    """
    said = runs["end_to_end_private"]
    share = said.groupby([runs["method"], runs["parameters"]]).transform("mean")
    private = said.fillna((~runs["method"].isin(NOT_PRIVATE) & ~(share < 1 / 2)).astype(float)) == 1
    of_runs = list(zip(runs["method"], runs["parameters"], private.tolist(), strict=True))
    everyone = sorted(set(of_runs))
    labels: list[str] = []
    for method, same in groupby(everyone, key=lambda who: who[0]):
        group = list(same)
        by_text = {text: json.loads(text) for _, text, _ in group}
        defaults = defaults_of(method)
        if defaults is None:
            special = _varying_parameters(by_text)
        else:
            special = {text: _changed_parameters(values, defaults) for text, values in by_text.items()}
        for _, parameters, is_private in group:
            differences = special[parameters]
            if not is_private and (method, parameters, True) in group:
                differences = (*differences, "not private")
            labels.append(one_line(f"{method} ({', '.join(differences)})" if differences else method, MAX_LABEL))
    entries = {}
    for who, label in zip(everyone, _distinct(labels), strict=True):
        method, parameters, is_private = who
        entries[who] = Entry(method, label, parameters, is_private, not is_private or method in REFERENCES)
    return pd.Series([entries[who] for who in of_runs], index=runs.index, dtype=object)


def _changed_parameters(parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the differences from today's defaults, such as "rate=0.5"; nothing for the defaults alone.

    They depend on no other entry, so that no record renames another's row. A record of an older version may lack a
    parameter, and its defaults may be others than today's.
    """
    # As JSON, since a stranger may write 4 for 4.0: another configuration, whose name is not the default's.
    changed = (
        f"{name}={value_text(value)}"
        for name, value in sorted(parameters.items())
        if name not in defaults or compact_json(value) != compact_json(defaults[name])
    )
    return *changed, *(f"without {name}" for name in sorted(defaults.keys() - parameters.keys()))


def _varying_parameters(by_text: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the parameters in which methods differ, such as "rate=0.5", by their JSON."""
    shown = {key: {name: value_text(value) for name, value in each.items()} for key, each in by_text.items()}
    varying = varying_names(list(shown.values()))
    return {key: tuple(f"{name}={values[name]}" for name in varying if name in values) for key, values in shown.items()}


def _distinct(texts: Sequence[str]) -> list[str]:
    counts = Counter(texts)
    taken = {text for text in texts if counts[text] == 1}
    distinct = []
    for text in texts:
        if counts[text] > 1:
            text = next(other for number in count(1) if (other := f"{text} #{number}") not in taken)
            taken.add(text)
        distinct.append(text)
    return distinct


def _titles(task_models: set[TaskModel]) -> dict[TaskModel, str]:
    """Return the titles: task and model, and whichever of δ, data, structure and facts tell task–model pairs apart."""
    ordered = sorted(task_models, key=astuple)
    titles = []
    for (task, model), same in groupby(ordered, key=lambda task_model: (task_model.task, task_model.model)):
        group = list(same)
        distinctions = [
            (
                f"δ = {each.delta:.6g}",
                f"data {each.data_fingerprint[:12]}",
                f"structure {each.model_fingerprint[:12]}",
                f"facts {each.facts[:12]}",
                f"by {each.measure.header}",
            )
            for each in group
        ]
        varying = [place for place, values in enumerate(zip(*distinctions, strict=True)) if len(set(values)) > 1]
        marks = [", on a public model that has seen the records" if task_model.seen else "" for task_model in group]
        titles += [
            ", ".join([f"{task} ({model}{mark})", *(texts[place] for place in varying)])
            for mark, texts in zip(marks, distinctions, strict=True)
        ]
    return dict(zip(ordered, _distinct(titles), strict=True))


@dataclass(frozen=True)
class Draws:
    """Counts of draws of each seed of a task–model pair: the same for all entries and all ε."""

    seeds: Sequence[int]
    weights: Integers


def seed_draws(contests: Sequence[Contest]) -> dict[TaskModel, Draws]:
    seeds: dict[TaskModel, set[int]] = {contest.task_model: set() for contest in contests}
    for contest in contests:
        for member in contest.ranked:
            seeds[contest.task_model].update(member.runs["seed"].tolist())
    draws = {}
    for task_model, of_pair in seeds.items():
        # Each task–model pair has its own random stream, so that new tasks do not change the tables of old ones.
        stream = int.from_bytes(hashlib.sha256(task_model.stream.encode()).digest()[:8])
        draws[task_model] = Draws(sorted(of_pair), draw(len(of_pair), stream))
    return draws


def scores_of(members: Sequence[Member], draws: Draws, measure: Measure) -> Scores:
    """Return scores by seed. A power of ten divides those of a metric that is no share, so that they are at most 1."""
    scores = [[member.by_seed().get(seed) for seed in draws.seeds] for member in members]
    largest = max((abs(score) for row in scores for score in row if score), default=1.0)
    unit = 1.0 if measure.share else 10.0 ** math.ceil(math.log10(largest))
    return Scores.of([[None if score is None else score / unit for score in row] for row in scores])


def median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return float(statistics.median(known)) if known else None
