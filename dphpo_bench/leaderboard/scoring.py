"""From verified runs to the board. The rule in words: docs/scoring.md."""

import hashlib
import json
import math
import statistics as plain
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from itertools import count, groupby
from pathlib import Path

import numpy as np

from dphpo_bench.display import one_line
from dphpo_bench.leaderboard.board import Board, Contestant, Estimate, Overall, OverallRow, Ranks, Row, Table
from dphpo_bench.leaderboard.findings import Who, findings
from dphpo_bench.leaderboard.statistics import Integers, Scores, draw, mean, mean_interval, middle, middle_ranks, ranks
from dphpo_bench.leaderboard.statistics import ratio_interval as ratio
from dphpo_bench.leaderboard.submissions import NOT_PRIVATE, Run, Setting, Submissions
from dphpo_bench.registry import make_method
from dphpo_bench.results import compact_json, value_text, varying_names
from dphpo_bench.sweep.suite import load_suite

REFERENCES = frozenset({"grid_composed"})
"""Methods that stand apart although they are private from end to end. The others say that they are not."""

MIN_SEEDS_TO_RANK = 2
MAX_LABEL = 60


@dataclass(frozen=True)
class Standard:
    """What a board measures by. It comes with the code, so that no record can change what others are measured by.

    Attributes:
        untuned: what tunes nothing, with its default parameters.
        oracle: what tunes without privacy.
        nonprivate: what trains without privacy.
        methods: names of the methods that make a table count if at least half of them are ranked in it; None for all
            that are ranked anywhere.
        tasks: task and model of the tables that may count; None for all.
        epsilons: target ε of these; None for all.
    """

    untuned: Who
    oracle: Who
    nonprivate: Who
    methods: frozenset[str] | None = None
    tasks: frozenset[tuple[str, str]] | None = None
    epsilons: frozenset[float] | None = None

    @classmethod
    def builtin(cls) -> "Standard":
        """By the built-in methods; every table may count."""
        return cls(untuned=_default("auto_clipping"), oracle=_default("grid_oracle"), nonprivate=_default("nonprivate"))

    @classmethod
    def of_suite(cls, path: Path) -> "Standard":
        """By the built-in methods; tables of this suite may count.

        Raises:
            InvalidValueError: if it is not a valid suite.
        """
        suite = load_suite(path)
        methods = {method.name for method, _ in suite.made_methods() if method.end_to_end_private}
        return replace(
            cls.builtin(),
            methods=frozenset(methods - REFERENCES),
            tasks=frozenset((task.facts.task, task.facts.model) for task, _ in suite.made_tasks()),
            epsilons=frozenset(suite.epsilons),
        )

    def may_count(self, setting: Setting, target: float) -> bool:
        """Whether a table is one of those that may count."""
        return (self.tasks is None or (setting.task, setting.model) in self.tasks) and (
            self.epsilons is None or target in self.epsilons
        )


def _default(name: str) -> Who:
    return name, compact_json(make_method(name).parameters)


@dataclass(frozen=True)
class _Entry:
    """A contestant on one task at one ε, with its runs by seed."""

    contestant: Contestant
    runs: Mapping[int, Run]

    @property
    def finished(self) -> list[Run]:
        """Those that did not fail."""
        return [run for run in self.runs.values() if run.accuracy is not None]

    @property
    def ranked(self) -> bool:
        """Whether it takes part in the ranking."""
        return not self.contestant.reference and len(self.runs) >= MIN_SEEDS_TO_RANK

    def score(self, seed: int) -> float | None:
        """The accuracy of this seed's run, 0 if it failed; None if there is none."""
        run = self.runs.get(seed)
        return None if run is None else run.accuracy or 0.0


@dataclass(frozen=True)
class _Cell:
    """One task at one ε: a table in the making."""

    setting: Setting
    title: str
    target: float
    entries: Sequence[_Entry]
    untuned: "_Entry | None"
    oracle: "_Entry | None"

    @property
    def ranked(self) -> list[_Entry]:
        """Who takes part in the ranking."""
        return [entry for entry in self.entries if entry.ranked]

    @cached_property
    def by_contestant(self) -> "Mapping[Contestant, _Entry]":
        """The entries by contestant."""
        return {entry.contestant: entry for entry in self.entries}


