"""The columns of the tables, for Markdown and the page: header, explanation, text and value of each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dphpo_bench.leaderboard.board import Estimate, OverallRow, Ranks, Row
from dphpo_bench.records.measure import Measure

AnyRow = TypeVar("AnyRow", Row, OverallRow)

NOTHING = "–"
NOT_AUDITED = "not audited"


@dataclass(frozen=True)
class Column(Generic[AnyRow]):
    """A column.

    Attributes:
        key: a name for programs.
        header: a few words.
        explanation: a sentence.
        text: what a cell shows: plain text, not yet escaped.
        value: what a cell is sorted by; None goes last.
        ascending: whether small is good, hence first when somebody sorts by it.
    """

    key: str
    header: str
    explanation: str
    text: Callable[[AnyRow], str]
    value: Callable[[AnyRow], float | str | None]
    ascending: bool = True


def percent_text(value: float, digits: int = 1) -> str:
    """A share as percent, such as 64.7 %."""
    return f"{100 * value:.{digits}f} %"


def estimate_text(estimate: Estimate | None, digits: int = 2) -> str:
    """Mean and half width of the interval in percent; both ends where the interval is lopsided."""
    return _interval_text(estimate, lambda value: f"{100 * value:.{digits}f}")


def measure_text(estimate: Estimate | None, measure: Measure | None) -> str:
    """The same of a metric: in percent if it is a share, else with four digits; nothing without a metric."""
    if measure is None:
        return NOTHING
    return estimate_text(estimate) if measure.share else _interval_text(estimate, measure.text)


def _interval_text(estimate: Estimate | None, form: Callable[[float], str]) -> str:
    if estimate is None:
        return NOTHING

    def number(value: float) -> str:
        return form(value + 0.0).replace("-", "−")

    mean = number(estimate.mean)
    if estimate.low is None or estimate.high is None:
        return mean
    above, below = max(estimate.high - estimate.mean, 0.0), estimate.mean - estimate.low
    if number(above) == number(below):
        return f"{mean} ± {number(above)}"
    return f"{mean} [{number(estimate.low)}, {number(estimate.high)}]"


def ranks_text(ranks: Ranks | None) -> str:
    """Such as 1–3, or 2 where both ends are the same."""
    if ranks is None:
        return NOTHING
    return str(ranks.low) if ranks.low == ranks.high else f"{ranks.low}–{ranks.high}"


def mean_rank_text(mean_rank: Estimate | None) -> str:
    """Such as 2.33 [1.0, 3.7]."""
    if mean_rank is None:
        return NOTHING
    return f"{mean_rank.mean:.2f} [{mean_rank.low:.1f}, {mean_rank.high:.1f}]"


def rounded_number(value: Any) -> Any:
    """A float with nine significant digits, and anything else as it is: the last bits differ between machines."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def epsilon_text(epsilon: float | None) -> str:
    """ε with four decimals, never rounded down."""
    if epsilon is None:
        return NOTHING
    if math.isinf(epsilon):
        return "∞"
    # Computed values differ in their last bits between machines; what is a rounding error is not rounded up.
    return f"{math.ceil(epsilon * 1e4 * (1 - 1e-9)) / 1e4:.4f}"


