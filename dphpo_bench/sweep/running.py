"""Cells on an executor chosen by name: their plans without a run, and their progress shown."""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from shutil import get_terminal_size

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.progress import Progress
from dphpo_bench.base.text import count, duration_text, one_line
from dphpo_bench.data.source import DataSource
from dphpo_bench.recipes.single_run import OptimizerRun
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import Cell, CellPlan, PrivateCells, pickled, plan_key, plans_of
from dphpo_bench.sweep.driver import Stock, Summary, sweep
from dphpo_bench.sweep.executors import (
    COMPILER,
    Executor,
    ProcessExecutor,
    SerialExecutor,
    default_workers,
    visible_gpus,
)


@dataclass
class PlannedCells:
    """Cells that differ in nothing but their seed, and their plan; the seconds of one cell are from finished runs."""

    finished: list[Cell] = field(default_factory=list)
    failed: list[Cell] = field(default_factory=list)
    todo: list[Cell] = field(default_factory=list)
    plan: CellPlan | None = None
    error: str = ""
    seconds: float | None = None

    @property
    def cell(self) -> Cell:
        """First of the cells that are left, or else of the others."""
        return (self.todo or self.finished or self.failed)[0]


def plan_all(stock: Stock, executor: Executor, source: DataSource, progress: Progress) -> list[PlannedCells]:
    """Make each plan once, keep it for the sweep, and estimate times from the records."""
    by_plan: defaultdict[str, PlannedCells] = defaultdict(PlannedCells)
    for state in ("finished", "failed", "todo"):
        for cell in getattr(stock, state):
            getattr(by_plan[plan_key(cell)], state).append(cell)
    plans = plans_of([group.cell for group in by_plan.values()], executor, source, progress)
    for key, group in by_plan.items():
        plan = plans[key]
        if isinstance(plan, str):
            group.error = plan
        else:
            group.plan, _ = plan
            group.seconds = stock.times.seconds(group.cell.identity, group.plan.examples)
    return list(by_plan.values())


def total_seconds(groups: Sequence[PlannedCells]) -> float | None:
    """Return the seconds of all cells to run, one after the other; None if some times are unknown."""
    if any(group.todo and group.plan and group.seconds is None for group in groups):
        return None
    return sum(len(group.todo) * (group.seconds or 0.0) for group in groups)  # a cell without a plan fails at once


LINE_SECONDS = 10.0
PHASE_LINE_SECONDS = 60.0
REFRESH_SECONDS = 0.5
SHOWN_FAILURES = 20
CLEARED = "\r\x1b[K"  # to the start of the line, and erase it


