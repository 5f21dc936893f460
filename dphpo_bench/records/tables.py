"""Many records as one table: read from a folder, chosen by name, summarised, and written out.

Records come from strangers. What is shown on a terminal is one line of printable characters without markup, a
CSV file holds no formulas, and links out of the folder are not followed. JSON and Parquet hold texts as they are.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dphpo_bench.records.record import Identity, RunRecord

if TYPE_CHECKING:
    import pandas as pd

from dphpo_bench.base.text import compact_json
from dphpo_bench.records.export import INT64_MAX
from dphpo_bench.records.reading import Result, _order, _setting


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
