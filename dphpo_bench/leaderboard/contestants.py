"""Who competes in a cell, and their scores by seed."""

import hashlib
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import count, groupby

from dphpo_bench.base.text import one_line, value_text, varying_names
from dphpo_bench.leaderboard.board import Contestant, Estimate
from dphpo_bench.leaderboard.requirements import NOT_PRIVATE
from dphpo_bench.leaderboard.standard import REFERENCES, Standard
from dphpo_bench.leaderboard.statistics import Integers, Mean, Scores, draw, mean_of_tables
from dphpo_bench.leaderboard.submissions import Run, Setting

MIN_SEEDS_TO_RANK = 2
MAX_LABEL = 60


@dataclass(frozen=True)
class Entry:
    """A contestant on one task at one ε.

    Attributes:
        contestant: who.
        runs: by seed.
        worst: the score of those that failed.
        lacks: whether it has no run of a seed that the board's suite asks for. Then it is compared with nobody: it
            could have left out what it did badly on.
    """

    contestant: Contestant
    runs: Mapping[int, Run]
    worst: float
    lacks: bool = False

    @property
    def finished(self) -> list[Run]:
        """The runs that did not fail."""
        return [run for run in self.runs.values() if run.value is not None]

    @property
    def ranked(self) -> bool:
        """Whether it takes part in the ranking."""
        return not self.contestant.reference and len(self.runs) >= MIN_SEEDS_TO_RANK and not self.lacks

    def score(self, seed: int) -> float | None:
        """The score of this seed's run; None if there is none."""
        run = self.runs.get(seed)
        return None if run is None else self.worst if run.value is None else score_of(run, run.value)


@dataclass(frozen=True)
class Cell:
    """One task at one ε: a table in the making."""

    setting: Setting
    title: str
    target: float
    entries: Sequence[Entry]
    untuned: Entry | None
    oracle: Entry | None

    @property
    def ranked(self) -> list[Entry]:
        """Who takes part in the ranking."""
        return [entry for entry in self.entries if entry.ranked]

    def compares(self, who: Contestant) -> bool:
        """Whether a contestant is here with all the seeds that it must have."""
        return who in self.by_contestant and not self.by_contestant[who].lacks

    @cached_property
    def by_contestant(self) -> Mapping[Contestant, Entry]:
        """The entries by contestant."""
        return {entry.contestant: entry for entry in self.entries}


def score_of(run: Run, value: float) -> float:
    """The score to compare, of which more is better."""
    return run.setting.measure.score(value)


def _worst(setting: Setting, runs: Iterable[Run]) -> float:
    """The score of a failed run: the worst possible value of a share, else the worst value in the table."""
    if setting.measure.share:
        return 0.0 if setting.measure.higher_is_better else -1.0
    return min((score_of(run, run.value) for run in runs if run.value is not None), default=0.0)


def newest(runs: Sequence[Run]) -> tuple[list[Run], int]:
    """The runs of the newest versions, and how many others there are.

    A task's newest version counts for each of its models, a method's for each contestant on one setting at one ε.
    """
    current = _of_highest(runs, lambda run: (run.setting.task, run.setting.model), lambda run: run.task_version)
    kept = _of_highest(
        current,
        lambda run: (run.setting, run.target, run.method, run.parameters),
        lambda run: run.method_version,
    )
    return kept, len(runs) - len(kept)


def _of_highest(runs: Iterable[Run], group: Callable[[Run], object], version: Callable[[Run], int]) -> list[Run]:
    highest: dict[object, int] = {}
    for run in runs:
        highest[group(run)] = max(highest.get(group(run), 0), version(run))
    return [run for run in runs if version(run) == highest[group(run)]]


def asked_for(runs: Sequence[Run], standard: Standard) -> list[Run]:
    """The runs without those of seeds that the standard's suite does not ask for, where a table may count."""
    seeds = {one: standard.seeds_of(*one) for one in {(run.setting, run.target) for run in runs}}
    return [run for run in runs if (asked := seeds[run.setting, run.target]) is None or run.seed in asked]


