"""Many records as one table: read from a folder, chosen by name, summarised, and written out.

Records come from strangers. What is shown on a terminal is one line of printable characters without markup, a
CSV file holds no formulas, and links out of the folder are not followed. JSON and Parquet hold texts as they are.
"""

import io
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.display import escaped, one_line
from dphpo_bench.errors import InvalidValueError, RecordError
from dphpo_bench.files import write_whole
from dphpo_bench.filters import Only
from dphpo_bench.records import Identity, RunRecord, read_record

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

FILTERS = ("method", "task", "model", "epsilon", "seed", "status")

MAX_SHOWN = 20
MAX_CELL = 60
UNLIMITED_WIDTH = 1000

INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Result:
    """A record and where it lies.

    Attributes:
        path: relative to the folder that was read, with slashes; bytes that are no text are escaped.
        record: the record.
    """

    path: str
    record: RunRecord

    @property
    def parameters(self) -> str:
        """The method's parameters as JSON text, the same for the same parameters."""
        return compact_json(self.record.identity.parameters)

    @property
    def score(self) -> tuple[str, float] | None:
        """Name and value of the metric to compare: the accuracy, else the first that was measured."""
        metrics = self.record.metrics
        if not metrics:
            return None
        name = "accuracy" if "accuracy" in metrics else next(iter(metrics))
        return name, metrics[name]

    @property
    def seconds(self) -> float | None:
        """Seconds of all phases; None where the time of training is not told."""
        return sum(self.record.seconds.values()) if "train" in self.record.seconds else None


def read_results(root: Path) -> tuple[list[Result], list[RecordError]]:
    """Read and validate every `*.json` in a folder and the folders in it.

    Hidden files and folders are ignored, and no symbolic link is followed.

    Returns:
        What was read, sorted by task, model, ε, δ, method, parameters, the rest of the setting, and seed; and what was
        skipped.

    Raises:
        InvalidValueError: if there is no such folder.
    """
    try:
        problem = "" if stat.S_ISDIR(root.stat().st_mode) else "Not a directory"
    except (OSError, ValueError) as error:  # the latter for a path with a null character
        problem = getattr(error, "strerror", None) or str(error)
    if problem:
        raise InvalidValueError(f"Expected a folder of run records, got {root}: {problem}. Name one as RESULTS_DIR.")
    found: list[Result] = []
    skipped: list[RecordError] = []
    for path in record_files(root, skipped.append):
        try:
            found.append(Result(path_text(path.relative_to(root)), read_record(path)))
        except RecordError as error:
            skipped.append(error)
    return sorted(found, key=_order), skipped


def select(results: Sequence[Result], only: Sequence[str]) -> list[Result]:
    """The results that `--only` texts such as "method=hyfreedp,task=mnist" ask for; see `FILTERS` for the fields.

    Names are compared as they are shown.

    Raises:
        InvalidValueError: if a text is not of this form.
        UnknownNameError: if there is no such field, or no result with that value.
    """
    if not only:
        return list(results)
    fields = [_fields(result) for result in results]
    available = {name: {values[name] for values in fields} for name in FILTERS}
    wanted = Only.parse(only, available)
    return [result for result, values in zip(results, fields, strict=True) if wanted.matches(values)]


def frame(results: Sequence[Result]) -> "pd.DataFrame":
    """One row a result.

    The first columns are always the same, with the same types. Then comes `metric_<name>` for each metric, and
    `seconds_<phase>` for each phase. What is not known is missing. ε may be infinite. An integer column is of
    type Int64, or of texts if a value takes more than 64 bits.
    """
    import pandas as pd

    rows = [_row(result) for result in results]
    columns = {
        name: _column(kind, [row[position] for row in rows]) for position, (name, kind) in enumerate(_COLUMNS.items())
    }
    # No fixed name starts with one of the prefixes, so a stranger's metric cannot take the place of a column.
    columns |= _spread("metric_", [result.record.metrics for result in results])
    columns |= _spread("seconds_", [result.record.seconds for result in results])
    return pd.DataFrame(columns)


