"""The command `sweep`."""

import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import count, duration_text, one_line, value_text
from dphpo_bench.cli import options
from dphpo_bench.cli.output import say, show, show_json, table

if TYPE_CHECKING:
    from dphpo_bench.records.record import Identity
    from dphpo_bench.records.store import RecordStore
    from dphpo_bench.sweep.driver import Summary
    from dphpo_bench.sweep.running import PlannedCells

SHOWN_FAILURES = 20


def sweep_command(
    suite: Annotated[Path, typer.Argument(help="A suite: a TOML file that names methods, tasks, epsilons, seeds.")],
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE,...",
            help="Only these cells; fields: method, task, model, epsilon, seed. Repeatable: "
            "values of one field are alternatives, and all fields must fit.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan every cell and print its ε and cost, but run none.")
    ] = False,
    retry_failed: options.RetryFailedOption = False,
    executor: Annotated[
        Literal["process", "serial", "ray"], typer.Option(help="Where cells run: here, in this process, on a cluster.")
    ] = "process",
    workers: options.WorkersOption = None,
    address: Annotated[
        str | None, typer.Option(help="Address of this machine's Ray cluster: auto or HOST:PORT; default: a new Ray.")
    ] = None,
    task_file: options.TaskFilesOption = None,
    data_dir: options.DataDirOption = None,
    results_dir: Annotated[Path, typer.Option(help="Where records are read and written.")] = Path("results"),
    account: options.AccountOption = None,
    not_private: options.NotPrivateOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the dry run as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show failures and the summary only.")] = False,
) -> None:
    """Run methods × tasks × ε × seeds; run it again to continue where it ended.

    Cells with a record are skipped, even if they failed. Each cell runs in a process of its own. On private records the
    seeds of the suite only number the runs, whose noise has none; what all of them cost together is said before the
    first, and their account counts each.

    Exit code: 0 every cell is done, 1 some failed or cannot be planned, 2 a mistake in the call or a full disk,
    130 interrupted.
    """
    from dphpo_bench.base.progress import make_progress
    from dphpo_bench.contract.registry import TaskFiles
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.harness.account import DEFAULT
    from dphpo_bench.harness.loading import check_declared_data
    from dphpo_bench.harness.plan import warn_of_budget
    from dphpo_bench.records.store import RecordStore
    from dphpo_bench.sweep.cells import PrivateCells, cells_of, unseeded
    from dphpo_bench.sweep.driver import take_stock
    from dphpo_bench.sweep.running import executor_for, plan_all, run_cells, stock_text, total_seconds
    from dphpo_bench.sweep.suite import load_suite

    if as_json and not dry_run:
        raise InvalidValueError("Expected --json with --dry-run; records are shown by dphpo-bench results --json.")
    source = DataSource.resolve(data_dir)
    store = RecordStore(results_dir)
    if task_file and executor == "ray":
        raise InvalidValueError(
            "Expected --executor process with --task-file; install the task to run it on a cluster."
        )
    tasks = TaskFiles.of(task_file or [])
    chosen = cells_of(load_suite(suite, tasks.make), source, only or [], tasks.make)
    if not dry_run or (results_dir / ".data" / "key").exists():
        chosen = unseeded(chosen, store)
    with executor_for(chosen, executor, workers, address) as (cells, opened), interrupted_by_sigterm():
        budgets = {(cell.task.facts.task, cell.task.facts.n_records, cell.budget): cell.task.facts for cell in cells}
        for (_, _, budget), facts in budgets.items():
            warn_of_budget(budget, facts.n_records, facts.unit)
        if not dry_run:
            for task, identity in {cell.identity.task: (cell.task, cell.identity) for cell in cells}.values():
                check_declared_data(store.root, task, identity, source)
            private = PrivateCells(store, DEFAULT if account is None else account, not_private)
            start = time.monotonic()
            summary = run_cells(cells, opened, store, source, retry_failed=retry_failed, quiet=quiet, private=private)
            _show_summary(summary, store, time.monotonic() - start, tasks.places)
            raise typer.Exit(1 if summary.failures or summary.stock.failed else 0)
        capacity = opened.capacity
        stock = take_stock(cells, store, retry_failed=retry_failed)
        groups = plan_all(stock, opened, source, make_progress(quiet))
    if as_json:
        show_json(
            [
                {
                    "key": cell.key,
                    **cell.identity.model_dump(),
                    "state": state,
                    "plan": asdict(group.plan) if group.plan else None,
                    "error": group.error or None,
                    "estimated_seconds": group.seconds,
                }
                for group in groups
                for state, of_state in (("finished", group.finished), ("failed", group.failed), ("to run", group.todo))
                for cell in of_state
            ]
        )
    else:
        examples = sum(len(group.todo) * group.plan.examples for group in groups if group.plan)
        seconds = total_seconds(groups)
        time_text = "How long they take is not known before some are finished."
        if seconds is not None:
            each = duration_text(seconds / capacity)
            time_text = f"About {duration_text(seconds)} for one worker, {each} for {capacity}."
        headers = "method", "task", "ε", "planned", ">tuning", ">runs", ">passes", ">time", ">to run"
        show(table(headers, map(_dry_row, groups), plain=True, padding=(0, 1)))
        say(f"{stock_text(stock)} To run: {examples:,.0f} example passes. {time_text}")
    raise typer.Exit(1 if any(group.error for group in groups) else 0)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM, which schedulers send to end a job, like an interrupt."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def label_of(identity: "Identity") -> str:
    """Return a method's name, and its parameters that are not the defaults."""
    from dphpo_bench.harness.recording import changed_parameters

    changed = changed_parameters(identity)
    return " ".join([identity.method, *(f"{name}={value_text(value)}" for name, value in changed.items())])


