"""The command `explain`."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.progress import make_progress
from dphpo_bench.base.text import count, one_line
from dphpo_bench.cli import options
from dphpo_bench.cli.output import complain, say, show, show_json, table
from dphpo_bench.cli.records import read_oracles
from dphpo_bench.cli.sweep import interrupted_by_sigterm, label_of

if TYPE_CHECKING:
    from rich.table import Table

    from dphpo_bench.records.reading import Result
    from dphpo_bench.records.store import RecordStore
    from dphpo_bench.sweep.extra_runs import Question, Split

MAX_TEXT = 70
MEANS = ("oracle", "run", "loss", "noise", "choice")


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
    from dphpo_bench.contract.registry import TaskFiles
    from dphpo_bench.data.source import DataSource
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
    source = DataSource.resolve(data_dir)
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
    from dphpo_bench.records.store import read_record

    by_file: dict[Path, Result] = {}
    for path in paths:
        if path.is_dir():
            results, skipped = read_results(path)
            for line in skipped_lines(skipped):
                complain(line)
            by_file |= {(path / result.path).absolute(): result for result in results}
        else:
            by_file[path.absolute()] = Result(path_text(path), read_record(path))
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
    from dphpo_bench.records.measure import shown_measure

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
    from dphpo_bench.records.measure import shown_measure

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
