"""Means over runs with their 95 % intervals, in the units of a metric, and as texts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from dphpo_bench.records.measure import Measure

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
        decimals = 2 if measure.share else _decimals(max(abs(estimate.mean), half))
    mean = (change_text if signed else _number)(estimate.mean, measure, decimals)
    interval = interval_text(estimate, measure, decimals, signed)
    return f"{mean} {interval}" if interval else mean


def metric_text(estimate: Estimate | None, measure: Measure | None) -> str:
    """Return the mean with its interval; of a logarithmic metric the geometric mean, by its own decimals."""
    logarithmic = estimate is not None and measure is not None and measure.logarithmic
    return measure_text(estimate, measure, decimals=_decimals(estimate.mean) if logarithmic and estimate else None)


def interval_text(estimate: Estimate | None, measure: Measure, decimals: int | None = None, signed: bool = True) -> str:
    """Return ± and half of the interval; in brackets its ends, if the mean is not in its middle; empty without any."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    form = change_text if signed else _number
    if decimals is None:
        decimals = 1 if measure.share else _decimals(max(abs(estimate.mean), estimate.high - estimate.mean))
    halves = {
        _number(half, measure, decimals) for half in (estimate.high - estimate.mean, estimate.mean - estimate.low)
    }
    if len(halves) == 1:
        return f"± {halves.pop()}"
    return f"[{form(estimate.low, measure, decimals)}, {form(estimate.high, measure, decimals)}]"


def change_text(value: float, measure: Measure, decimals: int | None = None) -> str:
    """Return a difference with its sign, such as −3.2; in points if the metric is a share."""
    if decimals is None:
        decimals = 1 if measure.share else _decimals(value)
    text = _number(value, measure, decimals)
    return text if text.startswith("−") or not text.strip("0.") else f"+{text}"


def _decimals(value: float) -> int:
    """Return how many decimals a number needs for three significant digits."""
    return min(6, max(0, 2 - math.floor(math.log10(abs(value))))) if value else 2


def _number(value: float, measure: Measure, decimals: int) -> str:
    text = f"{100 * value if measure.share else value:.{decimals}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")
