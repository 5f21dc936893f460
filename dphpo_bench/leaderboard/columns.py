"""The columns of the tables, for Markdown and the page: header, explanation, text and value of each."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dphpo_bench.base.text import rounded_up
from dphpo_bench.leaderboard.board import Estimate, OverallRow, Ranks, Row
from dphpo_bench.privacy.risk import Risk
from dphpo_bench.records.measure import Measure

NOTHING = "–"
CROSS_ENTROPY = Measure("cross_entropy", higher_is_better=False)


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


def measure_text(
    estimate: Estimate | None, measure: Measure | None, signed: bool = False, decimals: int | None = None
) -> str:
    """Mean ± half of its interval, which is symmetric; in percent or points if the metric is a share."""
    if estimate is None or measure is None:
        return NOTHING
    half = None if estimate.high is None else estimate.high - estimate.mean
    if decimals is None:
        decimals = 2 if measure.share else _decimals(max(abs(estimate.mean), half or 0.0))
    mean = (change_text if signed else _number)(estimate.mean, measure, decimals)
    return mean if half is None else f"{mean} ± {_number(half, measure, decimals)}"


def metric_text(estimate: Estimate | None, measure: Measure | None) -> str:
    """Mean ± half of its interval; of a logarithmic metric the geometric mean, and in brackets the ends."""
    if estimate is None or measure is None or not measure.logarithmic or estimate.low is None or estimate.high is None:
        return measure_text(estimate, measure)
    decimals = _decimals(estimate.mean)
    mean, low, high = (_number(one, measure, decimals) for one in (estimate.mean, estimate.low, estimate.high))
    return f"{mean} [{low}, {high}]"


def change_text(value: float, measure: Measure, decimals: int | None = None) -> str:
    """A difference with its sign, such as −3.2; in points if the metric is a share."""
    if decimals is None:
        decimals = 1 if measure.share else _decimals(value)
    text = _number(value, measure, decimals)
    return text if text.startswith("−") or not text.strip("0.") else f"+{text}"


def _decimals(value: float) -> int:
    """How many decimals a number needs for three significant digits."""
    return min(6, max(0, 2 - math.floor(math.log10(abs(value))))) if value else 2


def _number(value: float, measure: Measure, decimals: int) -> str:
    text = f"{100 * value if measure.share else value:.{decimals}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")


def ranks_text(ranks: Ranks | None) -> str:
    """Such as 1–3, or 2 if both ends are the same."""
    if ranks is None:
        return NOTHING
    return str(ranks.low) if ranks.low == ranks.high else f"{ranks.low}–{ranks.high}"


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


def _figure(value: float | None, form: str = ".3g", size: float = 1.0) -> str:
    """A number in units of `size`; large ones without an exponent."""
    if value is None:
        return NOTHING
    return f"{value / size:,.0f}" if value / size >= 1000 else f"{value / size:{form}}"


def label_text(row: Row | OverallRow) -> str:
    """The label, with marks for few or lacking seeds, failures, an audit that contradicts ε, and no privacy."""
    told = (
        row.few_seeds,
        row.lacks_seeds,
        row.failed,
        row.contradicted,
        not row.contestant.end_to_end_private,
    )
    marks = "".join(mark for (mark, _), so in zip(MARKS, told, strict=True) if so)
    return row.contestant.label + (f" {marks}" if marks else "")


MARKS = (
    ("†", "fewer than three seeds: the interval says little"),
    ("§", "lacks seeds that the suite asks for: it is compared with nobody"),
    ("‡", "some runs failed: they count as the worst value in ranks and gaps"),
    ("!", "an attack has shown more than the ε that is claimed"),
    ("∞", "not private: its ε is infinite"),
)


def audited_text(audited: float | None) -> str:
    """An audited lower bound, rounded down."""
    return NOTHING if audited is None else f"{math.floor(audited * 100 * (1 + 1e-9)) / 100:.2f}"


def risk_text(risk: Risk | None) -> str:
    """Return the proven true positives at 1 % false positives in percent, rounded up."""
    return NOTHING if risk is None else rounded_up(100 * risk.tpr_at_1pct, 3)


def _mean(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.mean


def _middle(ranks: Ranks | None) -> float | None:
    return None if ranks is None else (ranks.low + ranks.high) / 2


def _negative(estimate: Estimate | None) -> Estimate | None:
    if estimate is None or estimate.low is None or estimate.high is None:
        return estimate and Estimate(-estimate.mean)
    return Estimate(-estimate.mean, -estimate.high, -estimate.low)


def _accountants(row: Row | OverallRow) -> str:
    return row.accountant if isinstance(row, Row) else ", ".join(row.accountants)


Cells = tuple[Callable[[Any], str], Callable[[Any], float | str | None]]
"""What gives the text of a row's cell, and what gives the value that it is sorted by."""