class SweepDisplay:
    """A `Watcher` for people: one line that changes on a terminal, else lines. With `quiet`, it shows failures only."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._is_terminal, self._has_status = sys.stderr.isatty(), False
        self._running: set[str] = set()
        self._total = self._done = self._failed = 0
        self._phase, self._phase_start = "", 0.0
        self._start = self._last = time.monotonic()

    def __enter__(self) -> "SweepDisplay":
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_status:
            self._line(self._status())

    def stock(self, stock: Stock) -> None:
        self._total = len(stock.todo)
        for reason in stock.damaged[:SHOWN_FAILURES]:
            self.note(f"{reason} The cell runs again.")
        if more := len(stock.damaged[SHOWN_FAILURES:]):
            self.note(f"{more:,} more records are damaged.")
        if not self._quiet:
            self._line(stock_text(stock))

    def preparing(self, tasks: Sequence[str]) -> None:
        self._phase = f"Preparing the data of {', '.join(sorted(set(tasks)))}."
        self._phase_start = time.monotonic()
        if not self._quiet:
            self._line(self._phase)

    def started(self, cell: Cell) -> None:
        if not self._running and not self._done:
            self._start = time.monotonic()
        self._phase = ""
        self._running.add(cell.key)

    def finished(self, cell: Cell, record: RunRecord, elsewhere: bool) -> None:
        self._running.discard(cell.key)
        self._done += 1
        if record.status != "ok":
            self._failed += 1
            where = " (by another sweep)" if elsewhere else ""
            self._line(f"{cell}: {record.status}{where}: {one_line(record.error or '')}")

    def note(self, text: str) -> None:
        self._line(one_line(text))

    def tick(self) -> None:
        now = time.monotonic()
        seconds = REFRESH_SECONDS if self._is_terminal else PHASE_LINE_SECONDS if self._phase else LINE_SECONDS
        if not self._quiet and now - self._last >= seconds:
            self._last = now
            self._line(self._status(), stays=not self._is_terminal)

    def _line(self, text: str, *, stays: bool = True) -> None:
        """Write a line; on a terminal, one that does not stay is written over by the next."""
        start = CLEARED if self._has_status else ""
        self._has_status = not stays
        sys.stderr.write(f"{start}{text}\n" if stays else f"{start}{text[: get_terminal_size().columns - 1]}")
        sys.stderr.flush()

    def _status(self) -> str:
        now = time.monotonic()
        if self._phase:
            return f"{self._phase} {duration_text(now - self._phase_start)} so far."
        rate = 60 * self._done / max(now - self._start, 1e-9)
        counts = f"{self._done:,} of {self._total:,} done, {len(self._running)} running, {self._failed} failed"
        return f"{counts}, {rate:.3g} a minute"


def stock_text(stock: Stock) -> str:
    """Return the counts of cells, such as "540 cells: 12 finished, 1 failed before, 527 to run."."""
    total = len(stock.finished) + len(stock.failed) + len(stock.todo)
    failed = f"{len(stock.failed):,} failed before, " if stock.failed else ""
    again = f" ({len(stock.replaced):,} of them failed before)" if stock.replaced else ""
    return f"{count(total, 'cell')}: {len(stock.finished):,} finished, {failed}{len(stock.todo):,} to run{again}."


@contextmanager
def executor_for(
    cells: Sequence[Cell], name: str = "process", workers: int | None = None, address: str | None = None
) -> Iterator[tuple[list[Cell], Executor]]:
    """Yield the cells in a form that other processes can run, and an executor for them, which is closed at the end.

    Its name is "process", with as many workers by default as this machine has room for, "serial", or "ray", with the
    address of a cluster; None starts a Ray on this machine.
    """
    with pickled((cell.method for cell in cells), (cell.task for cell in cells)) as path:
        ready = [replace(cell, plug_ins=path) for cell in cells]
        with closing(_make_executor(name, workers, address, ready)) as executor:
            yield ready, executor


def run_cells(
    cells: Sequence[Cell],
    executor: Executor,
    store: RecordStore,
    source: DataSource,
    *,
    retry_failed: bool,
    quiet: bool,
    private: PrivateCells | None = None,
) -> Summary:
    with SweepDisplay(quiet=quiet) as display:
        return sweep(cells, store, executor, source, display, retry_failed=retry_failed, private=private)


def _make_executor(name: str, workers: int | None, address: str | None, cells: Sequence[Cell]) -> Executor:
    if workers is not None and name != "process":
        raise InvalidValueError(f"Expected --workers with --executor process only, got --executor {name}.")
    if address is not None and name != "ray":
        raise InvalidValueError(f"Expected --address with --executor ray only, got --executor {name}.")
    needs = list({cell.resources: None for cell in cells})
    if name == "serial":
        return SerialExecutor()
    if name == "ray":
        from dphpo_bench.sweep.ray_executor import RayExecutor

        # What Ray starts again by itself nobody counts, and with the same noise it might ask other questions.
        return RayExecutor(address, needs, 3 if all(cell.task.public for cell in cells) else 0)
    most = max(need.gpus for need in needs)
    gpus = visible_gpus() if most else []
    if most > min(1, len(gpus)):
        raise InvalidValueError(
            f"Cells ask for gpus={most:g}; here a cell has one of this machine's {len(gpus)}, or a part of it. "
            f"More need --executor ray."
        )
    methods = [cell.method for cell in cells]
    are_own = all(type(method).__module__.startswith("dphpo_bench.") for method in methods)  # others may use torch's
    modules = [] if are_own and not any(isinstance(method, OptimizerRun) for method in methods) else [COMPILER]
    return ProcessExecutor(default_workers(needs, len(gpus)) if workers is None else workers, gpus, modules)
