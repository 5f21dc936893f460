"""Many records as one table of pandas: a row for each, or for each setting."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.text import compact_json
from dphpo_bench.records.reading import SETTING, Result
from dphpo_bench.records.record import Identity, Privacy

if TYPE_CHECKING:
    import pandas as pd

INT64_MAX = 2**63 - 1


def frame(results: Sequence[Result]) -> "pd.DataFrame":
    """One row for each result.

    The first columns are always the same, with the same types. `metric_<name>` for each metric and `seconds_<phase>`
    for each phase follow. ε may be infinite. An integer column is of type Int64, or of texts if a value takes more
    than 64 bits.
    """
    import pandas as pd

    columns = {
        name: _column(kind, [value(one) if callable(value) else value_at(one, value) for one in results])
        for name, (kind, value) in _COLUMNS.items()
    }
    # No fixed name starts with one of the prefixes, so a stranger's metric cannot take the place of a column.
    columns |= _spread("metric_", [result.record.metrics for result in results])
    columns |= _spread("seconds_", [result.record.seconds for result in results])
    return pd.DataFrame(columns)


def summary(results: Sequence[Result]) -> "pd.DataFrame":
    """One row for each setting; see `summary_rows`."""
    import pandas as pd

    rows = summary_rows(results)
    return pd.DataFrame({name: _column(kind, [row[name] for row in rows]) for name, kind in _SUMMARY_KINDS.items()})


def summary_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row for each setting, sorted by it: runs whose identities differ in their seeds alone.

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
    told = bool(values) and all(map(math.isfinite, values))
    quoted = [result.record.privacy.epsilon for result in ok if result.record.privacy]
    return {
        "first": group[0],
        **dict(zip(SETTING, group[0].setting, strict=True)),
        "metric": measure and measure.name,
        "seeds": _count_seeds(result.record.identity for result in ok),
        "mean": math.fsum(value / len(values) for value in values) if told else None,
        "min": min(values) if told else None,
        "max": max(values) if told else None,
        "ok": len(ok),
        "failed": len(group) - len(ok),
        "epsilon": max(quoted, default=None),
    }


def _count_seeds(identities: Iterable[Identity]) -> int:
    """The number of different seeds. Each run without a seed counts."""
    counts = Counter(identity.seed for identity in identities)
    return len(counts) - (None in counts) + counts[None]


def _quoted_accountant(privacy: Privacy) -> str:
    """Whose bound the quoted ε is."""
    planned, recomputed = privacy.planned, privacy.recomputed
    return planned.accountant if not recomputed or recomputed.epsilon < planned.epsilon else recomputed.accountant


_COLUMNS: Mapping[str, tuple[str, str | Callable[[Result], Any]]] = {
    "key": ("string", "record.identity.key"),
    "method": ("string", "record.identity.method"),
    "parameters": ("string", "parameters"),
    "task": ("string", "record.identity.task"),
    "model": ("string", "record.identity.model"),
    "epsilon_target": ("float64", "record.identity.epsilon"),
    "delta": ("float64", "record.identity.delta"),
    "seed": ("Int64", "record.identity.seed"),
    "status": ("string", "record.status"),
    "epsilon": ("float64", "record.privacy.epsilon"),
    "accountant": ("string", lambda result: result.record.privacy and _quoted_accountant(result.record.privacy)),
    "epsilon_recomputed": ("float64", "record.privacy.recomputed.epsilon"),
    "epsilon_planned": ("float64", "record.privacy.planned.epsilon"),
    "tuning_share": ("float64", "record.privacy.tuning_share"),
    "end_to_end_private": ("boolean", "record.privacy.end_to_end_private"),
    "runs": ("Int64", "record.cost.runs"),
    "steps": ("Int64", "record.cost.steps"),
    "examples": ("float64", "record.cost.examples"),
    "seconds": ("float64", "seconds"),
    "peak_memory_bytes": ("Int64", "record.peak_memory_bytes"),
    "created": ("string", lambda result: result.record.created.isoformat()),
    "method_version": ("Int64", "record.identity.method_version"),
    "task_version": ("Int64", "record.identity.task_version"),
    "facts": ("string", lambda result: compact_json(result.record.identity.facts)),
    "model_fingerprint": ("string", "record.identity.model_fingerprint"),
    "data_fingerprint": ("string", "record.identity.data_fingerprint"),
    "error": ("string", "record.error"),
    "path": ("string", "path"),
}
"""The columns of `frame`: their types, and the place in a result, or the function of it, that gives their values."""


def value_at(item: Any, place: str) -> Any:
    """The attribute at a place such as "record.privacy.epsilon"; None if anything on the way is None."""
    for name in place.split("."):
        item = None if item is None else getattr(item, name)
    return item


_SUMMARY_KINDS: Mapping[str, str] = {
    **{name: _COLUMNS[name][0] for name in SETTING},
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
    """A column for each name that occurs."""
    names = sorted({name for mapping in mappings for name in mapping})
    return {prefix + name: _column("float64", [mapping.get(name) for mapping in mappings]) for name in names}
