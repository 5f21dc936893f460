"""The command `sweep`: executors by name, sweeps, and dry runs."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.terminal import make_progress
from dphpo_bench.base.text import duration_text, one_line
from dphpo_bench.cli.sweep_progress import SweepDisplay, changed_parameters, print_summary, stock_text
from dphpo_bench.data.source import DataSource
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import Cell
from dphpo_bench.sweep.driver import Stock, Summary, sweep, take_stock
from dphpo_bench.sweep.dry_run import PlannedCells, plan_all, total_seconds
from dphpo_bench.sweep.executors import Executor, ProcessExecutor, SerialExecutor, default_workers, visible_gpus
from dphpo_bench.sweep.private_cells import PrivateCells


def make_executor(name: str, workers: int | None, address: str | None, cells: Sequence[Cell]) -> Executor:
    """The executor "process", "serial" or "ray".

    Args:
        name: of the executor.
        workers: processes at a time, for "process"; None for as many as this machine has room for.
        address: of the Ray cluster; None starts a Ray on this machine.
        cells: that it will run.

    Raises:
        InvalidValueError: if the options do not fit together, or the cells need more than there is.
    """
    if workers is not None and name != "process":
        raise InvalidValueError(f"Expected --workers with --executor process only, got --executor {name}.")
    if address is not None and name != "ray":
        raise InvalidValueError(f"Expected --address with --executor ray only, got --executor {name}.")
    needs = list({cell.resources: None for cell in cells})
    if name == "serial":
        return SerialExecutor()
    if name == "ray":
        from dphpo_bench.sweep.ray_executor import RayExecutor

        return RayExecutor(address, needs)
    most = max(need.gpus for need in needs)
    gpus = visible_gpus() if most else []
    if most > min(1, len(gpus)):
        raise InvalidValueError(
            f"Cells ask for gpus={most:g}; here a cell has one of this machine's {len(gpus)}, or a part of it. "
            f"More need --executor ray."
        )
    return ProcessExecutor(default_workers(needs, len(gpus)) if workers is None else workers, gpus)


def run_sweep(
    cells: Sequence[Cell],
    store: RecordStore,
    executor: Executor,
    source: DataSource,
    task_files: Mapping[str, str],
    *,
    retry_failed: bool,
    quiet: bool,
    private: PrivateCells,
) -> int:
    """Run the cells, print a summary, and return the exit code: 0 if every cell has a record of status "ok", else 1."""
    start = time.monotonic()
    summary = run_cells(cells, store, executor, source, retry_failed=retry_failed, quiet=quiet, private=private)
    print_summary(summary, store, time.monotonic() - start, _console(), task_files)
    return 1 if summary.failures or summary.stock.failed else 0


def run_cells(
    cells: Sequence[Cell],
    store: RecordStore,
    executor: Executor,
    source: DataSource,
    *,
    retry_failed: bool,
    quiet: bool,
    private: PrivateCells | None = None,
) -> Summary:
    """Run the cells that have no record, and show how it goes; nothing is printed on standard output."""
    with _terminable(), SweepDisplay(executor.capacity, quiet=quiet) as display:
        return sweep(cells, store, executor, source, display, retry_failed=retry_failed, private=private)


def run_dry(
    cells: Sequence[Cell],
    store: RecordStore,
    executor: Executor,
    source: DataSource,
    *,
    retry_failed: bool,
    quiet: bool,
) -> tuple[Stock, list[PlannedCells]]:
    """What a sweep would run, with the plans and their costs."""
    stock = take_stock(cells, store, retry_failed=retry_failed)
    with _terminable():
        return stock, plan_all(stock, executor, source, make_progress(quiet))


def print_dry(stock: Stock, groups: Sequence[PlannedCells], workers: int) -> None:
    """Print the plans, and their cost for this number of workers."""
    console = _console()
    console.print(_dry_table(groups))
    examples = sum(len(group.todo) * group.plan.examples for group in groups if group.plan)
    seconds = total_seconds(groups)
    if seconds is None:
        time_text = "How long they take is not known before some are finished."
    else:
        time_text = f"About {duration_text(seconds)} for one worker, {duration_text(seconds / workers)} for {workers}."
    console.print(f"{stock_text(stock)} To run: {examples:,.0f} example passes. {time_text}")


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM, which schedulers send to end a job, like an interrupt."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _console() -> Console:
    """Standard output, which is wide if it is a file, unless COLUMNS says otherwise."""
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=160 if wide else None, highlight=False, markup=False)


def _dry_table(groups: Sequence[PlannedCells]) -> Table:
    table = Table("method", "task", "ε", "planned", box=SIMPLE)
    for name in ("tuning", "runs", "passes", "time", "to run"):
        table.add_column(name, justify="right")
    for group in groups:
        identity, plan = group.cell.identity, group.plan
        cells = len(group.todo) + len(group.finished) + len(group.failed)
        table.add_row(
            Text(" ".join([identity.method, *changed_parameters(group.cell)])),
            Text(f"{identity.task} ({identity.model})"),
            f"{identity.epsilon:g}",
            Text(f"{plan.epsilon:.6g} {plan.accountant}" if plan else one_line(group.error)),
            f"{plan.tuning_share:.0%}" if plan else "",
            f"{plan.runs:,}" if plan else "",
            f"{plan.examples:.2g}" if plan else "",
            duration_text(group.seconds) if group.seconds is not None else "?",
            f"{len(group.todo)} of {cells}{f', {len(group.failed)} failed' if group.failed else ''}",
        )
    return table


def json_rows(group: PlannedCells) -> Iterator[dict[str, object]]:
    """One row for each cell."""
    for state, cells in (("finished", group.finished), ("failed", group.failed), ("to run", group.todo)):
        for cell in cells:
            yield {
                "key": cell.key,
                **cell.identity.model_dump(),
                "state": state,
                "plan": asdict(group.plan) if group.plan else None,
                "error": group.error or None,
                "estimated_seconds": group.seconds,
            }
