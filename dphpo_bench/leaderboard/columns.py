"""The columns of the tables, for Markdown and the page: header, explanation, text and value of each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dphpo_bench.leaderboard.board import Estimate, OverallRow, Ranks, Row
from dphpo_bench.records.measure import Measure

NOTHING = "–"
NOT_AUDITED = "not audited"


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        key: a name for programs.
        header: a few words.
        explanation: a sentence.
        text: gives the text of a row's cell, not yet escaped.
        value: gives what the row is sorted by; None goes last.
        ascending: whether small values come first when a reader sorts by this column.
    """

    key: str
    header: str
    explanation: str
    text: Callable[[Any], str]
    value: Callable[[Any], float | str | None]
    ascending: bool = True


def estimate_text(estimate: Estimate | None, digits: int = 2) -> str:
    """Mean and half width of the interval in percent; both ends if the interval is lopsided."""
    return _interval_text(estimate, lambda value: f"{100 * value:.{digits}f}")


def measure_text(estimate: Estimate | None, measure: Measure | None) -> str:
    """The same of a metric: in percent if it is a share, else with four digits."""
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
    """Such as 1–3, or 2 if both ends are the same."""
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
    # The last bits of computed values differ between machines: rounding errors are not rounded up.
    return f"{math.ceil(epsilon * 1e4 * (1 - 1e-9)) / 1e4:.4f}"


def count_text(value: float) -> str:
    """A count with few digits, such as 161, 12.4 k, 2.3 M."""
    for unit, size, least in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if value >= least:
            return f"{value / size:.3g} {unit}"
    return f"{value:.4g}"


def seconds_text(seconds: float | None) -> str:
    """Such as 4.2 s, 12 min, 3.1 h."""
    if seconds is None:
        return NOTHING
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _ratio_text(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.3g} ×"


def label_text(row: Row | OverallRow) -> str:
    """The label, with marks for few seeds, failures, and an audit that contradicts ε."""
    marks = ("†" if row.few_seeds else "") + ("‡" if row.failed else "") + ("!" if row.contradicted else "")
    return row.contestant.label + (f" {marks}" if marks else "")


MARKS = (
    ("†", "fewer than three seeds: the interval says little"),
    ("‡", "some runs failed: they count as the worst value in ranks and gaps"),
    ("!", "an attack has shown more than the ε that is claimed"),
)


def audited_text(audited: float | None) -> str:
    """An audited lower bound, rounded down."""
    return NOT_AUDITED if audited is None else f"{math.floor(audited * 100 * (1 + 1e-9)) / 100:.2f}"