_CELLS: dict[str, Cells] = {
    "method": (label_text, label_text),
    "rank": (lambda row: ranks_text(row.ranks), lambda row: _middle(row.ranks)),
    "mean_rank": (
        lambda row: f"{row.mean_rank.mean:.2f}" if row.mean_rank else NOTHING,
        lambda row: _mean(row.mean_rank),
    ),
    "cross_entropy": (
        lambda row: measure_text(row.cross_entropy, CROSS_ENTROPY, decimals=3),
        lambda row: _mean(row.cross_entropy),
    ),
    "epsilon": (lambda row: epsilon_text(row.epsilon), lambda row: row.epsilon),
    "epsilon_ratio": (lambda row: epsilon_text(row.epsilon_ratio), lambda row: row.epsilon_ratio),
    "accountant": (lambda row: _accountants(row) or NOTHING, _accountants),
    "audited": (lambda row: audited_text(row.audited), lambda row: row.audited),
    "risk": (lambda row: risk_text(row.risk), lambda row: row.risk and row.risk.tpr_at_1pct),
    "tuning_share": (lambda row: f"{100 * row.tuning_share:.1f}", lambda row: row.tuning_share),
    "runs": (lambda row: _figure(row.runs), lambda row: row.runs),
    "examples": (lambda row: _figure(row.examples, ".0f", 1000), lambda row: row.examples),
    "relative_cost": (lambda row: _figure(row.relative_cost), lambda row: row.relative_cost),
    "seconds": (lambda row: _figure(row.seconds), lambda row: row.seconds),
    "tables": (lambda row: str(row.tables), lambda row: row.tables),
    "seeds": (lambda row: str(row.seeds), lambda row: row.seeds),
}
"""By the key of a column."""

_LARGE_FIRST = {"to_oracle", "to_untuned", "tables", "seeds"}


def _columns(measure: Measure | None, texts: dict[str, tuple[str, str]]) -> tuple[Column, ...]:
    """Columns with their headers and explanations, by key."""

    def cells(of: Callable[[Any], Estimate | None], signed: bool = False) -> Cells:
        return lambda row: measure_text(of(row), measure, signed), lambda row: _mean(of(row))

    by_key = {
        **_CELLS,
        "metric": (lambda row: metric_text(row.utility, measure), lambda row: _mean(row.utility)),
        "to_oracle": cells(lambda row: _negative(row.gap_to_oracle), signed=True),
        "to_untuned": cells(lambda row: row.gap_to_untuned, signed=True),
        "lost_to_noise": cells(lambda row: row.lost_to_noise),
        "lost_to_choice": cells(lambda row: row.lost_to_choice),
    }
    large_first = _LARGE_FIRST | ({"metric"} if measure is None or measure.higher_is_better else set())
    return tuple(Column(key, *texts[key], *by_key[key], ascending=key not in large_first) for key in texts)


def varying(columns: Iterable[Column], rows: Sequence[Any]) -> tuple[list[Column], list[str]]:
    """The columns in which ranked rows differ, and what is the same for all of them, such as "seeds 5".

    A column in which nothing is known is neither.
    """
    kept, same = [], []
    for column in columns:
        texts = {column.text(row) for row in rows}
        if len(texts) > 1 or column.key == "method":
            kept.append(column)
        elif texts != {NOTHING}:
            same.append(f"{column.header} {texts.pop()}")
    return kept, same


