"""Many records as one table of pandas, a row for each or for each group; and the table as CSV, JSON or Parquet."""

import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.files import write_whole
from dphpo_bench.base.text import escaped, finite_json, one_line
from dphpo_bench.records.reading import COLUMNS, GROUP, Result
from dphpo_bench.records.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

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
    columns |= _spread("metric_", [result.record.metrics for result in results])
    columns |= _spread("further_", [further_metrics(result.record, "_") for result in results])
    columns |= _spread("seconds_", [result.record.seconds for result in results])
    return pd.DataFrame(columns)


def further_metrics(record: RunRecord, separator: str) -> dict[str, float]:
    """Return the metrics of further tests by the names of both, such as "shifted_accuracy"."""
    tests = record.further.items()
    return {f"{name}{separator}{metric}": value for name, test in tests for metric, value in test.metrics.items()}


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


def _spread(prefix: str, mappings: Sequence[Mapping[str, float]]) -> dict[str, "pd.Series"]:
    names = sorted({name for mapping in mappings for name in mapping})
    return {prefix + name: _column("float64", [mapping.get(name) for mapping in mappings]) for name in names}


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


def to_parquet(data: "pd.DataFrame") -> bytes:
    buffer = io.BytesIO()
    data.to_parquet(buffer, index=False)
    return buffer.getvalue()


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        InvalidValueError: if it cannot be written.
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


def no_formula(text: str) -> str:
    """Return the text with unprintable characters escaped, and an apostrophe in front of what looks like a formula."""
    text = escaped(text)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text