def summary(results: Sequence[Result]) -> "pd.DataFrame":
    """One row a setting: all that the identities of runs share but their seeds. In the order of its columns.

    `ok` counts runs, `seeds` their different seeds: fewer, if there are copies. `mean`, `min` and
    `max` are of their `metric`, and missing if a value is not finite. `epsilon` is the largest that one of them
    quotes. `failed` counts all other runs.
    """
    import pandas as pd

    rows = [_summary_row(list(group)) for _, group in groupby(sorted(results, key=_order), key=_setting)]
    return pd.DataFrame(
        {
            name: _column(kind, [row[position] for row in rows])
            for position, (name, kind) in enumerate(_SUMMARY_COLUMNS.items())
        }
    )


def to_csv(data: "pd.DataFrame") -> str:
    """CSV with a header; full precision, `inf` for ∞, nothing for what is missing.

    Unprintable characters of texts are escaped as in Python, such as `\\n`. A text that a spreadsheet would take
    for a formula gets an apostrophe in front.
    """
    safe = data.rename(columns=escaped)
    for name in safe.columns[[dtype == "string" for dtype in safe.dtypes]]:
        safe[name] = safe[name].map(no_formula, na_action="ignore")
    return str(safe.to_csv(index=False, lineterminator="\n"))


def to_json(data: "pd.DataFrame") -> str:
    """A JSON list of objects; null for what is missing, "Infinity" for ∞, as records have it."""
    rows = data.astype(object).where(data.notna(), None).to_dict("records")
    plain = [{name: _finite(value) for name, value in row.items()} for row in rows]
    return json.dumps(plain, indent=1, allow_nan=False) + "\n"


def to_text(results: Sequence[Result], *, summarise: bool, width: int | None = None, styled: bool = False) -> str:
    """A table for people, then how many runs there are of each status, and why runs failed.

    Args:
        results: what to show.
        summarise: one row a setting rather than one a run.
        width: of the terminal; None makes lines as long as they need to be.
        styled: whether to use a terminal's colours.
    """
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=styled, width=width or UNLIMITED_WIDTH)
    console.print(_summary_table(results) if summarise else _run_table(results))
    for line in _closing_lines(results):
        console.print(Text(line), soft_wrap=True)
    return buffer.getvalue()