def row_columns(measure: Measure | None, explains: bool = False) -> tuple[Column, ...]:
    """The columns of a table of one task at one ε.

    Args:
        measure: the metric; None for those of several tables, whose metrics differ.
        explains: whether the board tells why somebody lost.
    """
    metric = measure.header if measure else "metric"
    mean, interval = _mean_words(measure)
    unit = f", {measure.unit}" if measure and measure.unit else ""
    noise = "What the oracle is ahead by because ε, and held-out records, went into tuning: by two extra runs."
    choice = "What the oracle is ahead by because of other values; the two parts add up to its lead."
    why = {"lost_to_noise": (f"lost to noise{unit}", noise), "lost_to_choice": (f"lost to choice{unit}", choice)}
    return _columns(
        measure,
        {
            "method": ("method", "Its name, and the parameters in which its runs differ."),
            "metric": (metric, f"{mean} over seeds {interval} (Student's t)."),
            "cross_entropy": (
                "cross entropy",
                "Of the test data, in nats: smaller where probabilities can be trusted.",
            ),
            "to_oracle": (f"to the oracle{unit}", "By how much it is better than the oracle, seed by seed."),
            "to_untuned": (f"to untuned{unit}", "By how much it is better than auto_clipping, seed by seed."),
            **(why if explains else {}),
            "rank": ("rank", "The middle 95 % of its ranks when the seeds are resampled, the same for all."),
            "epsilon": ("ε recomputed", "ε of tuning and training, from the ledger of releases; never rounded down."),
            "accountant": ("by", "Accountant of this ε."),
            "audited": ("audited ε ≥", "Lower bound that an attack has shown, if anyone has attacked it."),
            "risk": (
                "found at 1 % false alarms, % ≤",
                "Most present records that any attack finds while it takes 1 % of absent ones for present: proven from "
                "the ledger, rounded up; what leaks may be far less.",
            ),
            "tuning_share": ("on tuning, % of ε", "Share of ε that finding hyperparameters takes."),
            "runs": ("runs", "Training runs, in expectation."),
            "examples": ("examples, k", "Thousands of examples processed, in expectation."),
            "seconds": ("time, s", "Median over seeds, on the machines that ran them."),
            "seeds": ("seeds", "Finished runs, each with a seed of its own."),
        },
    )


def _mean_words(measure: Measure | None) -> tuple[str, str]:
    if measure and measure.logarithmic:
        return "Geometric mean", "and the ends of its 95 % interval"
    return "Mean", "± half of its 95 % interval"


def overall_columns(measure: Measure | None) -> tuple[Column, ...]:
    """The columns of an overall table; None: the metrics of its tables differ."""
    metric = measure.header if measure else "metric"
    mean, interval = _mean_words(measure)
    unit = f", {measure.unit}" if measure and measure.unit else ""
    return _columns(
        measure,
        {
            "method": ("method", "Its name, and the parameters in which its runs differ."),
            "rank": ("rank", "The middle 95 % of its places by mean rank when tasks and seeds are resampled."),
            "mean_rank": ("mean rank", "Mean of its ranks in the tables."),
            "metric": (metric, f"{mean} over the tables {interval} over seeds."),
            "cross_entropy": ("cross entropy", "Mean over the tables, in nats: smaller is better."),
            "to_oracle": (f"to the oracle{unit}", "By how much it is better than the oracle, mean over the tables."),
            "epsilon_ratio": ("ε / target", "The largest recomputed ε as a share of the target's; never rounded down."),
            "accountant": ("by", "Accountants of these ε."),
            "tuning_share": ("on tuning, % of ε", "Share of ε that finding hyperparameters takes; median."),
            "runs": ("runs", "Training runs; median."),
            "examples": ("examples, k", "Thousands of examples processed; median."),
            "relative_cost": ("cost, untuned runs", "Examples processed, relative to one untuned run; median."),
            "seconds": ("time, s", "Median over the tables."),
            "tables": ("tables", "How many of the counted tables it is in."),
            "seeds": ("seeds, at least", "The fewest in any table."),
        },
    )
