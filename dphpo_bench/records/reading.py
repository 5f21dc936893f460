"""Records read back from folders: their values by column, a choice of some, and tables as CSV, JSON or Parquet."""

import contextlib
import errno
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import InvalidValueError, RecordError, UnknownNameError
from dphpo_bench.base.files import write_whole
from dphpo_bench.base.text import compact_json, count, escaped, finite_json, one_line, shown, unknown_name_message
from dphpo_bench.records.measure import Measure, shown_measure
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import read_record

if TYPE_CHECKING:
    import pandas as pd


MAX_NAMED = 3
MAX_SKIPPED = 5

REPLAY = "replay"
"""The method of extra runs, whose parameters name the records they are about and the values they train with."""


@dataclass(frozen=True)
class Column:
    """A value of each `Result`: its pandas type, and its place, such as "record.privacy.epsilon", or a function."""

    kind: str
    source: str | Callable[[Any], Any]

    def value(self, result: Any) -> Any:
        return value_at(result, self.source) if isinstance(self.source, str) else self.source(result)


def value_at(item: Any, place: str) -> Any:
    for name in place.split("."):
        item = None if item is None else getattr(item, name)
    return item


def _quoted_accountant(result: Any) -> Any:
    if not (privacy := result.record.privacy):
        return None
    planned, recomputed = privacy.planned, privacy.recomputed
    return planned.accountant if not recomputed or recomputed.epsilon < planned.epsilon else recomputed.accountant


COLUMNS: Mapping[str, Column] = {
    "key": Column("string", "record.identity.key"),
    "method": Column("string", "record.identity.method"),
    "parameters": Column("string", "parameters"),
    "task": Column("string", "record.identity.task"),
    "model": Column("string", "record.identity.model"),
    "epsilon_target": Column("float64", "record.identity.epsilon"),
    "delta": Column("float64", "record.identity.delta"),
    "seed": Column("Int64", "record.identity.seed"),
    "status": Column("string", "record.status"),
    "epsilon": Column("float64", "record.privacy.epsilon"),
    "accountant": Column("string", _quoted_accountant),
    "epsilon_recomputed": Column("float64", "record.privacy.recomputed.epsilon"),
    "epsilon_planned": Column("float64", "record.privacy.planned.epsilon"),
    "tuning_share": Column("float64", "record.privacy.tuning_share"),
    "end_to_end_private": Column("boolean", "record.privacy.end_to_end_private"),
    "runs": Column("Int64", "record.cost.runs"),
    "steps": Column("Int64", "record.cost.steps"),
    "examples": Column("float64", "record.cost.examples"),
    "seconds": Column("float64", "seconds"),
    "peak_memory_bytes": Column("Int64", "record.peak_memory_bytes"),
    "created": Column("string", lambda result: result.record.created.isoformat()),
    "method_version": Column("Int64", "record.identity.method_version"),
    "task_version": Column("Int64", "record.identity.task_version"),
    "facts": Column("string", lambda result: compact_json(result.record.identity.facts)),
    "model_fingerprint": Column("string", "record.identity.model_fingerprint"),
    "data_fingerprint": Column("string", "record.identity.data_fingerprint"),
    "error": Column("string", "record.error"),
    "path": Column("string", "path"),
    "constant_guess": Column("float64", "record.constant_guess.value"),
    "accounting": Column("string", "record.accounting"),
}
"""All columns, in the order of exports."""

GROUP = (
    "task",
    "model",
    "epsilon_target",
    "delta",
    "method",
    "parameters",
    "method_version",
    "task_version",
    "facts",
    "model_fingerprint",
    "data_fingerprint",
)
"""The columns that runs share if they differ in their seeds alone, in the order in which runs are sorted."""

CHOICES: Mapping[str, str] = {
    "method": "method",
    "task": "task",
    "model": "model",
    "epsilon": "epsilon_target",
    "seed": "seed",
    "status": "status",
}
"""The columns by which `--only` chooses, under the names that it has for them."""


@dataclass(frozen=True)
class Result:
    """A record and its file's path as text, relative to the folder that was read."""

    path: str
    record: RunRecord

    @property
    def parameters(self) -> str:
        """The method's parameters as JSON text, the same for the same parameters."""
        return compact_json(self.record.identity.parameters)

    @property
    def measure(self) -> Measure:
        """The metric to compare by."""
        return shown_measure(self.record.identity.facts, self.record.metrics)

    @property
    def value(self) -> float | None:
        """The value of `measure`; None if it was not measured."""
        return self.record.metrics.get(self.measure.name)

    @property
    def group(self) -> tuple[Any, ...]:
        """The values that runs share if they differ in their seeds alone."""
        return tuple(COLUMNS[name].value(self) for name in GROUP)

    @property
    def order(self) -> tuple[Any, ...]:
        seed = self.record.identity.seed
        return *self.group, math.inf if seed is None else seed, self.path

    @property
    def seconds(self) -> float | None:
        """Seconds of all phases; None if the record does not tell the time of training."""
        return sum(self.record.seconds.values()) if "train" in self.record.seconds else None