def to_parquet(data: "pd.DataFrame") -> bytes:
    """The table as a Parquet file."""
    buffer = io.BytesIO()
    data.to_parquet(buffer, index=False)
    return buffer.getvalue()


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        InvalidValueError: if it cannot be written there.
    """
    try:
        place = path.resolve()  # a link stays a link
        if not place.exists() or place.is_file():
            write_whole(place, content)
            return
        reason = "Not a regular file"  # nobody wants /dev/null replaced by one
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        reason = getattr(error, "strerror", None) or one_line(str(error))
    raise InvalidValueError(f"Cannot write {path}: {reason}. Name a writable file with --output.")


def skipped_lines(skipped: Sequence[RecordError], shown: int = 5) -> list[str]:
    """One line for each of the first errors, and one that counts the others."""
    lines = [f"Skipped: {one_line(str(error))}" for error in skipped[:shown]]
    if len(skipped) > shown:
        lines.append(f"Skipped: {len(skipped) - shown:,} more files.")
    return lines


def record_files(root: Path, skip: Callable[[RecordError], None]) -> Iterator[Path]:
    """Regular files that may be records. What a reader could miss without knowing is handed to `skip`."""

    def unreadable(error: OSError) -> None:
        skip(RecordError(f"Cannot read the folder {error.filename}: {error.strerror}."))

    for folder, folders, files in os.walk(root, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            if Path(folder, name).is_symlink():
                skip(RecordError(f"The folder {Path(folder, name)} is a symbolic link; links are not followed."))
        for name in sorted(files):
            if name.startswith(".") or not name.endswith(".json"):
                continue
            path = Path(folder, name)
            try:
                mode = path.lstat().st_mode
            except OSError as error:
                skip(RecordError(f"Cannot read the record {path}: {error.strerror}."))
                continue
            if stat.S_ISREG(mode):
                yield path
            elif stat.S_ISLNK(mode):
                skip(RecordError(f"The record {path} is a symbolic link; links are not followed."))
            else:  # a pipe would be waited for, forever
                skip(RecordError(f"The record {path} is not a regular file."))


def path_text(path: Path) -> str:
    """The path with slashes; bytes that are no text are escaped."""
    return os.fsencode(path.as_posix()).decode(errors="backslashreplace")


def _setting(result: Result) -> tuple[Any, ...]:
    """All that runs share which differ in their seed alone: the first columns of `_SUMMARY_COLUMNS`."""
    identity = result.record.identity
    return (
        identity.task,
        identity.model,
        identity.epsilon,
        identity.delta,
        identity.method,
        result.parameters,
        identity.method_version,
        identity.task_version,
        compact_json(identity.facts),
        identity.model_fingerprint,
        identity.data_fingerprint,
    )


def _order(result: Result) -> tuple[Any, ...]:
    seed = result.record.identity.seed
    return *_setting(result), math.inf if seed is None else seed, result.path


def _fields(result: Result) -> dict[str, str | float | None]:
    """What `--only` compares: names as they are shown, because the message about an unknown one shows them."""
    identity = result.record.identity
    return {
        "method": one_line(identity.method),
        "task": one_line(identity.task),
        "model": one_line(identity.model),
        "epsilon": identity.epsilon,
        "seed": identity.seed,
        "status": result.record.status,
    }


_COLUMNS = {
    "key": "string",
    "method": "string",
    "parameters": "string",
    "task": "string",
    "model": "string",
    "epsilon_target": "float64",
    "delta": "float64",
    "seed": "Int64",
    "status": "string",
    "epsilon": "float64",
    "accountant": "string",
    "epsilon_recomputed": "float64",
    "epsilon_planned": "float64",
    "tuning_share": "float64",
    "end_to_end_private": "boolean",
    "runs": "Int64",
    "steps": "Int64",
    "examples": "float64",
    "seconds": "float64",
    "peak_memory_bytes": "Int64",
    "created": "string",
    "method_version": "Int64",
    "task_version": "Int64",
    "facts": "string",
    "model_fingerprint": "string",
    "data_fingerprint": "string",
    "error": "string",
    "path": "string",
}

_SUMMARY_COLUMNS = {
    "task": "string",
    "model": "string",
    "epsilon_target": "float64",
    "delta": "float64",
    "method": "string",
    "parameters": "string",
    "method_version": "Int64",
    "task_version": "Int64",
    "facts": "string",
    "model_fingerprint": "string",
    "data_fingerprint": "string",
    "metric": "string",
    "seeds": "Int64",
    "mean": "float64",
    "min": "float64",
    "max": "float64",
    "ok": "Int64",
    "failed": "Int64",
    "epsilon": "float64",
}


def _row(result: Result) -> tuple[Any, ...]:
    """The values of `_COLUMNS`."""
    record = result.record
    identity, cost = record.identity, record.cost
    return (
        identity.key,
        identity.method,
        result.parameters,
        identity.task,
        identity.model,
        identity.epsilon,
        identity.delta,
        identity.seed,
        record.status,
        *_privacy_values(record),
        *((None, None, None) if cost is None else (cost.runs, cost.steps, cost.examples)),
        result.seconds,
        record.peak_memory_bytes,
        record.created.isoformat(),
        identity.method_version,
        identity.task_version,
        compact_json(identity.facts),
        identity.model_fingerprint,
        identity.data_fingerprint,
        record.error,
        result.path,
    )


def _privacy_values(record: RunRecord) -> tuple[Any, ...]:
    """The quoted ε and whose bound it is, the recomputed and the planned one, the tuning share, end to end or not."""
    privacy = record.privacy
    if privacy is None:
        return (None,) * 6
    planned, recomputed = privacy.planned, privacy.recomputed
    quoted = planned if recomputed is None or recomputed.epsilon < planned.epsilon else recomputed
    return (
        privacy.epsilon,
        quoted.accountant,
        recomputed and recomputed.epsilon,
        planned.epsilon,
        privacy.tuning_share,
        privacy.end_to_end_private,
    )


def _summary_row(group: Sequence[Result]) -> tuple[Any, ...]:
    """The values of `_SUMMARY_COLUMNS`, of runs that share a setting."""
    ok = [result for result in group if result.record.status == "ok"]
    metric = next((result.score[0] for result in ok if result.score), None)
    values = [result.record.metrics[metric] for result in ok if metric in result.record.metrics] if metric else []
    told = bool(values) and all(map(math.isfinite, values))
    return (
        *_setting(group[0]),
        metric,
        _count_seeds(result.record.identity for result in ok),
        math.fsum(value / len(values) for value in values) if told else None,
        min(values) if told else None,
        max(values) if told else None,
        len(ok),
        len(group) - len(ok),
        max((result.record.privacy.epsilon for result in ok if result.record.privacy), default=None),
    )


def _count_seeds(identities: Iterable[Identity]) -> int:
    """Different seeds. Runs without one are all different."""
    counts = Counter(identity.seed for identity in identities)
    return len(counts) - (None in counts) + counts[None]


def _column(kind: str, values: Sequence[Any]) -> "pd.Series":
    import pandas as pd

    if kind == "Int64" and any(value is not None and value > INT64_MAX for value in values):
        return pd.Series([None if value is None else str(value) for value in values], dtype="string")
    return pd.Series(values, dtype=kind)


def _spread(prefix: str, mappings: Sequence[Mapping[str, float]]) -> dict[str, "pd.Series"]:
    """A column for each name that occurs."""
    names = sorted({name for mapping in mappings for name in mapping})
    return {prefix + name: _column("float64", [mapping.get(name) for mapping in mappings]) for name in names}


def no_formula(text: str) -> str:
    """The text with unprintable characters escaped, and an apostrophe in front of what looks like a formula."""
    text = escaped(text)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def _finite(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _run_table(results: Sequence[Result]) -> "Table":
    shared = _SharedColumns(results)
    table = _table(
        *shared.headers,
        ">seed",
        "status",
        f">{_score_header(results)}",
        ">ε\nrecomputed",
        ">ε\nquoted",
        ">seconds",
    )
    for result in results:
        record = result.record
        privacy = record.privacy
        recomputed = privacy.recomputed if privacy else None
        cells = [
            *shared.cells(result),
            "none" if record.identity.seed is None else str(record.identity.seed),
            record.status,
            _score_text(*result.score) if result.score else "",
            f"{recomputed.epsilon:.6g}" if recomputed else "",
            f"{privacy.epsilon:.6g}" if privacy else "",
            "" if result.seconds is None else f"{result.seconds:,.1f}",
        ]
        _add(table, cells, style="" if record.status == "ok" else "red")
    return table


def _summary_table(results: Sequence[Result]) -> "Table":
    shared = _SharedColumns(results)
    groups = [list(group) for _, group in groupby(sorted(results, key=_order), key=_setting)]
    rows = [dict(zip(_SUMMARY_COLUMNS, _summary_row(group), strict=True)) for group in groups]
    repeated = any(row["ok"] != row["seeds"] for row in rows)  # copies
    header = _score_header(results)
    any_failed = any(row["failed"] for row in rows)
    counts = [">seeds", *([">runs"] if repeated else []), *([">failed"] if any_failed else [])]
    table = _table(*shared.headers, *counts, f">mean\n{header}", ">min .. max", ">ε\nquoted")
    for group, row in zip(groups, rows, strict=True):
        told = row["mean"] is not None
        cells = [
            *shared.cells(group[0]),
            str(row["seeds"]),
            *([str(row["ok"])] if repeated else []),
            *([str(row["failed"] or "")] if any_failed else []),
            _score_text(row["metric"], row["mean"]) if told else "",
            " .. ".join(_number_text(row["metric"], row[name]) for name in ("min", "max")) if told else "",
            "" if row["epsilon"] is None else f"{row['epsilon']:.6g}",
        ]
        _add(table, cells, style="red" if row["failed"] else "")
    return table


class _SharedColumns:
    """The first columns of both tables: the setting of a run, without what is the same for all.

    Args:
        results: all that will be shown.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        identities = [result.record.identity for result in results]
        self._models = len({identity.model for identity in identities}) > 1
        deltas = {(identity.task, identity.delta) for identity in identities}
        self._deltas = len(deltas) > len({task for task, _ in deltas})
        self._varying = _varying_parameters(identities)
        self._details = _varying_details(identities)

    @property
    def headers(self) -> list[str]:
        """Headers; a `>` in front aligns to the right."""
        optional = [*(["model"] if self._models else []), ">ε\ntarget", *([">δ"] if self._deltas else [])]
        parameters = ["parameters"] if any(self._varying.values()) else []
        return ["task", *optional, "method", *parameters, *(["what else\ndiffers"] if self._details else [])]

    def cells(self, result: Result) -> list[str]:
        """The cells of a result, or of all results of its setting."""
        identity = result.record.identity
        names = self._varying[identity.method]
        parameters = ((name, identity.parameters[name]) for name in names if name in identity.parameters)
        changed = ", ".join(f"{name}={value_text(value)}" for name, value in parameters)
        return [
            identity.task,
            *([identity.model] if self._models else []),
            f"{identity.epsilon:g}",
            *([f"{identity.delta:.3g}"] if self._deltas else []),
            identity.method,
            *([changed] if any(self._varying.values()) else []),
            *([_details_text(identity, self._details)] if self._details else []),
        ]