def score(submissions: Submissions, standard: Standard | None = None) -> Board:
    """The board of these runs; a pure function of them and of the standard, by default `Standard.builtin()`."""
    standard = standard or Standard.builtin()
    current, superseded = _newest(submissions.runs)
    cells = _cells(current, standard)
    draws = _seed_draws(cells)
    tables = tuple(_table(cell, draws[cell.setting]) for cell in cells)
    counted = _counted(list(zip(cells, tables, strict=True)), standard)
    overalls = _overalls(counted, draws)
    return Board(
        findings=findings(
            [table for _, table in counted], overalls, standard.oracle, standard.untuned, standard.nonprivate
        ),
        overalls=overalls,
        tables=tables,
        missing=_missing([cell for cell, _ in counted], standard),
        rejected=submissions.rejected,
        failed=submissions.failed,
        superseded=superseded,
        records=len(submissions.runs) + len(submissions.rejected),
    )


def _newest(runs: Sequence[Run]) -> tuple[list[Run], int]:
    """The runs of the newest version of their task, with its model, and of their method; and how many others there are.

    A method's newest version is that of a contestant on one setting at one ε.
    """
    tasks: Counter[tuple[object, ...]] = Counter()
    for run in runs:
        place = run.setting.task, run.setting.model
        tasks[place] = max(tasks[place], run.task_version)
    current = [run for run in runs if run.task_version == tasks[run.setting.task, run.setting.model]]
    groups: defaultdict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in current:
        groups[run.setting, run.target, run.method, run.parameters].append(run)
    newest = [(max(run.method_version for run in group), group) for group in groups.values()]
    kept = [run for version, group in newest for run in group if run.method_version == version]
    return kept, len(runs) - len(kept)


def _cells(runs: Sequence[Run], standard: Standard) -> list[_Cell]:
    private = _privacy(runs)
    contestants = _contestants(private.values())
    titles = _titles({run.setting for run in runs})
    groups: defaultdict[tuple[Setting, float], defaultdict[_PrivateWho, dict[int, Run]]]
    groups = defaultdict(lambda: defaultdict(dict))
    for run in sorted(runs, key=lambda run: (run.method, run.parameters, run.seed)):
        groups[run.setting, run.target][private[run.path]][run.seed] = run
    cells = []
    for (setting, target), by_who in sorted(groups.items(), key=lambda item: (titles[item[0][0]], item[0][1])):
        entries = {who: _Entry(contestants[who], by_seed) for who, by_seed in by_who.items()}
        anchors = entries.get((*standard.untuned, True)), entries.get((*standard.oracle, False))
        cells.append(_Cell(setting, titles[setting], target, list(entries.values()), *anchors))
    return cells


_PrivateWho = tuple[str, str, bool]
"""Who, and whether it is private from end to end."""


def _privacy(runs: Iterable[Run]) -> dict[str, _PrivateWho]:
    """Whose each run is, by its path. Where it failed before it could say, it is as private as most of its like."""
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
    """Contestants with their labels: methods, with the parameters in which contestants of one method differ."""
    everyone = sorted(set(found))
    labels: list[str] = []
    for method, same in groupby(everyone, key=lambda who: who[0]):
        group = list(same)
        values = [_flat(who[1]) for who in group]
        varying = varying_names(values)
        for (_, parameters, private), each in zip(group, values, strict=True):
            differences = [f"{name}={each[name]}" for name in varying if name in each]
            if not private and (method, parameters, True) in group:
                differences.append("not private")
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


def _distinct(texts: Sequence[str]) -> list[str]:
    """The texts; those that occur more than once get numbers that make them differ from all others."""
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
    """Task and model; δ, data, structure and facts where these tell settings apart."""
    ordered = sorted(settings, key=astuple)
    titles = []
    for (task, model), same in groupby(ordered, key=lambda one: (one.task, one.model)):
        group = list(same)
        told = [_told_apart(one) for one in group]
        varying = [place for place, values in enumerate(zip(*told, strict=True)) if len(set(values)) > 1]
        titles += [", ".join([f"{task} ({model})", *(texts[place] for place in varying)]) for texts in told]
    return dict(zip(ordered, _distinct(titles), strict=True))


