"""Repeats runs of records: which ones, and whether the metrics come out as they were."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.contract import registry
from dphpo_bench.leaderboard.board import Refused
from dphpo_bench.leaderboard.questions import Workshop
from dphpo_bench.leaderboard.submissions import ROUNDING, Run
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore, read_record
from dphpo_bench.sweep.cells import Cell
from dphpo_bench.sweep.executors import visible_gpus
from dphpo_bench.sweep.resources import Resources

PATIENCE = 10
"""A run may take so many times as long as its record says, and a minute more."""


@dataclass(frozen=True)
class Repeat:
    """A run to repeat: the path and the record, and the cell that repeats it."""

    path: str
    record: RunRecord
    cell: Cell


@dataclass(frozen=True)
class Difference:
    """A metric that did not come out as it was; NaN where one of both lacks it."""

    metric: str
    recorded: float
    repeated: float


def choose(runs: Sequence[Run], count: int) -> list[Run]:
    """The runs to repeat, always the same ones: one of each method before another of it, the cheapest first.

    Runs that failed, and those of methods or tasks that are not installed here, are left out.
    """
    methods, tasks = registry.methods(), registry.tasks()
    left = {run.path: run for run in runs if run.value is not None}
    left = {path: run for path, run in left.items() if run.method in methods and run.setting.task in tasks}
    chosen: list[Run] = []
    taken: Counter[str] = Counter()
    while left and len(chosen) < count:
        best = min(left.values(), key=lambda run: (taken[run.method], run.seconds or math.inf, run.path))
        taken[best.method] += 1
        chosen.append(left.pop(best.path))
    return chosen


def repeats(runs: Sequence[Run], roots: Sequence[Path], workshop: Workshop) -> tuple[list[Repeat], list[Refused]]:
    """What repeats these runs, and why others cannot be repeated here.

    Args:
        runs: whose paths are below one of the roots, or one of them.
        roots: folders and files, as for `read_submissions`.
        workshop: makes tasks.
    """
    found, refused = [], []
    for run in runs:
        files = (root / run.path if root.is_dir() else root for root in roots)
        record = read_record(next(file for file in files if file.is_file() and file.stem == run.key))
        resources = _resources(record)
        try:
            if resources.gpus and not visible_gpus():
                raise InvalidValueError(f"It ran on {record.environment['device']}, and there is none here.")
            found.append(Repeat(run.path, record, replace(workshop.again(record.identity), resources=resources)))
        except DphpoBenchError as error:
            refused.append(Refused(run.path, str(error)))
    return found, refused


def _resources(record: RunRecord) -> Resources:
    """Those that the record tells of: threads and devices decide how sums are rounded."""
    threads = record.environment.get("threads", "1")
    return Resources(
        threads=int(threads) if threads.isdecimal() and 1 <= int(threads) <= 1024 else 1,
        gpus=1 if record.environment.get("device", "cpu").startswith("cuda") else 0,
        time_limit_s=60 + PATIENCE * sum(record.seconds.values()),
    )


def compared(repeat: Repeat, store: RecordStore) -> list[Difference] | str:
    """The metrics that differ by more than rounding; or why there are none.

    Args:
        repeat: what was repeated.
        store: where its new record is.
    """
    again = store.find(repeat.cell.identity)
    if again is None or again.status != "ok":
        return f"it failed: {again.error if again else 'it has no record'}"
    old, new = repeat.record.metrics, again.metrics
    both = [Difference(name, old.get(name, math.nan), new.get(name, math.nan)) for name in sorted(old.keys() | new)]
    return [one for one in both if not math.isclose(one.recorded, one.repeated, rel_tol=ROUNDING, abs_tol=ROUNDING)]
