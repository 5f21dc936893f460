"""The metric that tables and the board show, its direction, and means over runs with their 95 % intervals."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any

SHARES = frozenset({"accuracy", "balanced_accuracy", "f1", "roc_auc", "token_accuracy", "several metrics"})
"""Shares whose records hold name and direction alone. Those of all other shares say so: see `Measure.to_json`."""

LOGARITHMIC = frozenset({"perplexity"})
"""Metrics of which ratios mean something, not differences: those of logarithms of a perplexity are in nats."""

_RANGES = {
    "perplexity": (1.0, math.inf),
    "r2": (-math.inf, 1.0),
    "mean_squared_error": (0.0, math.inf),
}

TITLES = {"f1": "F1", "r2": "R²", "roc_auc": "ROC-AUC"}
"""Metrics that are not shown by their names."""


@dataclass(frozen=True, order=True, slots=True)
class Measure:
    """A metric by its name in records. Values of a share lie between 0 and 1, and are shown in per cent."""

    name: str = "accuracy"
    higher_is_better: bool = True
    share: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", self.share or self.name in SHARES)

    def to_json(self) -> dict[str, Any]:
        """Return the entry among the metrics of a record's facts."""
        values = {"name": self.name, "higher_is_better": self.higher_is_better}
        return {**values, "is_share": True} if self.share and self.name not in SHARES else values

    @property
    def logarithmic(self) -> bool:
        return self.name in LOGARITHMIC

    @property
    def unit(self) -> str:
        """The unit of differences, for people; empty for the unit of the metric."""
        return "points" if self.share else "nats" if self.logarithmic else ""

    @property
    def comparable(self) -> bool:
        """Return whether a hundredth of a score says much the same on every task: of a share, a nat or an R²."""
        return self.share or self.logarithmic or self.name == "r2"

    @property
    def range(self) -> tuple[float, float]:
        """The values that it can have."""
        return (0.0, 1.0) if self.share else _RANGES.get(self.name, (-math.inf, math.inf))

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def header(self) -> str:
        unit = f"{self.title}, %" if self.share else self.title
        return unit if self.higher_is_better else f"{unit} (lower is better)"

    def is_better(self, value: float, other: float) -> bool:
        return value > other if self.higher_is_better else value < other

    def score(self, value: float) -> float:
        """Return a score, where more is better: the value, or its logarithm, for which the value must be above zero."""
        size = math.log(value) if self.logarithmic else value
        return size if self.higher_is_better else -size

    def value(self, score: float) -> float:
        size = score if self.higher_is_better else -score
        return math.exp(size) if self.logarithmic else size

    def text(self, value: float) -> str:
        return f"{value:.2%}" if self.share else f"{value:.4g}"


ACCURACY = Measure()
SEVERAL = Measure("several metrics")
"""The measure of tables that each show another share; higher is better. No record can have this name."""


def compared_value(measure: Measure, value: float, facts: Mapping[str, Any]) -> float:
    """Return the value for comparisons: a perplexity counts as at most the number of classes, and as NaN below 1.

    A uniform guess has that perplexity. A confidently wrong model can have any; a single collapsed run would
    dominate means and ranks.
    """
    if not measure.logarithmic:
        return value
    classes = facts.get("n_classes")
    limited = min(value, classes) if type(classes) is int and classes > 1 else value
    return limited if limited >= 1 else math.nan


def shown_measure(facts: Mapping[str, Any], measured: Iterable[str] = ()) -> Measure:
    """Return the metric to show: the first in the task's facts, else the accuracy, else the first that was measured."""
    first = next(_declared(facts), None)
    if first:
        return first
    names = list(measured)
    return ACCURACY if "accuracy" in names or not names else Measure(names[0])


def measure_named(name: str, facts: Mapping[str, Any]) -> Measure:
    """Return a metric by its name, as the facts of a run's identity declare it; unless they do, higher is better."""
    return next((measure for measure in _declared(facts) if measure.name == name), Measure(name))


def _declared(facts: Mapping[str, Any]) -> Iterator[Measure]:
    """Yield the metrics that facts declare; a stranger's facts may hold anything."""
    entries = facts.get("metrics") or [facts.get("metric")]
    for entry in entries if isinstance(entries, list) else ():
        match entry:
            case {"name": str(name), "higher_is_better": bool(higher)}:
                yield Measure(name, higher, entry.get("is_share") is True)


