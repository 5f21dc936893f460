"""The columns of the board, all in this file: their words, texts and values in tables, and those of the CSV."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from operator import neg
from typing import Any

import pandas as pd

from dphpo_bench.base.text import rounded_up
from dphpo_bench.leaderboard.answers import TESTS, UNTOUCHED
from dphpo_bench.leaderboard.means import Ranks, Rate
from dphpo_bench.leaderboard.tables import PROFILE, Board, OverallRow, Row
from dphpo_bench.records import reading
from dphpo_bench.records.measure import ACCURACY, NOTHING, Estimate, Measure, measure_text, metric_text

CROSS_ENTROPY = Measure("cross_entropy", higher_is_better=False)
NAMES = "Its name, and the parameters in which its runs differ."


@dataclass(frozen=True)
class Column:
    """A column: `explanation` is for a table of one task at one ε, `overall` for an overall one; empty: not there.

    `kind` is of its cells: "number", "text" or "label".
    """

    key: str
    header: str
    explanation: str
    overall: str
    text: Callable[[Any], str]
    value: Callable[[Any], float | str | None]
    ascending: bool = True
    kind: str = "number"


def ranks_text(ranks: Ranks | None) -> str:
    if ranks is None:
        return NOTHING
    return str(ranks.low) if ranks.low == ranks.high else f"{ranks.low}–{ranks.high}"


def rounded_number(value: Any) -> Any:
    """Return a float with nine significant digits, anything else as it is: the last bits differ between machines."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def epsilon_text(epsilon: float | None) -> str:
    """Return ε with four decimals, rounded up."""
    if epsilon is None:
        return NOTHING
    if math.isinf(epsilon):
        return "∞"
    # The last bits of computed values differ between machines: rounding errors are not rounded up.
    return f"{math.ceil(epsilon * 1e4 * (1 - 1e-9)) / 1e4:.4f}"


def _figure(value: float | None, form: str = ".3g", size: float = 1.0) -> str:
    if value is None:
        return NOTHING
    return f"{value / size:,.0f}" if value / size >= 1000 else f"{value / size:{form}}"


def label_text(row: Row | OverallRow) -> str:
    """Return the label, with marks for few or lacking seeds, failures, a refuted ε, no privacy, and disputes."""
    private = row.entry.end_to_end_private
    applies = (row.few_seeds, row.lacks_seeds, row.failed, row.contradicted, not private, row.disputed)
    marks = "".join(mark for (mark, _), so in zip(MARKS, applies, strict=True) if so)
    return row.entry.label + (f" {marks}" if marks else "")


MARKS = (
    ("†", "fewer than three seeds: the interval says little"),
    ("§", "lacks seeds that the suite asks for: it is compared with nobody"),
    ("‡", "some runs failed: they count as the worst value in ranks and gaps"),
    ("!", "an attack has shown more than the ε that is claimed"),
    ("∞", "not private: its ε is infinite"),
    ("⚑", "disputed: see what this cannot tell"),
)


def rate_text(rate: Rate) -> str:
    """Return a rate in percent, with its interval; zeros as they are."""
    return NOTHING if rate.mean is None else f"{100 * rate.mean:.0f} [{100 * rate.low:.0f}, {100 * rate.high:.0f}]"


