"""Estimates and differences of metrics as texts."""

import math

from dphpo_bench.leaderboard.values import Estimate
from dphpo_bench.records.measure import Measure

NOTHING = "–"


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
