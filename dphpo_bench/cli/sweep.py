"""The commands of many runs: `sweep`, and `explain` with its extra runs."""

import shlex
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dphpo_bench as bench
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.progress import make_progress
from dphpo_bench.base.text import count, duration_text, one_line, value_text
from dphpo_bench.cli import options
from dphpo_bench.cli.output import complain, say, show, show_json, table
from dphpo_bench.cli.records import read_oracles
from dphpo_bench.contract.registry import TaskFiles
from dphpo_bench.records.measure import shown_measure

if TYPE_CHECKING:
    from rich.table import Table

    from dphpo_bench.records.reading import Result
    from dphpo_bench.records.record import Identity
    from dphpo_bench.records.store import RecordStore
    from dphpo_bench.sweep.driver import Summary
    from dphpo_bench.sweep.extra_runs import Question, Split
    from dphpo_bench.sweep.running import PlannedCells

SHOWN_FAILURES = 20
MAX_TEXT = 70
MEANS = ("oracle", "run", "loss", "noise", "choice")


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
    source = bench.DataSource.resolve(data_dir)
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


def explain_command(
    records: Annotated[list[Path], typer.Argument(metavar="RECORD...", help="Records, or folders of them.")],
    only: options.OnlyRunsOption = None,
    results_dir: Annotated[
        Path | None,
        typer.Option(help="Where the oracle's record is, and those of extra runs; default: where the records are."),
    ] = None,
    retry_failed: options.RetryFailedOption = False,
    executor: Annotated[
        Literal["process", "serial"], typer.Option(help="Where extra runs run: in processes, or in this one.")
    ] = "process",
    workers: options.WorkersOption = None,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of an extra run, or a part of one; 0: on the CPU.")] = 0,
    task_file: options.TaskFilesOption = None,
    private_records: options.PrivateRecordsOption = False,
    account: options.AccountOption = None,
    data_dir: options.DataDirOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Show why runs lost against the oracle: how much is noise, because ε went into tuning, how much a worse choice.

    Two extra runs tell: the run's own values with the noise of all of ε, and the oracle's values with the noise that
    was left. They are made if they have no record yet, by a method named replay; run it again to continue where it
    ended. The oracle is grid_oracle, whose record must lie in the same folder of results.

    Exit code: 0 done, 1 an extra run failed, 2 a mistake in the call, 130 interrupted.
    """
    from dphpo_bench.harness.account import DEFAULT
    from dphpo_bench.harness.loading import check_may_spend
    from dphpo_bench.records import reading
    from dphpo_bench.records.store import RecordStore
    from dphpo_bench.sweep.cells import PrivateCells
    from dphpo_bench.sweep.executors import Resources
    from dphpo_bench.sweep.extra_runs import REPLAY, Workshop, questions
    from dphpo_bench.sweep.running import executor_for, run_cells

    root, results = _read(records)
    chosen = [result.record for result in reading.select(results, only or [])]
    if len(chosen) > 1:  # of several, those that are private
        private_ends = (record for record in chosen if record.privacy is None or record.privacy.end_to_end_private)
        chosen = [record for record in private_ends if record.identity.method != REPLAY]
    store = RecordStore(results_dir or root)
    source = bench.DataSource.resolve(data_dir)
    workshop = Workshop(source, Resources(gpus=gpus), TaskFiles.of(task_file or []).make)
    oracles = read_oracles(store.root.glob("*"))
    asked, refused = questions(chosen, oracles, store.root, workshop, make_progress(quiet))
    reasons = Counter(reason for _, reason in refused)
    if not asked:
        raise InvalidValueError(next(iter(reasons), "There is no record of a private run to explain."))
    for reason, number in reasons.items():
        complain(f"Not explained: {count(number, 'record')}: {reason}")
    cells = [cell for question in asked for cell in question.cells]
    if cells:
        check_may_spend([cell.task for cell in cells], private_records, "extra runs that have no privacy (ε = ∞)")
        private = PrivateCells(store, DEFAULT if account is None else account, not_private=True, what="extra run")
        with executor_for(cells, executor, workers) as (ready, opened), interrupted_by_sigterm():
            run_cells(ready, opened, store, source, retry_failed=retry_failed, quiet=quiet, private=private)
    splits = []
    for question in asked:
        try:
            splits.append((question, question.split(store.find)))
        except DphpoBenchError as error:
            complain(f"{question.record.identity.method}, {question.record.identity.key}: {error}")
    if as_json:
        show_json([_json_row(question, split, store) for question, split in splits])
    elif splits:
        show(_table(splits))
        for note in dict.fromkeys(question.note for question, _ in splits if question.note):
            say(f"{note[0].upper()}{note[1:]}.")
    raise typer.Exit(0 if len(splits) == len(asked) else 1)


def _read(paths: list[Path]) -> "tuple[Path, list[Result]]":
    """Read the records, and return the folder of results that all of them lie in."""
    from dphpo_bench.records.reading import Result, path_text, read_results, skipped_lines

    by_file: dict[Path, Result] = {}
    for path in paths:
        if path.is_dir():
            results, skipped = read_results(path)
            for line in skipped_lines(skipped):
                complain(line)
            by_file |= {(path / result.path).absolute(): result for result in results}
        else:
            by_file[path.absolute()] = Result(path_text(path), bench.read_record(path))
    if declared := [file for file, result in by_file.items() if result.record.accounting]:
        complain(f"Left out: {count(len(declared), 'record')} of training in a caller's code, which no run repeats.")
        by_file = {file: result for file, result in by_file.items() if file not in declared}
    if not by_file:
        raise InvalidValueError(f"Found no records in {', '.join(map(path_text, paths))}.")
    roots = {file.parents[min(2, len(file.parents) - 1)] for file in by_file}  # of <results>/<task>/<method>/<key>.json
    if len(roots) != 1:
        raise InvalidValueError(f"Expected records of one folder of results, got {len(roots)} folders of records.")
    return roots.pop(), list(by_file.values())


def _json_row(question: "Question", split: "Split", store: "RecordStore") -> dict[str, Any]:
    identity = question.record.identity
    extra = {"at_full": question.at_full, "at_left": question.at_left}
    return {
        "key": identity.key,
        **{name: getattr(identity, name) for name in ("method", "parameters", "task", "model", "epsilon", "seed")},
        "oracle": question.oracle.identity.key,
        "metric": shown_measure(identity.facts, question.record.metrics).name,
        "results": {"own": split.run, "oracle": split.oracle, "at_full": split.at_full, "at_left": split.at_left},
        "extra_runs": {name: cell and str(store.path_of(cell.identity)) for name, cell in extra.items()},
        "loss": split.loss,
        "noise": split.noise,
        "choice": split.choice,
        "note": question.note or None,
    }


def _table(splits: "Sequence[tuple[Question, Split]]") -> "Table":
    groups: defaultdict[tuple[str, float, str], list[tuple[Question, Split]]] = defaultdict(list)
    for question, split in splits:
        who = question.record.identity
        label = one_line(label_of(who), MAX_TEXT)
        groups[one_line(f"{who.task} ({who.model})"), who.epsilon, label].append((question, split))
    rows = []
    for (task, epsilon, label), group in sorted(groups.items()):
        first = group[0][0].record
        measure = shown_measure(first.identity.facts, first.metrics)
        means = {name: fmean(getattr(split, name) for _, split in group) for name in MEANS}
        texts = [measure.text(measure.value(means[name])) for name in ("oracle", "run")]
        for name in ("loss", "noise", "choice"):
            text = f"{100 * means[name] + 0.0:.2f}" if measure.share else f"{means[name] + 0.0:.3g}"
            texts.append(text.replace("-", "−"))
        rows.append((task, f"{epsilon:g}", label, str(len(group)), *texts))
    headers = "task", "ε", "method", ">seeds", ">oracle", ">own", ">lost", ">to noise", ">to a worse choice"
    caption = "Differences of shares are in points, of perplexities in nats. A negative loss is a gain."
    title = "Why they lost against the oracle, means over seeds"
    return table(headers, rows, title=title, caption=caption)