def _details(identity: Identity) -> dict[str, str]:
    """What else tells settings apart: versions, facts, and the beginnings of hashes."""
    return {
        "method_version": str(identity.method_version),
        "task_version": str(identity.task_version),
        **{name: value_text(value) for name, value in identity.facts.items()},
        "model_fingerprint": identity.model_fingerprint[:12],
        "data_fingerprint": identity.data_fingerprint[:12],
    }


def _varying_details(identities: Sequence[Identity]) -> dict[tuple[str, str, str], list[str]]:
    """Of each task, model and method, the details that not all its runs share, if there are any."""
    groups: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
    for identity in identities:
        who = identity.task, identity.model, identity.method
        details = _details(identity)
        groups.setdefault(who, {})[compact_json(details)] = details
    varying = {who: varying_names(list(different.values())) for who, different in groups.items()}
    return {who: names for who, names in varying.items() if names}


def _details_text(identity: Identity, varying: Mapping[tuple[str, str, str], list[str]]) -> str:
    details = _details(identity)
    names = varying.get((identity.task, identity.model, identity.method), [])
    return ", ".join(f"{name}={details[name]}" for name in names if name in details)


def _varying_parameters(identities: Iterable[Identity]) -> dict[str, list[str]]:
    """Of each method, the parameters that not all its runs share."""
    by_method: dict[str, dict[str, Identity]] = {}
    for identity in identities:
        by_method.setdefault(identity.method, {})[compact_json(identity.parameters)] = identity
    varying = {}
    for method, different in by_method.items():
        settings = [
            {name: compact_json(value) for name, value in identity.parameters.items()}
            for identity in different.values()
        ]
        varying[method] = varying_names(settings)
    return varying


