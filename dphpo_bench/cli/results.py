"""The command `results`."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.cli.options import JsonOption, OnlyRunsOption
from dphpo_bench.cli.output import complain

SUFFIXES = {"csv": "csv", "parquet": "parquet", "json": "json", "txt": "table", "": "table"}
"""Formats by the ending of a file."""


def results_command(
    results_dir: Annotated[Path, typer.Argument(help="A folder of run records.")] = Path("results"),
    only: OnlyRunsOption = None,
    summary: Annotated[bool, typer.Option("--summary", help="One row for each setting: seeds, mean, range.")] = False,
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
    from dphpo_bench.cli import tables
    from dphpo_bench.records import export, reading
    from dphpo_bench.records.tables import frame
    from dphpo_bench.records.tables import summary as summarised
    from dphpo_bench.sweep.extra_runs import REPLAY

    chosen_form = _result_format(form, as_json, output)
    results, skipped = reading.read_results(results_dir)
    for line in reading.skipped_lines(skipped):
        complain(line)
    chosen = reading.select(results, only or [])
    if summary and not only:
        chosen = [result for result in chosen if result.record.identity.method != REPLAY]
    nothing = f"No records in {results_dir}{' match --only' if results else ''}."
    if chosen_form == "table":
        on_terminal = output is None and sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if on_terminal or "COLUMNS" in os.environ else None
        text = tables.to_text(chosen, summarise=summary, width=width, styled=on_terminal) if chosen else nothing + "\n"
    else:
        if not chosen:
            complain(nothing)
        data = summarised(chosen) if summary else frame(chosen)
        if chosen_form == "parquet" and output is not None:
            export.write(output, export.to_parquet(data))
            return
        text = export.to_csv(data) if chosen_form == "csv" else export.to_json(data)
    if output is None:
        sys.stdout.write(text)
    else:
        export.write(output, text)


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
