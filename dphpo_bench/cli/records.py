"""The commands that read records: `show`, `statement`, `account` and `results`."""

import io
import os
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, RecordError
from dphpo_bench.base.text import MAX_LINE, count, one_line, rounded_down, shown, value_text, varying_names
from dphpo_bench.cli import options
from dphpo_bench.cli.output import UNLIMITED_WIDTH, complain, say, show, show_facts, show_json, table
from dphpo_bench.records.measure import ACCURACY, NOTHING, Measure, measure_named

if TYPE_CHECKING:
    from dphpo_bench.records.reading import Result
    from dphpo_bench.sweep.extra_runs import Oracles


MAX_RELEASES = 4
MAX_CHOSEN = 8
MAX_TRIED = 9
MAX_VALUE = 30
MAX_POINTS = 100_000
LARGEST = 1e300

Points = list[tuple[float, float]]
"""(step, value), in the order of steps."""


def show_command(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="A record, such as `run` writes.")],
    task_file: options.TaskFileOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show one run: what it chose, its path, where ε went, the oracle's choice beside it, the command that repeats it.

    The oracle's run is looked for in the same folder of results. No run is repeated. --task-file says where a
    task of your own lies, which the command needs that repeats the run.
    """
    from dphpo_bench.contract.registry import tasks
    from dphpo_bench.harness.recording import Call
    from dphpo_bench.sweep.extra_runs import ORACLE

    run = bench.read_record(record)
    declared = run.accounting is not None
    is_oracle = run.identity.method == ORACLE
    oracle = None if is_oracle or declared else read_oracles([record.absolute().parents[1]]).beside(run.identity)
    again = None if declared else str(Call.of_record(run, task_file))
    if again and task_file is None and run.identity.task not in tasks():
        task = shown(run.identity.task)
        complain(f"The task {task} is not installed here: give --task-file for a command that repeats the run.")
    if as_json:
        show_json({**_values_of(run), "oracle": _values_of(oracle) if oracle else None, "command": again})
        return
    runs = [(run.identity.method, run)]
    runs += [(f"{oracle.identity.method}, seed {oracle.identity.seed}", oracle)] if oracle else []
    texts = []
    for _, each in runs:
        choices = list(chosen(each.released).items())[:MAX_CHOSEN]
        texts.append(each.metric_texts() | {name: _value(value) for name, value in choices})
    if labels := dict.fromkeys(label for values in texts for label in values):
        cells = [(one_line(label, MAX_VALUE), *(values.get(label, NOTHING) for values in texts)) for label in labels]
        headers = ("", *(one_line(name, MAX_VALUE) for name, _ in runs))
        show(table(headers, cells, plain=True, padding=(0, 2, 0, 0)))
    title, rows = run.display()
    show_facts(title, [*rows[len(run.metric_texts()) :], *_more_rows(run)])
    if line := run.guess_line():
        say(one_line(line, len(line)))
    if again:
        say(f"Again: {again}")
        if run.identity.seed is None:
            say("It had no seed, so this makes another run of the same kind, a second release of its own ε.")


def _values_of(record: "bench.RunRecord") -> dict[str, Any]:
    """Return the record's JSON values and what follows from them, without the seed of a run on private records."""
    from dphpo_bench.records.statement import record_risk, releases

    values, risk = record.model_dump(mode="json"), record_risk(record)
    if not record.identity.is_public:
        values["identity"]["seed"] = None
    return {
        "key": record.identity.key,
        **values,
        "chosen": chosen(record.released),
        "paths": series(record.released),
        "tried": tried(record.released),
        "risk": asdict(risk) if risk else None,
        "releases": releases(record.privacy) if record.privacy else [],
    }


def chosen(released: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in released.items() if value is None or isinstance(value, str | int | float)}


def series(released: Mapping[str, Any]) -> dict[str, Points]:
    """Return the paths: lists of numbers, and the columns of lists of dictionaries that hold a `step`."""
    paths: dict[str, Points] = {}
    for name, value in released.items():
        if not isinstance(value, list) or len(value) > MAX_POINTS:
            continue
        if all(isinstance(point, dict) and is_number(point.get("step")) for point in value):
            for column in dict.fromkeys(column for point in value for column in point if column != "step"):
                paths[column] = [(point["step"], point.get(column)) for point in value]
        else:
            paths[name] = list(enumerate(value, 1))
    known = {name: sorted(point for point in points if is_number(point[1])) for name, points in paths.items()}
    return {name: points for name, points in known.items() if len(points) > 1}


