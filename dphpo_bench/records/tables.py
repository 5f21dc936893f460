"""Many records as one table of pandas: a row for each, or for each setting."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dphpo_bench.records.columns import COLUMNS, SETTING
from dphpo_bench.records.columns import value_at as value_at
from dphpo_bench.records.reading import Result
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
    """Return one row for each setting, sorted: the runs whose identities differ in their seeds alone.

    `ok` counts the runs that finished, and `seeds` their different seeds. `mean`, `min`, `max` and `epsilon`, the
    largest quoted ε, are of these runs; the first three are None if a value is not finite. `failed` counts all other
    runs. `first` is the first result of the setting.
    """
    ordered = sorted(results, key=lambda result: result.order)
    return [_summary_row(list(group)) for _, group in groupby(ordered, key=lambda result: result.setting)]


def _summary_row(group: Sequence[Result]) -> dict[str, Any]:
    ok = [result for result in group if result.record.status == "ok"]
    measure = next((result.measure for result in ok if result.value is not None), None)
    values = [result.record.metrics[measure.name] for result in ok if measure and measure.name in result.record.metrics]
    known = bool(values) and all(map(math.isfinite, values))
    seeds = Counter(result.record.identity.seed for result in ok)
    quoted = [result.record.privacy.epsilon for result in ok if result.record.privacy]
    return {
        "first": group[0],
        **dict(zip(SETTING, group[0].setting, strict=True)),
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
    **{name: COLUMNS[name].kind for name in SETTING},
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
