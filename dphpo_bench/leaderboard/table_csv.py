"""The leaderboard as CSV, for programs: a line for each contestant on each task at each ε."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import NamedTuple

from dphpo_bench.leaderboard.board import Board, Row, Table
from dphpo_bench.records import export
from dphpo_bench.records.tables import value_at

DIGITS = 6
"""Significant digits of sizes, and decimals of shares: the last bits of a float differ between machines."""

RISK_DIGITS = 4

ROUNDING = 1e-9
"""Relative differences up to this are rounding errors, which are not rounded up."""


class _Line(NamedTuple):
    table: Table
    row: Row


COLUMNS = {
    "setting": ("string", "table.setting"),
    "task": ("string", "table.task"),
    "model": ("string", "table.model"),
    "epsilon_target": ("size", "table.epsilon"),
    "delta": ("size", "table.delta"),
    "method": ("string", "row.contestant.method"),
    "parameters": ("string", "row.contestant.parameters"),
    "label": ("string", "row.contestant.label"),
    "method_version": ("Int64", "row.method_version"),
    "task_version": ("Int64", "row.task_version"),
    "end_to_end_private": ("boolean", "row.contestant.end_to_end_private"),
    "reference": ("boolean", "row.contestant.reference"),
    "seeds": ("Int64", "row.seeds"),
    "failed": ("Int64", "row.failed"),
    "metric": ("string", "table.measure.name"),
    "higher_is_better": ("boolean", "table.measure.higher_is_better"),
    "mean": ("metric", "row.utility.mean"),
    "mean_low": ("metric", "row.utility.low"),
    "mean_high": ("metric", "row.utility.high"),
    "worst": ("metric", "row.worst"),
    "cross_entropy": ("size", "row.cross_entropy.mean"),
    "cross_entropy_low": ("size", "row.cross_entropy.low"),
    "cross_entropy_high": ("size", "row.cross_entropy.high"),
    "rank_low": ("Int64", "row.ranks.low"),
    "rank_high": ("Int64", "row.ranks.high"),
    "gap_to_oracle": ("metric", "row.gap_to_oracle.mean"),
    "gap_to_oracle_low": ("metric", "row.gap_to_oracle.low"),
    "gap_to_oracle_high": ("metric", "row.gap_to_oracle.high"),
    "gap_to_untuned": ("metric", "row.gap_to_untuned.mean"),
    "gap_to_untuned_low": ("metric", "row.gap_to_untuned.low"),
    "gap_to_untuned_high": ("metric", "row.gap_to_untuned.high"),
    "gap_closed": ("share", "row.gap_closed.mean"),
    "gap_closed_low": ("share", "row.gap_closed.low"),
    "gap_closed_high": ("share", "row.gap_closed.high"),
    "epsilon": ("bound", "row.epsilon"),
    "accountant": ("string", "row.accountant"),
    "audited": ("lower bound", "row.audited"),
    "tuning_share": ("share", "row.tuning_share"),
    "runs": ("size", "row.runs"),
    "examples": ("size", "row.examples"),
    "seconds": ("size", "row.seconds"),
}
"""The columns: a pandas type, or the kind of a float as `_rounded` knows it, and where their values are."""

WHY = {
    "lost_to_noise": ("metric", "row.lost_to_noise.mean"),
    "lost_to_noise_low": ("metric", "row.lost_to_noise.low"),
    "lost_to_noise_high": ("metric", "row.lost_to_noise.high"),
    "lost_to_choice": ("metric", "row.lost_to_choice.mean"),
    "lost_to_choice_low": ("metric", "row.lost_to_choice.low"),
    "lost_to_choice_high": ("metric", "row.lost_to_choice.high"),
}
"""The columns that follow these on a board with extra runs, which tell why somebody lost."""

RISK = {
    "tpr_at_1pct": ("risk", "row.risk.tpr_at_1pct"),
    "tpr_at_01pct": ("risk", "row.risk.tpr_at_01pct"),
    "advantage": ("risk", "row.risk.advantage"),
    "mu": ("risk", "row.risk.mu"),
    "mu_fit": ("share", "row.risk.mu_fit"),
}
"""The last columns: what an attack on one record can achieve at most, as far as it is proven."""


def to_csv(board: Board) -> str:
    """The content of `leaderboard/leaderboard.csv`; `inf` for ∞, nothing for what is not known.

    Shares and their gaps have six decimals, other numbers six significant digits, risks four. ε and risks are rounded
    up, the audited lower bound of ε down. A text that a spreadsheet would take for a formula has an apostrophe in
    front.
    """
    import pandas as pd

    lines = [_Line(table, row) for table in board.tables for row in table.everyone]
    columns = {}
    for name, (kind, place) in (COLUMNS | (WHY if board.explains else {}) | RISK).items():
        values = [value_at(line, place) for line in lines]
        if kind in ("string", "Int64", "boolean"):
            columns[name] = pd.Series(values, dtype=kind)
        else:
            rounded = [_rounded(value, kind, line) for value, line in zip(values, lines, strict=True)]
            columns[name] = pd.Series(rounded, dtype="float64")
    return export.to_csv(pd.DataFrame(columns))


def _rounded(value: float | None, kind: str, line: _Line) -> float | None:
    if value is None:
        return None
    if kind == "metric":
        kind = "share" if line.table.measure.share else "size"
    if kind == "share":  # decimals rather than digits: a difference that should be zero may be 1e-17
        return round(value, DIGITS) + 0.0  # added to zero, -0 is 0
    if kind == "size":
        return float(f"{value:.{DIGITS}g}") + 0.0
    # In the cautious direction, unless what is cut off is a rounding error.
    rounding, toward = (ROUND_FLOOR, ROUNDING) if kind == "lower bound" else (ROUND_CEILING, -ROUNDING)
    digits = RISK_DIGITS if kind == "risk" else DIGITS
    return float(Context(prec=digits, rounding=rounding).create_decimal_from_float(value * (1 + toward)))