def tried(released: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the candidates that were compared, with scores where these were released; empty if they are secret."""
    candidates = released.get("candidates")
    rows = [chosen(values) for values in candidates if isinstance(values, dict)] if isinstance(candidates, list) else []
    return [row for row in rows if row]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _value(value: Any) -> str:
    return one_line(f"{value:.4g}" if isinstance(value, float) else value_text(value), MAX_VALUE)


def _more_rows(record: "bench.RunRecord") -> Iterator[tuple[str, str]]:
    """Yield rows of the path, the candidates, the releases, the audit and the software of a run."""
    from dphpo_bench.records.record import risk_rows
    from dphpo_bench.records.statement import record_risk, releases

    for name, points in series(record.released).items():
        (start, first), (end, last) = points[0], points[-1]
        yield f"{one_line(name, MAX_VALUE)}, by step", f"{first:.4g} at {start:g}, {last:.4g} at {end:g}"
    rows = tried(record.released)
    if rows and all(is_number(row.get("score")) for row in rows):
        yield "candidates", f"{len(rows):,}, by score:"
        for row in sorted(rows, key=lambda row: -row["score"])[:MAX_TRIED]:
            values = ", ".join(f"{name} {_value(value)}" for name, value in row.items() if name != "score")
            yield "", one_line(f"{row['score']:.4g}: {values}")
    elif rows:
        yield "candidates", f"{len(rows):,} were compared; their scores are not released"
    if privacy := record.privacy:
        if privacy.risk is None:  # a record of an earlier version
            yield from risk_rows(record_risk(record), record.identity.unit)
        texts = releases(privacy)
        for number, text in enumerate(texts[:MAX_RELEASES]):
            yield "" if number else "released", one_line(text, 300)
        if len(texts) > MAX_RELEASES:
            yield "", f"and {len(texts) - MAX_RELEASES:,} other kinds of releases"
    if audit := record.audit:
        ceiling = "" if audit.ceiling is None else f"; with all guesses right, ε ≥ {rounded_down(audit.ceiling)}"
        shows = f"ε ≥ {audit.lower_bound:.3g} with confidence {audit.confidence:g}"
        refutes = ". It refutes the claim." if audit.refuted else ""
        yield "audit", f"{shows} ({one_line(audit.attack, MAX_VALUE)}){ceiling}{refutes}"
    if record.cost:
        yield "cost", f"{count(record.cost.runs, 'run')}, {record.cost.examples:,.0f} example passes"
    versions = {name: one_line(record.environment.get(name, "?"), 40) for name in ("dphpo-bench", "torch", "device")}
    yield "software", "dphpo-bench {dphpo-bench}, torch {torch} on {device}".format(**versions)


def read_oracles(tasks: "Iterable[Path]") -> "Oracles":
    from dphpo_bench.sweep.extra_runs import ORACLE, Oracles

    runs = []
    for file in sorted(file for folder in tasks for file in (folder / ORACLE).glob("*.json")):
        try:
            runs.append(bench.read_record(file))
        except RecordError as error:
            complain(f"Skipped: {error}")
    return Oracles(runs)


def statement_command(
    record: Annotated[
        Path,
        typer.Argument(metavar="RECORD", help="A record, such as `run` writes; or a folder of results: its account."),
    ],
    account: options.AccountOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """State what a run guarantees, for a paper or a data protection officer: one page of text.

    Unit and neighbours, ε, δ, μ and risk; what is protected and what is not; accounting, sampling, noise, tuning. A run
    that is not private, or failed, is stated as such. Of a folder of results: what all runs on the same private records
    guarantee together.
    """
    from dphpo_bench.harness.account import DEFAULT
    from dphpo_bench.harness.account_report import account_sections, account_title
    from dphpo_bench.records.statement import page, record_risk, sections, title

    if record.is_dir():
        report = bench.account(record, DEFAULT if account is None else account)
        heading, parts = account_title(report), account_sections(report)
        values: dict[str, Any] = {"account": report.to_json(), "sections": [list(part) for part in parts]}
    else:
        run = bench.read_record(record)
        risk, privacy = record_risk(run), run.privacy
        heading, parts = title(run), sections(run, risk, account_of(record, run))
        values = {
            "epsilon": privacy.epsilon if privacy and privacy.end_to_end_private else None,
            "delta": run.identity.delta,
            "risk": asdict(risk) if risk else None,
            "sections": dict(parts),
        }
    if as_json:
        show_json({"title": heading, **values})
    else:
        for line in page(heading, parts):
            say(line)


def account_of(path: Path, record: "bench.RunRecord") -> str | None:
    """Return what the account that counts a record says, if there is one."""
    folders = path.absolute().parents
    if len(folders) < 3 or not (folders[2] / ".accounts").is_dir():
        return None
    from dphpo_bench.harness.account import accounts_in
    from dphpo_bench.harness.account_report import report_of

    for book in accounts_in(folders[2]):
        if any(entry.record == record.identity.key for entry in book.read()[1]):
            return f"The account {book.name} counts this run. By now: {report_of(book).summary()}"
    return None


def account_command(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="The folder of results of the runs.")],
    account: options.AccountOption = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the account with a cap on all runs together: --epsilon, --delta.")
    ] = False,
    epsilon: Annotated[float | None, typer.Option(help="ε of the cap.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ of the cap.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what has been released from private records across runs, and ε of all of it together.

    Every run on private records is counted before it reads them, also one that is killed. Two numbers: ε if all
    settings were fixed in advance, and ε if later ones were chosen after looking at earlier results. Without a cap, the
    second holds only if the total was planned beforehand. With a cap, a run that does not fit is refused.

    Exit code: 0 done, 2 a mistake in the call, or an account that is damaged or cannot be written.
    """
    from dphpo_bench.harness.account import DEFAULT
    from dphpo_bench.harness.account_report import open_account

    if len({open_, epsilon is not None, delta is not None}) > 1:
        raise InvalidValueError("Expected --open with --epsilon and --delta, or none of the three.")
    name = DEFAULT if account is None else account
    if open_ and epsilon is not None and delta is not None:
        open_account(results, epsilon, delta, name)
    report = bench.account(results, name)
    if as_json:
        show_json(report.to_json())
    else:
        show_facts(*report.display())


SUFFIXES = {"csv": "csv", "parquet": "parquet", "json": "json", "txt": "table", "": "table"}
"""Formats by the ending of a file."""

MAX_SHOWN = 20
MAX_CELL = 60


def results_command(
    results_dir: Annotated[Path, typer.Argument(help="A folder of run records.")] = Path("results"),
    only: options.OnlyRunsOption = None,
    summary: Annotated[bool, typer.Option("--summary", help="A row for runs that differ in seeds alone.")] = False,
    form: Annotated[
        Literal["table", "csv", "parquet", "json"] | None,
        typer.Option("--format", help="Default: by the output file's suffix, else a table."),
    ] = None,
    as_json: options.JsonOption = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; default: standard output.")] = None,
) -> None:
    """List run records, all or some, as a table or as data.

    Files that are not valid records are skipped, with a line on standard error. The extra runs of `explain` are left
    out of a summary, unless --only asks for them.

    In CSV, a text that a spreadsheet would take for a formula has an apostrophe in front.
    """
    from dphpo_bench.records import reading

    chosen_form = _result_format(form, as_json, output)
    results, skipped = reading.read_results(results_dir)
    for line in reading.skipped_lines(skipped):
        complain(line)
    chosen = reading.select(results, only or [])
    if summary and not only:
        chosen = [result for result in chosen if result.record.identity.method != reading.REPLAY]
    nothing = f"No records in {results_dir}{' match --only' if results else ''}."
    if chosen_form == "table":
        on_terminal = output is None and sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if on_terminal or "COLUMNS" in os.environ else None
        text = to_text(chosen, summarise=summary, width=width, styled=on_terminal) if chosen else nothing + "\n"
    else:
        if not chosen:
            complain(nothing)
        data = reading.summary(chosen) if summary else reading.frame(chosen)
        if chosen_form == "parquet" and output is not None:
            reading.write(output, data.to_parquet(index=False))
            return
        text = reading.to_csv(data) if chosen_form == "csv" else reading.to_json(data)
    if output is None:
        sys.stdout.write(text)
    else:
        reading.write(output, text)


def _result_format(form: str | None, as_json: bool, output: Path | None) -> str:
    if as_json and form not in (None, "json"):
        raise InvalidValueError(f"Expected --json or --format {form}, got both.")
    suffix = output.suffix.lower().removeprefix(".") if output else ""
    if output and not (as_json or form or suffix in SUFFIXES):
        raise InvalidValueError(
            f"Expected --output to end in .csv, .parquet, .json or .txt, or a --format, got {shown(output)}."
        )
    chosen = "json" if as_json else form or SUFFIXES.get(suffix, "table")
    if chosen == "parquet" and output is None:
        raise InvalidValueError("Parquet is not text and needs a file. Add --output FILE.parquet.")
    return chosen


def to_text(results: "Sequence[Result]", *, summarise: bool, width: int | None = None, styled: bool = False) -> str:
    """Return the table of runs, or of groups of runs that differ in their seeds alone, and lines on failed ones."""
    from rich.console import Console
    from rich.text import Text

    from dphpo_bench.records.reading import guesses_line

    rows, failed = (_summary_rows if summarise else _run_rows)(results)
    # A column says something if it is not empty; what all runs share, but for their results, is said once elsewhere.
    headers = [header for header in rows[0] if any(row[header] for row in rows)]
    if len({row["model"] for row in rows}) == 1:
        headers.remove("model")
    cells = [[one_line(row[header], MAX_CELL) for header in headers] for row in rows]
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=styled, width=width or UNLIMITED_WIDTH)
    console.print(table(headers, cells, plain=True, failed=failed))
    counts = Counter(result.record.status for result in results)
    statuses = sorted(counts, key=lambda status: (status != "ok", status))
    lines = [f"{count(len(results), 'record')}: {', '.join(f'{counts[status]:,} {status}' for status in statuses)}."]
    if line := guesses_line(results):
        lines.append(one_line(line, MAX_LINE * 2))
    bad = [result for result in results if result.record.status != "ok"]
    lines += [one_line(f"{each.path}: {each.record.status}: {each.record.error}") for each in bad[:MAX_SHOWN]]
    if len(bad) > MAX_SHOWN:
        lines.append(f"{len(bad) - MAX_SHOWN:,} more; --format csv or json has all errors.")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    return buffer.getvalue()