def _dry_row(group: "PlannedCells") -> list[str]:
    who, plan = group.cell.identity, group.plan
    cells = len(group.todo) + len(group.finished) + len(group.failed)
    planned = [one_line(group.error), "", "", ""]
    if plan:
        planned = [f"{plan.epsilon:.6g} {plan.accountant}", f"{plan.tuning_share:.0%}"]
        planned += [f"{plan.runs:,}", f"{plan.examples:.2g}"]
    return [
        label_of(who),
        f"{who.task} ({who.model})",
        f"{who.epsilon:g}",
        *planned,
        "?" if group.seconds is None else duration_text(group.seconds),
        f"{len(group.todo)} of {cells}{f', {len(group.failed)} failed' if group.failed else ''}",
    ]


def _show_summary(summary: "Summary", store: "RecordStore", seconds: float, task_files: Mapping[str, str]) -> None:
    from rich.text import Text

    from dphpo_bench.harness.recording import Call
    from dphpo_bench.sweep.cells import device_of
    from dphpo_bench.sweep.driver import log_path

    stock, failures = summary.stock, summary.failures
    show(
        f"{count(summary.run, 'cell')} run in {duration_text(seconds)}: {summary.run - len(failures):,} ok, "
        f"{len(failures):,} failed. Finished before: {len(stock.finished):,}."
    )
    for cell, record in failures[:SHOWN_FAILURES]:
        show(Text(f"\n{cell}: {record.status}", style="bold"), f"  {one_line(record.error or '')}")
        log = log_path(store, record)
        if log.exists():
            show(f"  its output: {log}")
        call = replace(
            Call.of(cell.identity),
            task_file=task_files.get(cell.identity.task),
            device=device_of(cell),
            threads=cell.resources.threads,
            results_dir="alone",
        )
        say(f"  alone: {call}")
    if len(failures) > SHOWN_FAILURES:
        show(f"\n... and {len(failures) - SHOWN_FAILURES:,} more.")
    if failures or stock.failed:
        known = f"{len(stock.failed):,} cells failed in an earlier sweep. " if stock.failed else ""
        show(f"\n{known}They are kept as failed; --retry-failed runs them again.")
    say(f"\nRecords: {store.root} (dphpo-bench results {shlex.quote(str(store.root))})")
