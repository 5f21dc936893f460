"""The columns of the tables: one list for Markdown, CSV and the page, with header, explanation, text and value."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dphpo_bench.leaderboard.board import Estimate, OverallRow, Ranks, Row

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
    if estimate is None:
        return NOTHING

    def number(value: float) -> str:
        return f"{100 * value + 0.0:.{digits}f}".replace("-", "−")

    mean = number(estimate.mean)
    if estimate.low is None or estimate.high is None:
        return mean
    above, below = estimate.high - estimate.mean, estimate.mean - estimate.low
    if round(100 * above, digits) == round(100 * below, digits):
        return f"{mean} ± {number(max(above, 0.0))}"
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
    ("‡", "some runs failed: they count as accuracy 0 in ranks and gaps"),
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


_METHOD: Column[Any] = Column(
    "method", "method", "With the parameters in which runs of it differ.", label_text, label_text
)
_PRIVATE: Column[Any] = Column(
    "private", "end to end", "Whether ε covers tuning and training.", _private_text, _private_text
)

ROW_COLUMNS: tuple[Column[Row], ...] = (
    _METHOD,
    Column(
        "accuracy",
        "accuracy, %",
        "Mean over seeds ± half of its 95 % interval (Student's t).",
        lambda row: estimate_text(row.utility),
        lambda row: _mean(row.utility),
        ascending=False,
    ),
    Column(
        "rank",
        "rank",
        "95 % of the ranks when seeds are resampled, the same for all.",
        lambda row: ranks_text(row.ranks),
        lambda row: _middle(row.ranks),
    ),
    Column(
        "gap_closed",
        "gap closed, %",
        "Share of the way from untuned auto_clipping to the oracle; none where the two may be equal.",
        lambda row: estimate_text(row.gap_closed, 0),
        lambda row: _mean(row.gap_closed),
        ascending=False,
    ),
    Column(
        "epsilon",
        "ε recomputed",
        "Of tuning and training, from the ledger of releases; never rounded down.",
        lambda row: epsilon_text(row.epsilon),
        lambda row: row.epsilon,
    ),
    Column(
        "accountant",
        "by",
        "Accountant of this ε.",
        lambda row: row.accountant or NOTHING,
        lambda row: row.accountant,
    ),
    Column(
        "audited",
        "audited ε ≥",
        "Lower bound that an attack has shown.",
        lambda row: audited_text(row.audited),
        lambda row: row.audited,
    ),
    Column(
        "tuning_share",
        "on tuning",
        "Share of ε that finding hyperparameters takes.",
        lambda row: percent_text(row.tuning_share),
        lambda row: row.tuning_share,
    ),
    Column("runs", "runs", "Training runs, in expectation.", lambda row: count_text(row.runs), lambda row: row.runs),
    Column(
        "examples",
        "examples",
        "Examples processed, in expectation.",
        lambda row: count_text(row.examples),
        lambda row: row.examples,
    ),
    Column(
        "seconds",
        "time",
        "Median over seeds, on the machines that ran them.",
        lambda row: seconds_text(row.seconds),
        lambda row: row.seconds,
    ),
    _PRIVATE,
    Column(
        "seeds",
        "seeds",
        "Finished runs, each with a seed of its own.",
        lambda row: str(row.seeds),
        lambda row: row.seeds,
        ascending=False,
    ),
)

OVERALL_COLUMNS: tuple[Column[OverallRow], ...] = (
    _METHOD,
    Column(
        "rank",
        "rank",
        "95 % of the places, by mean rank, when tasks and seeds are resampled.",
        lambda row: ranks_text(row.ranks),
        lambda row: _middle(row.ranks),
    ),
    Column(
        "mean_rank",
        "mean rank",
        "Mean of the ranks in the tables, and 95 % of what it is when tasks and seeds are resampled.",
        lambda row: mean_rank_text(row.mean_rank),
        lambda row: _mean(row.mean_rank),
    ),
    Column(
        "accuracy",
        "accuracy, %",
        "Mean over the tables ± half of its 95 % interval over seeds.",
        lambda row: estimate_text(row.utility),
        lambda row: _mean(row.utility),
        ascending=False,
    ),
    Column(
        "gap_closed",
        "gap closed, %",
        "Share of the way from untuned auto_clipping to the oracle, both summed over the tables; none where the two "
        "may be equal.",
        lambda row: estimate_text(row.gap_closed, 0),
        lambda row: _mean(row.gap_closed),
        ascending=False,
    ),
    Column(
        "epsilon",
        "ε / target",
        "The largest recomputed ε as a share of the target's; never rounded down.",
        lambda row: epsilon_text(row.epsilon_ratio),
        lambda row: row.epsilon_ratio,
    ),
    Column(
        "accountant",
        "by",
        "Accountants of these ε.",
        lambda row: ", ".join(row.accountants) or NOTHING,
        lambda row: ", ".join(row.accountants),
    ),
    Column(
        "tuning_share",
        "on tuning",
        "Share of ε that finding hyperparameters takes; median.",
        lambda row: percent_text(row.tuning_share),
        lambda row: row.tuning_share,
    ),
    Column("runs", "runs", "Training runs; median.", lambda row: count_text(row.runs), lambda row: row.runs),
    Column(
        "examples",
        "examples",
        "Examples processed; median.",
        lambda row: count_text(row.examples),
        lambda row: row.examples,
    ),
    Column(
        "relative_cost",
        "cost",
        "Examples processed, relative to one untuned run; median.",
        lambda row: NOTHING if row.relative_cost is None else f"{row.relative_cost:.3g} ×",
        lambda row: row.relative_cost,
    ),
    Column("seconds", "time", "Median.", lambda row: seconds_text(row.seconds), lambda row: row.seconds),
    _PRIVATE,
    Column(
        "tables",
        "tables",
        "In how many of the tables that count.",
        lambda row: str(row.tables),
        lambda row: row.tables,
        ascending=False,
    ),
    Column(
        "seeds", "seeds", "The fewest in any table.", lambda row: str(row.seeds), lambda row: row.seeds, ascending=False
    ),
)