CONFIDENCE = 0.95
NOTHING = "–"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and the ends of its 95 % interval, which a single seed does not have.

    That of a logarithmic metric is geometric, with an interval that is longer above the mean than below.
    """

    mean: float
    low: float | None = None
    high: float | None = None

    def through(self, form: Callable[[float], float]) -> "Estimate":
        if self.low is None or self.high is None:
            return Estimate(form(self.mean))
        return Estimate(form(self.mean), *sorted((form(self.low), form(self.high))))

    def inside(self, low: float, high: float) -> "Estimate":
        """Return the estimate with the part of its interval that lies in a range; a mean outside of it stays within."""
        if self.low is None or self.high is None:
            return self
        return Estimate(self.mean, min(max(self.low, low), self.mean), max(min(self.high, high), self.mean))

    @property
    def sign(self) -> int:
        """1 if it is above zero with 95 % confidence, −1 if below, else 0."""
        return 0 if self.low is None or self.high is None else (self.low > 0) - (self.high < 0)


@cache
def quantile(dof: float) -> float:
    """Return by how many standard errors a 95 % interval of Student's t reaches to either side."""
    from scipy.special import stdtrit

    return float(stdtrit(dof, (1 + CONFIDENCE) / 2))


def variance_of_mean(values: Sequence[float]) -> float | None:
    """Return the variance of the mean of these values; None of a single one."""
    count = len(values)
    if count < 2:
        return None
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count


def mean_interval(values: Sequence[float]) -> Estimate:
    mean, variance = fmean(values), variance_of_mean(values)
    if variance is None:
        return Estimate(mean)
    half = quantile(len(values) - 1) * math.sqrt(variance)
    return Estimate(mean, mean - half, mean + half)


def metric_mean(values: Sequence[float], measure: Measure) -> Estimate:
    """Return the mean of a metric over runs, with its interval; by logarithms for a logarithmic metric."""
    return metric_estimate(mean_interval([measure.score(value) for value in values]), measure)


def metric_estimate(scores: Estimate, measure: Measure) -> Estimate:
    """Return the metric of a mean score, with an interval inside of the metric's range."""
    return scores.through(measure.value).inside(*measure.range)


def measure_text(
    estimate: Estimate | None, measure: Measure | None, signed: bool = False, decimals: int | None = None
) -> str:
    """Return the mean with its interval, in percent or points if the metric is a share."""
    if estimate is None or measure is None:
        return NOTHING
    if decimals is None:
        half = 0.0 if estimate.high is None else estimate.high - estimate.mean
        decimals = 2 if measure.share else _decimals(max(abs(estimate.mean), half), measure)
    mean = (change_text if signed else _number)(estimate.mean, measure, decimals)
    interval = interval_text(estimate, measure, decimals, signed)
    return f"{mean} {interval}" if interval else mean


def metric_text(estimate: Estimate | None, measure: Measure | None) -> str:
    """Return the mean with its interval; of a logarithmic metric the geometric mean, by its own decimals."""
    logarithmic = estimate is not None and measure is not None and measure.logarithmic
    decimals = _decimals(estimate.mean, measure) if logarithmic and estimate and measure else None
    return measure_text(estimate, measure, decimals=decimals)


def interval_text(estimate: Estimate | None, measure: Measure, decimals: int | None = None, signed: bool = True) -> str:
    """Return ± and half of the interval; in brackets its ends, if the mean is not in its middle; empty without any."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    form = change_text if signed else _number
    if decimals is None:
        decimals = 1 if measure.share else _decimals(max(abs(estimate.mean), estimate.high - estimate.mean), measure)
    halves = {
        _number(half, measure, decimals) for half in (estimate.high - estimate.mean, estimate.mean - estimate.low)
    }
    if len(halves) == 1:
        return f"± {halves.pop()}"
    return f"[{form(estimate.low, measure, decimals)}, {form(estimate.high, measure, decimals)}]"


def change_text(value: float, measure: Measure, decimals: int | None = None) -> str:
    """Return a difference with its sign, such as −3.2; in points if the metric is a share."""
    if decimals is None:
        decimals = 1 if measure.share else _decimals(value, measure)
    text = _number(value, measure, decimals)
    return text if text.startswith("−") or not text.strip("0.") else f"+{text}"


def _decimals(value: float, measure: Measure) -> int:
    """Return how many decimals a number needs for three significant digits; of an R², three at most."""
    most = 3 if measure.name == "r2" else 6
    return min(most, max(0, 2 - math.floor(math.log10(abs(value))))) if value else 2


def _number(value: float, measure: Measure, decimals: int) -> str:
    text = f"{100 * value if measure.share else value:.{decimals}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")