def read_results(root: Path) -> tuple[list[Result], list[RecordError]]:
    """Read and validate every `*.json` in a folder and the folders in it.

    Hidden files and folders are ignored, and no symbolic link is followed.

    Returns:
        The results, sorted by `Result.order`; and an error for each file that was skipped.
    """
    try:
        is_folder = root.is_dir()
    except OSError:  # a folder above it may not be entered
        is_folder = False
    if not is_folder:
        raise InvalidValueError(f"Expected a folder of run records, got {root}: no such folder. Name RESULTS_DIR.")
    results: list[Result] = []
    skipped: list[RecordError] = []
    for path in record_files(root, skipped.append):
        try:
            results.append(Result(path_text(path.relative_to(root)), read_record(path)))
        except RecordError as error:
            skipped.append(error)
    return sorted(results, key=lambda result: result.order), skipped


def select(results: Sequence[Result], only: Sequence[str]) -> list[Result]:
    """Return the results that `--only` texts such as "method=hyfreedp,task=mnist" ask for; see `_fields`.

    Raises:
        InvalidValueError: if a text is not of this form.
        UnknownNameError: if there is no such field, or no result with that value.
    """
    if not (only and results):
        return list(results)
    fields = [_fields(result) for result in results]
    available = {name: {values[name] for values in fields} for name in fields[0]}
    choice = Only.parse(only, available)
    return [result for result, values in zip(results, fields, strict=True) if choice.matches(values)]