def _told_apart(setting: Setting) -> tuple[str, ...]:
    """What tells settings of one task and model apart; of hashes the beginning."""
    data, structure, facts = setting.data_fingerprint, setting.model_fingerprint, setting.facts
    return f"δ = {setting.delta:.6g}", f"data {data[:12]}", f"structure {structure[:12]}", f"facts {facts[:12]}"


@dataclass(frozen=True)
class _Draws:
    """How often each seed of a setting is drawn: the same draws for all contestants and all ε."""

    seeds: Sequence[int]
    weights: Integers


def _seed_draws(cells: Sequence[_Cell]) -> dict[Setting, _Draws]:
    seeds: dict[Setting, set[int]] = {cell.setting: set() for cell in cells}
    for cell in cells:
        for entry in cell.ranked:
            seeds[cell.setting].update(entry.runs)
    return {setting: _Draws(sorted(found), draw(len(found), _stream(setting))) for setting, found in seeds.items()}


def _stream(setting: Setting) -> int:
    """A random stream of its own, so that new tasks do not change the tables of old ones."""
    return int.from_bytes(hashlib.sha256(repr(setting).encode()).digest()[:8])


def _scores(entries: Sequence[_Entry], draws: _Draws) -> Scores:
    return Scores.of([[entry.score(seed) for seed in draws.seeds] for entry in entries])


def _table(cell: _Cell, draws: _Draws) -> Table:
    ranked = cell.ranked
    intervals = middle_ranks(_scores(ranked, draws).resampled_ranks(draws.weights)) if ranked else []
    by_contestant = {entry.contestant: interval for entry, interval in zip(ranked, intervals, strict=True)}
    rows = [_row(entry, by_contestant.get(entry.contestant), cell) for entry in cell.entries]
    rows.sort(key=_by_utility)
    return Table(
        task=cell.setting.task,
        model=cell.setting.model,
        epsilon=cell.target,
        delta=cell.setting.delta,
        setting=cell.title,
        rows=tuple(row for row in rows if not row.contestant.reference),
        references=tuple(row for row in rows if row.contestant.reference),
    )


def _by_utility(row: Row) -> tuple[bool, float, str]:
    """Best first. Failures count, as in the ranks."""
    finished = row.seeds / max(1, row.seeds + row.failed)
    return row.utility is None, -round(finished * row.utility.mean, 9) if row.utility else 0.0, row.contestant.label


def _row(entry: _Entry, interval: Ranks | None, cell: _Cell) -> Row:
    finished = entry.finished
    accuracies = [run.accuracy for run in finished if run.accuracy is not None]
    oracle, untuned = cell.oracle, cell.untuned
    told = [(run.epsilon, run.accountant) for run in entry.runs.values() if run.epsilon is not None]
    epsilon, accountant = max(told, default=(None, ""))
    first = min(finished, key=lambda run: run.seed, default=None)
    return Row(
        contestant=entry.contestant,
        method_version=next(iter(entry.runs.values())).method_version,
        task_version=next(iter(entry.runs.values())).task_version,
        seeds=len(finished),
        failed=len(entry.runs) - len(finished),
        utility=mean_interval(accuracies) if accuracies else None,
        ranks=interval,
        gap_to_oracle=_difference(oracle, entry),
        gap_to_untuned=_difference(entry, untuned),
        gap_closed=_gap_closed(entry, oracle, untuned),
        epsilon=epsilon if entry.contestant.end_to_end_private else math.inf,
        accountant=accountant if entry.contestant.end_to_end_private else "",
        audited=max((run.audited for run in finished if run.audited is not None), default=None),
        contradicted=any(run.audited > run.epsilon for run in finished if run.audited and run.epsilon is not None),
        tuning_share=_median(finished, lambda run: run.tuning_share) or 0.0,
        runs=_median(finished, lambda run: run.runs) or 0.0,
        examples=_median(finished, lambda run: run.examples) or 0.0,
        seconds=_median(finished, lambda run: run.seconds),
        path=first.released_path if first else (),
    )


def _difference(better: _Entry | None, worse: _Entry | None) -> Estimate | None:
    """Accuracy of one minus that of the other over the seeds of both; None if they are one or share no seed."""
    if better is None or worse is None or better is worse:
        return None
    differences = [a - b for a, b in _paired(better, worse)]
    return mean_interval(differences) if differences else None