def _mean(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.mean


def _all_columns(measure: Measure | None) -> list[Column]:
    """Return the columns of all tables. The measure is None for those of several tables, whose metrics differ."""
    metric = measure.header if measure else "metric"
    logarithmic = measure is not None and measure.logarithmic
    mean = "Geometric mean" if logarithmic else "Mean"
    interval = "and the ends of its 95 % interval" if logarithmic else "and its 95 % interval"
    unit = f", {measure.unit}" if measure and measure.unit else ""

    def estimated(
        key: str, header: str, about: str, overall: str, of: Callable[[Any], Estimate | None], signed: bool = True
    ) -> Column:
        return Column(
            key, f"{header}{unit}", about, overall,
            lambda row: measure_text(of(row), measure, signed), lambda row: _mean(of(row)), not signed,
        )  # fmt: skip

    return [
        Column("method", "method", NAMES, NAMES, label_text, label_text, kind="label"),
        Column(
            "metric", metric,
            f"{mean} over seeds {interval}: Student's t and what collapses may add, with these test records.",
            f"{mean} over the tables {interval} over seeds.",
            lambda row: metric_text(row.utility, measure), lambda row: _mean(row.utility),
            measure is not None and not measure.higher_is_better),
        Column(
            "shifted", f"shifted {metric}", f"{mean} on shifted test records, {interval}; the task says which.", "",
            lambda row: metric_text(row.shifted, measure), lambda row: _mean(row.shifted),
            measure is not None and not measure.higher_is_better),
        Column(
            "cross_entropy", "cross entropy", "Of the test data, in nats: smaller where probabilities can be trusted.",
            "",
            lambda row: measure_text(row.cross_entropy, CROSS_ENTROPY, decimals=3),
            lambda row: _mean(row.cross_entropy)),
        estimated(
            "to_oracle", "to the oracle", "By how much it is better than the oracle; Welch's interval over seeds.",
            "By how much it is better than the oracle, mean over the tables.",
            lambda row: row.gap_to_oracle and row.gap_to_oracle.through(neg)),
        estimated(
            "to_untuned", "to untuned", "By how much it is better than auto_clipping; Welch's interval over seeds.", "",
            lambda row: row.gap_to_untuned),
        Column(
            "rerr", "RERR, %",
            "Share of random_search's gap to the oracle that it closes; Fieller's interval, – if there may be no gap.",
            "Share of random_search's gap to the oracle that it closes, by means over its tables in points.",
            lambda row: measure_text(row.rerr, ACCURACY, decimals=0), lambda row: _mean(row.rerr), False),
        estimated(
            "lost_to_noise", "lost to noise",
            "By how much grid_oracle at its defaults is ahead because ε, and held-out records, went into tuning.", "",
            lambda row: row.lost_to_noise, signed=False),
        estimated(
            "lost_to_choice", "lost to choice",
            "By how much it is ahead because of other values; the two parts add up to its lead.", "",
            lambda row: row.lost_to_choice, signed=False),
        Column(
            "rank", "rank", "The middle 95 % of its ranks when the seeds are resampled, the same for all.",
            "The middle 95 % of its places by mean rank when tasks and seeds are resampled.",
            lambda row: ranks_text(row.ranks), lambda row: row.ranks and (row.ranks.low + row.ranks.high) / 2),
        Column(
            "mean_rank", "mean rank", "", "Mean of its ranks in the tables.",
            lambda row: f"{row.mean_rank.mean:.2f}" if row.mean_rank else NOTHING, lambda row: _mean(row.mean_rank)),
        Column(
            "epsilon", "ε recomputed",
            "ε of tuning and training, from the ledger of releases; never rounded down.", "",
            lambda row: epsilon_text(row.epsilon), lambda row: row.epsilon),
        Column(
            "accountant", "by", "Accountant of this ε.", "",
            lambda row: row.accountant or NOTHING, lambda row: row.accountant, kind="text"),
        Column(
            "audited", "audited ε ≥", "Lower bound that an attack has shown, if anyone has attacked it.", "",
            lambda row: NOTHING if row.audited is None else f"{math.floor(row.audited * 100 * (1 + 1e-9)) / 100:.2f}",
            lambda row: row.audited),
        Column(
            "risk", "found at 1 % false alarms, % ≤",
            "Most present records that any attack finds while it takes 1 % of absent ones for present: proven from "
            "the ledger, rounded up; what leaks may be far less.", "",
            lambda row: rounded_up(100 * row.risk.tpr_at_1pct, 3) if row.risk else NOTHING,
            lambda row: row.risk and row.risk.tpr_at_1pct),
        Column(
            "tuning_share", "on tuning, % of ε", "Share of ε that finding hyperparameters takes.",
            "Share of ε that finding hyperparameters takes; median.",
            lambda row: f"{100 * row.tuning_share:.1f}", lambda row: row.tuning_share),
        Column(
            "runs", "runs", "Training runs, in expectation.", "",
            lambda row: _figure(row.runs), lambda row: row.runs),
        Column(
            "examples", "examples, k", "Thousands of examples processed, in expectation.", "",
            lambda row: _figure(row.examples, ".0f", 1000), lambda row: row.examples),
        Column(
            "relative_cost", "cost, untuned runs", "", "Examples processed, relative to one untuned run; median.",
            lambda row: _figure(row.relative_cost), lambda row: row.relative_cost),
        Column(
            "within_point", "within a point, % of tables", "",
            "Share of its tables in which its mean is at most a point behind the oracle's; of a perplexity, 1 %.",
            lambda row: NOTHING if row.within_point is None else f"{100 * row.within_point:.0f}",
            lambda row: row.within_point, False),
        Column(
            "normalised", "normalised mean", "",
            "Mean over tables of the share of the way from untuned (0) to the oracle (1), each between −1 and 2; of "
            "tables where that way is a point or more.",
            lambda row: NOTHING if row.normalised is None else f"{row.normalised:.2f}".replace("-", "−"),
            lambda row: row.normalised, False),
        Column(
            "collapses", "collapses, %",
            "Share of its runs here, at all ε, that ended ten points (a perplexity: half a nat) below their median "
            "in this table or at a smaller ε; exact 95 % interval.",
            "Share of its runs, at all ε, that ended ten points (a perplexity: half a nat) below their median in "
            "the table or at a smaller ε; exact 95 % interval.",
            lambda row: rate_text(row.collapses), lambda row: row.collapses.mean),
        Column(
            "tables", "tables", "", "How many of the counted tables it is in.",
            lambda row: str(row.tables), lambda row: row.tables, False),
        Column(
            "seeds", "seeds", "Finished runs, each with a seed of its own.", "",
            lambda row: str(row.seeds), lambda row: row.seeds, False),
        Column(
            "seeds", "seeds, at least", "", "The fewest in any table.",
            lambda row: str(row.seeds), lambda row: row.seeds, False),
    ]  # fmt: skip


def row_columns(measure: Measure | None, explains: bool = False, shifts: bool = False) -> tuple[Column, ...]:
    """Return the columns of a table; some only where the board explains gaps, or has shifted tests."""
    columns = (column for column in _all_columns(measure) if column.explanation)
    return tuple(column for column in columns if _is_there(column.key, explains, shifts))


def _is_there(name: str, explains: bool, shifts: bool) -> bool:
    return shifts if name.startswith("shifted") else explains or not name.startswith("lost_to")


def overall_columns(measure: Measure | None) -> tuple[Column, ...]:
    columns = [replace(column, explanation=column.overall) for column in _all_columns(measure) if column.overall]
    return tuple(sorted(columns, key=lambda column: {"method": 0, "rank": 1, "mean_rank": 2}.get(column.key, 3)))


def varying(columns: Iterable[Column], rows: Sequence[Any]) -> tuple[list[Column], list[str]]:
    """Return the columns in which ranked rows differ, and a text for each that is the same, such as "seeds 5"."""
    differing, same = [], []
    for column in columns:
        texts = {column.text(row) for row in rows}
        if len(texts) > 1 or column.key == "method":
            differing.append(column)
        elif texts != {NOTHING}:
            same.append(f"{column.header} {texts.pop()}")
    return differing, same


DIGITS = 6
"""Significant digits of sizes, and decimals of shares: the last bits of a float differ between machines."""

RISK_DIGITS = 4

ROUNDING = 1e-9
"""Relative differences up to this are rounding errors, which are not rounded up."""


def _interval(name: str, kind: str, place: str) -> dict[str, tuple[str, str]]:
    parts = {"": "mean", "_low": "low", "_high": "high"}
    return {f"{name}{end}": (kind, f"{place}.{part}") for end, part in parts.items()}


CSV = {
    "setting": ("string", "table.task_model"),
    "stage": ("string", "table.stage"),
    "counted": ("boolean", "table.counted"),
    "task": ("string", "table.task"),
    "model": ("string", "table.model"),
    "model_kind": ("string", "table.model_kind"),
    "n_records": ("Int64", "table.n_records"),
    "epsilon_target": ("size", "table.epsilon"),
    "delta": ("size", "table.delta"),
    "method": ("string", "row.entry.method"),
    "parameters": ("string", "row.entry.parameters"),
    "label": ("string", "row.entry.label"),
    "method_version": ("Int64", "row.method_version"),
    "task_version": ("Int64", "row.task_version"),
    "end_to_end_private": ("boolean", "row.entry.end_to_end_private"),
    "reference": ("boolean", "row.entry.reference"),
    "seeds": ("Int64", "row.seeds"),
    "failed": ("Int64", "row.failed"),
    "collapsed": ("Int64", "row.collapsed"),
    "metric": ("string", "table.measure.name"),
    "higher_is_better": ("boolean", "table.measure.higher_is_better"),
    **_interval("mean", "metric", "row.utility"),
    "worst": ("metric", "row.worst"),
    **_interval("cross_entropy", "size", "row.cross_entropy"),
    "rank_low": ("Int64", "row.ranks.low"),
    "rank_high": ("Int64", "row.ranks.high"),
    **_interval("gap_to_oracle", "metric", "row.gap_to_oracle"),
    **_interval("gap_to_untuned", "metric", "row.gap_to_untuned"),
    **_interval("gap_closed", "share", "row.gap_closed"),
    **_interval("rerr", "share", "row.rerr"),
    "epsilon": ("bound", "row.epsilon"),
    "accountant": ("string", "row.accountant"),
    "audited": ("lower bound", "row.audited"),
    "tuning_share": ("share", "row.tuning_share"),
    "runs": ("size", "row.runs"),
    "examples": ("size", "row.examples"),
    "untuned_runs": ("size", "row.untuned_runs"),
    "standing": ("string", "row.verdict"),
    "collapses": ("Int64", "row.collapses.count"),
    "collapse_runs": ("Int64", "row.collapses.runs"),
    **_interval("collapse_rate", "share", "row.collapses"),
    "test_half": ("share", "row.test_half"),
    **_interval("lost_to_noise", "metric", "row.lost_to_noise"),
    **_interval("lost_to_choice", "metric", "row.lost_to_choice"),
    "tpr_at_1pct": ("risk", "row.risk.tpr_at_1pct"),
    "tpr_at_01pct": ("risk", "row.risk.tpr_at_01pct"),
    "advantage": ("risk", "row.risk.advantage"),
    "mu": ("risk", "row.risk.mu"),
    "mu_fit": ("share", "row.risk.mu_fit"),
    **_interval("shifted", "metric", "row.shifted"),
    "disputed": ("boolean", "row.disputed"),
}
"""The columns: a pandas type, or the kind of a float as `_rounded` knows it, and where their values are."""


WITHIN = [f"within_{100 * behind:g}" for behind in PROFILE]
"""Columns of the performance profile: "within_2" is the share of tables at most two points behind the oracle."""

OVERALL_CSV = {
    "stage": ("string", "stage"),
    "epsilon_target": ("size", "overall.epsilon"),
    "method": ("string", "row.entry.method"),
    "parameters": ("string", "row.entry.parameters"),
    "label": ("string", "row.entry.label"),
    "reference": ("boolean", "row.entry.reference"),
    "tables": ("Int64", "row.tables"),
    "seeds": ("Int64", "row.seeds"),
    "failed": ("Int64", "row.failed"),
    "rank_low": ("Int64", "row.ranks.low"),
    "rank_high": ("Int64", "row.ranks.high"),
    **_interval("mean_rank", "size", "row.mean_rank"),
    **_interval("gap_to_oracle", "share", "row.gap_to_oracle"),
    "normalised": ("share", "row.normalised"),
    **_interval("rerr", "share", "row.rerr"),
    **{name: ("share", name) for name in WITHIN},
    "collapses": ("Int64", "row.collapses.count"),
    "collapse_runs": ("Int64", "row.collapses.runs"),
    **_interval("collapse_rate", "share", "row.collapses"),
    "relative_cost": ("size", "row.relative_cost"),
    "tuning_share": ("share", "row.tuning_share"),
}


def to_csv(board: Board) -> str:
    """Return the content of `leaderboard/leaderboard.csv`; `inf` for ∞, nothing for what is not known.

    Shares and their gaps have six decimals, other numbers six significant digits, risks four. ε and risks are rounded
    up, the audited lower bound of ε down. A text that a spreadsheet would take for a formula has an apostrophe in
    front.
    """
    rows = [{"table": table, "row": row, "measure": table.measure} for table in board.tables for row in table.everyone]
    columns = {name: column for name, column in CSV.items() if _is_there(name, board.explains, board.shifts)}
    return _csv(rows, columns)


def overall_csv(board: Board) -> str:
    """Return the content of `leaderboard/overall.csv`: the overall rows, with the numbers in the form of `to_csv`."""
    rows = [
        {
            "stage": {TESTS: "test", UNTOUCHED: "untouched"}.get(overall.stage, "all"),
            "overall": overall,
            "row": row,
            **dict(zip(WITHIN, row.profile or [None] * len(WITHIN), strict=True)),
            "measure": overall.measure or ACCURACY,
        }
        for overall in board.overalls
        for row in overall.everyone
    ]
    return _csv(rows, OVERALL_CSV)


def _csv(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, str]]) -> str:
    series = {}
    for name, (kind, place) in columns.items():
        item, _, attribute = place.partition(".")
        values = [reading.value_at(each[item], attribute) if attribute else each[item] for each in rows]
        if kind not in ("string", "Int64", "boolean"):
            values = [_rounded(value, kind, each["measure"]) for value, each in zip(values, rows, strict=True)]
        series[name] = pd.Series(values, dtype=kind if kind in ("string", "Int64", "boolean") else "float64")
    return reading.to_csv(pd.DataFrame(series))


def _rounded(value: float | None, kind: str, measure: Measure) -> float | None:
    if value is None:
        return None
    if kind == "metric":
        kind = "share" if measure.share else "size"
    if kind == "share":  # decimals rather than digits: a difference that should be zero may be 1e-17
        return round(value, DIGITS) + 0.0  # added to zero, -0 is 0
    if kind == "size":
        return float(f"{value:.{DIGITS}g}") + 0.0
    # In the cautious direction, unless what is cut off is a rounding error.
    rounding, toward = (ROUND_FLOOR, ROUNDING) if kind == "lower bound" else (ROUND_CEILING, -ROUNDING)
    digits = RISK_DIGITS if kind == "risk" else DIGITS
    return float(Context(prec=digits, rounding=rounding).create_decimal_from_float(value * (1 + toward)))