def guesses_line(results: Sequence[Result]) -> str | None:
    """Return a line that names some runs that are no better than a constant guess; None if there are none."""
    paths = [result.path for result in results if result.record.guess_line()]
    if not paths:
        return None
    verb, more = "is" if len(paths) == 1 else "are", len(paths) - MAX_NAMED
    named = ", ".join(paths[:MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")
    return f"{count(len(paths), 'run')} {verb} no better than a constant guess: {named}."


def skipped_lines(skipped: Sequence[RecordError]) -> list[str]:
    lines = [f"Skipped: {one_line(str(error))}" for error in skipped[:MAX_SKIPPED]]
    if len(skipped) > MAX_SKIPPED:
        lines.append(f"Skipped: {len(skipped) - MAX_SKIPPED:,} more files.")
    return lines


def record_files(root: Path, skip: Callable[[RecordError], None]) -> Iterator[Path]:
    """Yield the files that may be records, and call `skip` for links and for folders that cannot be read."""

    def unreadable(error: OSError) -> None:
        skip(RecordError(f"Cannot read the folder {error.filename}: {error.strerror}."))

    for folder, folders, files in os.walk(root, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        records = sorted(name for name in files if name.endswith(".json") and not name.startswith("."))
        for path in (Path(folder, name) for name in [*folders, *records]):
            if path.is_symlink():
                skip(RecordError(f"{path} is a symbolic link; links are not followed."))
            elif path.name in files:
                yield path


def path_text(path: Path) -> str:
    return os.fsencode(path.as_posix()).decode(errors="backslashreplace")


def _fields(result: Result) -> dict[str, str | float | None]:
    values = {name: COLUMNS[column].value(result) for name, column in CHOICES.items()}
    return {name: one_line(value) if isinstance(value, str) else value for name, value in values.items()}


@dataclass(frozen=True)
class Only:
    """The values that each field may have. Numbers are compared as numbers: 1, 1.0 and 1e0 are the same."""

    accepted: Mapping[str, frozenset[str | float]]

    @classmethod
    def parse(cls, texts: Sequence[str], available: Mapping[str, Collection[str | float | None]]) -> "Only":
        """Read texts such as "method=hyfreedp,method=liu_talwar,task=mnist"; `available` has the values that occur, by
        field.
        """
        accepted: dict[str, set[str | float]] = {}
        for pair in (pair.strip() for text in texts for pair in text.split(",")):
            field, equals, text = (part.strip() for part in pair.partition("="))
            if not (field and equals and text):
                raise InvalidValueError(
                    f"Expected --only FIELD=VALUE,FIELD=VALUE, got {shown(pair, form=repr)}. Each value has its field."
                )
            if field not in available:
                raise UnknownNameError(unknown_name_message("field", field, available))
            values = {_comparable(value) for value in available[field]}
            if _comparable(text) not in values:
                raise UnknownNameError(unknown_name_message(field, text, map(_shown, available[field])))
            accepted.setdefault(field, set()).add(_comparable(text))
        return cls({field: frozenset(values) for field, values in accepted.items()})

    def accepts(self, field: str, value: str | float | None) -> bool:
        return field not in self.accepted or _comparable(value) in self.accepted[field]

    def matches(self, values: Mapping[str, str | float | None]) -> bool:
        return all(self.accepts(field, values[field]) for field in self.accepted)


def _comparable(value: str | float | None) -> str | float:
    """Return a number for a number or its text, else a text."""
    if isinstance(value, str):
        for read in (int, float):
            with contextlib.suppress(ValueError):
                value = read(value)
                break
    return str(value) if value is None or value != value else value


def _shown(value: str | float | None) -> str:
    return f"{value:g}" if isinstance(value, float) else shown(value)


INT64_MAX = 2**63 - 1


def frame(results: Sequence[Result]) -> "pd.DataFrame":
    """Return one row for each result.

    The first columns are always the same, with the same types. Then follow `metric_<name>` for each metric,
    `further_<test>_<name>` for each metric of a further test, and `seconds_<phase>` for each phase. ε may be infinite.
    An integer column is of type Int64, or of texts if a value takes more than 64 bits.
    """
    import pandas as pd

    columns = {
        name: _column(column.kind, [column.value(result) for result in results]) for name, column in COLUMNS.items()
    }
    # No fixed name starts with one of the prefixes, so a stranger's metric cannot take the place of a column.
    measured = [
        {f"metric_{name}": value for name, value in record.metrics.items()}
        | {
            f"further_{test}_{name}": value
            for test in record.further
            for name, value in record.further[test].metrics.items()
        }
        | {f"seconds_{phase}": value for phase, value in record.seconds.items()}
        for record in (result.record for result in results)
    ]
    names = {name for values in measured for name in values}
    for prefix in ("metric_", "further_", "seconds_"):
        for name in sorted(name for name in names if name.startswith(prefix)):
            columns[name] = _column("float64", [values.get(name) for values in measured])
    return pd.DataFrame(columns)


def summary(results: Sequence[Result]) -> "pd.DataFrame":
    import pandas as pd

    rows = summary_rows(results)
    return pd.DataFrame({name: _column(kind, [row[name] for row in rows]) for name, kind in _SUMMARY_KINDS.items()})


def summary_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return one row for each group, sorted: the runs whose identities differ in their seeds alone.

    `ok` counts the runs that finished, and `seeds` their different seeds. `mean`, `min`, `max` and `epsilon`, the
    largest quoted ε, are of these runs; the first three are None if a value is not finite. `failed` counts all other
    runs. `first` is the first result of the group.
    """
    ordered = sorted(results, key=lambda result: result.order)
    return [_summary_row(list(group)) for _, group in groupby(ordered, key=lambda result: result.group)]


def _summary_row(group: Sequence[Result]) -> dict[str, Any]:
    ok = [result for result in group if result.record.status == "ok"]
    measure = next((result.measure for result in ok if result.value is not None), None)
    values = [result.record.metrics[measure.name] for result in ok if measure and measure.name in result.record.metrics]
    known = bool(values) and all(map(math.isfinite, values))
    seeds = Counter(result.record.identity.seed for result in ok)
    quoted = [result.record.privacy.epsilon for result in ok if result.record.privacy]
    return {
        "first": group[0],
        **dict(zip(GROUP, group[0].group, strict=True)),
        "metric": measure and measure.name,
        "seeds": len(seeds) - (None in seeds) + seeds[None],  # each run without a seed counts
        "mean": math.fsum(value / len(values) for value in values) if known else None,
        "min": min(values) if known else None,
        "max": max(values) if known else None,
        "ok": len(ok),
        "failed": len(group) - len(ok),
        "epsilon": max(quoted, default=None),
    }


_SUMMARY_KINDS: Mapping[str, str] = {
    **{name: COLUMNS[name].kind for name in GROUP},
    "metric": "string",
    "seeds": "Int64",
    "mean": "float64",
    "min": "float64",
    "max": "float64",
    "ok": "Int64",
    "failed": "Int64",
    "epsilon": "float64",
}


def _column(kind: str, values: Iterable[Any]) -> "pd.Series":
    import pandas as pd

    values = list(values)
    if kind == "Int64" and any(value is not None and value > INT64_MAX for value in values):
        return pd.Series([None if value is None else str(value) for value in values], dtype="string")
    return pd.Series(values, dtype=kind)


def to_csv(data: "pd.DataFrame") -> str:
    """Return CSV with a header: numbers in full precision, `inf` for ∞, nothing for missing values.

    Unprintable characters are escaped as in Python, such as `\\n`. A text that a spreadsheet would take for a formula
    gets an apostrophe in front.
    """
    safe = data.rename(columns=escaped)
    for name in safe.columns[[dtype == "string" for dtype in safe.dtypes]]:
        safe[name] = safe[name].map(no_formula, na_action="ignore")
    return str(safe.to_csv(index=False, lineterminator="\n"))


def to_json(data: "pd.DataFrame") -> str:
    rows = data.astype(object).where(data.notna(), None).to_dict("records")
    return json.dumps(finite_json(rows), indent=1, allow_nan=False) + "\n"


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    try:
        place = path.resolve()  # a link stays a link
        if place.exists() and not place.is_file():  # nobody wants /dev/null replaced by a file
            raise OSError(errno.EINVAL, "Not a regular file")
        write_whole(place, content)
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        reason = getattr(error, "strerror", None) or one_line(str(error))
        raise InvalidValueError(f"Cannot write {path}: {reason}. Name a writable file with --output.") from None


def no_formula(text: str) -> str:
    """Return the text with unprintable characters escaped, and an apostrophe in front of what looks like a formula."""
    text = escaped(text)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text