def _gap_closed(entry: _Entry, oracle: _Entry | None, untuned: _Entry | None) -> Estimate | None:
    if oracle is None or untuned is None or entry is oracle or entry is untuned:
        return None
    triples = list(_paired(entry, untuned, oracle))
    return ratio([own - low for own, low, _ in triples], [high - low for _, low, high in triples])


def _paired(*entries: _Entry | None) -> Iterable[tuple[float, ...]]:
    """Scores of the seeds that all of them have."""
    present = [entry for entry in entries if entry]
    for seed in sorted(set.intersection(*(set(entry.runs) for entry in present))):
        scores = [entry.score(seed) for entry in present]
        yield tuple(one for one in scores if one is not None)


def _median(runs: Iterable[Run], value: Callable[[Run], float | None]) -> float | None:
    known = [each for each in map(value, runs) if each is not None]
    return float(plain.median(known)) if known else None


# ------------------------------------------------------------------------------------------------------ overall


def _overalls(counted: Sequence[tuple[_Cell, Table]], draws: Mapping[Setting, _Draws]) -> tuple[Overall, ...]:
    targets = sorted({cell.target for cell, _ in counted})
    chosen: list[float | None] = [None, *targets] if len(targets) > 1 else list(targets)
    return tuple(
        _overall(target, [pair for pair in counted if target is None or pair[0].target == target], draws)
        for target in chosen
    )


def _counted(pairs: Sequence[tuple[_Cell, Table]], standard: Standard) -> list[tuple[_Cell, Table]]:
    """The tables that count: those of the standard in which at least half of its methods are ranked.

    Of several with one task and model at one ε, which differ in data or δ, that one in which most of its methods are.
    """
    methods = standard.methods or {entry.contestant.method for cell, _ in pairs for entry in cell.ranked}
    best: dict[tuple[str, str, float], tuple[int, tuple[_Cell, Table]]] = {}
    for cell, table in pairs:
        present = len(methods & {entry.contestant.method for entry in cell.ranked})
        if not (present and 2 * present >= len(methods) and standard.may_count(cell.setting, cell.target)):
            continue
        key = cell.setting.task, cell.setting.model, cell.target
        if key not in best or present > best[key][0]:
            best[key] = present, (cell, table)
    return [pair for _, pair in best.values()]


def _missing(counted: Sequence[_Cell], standard: Standard) -> tuple[str, ...]:
    present = {(cell.setting.task, cell.setting.model, cell.target) for cell in counted}
    return tuple(
        f"{task} ({model}), ε = {epsilon:g}"
        for task, model in sorted(standard.tasks or ())
        for epsilon in sorted(standard.epsilons or ())
        if (task, model, epsilon) not in present
    )


def _overall(target: float | None, counted: Sequence[tuple[_Cell, Table]], draws: Mapping[Setting, _Draws]) -> Overall:
    chosen = [cell for cell, _ in counted]
    inside = Counter(entry.contestant for cell in chosen for entry in cell.ranked)
    complete = sorted((who for who, count in inside.items() if count == len(counted)), key=lambda who: who.label)
    mean_ranks, places = _overall_ranks(chosen, complete, draws)
    everyone: defaultdict[Contestant, list[tuple[Row, _Cell]]] = defaultdict(list)
    for cell, table in counted:
        for row in (*table.rows, *table.references):
            everyone[row.contestant].append((row, cell))
    rows = [_overall_row(who, found, chosen, mean_ranks.get(who), places.get(who)) for who, found in everyone.items()]
    return Overall(
        epsilon=target,
        tables=tuple(table.title for _, table in counted),
        rows=tuple(sorted((row for row in rows if row.mean_rank is not None), key=_by_mean_rank)),
        incomplete=tuple(
            sorted(
                (row for row in rows if row.mean_rank is None and not row.contestant.reference),
                key=lambda row: (-row.tables, row.contestant.label),
            )
        ),
        references=tuple(
            sorted((row for row in rows if row.contestant.reference), key=lambda row: row.contestant.label)
        ),
    )


