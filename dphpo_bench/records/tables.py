"""Many records as one table of pandas: a row for each, or for each setting."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.text import compact_json
from dphpo_bench.records.export import INT64_MAX
from dphpo_bench.records.reading import SETTING, Result
from dphpo_bench.records.record import CostRecord, Identity, Privacy

if TYPE_CHECKING:
    import pandas as pd


def frame(results: Sequence[Result]) -> "pd.DataFrame":
    """One row a result.

    The first columns are always the same, with the same types. Then comes `metric_<name>` for each metric, and
    `seconds_<phase>` for each phase. What is not known is missing. ε may be infinite. An integer column is of
    type Int64, or of texts if a value takes more than 64 bits.
    """
    import pandas as pd

    columns = {name: _column(kind, map(value, results)) for name, (kind, value) in _COLUMNS.items()}
    # No fixed name starts with one of the prefixes, so a stranger's metric cannot take the place of a column.
    columns |= _spread("metric_", [result.record.metrics for result in results])
    columns |= _spread("seconds_", [result.record.seconds for result in results])
    return pd.DataFrame(columns)


def summary(results: Sequence[Result]) -> "pd.DataFrame":
    """One row a setting, as `summary_rows` has them."""
    import pandas as pd

    rows = summary_rows(results)
    return pd.DataFrame({name: _column(kind, [row[name] for row in rows]) for name, kind in _SUMMARY_KINDS.items()})


def summary_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row a setting: all that the identities of runs share but their seeds. In the order of its columns.

    `ok` counts runs, `seeds` their different seeds: fewer, if there are copies. `mean`, `min` and
    `max` are of their `metric`, and missing if a value is not finite. `epsilon` is the largest that one of them
    quotes. `failed` counts all other runs.
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
    """Different seeds. Runs without one are all different."""
    counts = Counter(identity.seed for identity in identities)
    return len(counts) - (None in counts) + counts[None]


def _of_privacy(value: Callable[[Privacy], Any]) -> Callable[[Result], Any]:
    return lambda result: result.record.privacy and value(result.record.privacy)


def _of_cost(value: Callable[[CostRecord], Any]) -> Callable[[Result], Any]:
    return lambda result: result.record.cost and value(result.record.cost)


def _quoted_accountant(privacy: Privacy) -> str:
    """Whose bound the quoted ε is."""
    planned, recomputed = privacy.planned, privacy.recomputed
    lower = recomputed is None or recomputed.epsilon < planned.epsilon
    return planned.accountant if recomputed is None or lower else recomputed.accountant


_COLUMNS: Mapping[str, tuple[str, Callable[[Result], Any]]] = {
    "key": ("string", lambda result: result.record.identity.key),
    "method": ("string", lambda result: result.record.identity.method),
    "parameters": ("string", lambda result: result.parameters),
    "task": ("string", lambda result: result.record.identity.task),
    "model": ("string", lambda result: result.record.identity.model),
    "epsilon_target": ("float64", lambda result: result.record.identity.epsilon),
    "delta": ("float64", lambda result: result.record.identity.delta),
    "seed": ("Int64", lambda result: result.record.identity.seed),
    "status": ("string", lambda result: result.record.status),
    "epsilon": ("float64", _of_privacy(lambda privacy: privacy.epsilon)),
    "accountant": ("string", _of_privacy(_quoted_accountant)),
    "epsilon_recomputed": ("float64", _of_privacy(lambda privacy: privacy.recomputed and privacy.recomputed.epsilon)),
    "epsilon_planned": ("float64", _of_privacy(lambda privacy: privacy.planned.epsilon)),
    "tuning_share": ("float64", _of_privacy(lambda privacy: privacy.tuning_share)),
    "end_to_end_private": ("boolean", _of_privacy(lambda privacy: privacy.end_to_end_private)),
    "runs": ("Int64", _of_cost(lambda cost: cost.runs)),
    "steps": ("Int64", _of_cost(lambda cost: cost.steps)),
    "examples": ("float64", _of_cost(lambda cost: cost.examples)),
    "seconds": ("float64", lambda result: result.seconds),
    "peak_memory_bytes": ("Int64", lambda result: result.record.peak_memory_bytes),
    "created": ("string", lambda result: result.record.created.isoformat()),
    "method_version": ("Int64", lambda result: result.record.identity.method_version),
    "task_version": ("Int64", lambda result: result.record.identity.task_version),
    "facts": ("string", lambda result: compact_json(result.record.identity.facts)),
    "model_fingerprint": ("string", lambda result: result.record.identity.model_fingerprint),
    "data_fingerprint": ("string", lambda result: result.record.identity.data_fingerprint),
    "error": ("string", lambda result: result.record.error),
    "path": ("string", lambda result: result.path),
}
"""The columns of `frame`: type and value."""

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
