"""The columns of runs: every value of a record that a table, an export or a choice of runs has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dphpo_bench.base.text import compact_json


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

SETTING = (
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