def _by_mean_rank(row: OverallRow) -> tuple[float, str]:
    return round(row.mean_rank.mean, 9) if row.mean_rank else 0.0, row.contestant.label


def _overall_ranks(
    cells: Sequence[_Cell], complete: Sequence[Contestant], draws: Mapping[Setting, _Draws]
) -> tuple[dict[Contestant, Estimate], dict[Contestant, Ranks]]:
    """Of each complete contestant its mean rank, and its place by mean rank when tasks and seeds are drawn."""
    if not complete:
        return {}, {}
    tasks = sorted({cell.setting.task for cell in cells})
    task_weights = draw(len(tasks), stream=0)
    observed: list[list[float]] = []
    drawn = np.zeros((len(task_weights), len(complete)))
    for cell in cells:
        among = [cell.by_contestant[who] for who in complete]
        scores = _scores(among, draws[cell.setting])
        observed.append(ranks(scores.means).tolist())
        # Ranks are halves, so sums are exact. Each drawing has as many tables for one contestant as for another.
        drawn += task_weights[:, [tasks.index(cell.setting.task)]] * scores.resampled_ranks(draws[cell.setting].weights)
    places = middle_ranks(ranks(-drawn))
    tables = Counter(cell.setting.task for cell in cells)
    drawn /= (task_weights @ np.array([[tables[task]] for task in tasks])).astype(np.float64)
    mean_ranks = [
        Estimate(mean(of_one), low, high)
        for of_one, (low, high) in zip(zip(*observed, strict=True), middle(drawn), strict=True)
    ]
    return dict(zip(complete, mean_ranks, strict=True)), dict(zip(complete, places, strict=True))


def _overall_utility(cells: Sequence[_Cell], who: Contestant) -> Estimate | None:
    """Mean accuracy over the cells; its interval from the seeds that all of them have."""
    entries = [cell.by_contestant.get(who) for cell in cells]
    if not entries or not all(entry and entry.finished for entry in entries):
        return None
    seeds = set.intersection(*({run.seed for run in entry.finished} for entry in entries if entry))
    by_seed = [mean([entry.score(seed) or 0.0 for entry in entries if entry]) for seed in sorted(seeds)]
    return mean_interval(by_seed) if by_seed else None


def _overall_gap_closed(cells: Sequence[_Cell], who: Contestant) -> Estimate | None:
    """Share of the gap closed, gaps summed over the cells with both anchors, from the seeds that all of them have."""
    trios = [(cell.by_contestant.get(who), cell.untuned, cell.oracle) for cell in cells if cell.untuned and cell.oracle]
    if not trios or any(own is None or own is untuned or own is oracle for own, untuned, oracle in trios):
        return None
    by_seed = list(_paired(*(entry for trio in trios for entry in trio)))
    means = [[mean(scores[which::3]) for which in range(3)] for scores in by_seed]
    return ratio([own - low for own, low, _ in means], [high - low for _, low, high in means])


def _overall_row(
    who: Contestant,
    found: Sequence[tuple[Row, _Cell]],
    cells: Sequence[_Cell],
    mean_rank: Estimate | None,
    places: Ranks | None,
) -> OverallRow:
    rows = [row for row, _ in found]
    relative = [
        row.examples / once
        for row, cell in found
        if cell.untuned and (once := _median(cell.untuned.finished, lambda run: run.examples))
    ]
    seconds = [row.seconds for row in rows if row.seconds is not None]
    return OverallRow(
        contestant=who,
        tables=len(rows),
        seeds=min(row.seeds for row in rows),
        failed=sum(row.failed for row in rows),
        mean_rank=mean_rank,
        ranks=places,
        utility=_overall_utility(cells, who),
        gap_closed=_overall_gap_closed(cells, who),
        epsilon_ratio=max((row.epsilon / cell.target for row, cell in found if row.epsilon is not None), default=None),
        accountants=tuple(sorted({row.accountant for row in rows if row.accountant})),
        contradicted=any(row.contradicted for row in rows),
        tuning_share=plain.median(row.tuning_share for row in rows),
        runs=plain.median(row.runs for row in rows),
        examples=plain.median(row.examples for row in rows),
        seconds=plain.median(seconds) if seconds else None,
        relative_cost=plain.median(relative) if relative else None,
    )
