"""The command `results`."""

import io
import os
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import MAX_LINE, count, one_line, shown, value_text, varying_names
from dphpo_bench.cli.options import JsonOption, OnlyRunsOption
from dphpo_bench.cli.output import UNLIMITED_WIDTH, complain, table

if TYPE_CHECKING:
    from dphpo_bench.records.measure import Measure
    from dphpo_bench.records.reading import Result
    from dphpo_bench.records.record import Identity

SUFFIXES = {"csv": "csv", "parquet": "parquet", "json": "json", "txt": "table", "": "table"}
"""Formats by the ending of a file."""

MAX_SHOWN = 20
MAX_CELL = 60


def results_command(
    results_dir: Annotated[Path, typer.Argument(help="A folder of run records.")] = Path("results"),
    only: OnlyRunsOption = None,
    summary: Annotated[bool, typer.Option("--summary", help="A row for runs that differ in seeds alone.")] = False,
    form: Annotated[
        Literal["table", "csv", "parquet", "json"] | None,
        typer.Option("--format", help="Default: by the output file's suffix, else a table."),
    ] = None,
    as_json: JsonOption = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; default: standard output.")] = None,
) -> None:
    """List run records, all or some, as a table or as data.

    Files that are not valid records are skipped, with a line on standard error. The extra runs of `explain` are left
    out of a summary, unless --only asks for them.

    In CSV, a text that a spreadsheet would take for a formula has an apostrophe in front.
    """
    from dphpo_bench.records import reading, tables

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
        data = tables.summary(chosen) if summary else tables.frame(chosen)
        if chosen_form == "parquet" and output is not None:
            tables.write(output, tables.to_parquet(data))
            return
        text = tables.to_csv(data) if chosen_form == "csv" else tables.to_json(data)
    if output is None:
        sys.stdout.write(text)
    else:
        tables.write(output, text)


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

    rows, failed = (_summary_rows if summarise else _run_rows)(results)
    # A column says something if it is not empty; what all runs share, but for their results, is said once elsewhere.
    headers = [header for header in rows[0] if any(row[header] for row in rows)]
    if len({row["model"] for row in rows}) == 1:
        headers.remove("model")
    cells = [[one_line(row[header], MAX_CELL) for header in headers] for row in rows]
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=styled, width=width or UNLIMITED_WIDTH)
    console.print(table(headers, cells, plain=True, failed=failed))
    for line in _closing_lines(results):
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
    from dphpo_bench.records.measure import measure_named
    from dphpo_bench.records.tables import summary_rows

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
    """Yield columns that runs of a group share; the last two say in what runs of a method, or of a task, differ."""
    identities = [result.record.identity for result in results]
    parameters = _varying(identities, lambda who: who.method, lambda who: who.parameters)
    details = _varying(identities, lambda who: (who.task, who.model, who.method), _details)
    for who, of_method, of_task in zip(identities, parameters, details, strict=True):
        yield {
            "task": who.task,
            "model": who.model,
            ">ε\ntarget": f"{who.epsilon:g}",
            "method": who.method,
            "parameters": of_method,
            "what else\ndiffers": of_task,
        }


def _varying(
    identities: "Sequence[Identity]",
    group: "Callable[[Identity], Any]",
    values: "Callable[[Identity], Mapping[str, Any]]",
) -> Iterator[str]:
    """Yield for each run the values that differ within its group, such as "rate=0.5, steps=20"."""
    texts = [{name: value_text(value) for name, value in values(who).items()} for who in identities]
    groups: defaultdict[Any, list[dict[str, str]]] = defaultdict(list)
    for who, named in zip(identities, texts, strict=True):
        groups[group(who)].append(named)
    names = {key: varying_names(members) for key, members in groups.items()}
    for who, named in zip(identities, texts, strict=True):
        yield ", ".join(f"{name}={named[name]}" for name in names[group(who)] if name in named)


def _details(who: "Identity") -> dict[str, Any]:
    return {
        "delta": who.delta,
        "method_version": who.method_version,
        "task_version": who.task_version,
        **who.facts,
        "model_fingerprint": who.model_fingerprint[:12],
        "data_fingerprint": who.data_fingerprint[:12],
    }


def _scores(results: "Sequence[Result]") -> "tuple[str, Callable[[Measure, float | None], str]]":
    """Return the header of metrics and the function to their texts; each text has its name if they differ."""
    from dphpo_bench.records.measure import ACCURACY, Measure

    names = {result.measure.name for result in results if result.value is not None}
    several = len(names) > 1
    header = "metric" if several else one_line(Measure(min(names, default=ACCURACY.name)).title, MAX_CELL)

    def text(measure: "Measure", value: float | None) -> str:
        return "" if value is None else f"{measure.name} {measure.text(value)}" if several else measure.text(value)

    return header, text


def _closing_lines(results: "Sequence[Result]") -> Iterator[str]:
    from dphpo_bench.records.reading import guesses_line

    counts = Counter(result.record.status for result in results)
    statuses = sorted(counts, key=lambda status: (status != "ok", status))
    yield f"{count(len(results), 'record')}: {', '.join(f'{counts[status]:,} {status}' for status in statuses)}."
    if line := guesses_line(results):
        yield one_line(line, MAX_LINE * 2)
    failed = [result for result in results if result.record.status != "ok"]
    for result in failed[:MAX_SHOWN]:
        yield one_line(f"{result.path}: {result.record.status}: {result.record.error}")
    if len(failed) > MAX_SHOWN:
        yield f"{len(failed) - MAX_SHOWN:,} more; --format csv or json has all errors."