def _run_rows(results: "Sequence[Result]") -> tuple[list[dict[str, str]], list[bool]]:
    header, scores = _scores(results)
    rows = []
    for result, shared in zip(results, _shared(results), strict=True):
        record, privacy = result.record, result.record.privacy
        rows.append(
            {
                **shared,
                ">seed": record.identity.seed_text,
                "status": record.status,
                f">{header}": scores(result.measure, result.value),
                ">ε\nrecomputed": f"{privacy.recomputed.epsilon:.6g}" if privacy and privacy.recomputed else "",
                ">ε\nquoted": f"{privacy.epsilon:.6g}" if privacy else "",
                ">seconds": "" if result.seconds is None else f"{result.seconds:,.1f}",
            }
        )
    return rows, [result.record.status != "ok" for result in results]


def _summary_rows(results: "Sequence[Result]") -> tuple[list[dict[str, str]], list[bool]]:
    from dphpo_bench.records.reading import summary_rows

    header, scores = _scores(results)
    groups, rows = summary_rows(results), []
    for group, shared in zip(groups, _shared([group["first"] for group in groups]), strict=True):
        measure = measure_named(group["metric"] or "", group["first"].record.identity.facts)
        known = group["mean"] is not None
        rows.append(
            {
                **shared,
                ">seeds": str(group["seeds"]),
                ">runs": "" if group["ok"] == group["seeds"] else str(group["ok"]),  # there are copies
                ">failed": str(group["failed"] or ""),
                f">mean\n{header}": scores(measure, group["mean"]),
                ">min .. max": f"{measure.text(group['min'])} .. {measure.text(group['max'])}" if known else "",
                ">ε\nquoted": "" if group["epsilon"] is None else f"{group['epsilon']:.6g}",
            }
        )
    return rows, [bool(group["failed"]) for group in groups]