def cells_of(runs: Sequence[Run], standard: Standard) -> list[Cell]:
    """One cell for each setting and ε, by title and ε, with all its runs."""
    private = _privacy(runs)
    contestants = _contestants(private.values())
    titles = _titles({run.setting for run in runs})
    groups: defaultdict[tuple[Setting, float], defaultdict[_PrivateWho, dict[int, Run]]]
    groups = defaultdict(lambda: defaultdict(dict))
    for run in sorted(runs, key=lambda run: (run.method, run.parameters, run.seed)):
        groups[run.setting, run.target][private[run.path]][run.seed] = run
    cells = []
    for (setting, target), by_who in sorted(groups.items(), key=lambda item: (titles[item[0][0]], item[0][1])):
        worst = _worst(setting, (run for by_seed in by_who.values() for run in by_seed.values()))
        asked = standard.seeds_of(setting, target) or frozenset()
        entries = {who: Entry(contestants[who], own, worst, bool(asked - own.keys())) for who, own in by_who.items()}
        anchors = [
            found if (found := entries.get(who)) and not found.lacks else None
            for who in ((*standard.untuned, True), (*standard.oracle, False))
        ]
        cells.append(Cell(setting, titles[setting], target, list(entries.values()), *anchors))
    return cells


_PrivateWho = tuple[str, str, bool]
"""Who, and whether it is private from end to end."""


def _privacy(runs: Iterable[Run]) -> dict[str, _PrivateWho]:
    """Whose each run is, by its path. A run that could not say whether it is private counts like most of its kind."""
    votes = Counter((run.method, run.parameters, run.end_to_end_private) for run in runs)
    found = {}
    for run in runs:
        who = run.method, run.parameters
        private = run.end_to_end_private
        if private is None:
            private = run.method not in NOT_PRIVATE and votes[*who, False] <= votes[*who, True]
        found[run.path] = (*who, private)
    return found


def _contestants(found: Iterable[_PrivateWho]) -> dict[_PrivateWho, Contestant]:
    """The contestants. Their labels name the method, and the parameters in which its contestants differ."""
    everyone = sorted(set(found))
    labels: list[str] = []
    for method, same in groupby(everyone, key=lambda who: who[0]):
        group = list(same)
        told = _label_parameters({parameters: _flat(parameters) for _, parameters, _ in group})
        for _, parameters, private in group:
            differences = told[parameters]
            if not private and (method, parameters, True) in group:
                differences = (*differences, "not private")
            labels.append(one_line(f"{method} ({', '.join(differences)})" if differences else method, MAX_LABEL))
    return {
        who: Contestant(
            method=who[0],
            label=label,
            parameters=who[1],
            end_to_end_private=who[2],
            reference=not who[2] or who[0] in REFERENCES,
        )
        for who, label in zip(everyone, _distinct(labels), strict=True)
    }