def varying_names(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The names whose values are not the same in all settings, or which some lack; sorted."""
    names = {name for setting in settings for name in setting}
    return sorted(name for name in names if len({setting.get(name) for setting in settings}) > 1)


def value_text(value: Any) -> str:
    """A parameter's value as it is shown: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else compact_json(value)


def _closing_lines(results: Sequence[Result]) -> Iterator[str]:
    counts = Counter(result.record.status for result in results)
    statuses = sorted(counts, key=lambda status: (status != "ok", status))
    yield f"{len(results):,} records: {', '.join(f'{counts[status]:,} {status}' for status in statuses)}."
    failed = [result for result in results if result.record.status != "ok"]
    for result in failed[:MAX_SHOWN]:
        yield one_line(f"{result.path}: {result.record.status}: {result.record.error}")
    if len(failed) > MAX_SHOWN:
        yield f"{len(failed) - MAX_SHOWN:,} more; --format csv or json has all errors."


def _score_header(results: Sequence[Result]) -> str:
    return "accuracy" if all(result.score[0] == "accuracy" for result in results if result.score) else "score"


def _score_text(metric: str, value: float) -> str:
    number = _number_text(metric, value)
    return number if metric == "accuracy" else f"{metric} {number}"


def _number_text(metric: str, value: float) -> str:
    return f"{value:.2%}" if metric == "accuracy" else f"{value:.4f}"


def _table(*headers: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=0)
    for header in headers:
        if header.startswith(">"):
            table.add_column(header.removeprefix(">"), justify="right", no_wrap=True)
        else:  # where it is narrow, long names are broken rather than numbers
            table.add_column(header, overflow="fold")
    return table


def _add(table: "Table", cells: Iterable[str], style: str) -> None:
    """Add a row of texts in which nothing is markup."""
    from rich.text import Text

    table.add_row(*(Text(one_line(cell, MAX_CELL)) for cell in cells), style=style)


def compact_json(value: Any) -> str:
    """JSON text without spaces, the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