def _mean(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.mean


def _middle(ranks: Ranks | None) -> float | None:
    return None if ranks is None else (ranks.low + ranks.high) / 2


def _private_text(row: Row | OverallRow) -> str:
    return "yes" if row.contestant.end_to_end_private else "no"


def _accountants(row: Row | OverallRow) -> str:
    return row.accountant if isinstance(row, Row) else ", ".join(row.accountants)


_CELLS: dict[str, tuple[Callable[[Any], str], Callable[[Any], float | str | None]]] = {
    "method": (label_text, label_text),
    "rank": (lambda row: ranks_text(row.ranks), lambda row: _middle(row.ranks)),
    "mean_rank": (lambda row: mean_rank_text(row.mean_rank), lambda row: _mean(row.mean_rank)),
    "gap_closed": (lambda row: estimate_text(row.gap_closed, 0), lambda row: _mean(row.gap_closed)),
    "epsilon": (lambda row: epsilon_text(row.epsilon), lambda row: row.epsilon),
    "epsilon_ratio": (lambda row: epsilon_text(row.epsilon_ratio), lambda row: row.epsilon_ratio),
    "accountant": (lambda row: _accountants(row) or NOTHING, _accountants),
    "audited": (lambda row: audited_text(row.audited), lambda row: row.audited),
    "tuning_share": (lambda row: f"{100 * row.tuning_share:.1f} %", lambda row: row.tuning_share),
    "runs": (lambda row: count_text(row.runs), lambda row: row.runs),
    "examples": (lambda row: count_text(row.examples), lambda row: row.examples),
    "relative_cost": (lambda row: _ratio_text(row.relative_cost), lambda row: row.relative_cost),
    "seconds": (lambda row: seconds_text(row.seconds), lambda row: row.seconds),
    "private": (_private_text, _private_text),
    "tables": (lambda row: str(row.tables), lambda row: row.tables),
    "seeds": (lambda row: str(row.seeds), lambda row: row.seeds),
}
"""By the key of a column, what gives the text of a row's cell, and what gives the value that it is sorted by."""

_LARGE_FIRST = {"gap_closed", "tables", "seeds"}


def _columns(measure: Measure | None, texts: dict[str, tuple[str, str]]) -> tuple[Column, ...]:
    """Columns with their headers and explanations, by key."""
    metric = lambda row: measure_text(row.utility, measure), lambda row: _mean(row.utility)
    noise = lambda row: measure_text(row.lost_to_noise, measure), lambda row: _mean(row.lost_to_noise)
    choice = lambda row: measure_text(row.lost_to_choice, measure), lambda row: _mean(row.lost_to_choice)
    large_first = _LARGE_FIRST | ({"metric"} if measure is None or measure.higher_is_better else set())
    cells = {**_CELLS, "metric": metric, "lost_to_noise": noise, "lost_to_choice": choice}
    return tuple(Column(key, *texts[key], *cells[key], ascending=key not in large_first) for key in texts)


def row_columns(measure: Measure | None, explains: bool = False) -> tuple[Column, ...]:
    """The columns of a table of one task at one ε.

    Args:
        measure: the metric; None for those of several tables, whose metrics differ.
        explains: whether the board tells why somebody lost.
    """
    closed = "Share of the way from untuned auto_clipping to the oracle; empty if they may be equal."
    recomputed = "ε of tuning and training, from the ledger of releases; never rounded down."
    metric = measure.header if measure else "metric"
    unit = ", %" if measure and measure.share else ""
    noise = "What the oracle is ahead by because ε, and held-out records, went into tuning: by two extra runs."
    choice = "What the oracle is ahead by because of other values; the two parts add up to its lead."
    why = {"lost_to_noise": (f"lost to noise{unit}", noise), "lost_to_choice": (f"lost to choice{unit}", choice)}
    return _columns(
        measure,
        {
            "method": ("method", "Its name, and the parameters in which its runs differ."),
            "metric": (metric, "Mean over seeds ± half of its 95 % interval (Student's t)."),
            "rank": ("rank", "The middle 95 % of its ranks when the seeds are resampled, the same for all."),
            "gap_closed": ("gap closed, %", closed),
            **(why if explains else {}),
            "epsilon": ("ε recomputed", recomputed),
            "accountant": ("by", "Accountant of this ε."),
            "audited": ("audited ε ≥", "Lower bound that an attack has shown."),
            "tuning_share": ("on tuning", "Share of ε that finding hyperparameters takes."),
            "runs": ("runs", "Training runs, in expectation."),
            "examples": ("examples", "Examples processed, in expectation."),
            "seconds": ("time", "Median over seeds, on the machines that ran them."),
            "private": ("end to end", "Whether ε covers tuning and training."),
            "seeds": ("seeds", "Finished runs, each with a seed of its own."),
        },
    )


def overall_columns(measure: Measure | None) -> tuple[Column, ...]:
    """The columns of an overall table; None: the metrics of its tables differ."""
    way = "the way from untuned auto_clipping to the oracle, summed over the tables"
    mean_rank = "Mean of its ranks in the tables, with the middle 95 % when tasks and seeds are resampled."
    metric = measure.header if measure else "metric"
    return _columns(
        measure,
        {
            "method": ("method", "Its name, and the parameters in which its runs differ."),
            "rank": ("rank", "The middle 95 % of its places by mean rank when tasks and seeds are resampled."),
            "mean_rank": ("mean rank", mean_rank),
            "metric": (metric, "Mean over the tables ± half of its 95 % interval over seeds."),
            "gap_closed": ("gap closed, %", f"Share of {way}; empty if they may be equal."),
            "epsilon_ratio": ("ε / target", "The largest recomputed ε as a share of the target's; never rounded down."),
            "accountant": ("by", "Accountants of these ε."),
            "tuning_share": ("on tuning", "Share of ε that finding hyperparameters takes; median."),
            "runs": ("runs", "Training runs; median."),
            "examples": ("examples", "Examples processed; median."),
            "relative_cost": ("cost", "Examples processed, relative to one untuned run; median."),
            "seconds": ("time", "Median over the tables."),
            "private": ("end to end", "Whether ε covers tuning and training."),
            "tables": ("tables", "How many of the counted tables it is in."),
            "seeds": ("seeds", "The fewest in any table."),
        },
    )