def _shared(results: "Sequence[Result]") -> Iterator[dict[str, str]]:
    """Yield columns that runs of a group share; the last one says in what runs of a method on a task differ."""
    groups: defaultdict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    members = []
    for who in (result.record.identity for result in results):
        names = ("delta", "method_version", "task_version", "model_fingerprint", "data_fingerprint")
        facts = {f"task_{name}": value for name, value in who.facts.items()}
        values = {**{name: getattr(who, name) for name in names}, **facts, **who.parameters}
        texts = {name: value_text(value)[:MAX_VALUE] for name, value in values.items()}
        group = groups[who.task, who.model, who.method]
        group.append(texts)
        members.append((who, group, texts))
    for who, group, texts in members:
        yield {
            "task": who.task,
            "model": who.model,
            ">ε\ntarget": f"{who.epsilon:g}",
            "method": who.method,
            "parameters": ", ".join(f"{name}={texts[name]}" for name in varying_names(group) if name in texts),
        }


def _scores(results: "Sequence[Result]") -> tuple[str, Callable[[Measure, float | None], str]]:
    """Return the header of metrics and the function to their texts; each text has its name if they differ."""
    names = {result.measure.name for result in results if result.value is not None}
    several = len(names) > 1
    header = "metric" if several else one_line(Measure(min(names, default=ACCURACY.name)).title, MAX_CELL)

    def text(measure: Measure, value: float | None) -> str:
        return "" if value is None else f"{measure.name} {measure.text(value)}" if several else measure.text(value)

    return header, text