def _label_parameters(settings: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """What is special about each setting, such as "rate=0.5".

    What is null is left to the task or the method, and told only where settings would look the same without it.
    """
    varying = varying_names(list(settings.values()))

    def told(setting: Mapping[str, str], *, nulls: bool) -> tuple[str, ...]:
        present = [name for name in varying if name in setting and (nulls or setting[name] != "null")]
        return tuple(f"{name}={setting[name]}" for name in present)

    brief = {key: told(setting, nulls=False) for key, setting in settings.items()}
    counts = Counter(brief.values())
    return {key: texts if counts[texts] == 1 else told(settings[key], nulls=True) for key, texts in brief.items()}


def _distinct(texts: Sequence[str]) -> list[str]:
    """The texts, with numbers added to those that occur more than once, so that all differ."""
    counts = Counter(texts)
    taken = {text for text in texts if counts[text] == 1}
    found = []
    for text in texts:
        if counts[text] > 1:
            text = next(other for number in count(1) if (other := f"{text} #{number}") not in taken)
            taken.add(text)
        found.append(text)
    return found


def _flat(parameters: str) -> dict[str, str]:
    return {name: value_text(value) for name, value in json.loads(parameters).items()}


def _titles(settings: set[Setting]) -> dict[Setting, str]:
    """Task and model, and whichever of δ, data, structure and facts tell settings apart."""
    ordered = sorted(settings, key=astuple)
    titles = []
    for (task, model), same in groupby(ordered, key=lambda one: (one.task, one.model)):
        group = list(same)
        told = [_told_apart(one) for one in group]
        varying = [place for place, values in enumerate(zip(*told, strict=True)) if len(set(values)) > 1]
        marks = [", on a public model that has seen the records" if one.seen else "" for one in group]
        titles += [
            ", ".join([f"{task} ({model}{mark})", *(texts[place] for place in varying)])
            for mark, texts in zip(marks, told, strict=True)
        ]
    return dict(zip(ordered, _distinct(titles), strict=True))


def _told_apart(setting: Setting) -> tuple[str, ...]:
    """What tells settings of one task and model apart, with hashes cut to their beginnings."""
    data, structure, facts = setting.data_fingerprint, setting.model_fingerprint, setting.facts
    by = f"by {setting.measure.header}"
    return f"δ = {setting.delta:.6g}", f"data {data[:12]}", f"structure {structure[:12]}", f"facts {facts[:12]}", by


@dataclass(frozen=True)
class Draws:
    """How often each seed of a setting is drawn: the same draws for all contestants and all ε."""

    seeds: Sequence[int]
    weights: Integers


def seed_draws(cells: Sequence[Cell]) -> dict[Setting, Draws]:
    """The draws of each setting, from the seeds of everyone who is ranked in it."""
    seeds: dict[Setting, set[int]] = {cell.setting: set() for cell in cells}
    for cell in cells:
        for entry in cell.ranked:
            seeds[cell.setting].update(entry.runs)
    return {setting: Draws(sorted(found), draw(len(found), _stream(setting))) for setting, found in seeds.items()}


def _stream(setting: Setting) -> int:
    """Each setting has its own random stream, so that new tasks do not change the tables of old ones."""
    return int.from_bytes(hashlib.sha256(repr(setting).encode()).digest()[:8])


def scores_of(entries: Sequence[Entry], draws: Draws) -> Scores:
    """Scores by seed. If the metric is not a share, a power of ten divides them, so that they are at most one."""
    scores = [[entry.score(seed) for seed in draws.seeds] for entry in entries]
    largest = max((abs(one) for row in scores for one in row if one), default=1.0)
    share = all(run.setting.measure.share for entry in entries for run in entry.runs.values())
    unit = 1.0 if share else 10.0 ** math.ceil(math.log10(largest))
    return Scores.of([[None if one is None else one / unit for one in row] for row in scores])


def paired(*entries: Entry | None) -> Iterable[tuple[float, ...]]:
    """For each seed that all entries have, their scores. Entries that are None are left out."""
    present = [entry for entry in entries if entry]
    for seed in sorted(set.intersection(*(set(entry.runs) for entry in present))):
        scores = [entry.score(seed) for entry in present]
        yield tuple(one for one in scores if one is not None)


def mean_over(
    entries: Sequence[Entry], others: Sequence[Entry], value: Callable[[Entry, int], float | None] = Entry.score
) -> Estimate | None:
    """The estimate of `mean_of`."""
    found = mean_of(entries, others, value)
    return found.estimate if found else None


def mean_of(
    entries: Sequence[Entry], others: Sequence[Entry], value: Callable[[Entry, int], float | None] = Entry.score
) -> Mean | None:
    """The mean value of the entries, less that of the others, each over the seeds that both have in their table.

    Args:
        entries: of one contestant, one in each table.
        others: likewise in the same tables; empty for none.
        value: of an entry's seed.

    Returns:
        None if there is a table without such a seed.
    """
    if others:
        tables = [_differences(*pair, value) for pair in zip(entries, others, strict=True)]
    else:
        tables = [{seed: one for seed in entry.runs if (one := value(entry, seed)) is not None} for entry in entries]
    return mean_of_tables(tables) if all(tables) else None


def _differences(own: Entry, other: Entry, value: Callable[[Entry, int], float | None]) -> dict[int, float]:
    both = ((seed, value(own, seed), value(other, seed)) for seed in own.runs if seed in other.runs)
    return {seed: first - second for seed, first, second in both if first is not None and second is not None}


def cross_entropy(entry: Entry, seed: int) -> float | None:
    """Of the run of this seed; None if there is none, it failed, or nobody measured it."""
    run = entry.runs.get(seed)
    return run.cross_entropy if run else None


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None
