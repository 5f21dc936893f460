"""The leaderboard as CSV, for programs: a line for each contestant on each task at each ε."""

from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

from dphpo_bench.leaderboard.board import Board, Estimate, Row, Table
from dphpo_bench.records import export

DIGITS = 6
"""Significant digits of sizes, and decimals of shares: the last bits of a float differ between machines."""

ROUNDING = 1e-9
"""A relative difference that is a rounding error, not one to be rounded up."""

KINDS = {
    "setting": "string",
    "task": "string",
    "model": "string",
    "epsilon_target": "float64",
    "delta": "float64",
    "method": "string",
    "parameters": "string",
    "label": "string",
    "method_version": "Int64",
    "task_version": "Int64",
    "end_to_end_private": "boolean",
    "reference": "boolean",
    "seeds": "Int64",
    "failed": "Int64",
    "metric": "string",
    "higher_is_better": "boolean",
    "mean": "float64",
    "mean_low": "float64",
    "mean_high": "float64",
    "rank_low": "Int64",
    "rank_high": "Int64",
    "gap_to_oracle": "float64",
    "gap_to_oracle_low": "float64",
    "gap_to_oracle_high": "float64",
    "gap_to_untuned": "float64",
    "gap_to_untuned_low": "float64",
    "gap_to_untuned_high": "float64",
    "gap_closed": "float64",
    "gap_closed_low": "float64",
    "gap_closed_high": "float64",
    "epsilon": "float64",
    "accountant": "string",
    "audited": "float64",
    "tuning_share": "float64",
    "runs": "float64",
    "examples": "float64",
    "seconds": "float64",
}
"""The columns, with their pandas types."""


def to_csv(board: Board) -> str:
    """The content of `leaderboard/leaderboard.csv`; `inf` for ∞, nothing for what is not known.

    Shares and their gaps have six decimals, other numbers six significant digits; ε is rounded up, its audited lower
    bound down. A text that a spreadsheet would take for a formula has an apostrophe in front.
    """
    import pandas as pd

    rows = [_values(table, row) for table in board.tables for row in (*table.rows, *table.references)]
    columns = {name: pd.Series([row[name] for row in rows], dtype=kind) for name, kind in KINDS.items()}
    return export.to_csv(pd.DataFrame(columns))


def _values(table: Table, row: Row) -> dict[str, Any]:
    who = row.contestant
    number = _share if table.measure.share else _size
    return {
        "setting": table.setting,
        "task": table.task,
        "model": table.model,
        "epsilon_target": _size(table.epsilon),
        "delta": _size(table.delta),
        "method": who.method,
        "parameters": who.parameters,
        "label": who.label,
        "method_version": row.method_version,
        "task_version": row.task_version,
        "end_to_end_private": who.end_to_end_private,
        "reference": who.reference,
        "seeds": row.seeds,
        "failed": row.failed,
        "metric": table.measure.name,
        "higher_is_better": table.measure.higher_is_better,
        **_estimate("mean", row.utility, number),
        "rank_low": row.ranks and row.ranks.low,
        "rank_high": row.ranks and row.ranks.high,
        **_estimate("gap_to_oracle", row.gap_to_oracle, number),
        **_estimate("gap_to_untuned", row.gap_to_untuned, number),
        **_estimate("gap_closed", row.gap_closed, _share),
        "epsilon": None if row.epsilon is None else _bound(row.epsilon, ROUND_CEILING),
        "accountant": row.accountant,
        "audited": None if row.audited is None else _bound(row.audited, ROUND_FLOOR),
        "tuning_share": _share(row.tuning_share),
        "runs": _size(row.runs),
        "examples": _size(row.examples),
        "seconds": None if row.seconds is None else _size(row.seconds),
    }


def _estimate(name: str, estimate: Estimate | None, number: Callable[[float], float]) -> dict[str, float | None]:
    mean, low, high = (estimate.mean, estimate.low, estimate.high) if estimate else (None, None, None)
    values = {name: mean, f"{name}_low": low, f"{name}_high": high}
    return {key: None if value is None else number(value) for key, value in values.items()}


def _share(value: float) -> float:
    # Decimals rather than digits: a difference that should be zero may be 1e-17. Added to zero, -0 is 0.
    return round(value, DIGITS) + 0.0


def _size(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") + 0.0


def _bound(value: float, rounding: str) -> float:
    """The value with six digits, rounded in one direction, unless what is cut off is a rounding error."""
    toward = -ROUNDING if rounding == ROUND_CEILING else ROUNDING
    return float(Context(prec=DIGITS, rounding=rounding).create_decimal_from_float(value * (1 + toward)))
