"""Runs beside others: the extra runs of `explain` on the board, and repeated runs of records."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dphpo_bench.base.errors import DataError, DphpoBenchError
from dphpo_bench.base.progress import Progress
from dphpo_bench.contract import registry
from dphpo_bench.leaderboard.entries import Member, frame_of, newest
from dphpo_bench.leaderboard.submissions import ROUNDING, Refused, Run, Submissions, read_submissions
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore, read_record
from dphpo_bench.sweep.cells import Cell
from dphpo_bench.sweep.executors import Resources, visible_gpus
from dphpo_bench.sweep.extra_runs import REPLAY, Split, Workshop, counterpart

Role = tuple[str, str]
"""The key of the record that an extra run is about, and of the one that its values are from."""


@dataclass(frozen=True)
class Replays:
    by_role: Mapping[Role, Run]
    refused: tuple[Refused, ...]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "Replays":
        """Return the extra runs among these runs. What names a record that is not here is left alone."""
        by_key = {run.key: run for run in runs}
        by_role: dict[Role, Run] = {}
        refused = []
        for run in runs:
            if run.method != REPLAY:
                continue
            parameters = json.loads(run.parameters)
            role = str(parameters.get("explains")), str(parameters.get("values_from"))
            about, source = map(by_key.get, role)
            if about is None or source is None:
                continue
            reason = _misfit(run, parameters, about, source)
            if not reason and role in by_role:
                reason = f"it is the same extra run as {by_role[role].path}"
            if reason:
                refused.append(Refused(run.path, reason))
            else:
                by_role[role] = run
        return cls(by_role, tuple(refused))

    def explain(self, keys: Iterable[str]) -> bool:
        return not {about for about, _ in self.by_role}.isdisjoint(keys)

    def splits(self, member: Member, oracle: Member | None) -> list[Split]:
        """Return the split of each finished run that has one; a run that paid nothing for tuning needs no extra run."""
        if oracle is None or member is oracle or not member.entry.end_to_end_private:
            return []
        columns = ["seed", "key", "tuning_share", "score"]
        by_seed = {run.seed: run for run in oracle.finished[columns].itertuples()}
        splits = (self._split(run, counterpart(by_seed, run.seed)) for run in member.finished[columns].itertuples())
        return [split for split in splits if split]

    def _split(self, run: Any, oracle: Any) -> Split | None:
        if oracle is None:
            return None
        if run.tuning_share == 0:
            return Split.of_free_tuning(run.score, oracle.score)
        at_left = _score(self.by_role.get((run.key, oracle.key)))
        at_full = _score(self.by_role.get((run.key, run.key)))
        return None if at_left is None else Split(run.score, oracle.score, at_full, at_left)


def read_checked(paths: Sequence[Path], cache: Path | None = None, progress: Progress | None = None) -> Submissions:
    """Return `read_submissions`, with the extra runs that do not fit the records they name among the rejected ones."""
    read = read_submissions(paths, cache, progress)
    misfits = {refused.path: refused for refused in Replays.of(read.runs).refused}
    rejected = sorted((*read.rejected, *misfits.values()), key=lambda refused: (refused.path, refused.reason))
    return Submissions(tuple(run for run in read.runs if run.path not in misfits), tuple(rejected))


def _score(run: Run | None) -> float | None:
    return None if run is None or run.value is None else run.task_model.measure.score(run.value)


def _misfit(run: Run, parameters: Mapping[str, Any], about: Run, source: Run) -> str:
    if (run.task_model, run.target, run.seed) != (about.task_model, about.target, about.seed):
        return f"it is about {about.path}, whose task, ε or seed is another"
    same_run = about is source
    if parameters.get("share") != (1.0 if same_run else 1 - about.tuning_share):
        return f"its training has another share of ε than that of {about.path} leaves it"
    if same_run and parameters.get("again") is not None:
        same = parameters["again"] == source.method and parameters.get("settings") == source.parameters
        return "" if same else f"it runs another method again than that of {source.path}"
    chosen = json.loads(source.values)
    if parameters.get("again") is not None or any(parameters.get(name) != value for name, value in chosen.items()):
        return f"it trains with other values than {source.path} chose"
    return ""


PATIENCE = 10
"""A run may take so many times as long as its record says, and a minute more."""


@dataclass(frozen=True)
class Repeat:
    path: str
    record: RunRecord
    cell: Cell


@dataclass(frozen=True)
class Difference:
    """A value that differs in a repeated run; None where the record or the run lacks it."""

    name: str
    recorded: Any
    repeated: Any


def choose(runs: Sequence[Run], count: int) -> list[Run]:
    """Choose the runs to repeat, always the same: one of each method before another of it, the cheapest first."""
    methods, tasks = registry.methods(), registry.tasks()

    def is_here(run: Run) -> bool:
        method, task = methods.working(run.method), tasks.working(run.task_model.task)
        if method is None or task is None:
            return False
        return method.cls.version <= run.method_version and task.cls.version <= run.task_version

    left = {run.path: run for run in map(runs.__getitem__, newest(frame_of(runs)).index)
            if run.value is not None and is_here(run)}  # fmt: skip
    chosen: list[Run] = []
    taken: Counter[str] = Counter()
    while left and len(chosen) < count:
        best = min(left.values(), key=lambda run: (taken[run.method], run.seconds or math.inf, run.path))
        taken[best.method] += 1
        chosen.append(left.pop(best.path))
    return chosen


def repeats(
    runs: Sequence[Run], roots: Sequence[Path], workshop: Workshop
) -> tuple[list[Repeat], list[Refused], list[Refused]]:
    repeatable: list[Repeat] = []
    refused: list[Refused] = []
    others: list[Refused] = []
    for run in runs:
        files = (root / run.path if root.is_dir() else root for root in roots)
        record = read_record(next(file for file in files if file.is_file() and file.stem == run.key))
        if record.identity.facts.get("public") is False:
            refused.append(Refused(run.path, "Its data are private, and no account would count the run."))
            continue
        resources = _resources(record)
        if resources.gpus and not visible_gpus():
            refused.append(Refused(run.path, f"It ran on {record.environment['device']}, and there is none here."))
            continue
        try:
            repeatable.append(Repeat(run.path, record, replace(workshop.again(record.identity), resources=resources)))
        except DataError as error:
            refused.append(Refused(run.path, str(error)))
        except DphpoBenchError as error:
            others.append(Refused(run.path, str(error)))
    return repeatable, refused, others


def _resources(record: RunRecord) -> Resources:
    """Return the recorded resources: threads and devices decide how sums are rounded."""
    threads = record.environment.get("threads", "1")
    return Resources(
        threads=int(threads) if threads.isdecimal() and 1 <= int(threads) <= 1024 else 1,
        gpus=1 if record.environment.get("device", "cpu").startswith("cuda") else 0,
        time_limit_s=60 + PATIENCE * sum(record.seconds.values()),
    )


def compared(repeat: Repeat, store: RecordStore) -> list[Difference] | str:
    """Return what differs by more than rounding; or why nothing can be compared.

    This compares all that follows from the seed: metrics, what was released, what it cost, and every figure of
    privacy with the ledger. A record whose metrics alone were right could claim any ε.
    """
    again = store.find(repeat.cell.identity)
    if again is None or again.status != "ok":
        return f"it failed: {again.error if again else 'it has no record'}"
    old, new = (dict(_values(record)) for record in (repeat.record, again))
    # Records of version 2 state no risk.
    names = [*old, *(name for name in new if name not in old and not name.startswith("privacy.risk"))]
    both = [Difference(name, old.get(name), new.get(name)) for name in names]
    return [pair for pair in both if not _equal(pair.recorded, pair.repeated)]


def _values(record: RunRecord) -> Iterator[tuple[str, Any]]:
    values = record.model_dump(mode="json", include={"metrics", "privacy", "cost", "released"})
    yield from _leaves("", values.pop("metrics"))
    for name, value in values.items():
        yield from _leaves(name, value)


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    named = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if named is None:
        yield place, value
    for name, part in named or ():
        yield from _leaves(f"{place}.{name}" if place else str(name), part)


def _equal(recorded: Any, repeated: Any) -> bool:
    numbers = [each for each in (recorded, repeated) if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) == 2:
        return math.isclose(*numbers, rel_tol=ROUNDING, abs_tol=ROUNDING**2) or all(map(math.isnan, numbers))
    return bool(recorded == repeated)