def count_text(value: float) -> str:
    """A count with thin precision, such as 161, 12.4 k, 2.30 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            scale = 1e3 if unit == "k" else size
            return f"{value / scale:.3g} {unit}"
    return f"{value:.4g}"


def seconds_text(seconds: float | None) -> str:
    """Such as 4.2 s, 12 min, 3.1 h."""
    if seconds is None:
        return NOTHING
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def label_text(row: Row | OverallRow) -> str:
    """The label, marked where there are few seeds, failures, or an audit that contradicts ε."""
    marks = ("†" if row.few_seeds else "") + ("‡" if row.failed else "") + ("!" if row.contradicted else "")
    return row.contestant.label + (f" {marks}" if marks else "")


MARKS = (
    ("†", "fewer than three seeds: the interval says little"),
    ("‡", "some runs failed: they count as the worst value in ranks and gaps"),
    ("!", "an attack has shown more than the ε that is claimed"),
)


def audited_text(audited: float | None) -> str:
    """An audited lower bound, rounded down, or that there is none."""
    return NOT_AUDITED if audited is None else f"{math.floor(audited * 100 * (1 + 1e-9)) / 100:.2f}"


def _mean(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.mean


def _middle(ranks: Ranks | None) -> float | None:
    return None if ranks is None else (ranks.low + ranks.high) / 2


def _private_text(row: Row | OverallRow) -> str:
    return "yes" if row.contestant.end_to_end_private else "no"


def _field(name: str, header: str, explanation: str, text: Callable[[Any], str], ascending: bool = True) -> Column[Any]:
    """A column that shows a field of its rows."""
    return Column(
        name, header, explanation, lambda row: text(getattr(row, name)), lambda row: getattr(row, name), ascending
    )


def _measure_column(measure: Measure | None, explanation: str) -> Column[Any]:
    return Column(
        "metric",
        measure.header if measure else "metric",
        explanation,
        lambda row: measure_text(row.utility, measure),
        lambda row: _mean(row.utility),
        ascending=measure is not None and not measure.higher_is_better,
    )


def _gap_column(explanation: str) -> Column[Any]:
    return Column(
        "gap_closed",
        "gap closed, %",
        explanation,
        lambda row: estimate_text(row.gap_closed, 0),
        lambda row: _mean(row.gap_closed),
        ascending=False,
    )


def _rank_column(explanation: str) -> Column[Any]:
    return Column("rank", "rank", explanation, lambda row: ranks_text(row.ranks), lambda row: _middle(row.ranks))


_METHOD: Column[Any] = Column(
    "method", "method", "With the parameters in which runs of it differ.", label_text, label_text
)
_PRIVATE: Column[Any] = Column(
    "private", "end to end", "Whether ε covers tuning and training.", _private_text, _private_text
)


def row_columns(measure: Measure | None) -> tuple[Column[Row], ...]:
    """The columns of a table of one task at one ε; None: of several tables, whose metrics differ."""
    return (
        _METHOD,
        _measure_column(measure, "Mean over seeds ± half of its 95 % interval (Student's t)."),
        _rank_column("95 % of the ranks when seeds are resampled, the same for all."),
        _gap_column("Share of the way from untuned auto_clipping to the oracle; none where the two may be equal."),
        _field(
            "epsilon",
            "ε recomputed",
            "Of tuning and training, from the ledger of releases; never rounded down.",
            epsilon_text,
        ),
        _field("accountant", "by", "Accountant of this ε.", lambda name: name or NOTHING),
        _field("audited", "audited ε ≥", "Lower bound that an attack has shown.", audited_text),
        _field("tuning_share", "on tuning", "Share of ε that finding hyperparameters takes.", percent_text),
        _field("runs", "runs", "Training runs, in expectation.", count_text),
        _field("examples", "examples", "Examples processed, in expectation.", count_text),
        _field("seconds", "time", "Median over seeds, on the machines that ran them.", seconds_text),
        _PRIVATE,
        _field("seeds", "seeds", "Finished runs, each with a seed of its own.", str, ascending=False),
    )


def overall_columns(measure: Measure | None) -> tuple[Column[OverallRow], ...]:
    """The columns of an overall table; without a metric where those of its tables differ."""
    return (
        _METHOD,
        _rank_column("95 % of the places, by mean rank, when tasks and seeds are resampled."),
        Column(
            "mean_rank",
            "mean rank",
            "Mean of the ranks in the tables, and 95 % of what it is when tasks and seeds are resampled.",
            lambda row: mean_rank_text(row.mean_rank),
            lambda row: _mean(row.mean_rank),
        ),
        _measure_column(measure, "Mean over the tables ± half of its 95 % interval over seeds."),
        _gap_column(
            "Share of the way from untuned auto_clipping to the oracle, both summed over the tables; none where the "
            "two may be equal."
        ),
        _field(
            "epsilon_ratio",
            "ε / target",
            "The largest recomputed ε as a share of the target's; never rounded down.",
            epsilon_text,
        ),
        Column(
            "accountant",
            "by",
            "Accountants of these ε.",
            lambda row: ", ".join(row.accountants) or NOTHING,
            lambda row: ", ".join(row.accountants),
        ),
        _field("tuning_share", "on tuning", "Share of ε that finding hyperparameters takes; median.", percent_text),
        _field("runs", "runs", "Training runs; median.", count_text),
        _field("examples", "examples", "Examples processed; median.", count_text),
        _field(
            "relative_cost",
            "cost",
            "Examples processed, relative to one untuned run; median.",
            lambda cost: NOTHING if cost is None else f"{cost:.3g} ×",
        ),
        _field("seconds", "time", "Median.", seconds_text),
        _PRIVATE,
        _field("tables", "tables", "In how many of the tables that count.", str, ascending=False),
        _field("seeds", "seeds", "The fewest in any table.", str, ascending=False),
    )
