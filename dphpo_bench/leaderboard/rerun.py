"""Repeat runs of records: choose them, and compare their results."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dphpo_bench.base.errors import DataError, DphpoBenchError
from dphpo_bench.contract import registry
from dphpo_bench.leaderboard.entries import frame_of, newest
from dphpo_bench.leaderboard.requirements import ROUNDING
from dphpo_bench.leaderboard.submissions import Run
from dphpo_bench.leaderboard.values import Refused
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore, read_record
from dphpo_bench.sweep.cells import Cell
from dphpo_bench.sweep.executors import visible_gpus
from dphpo_bench.sweep.extra_runs import Workshop
from dphpo_bench.sweep.resources import Resources

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
        method, task = methods.get(run.method), tasks.get(run.task_model.task)
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
    numbers = [
        value for value in (recorded, repeated) if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if len(numbers) == 2:
        return math.isclose(*numbers, rel_tol=ROUNDING, abs_tol=ROUNDING**2) or all(map(math.isnan, numbers))
    return bool(recorded == repeated)
