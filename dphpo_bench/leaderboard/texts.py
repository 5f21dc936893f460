"""Estimates and differences of metrics as texts."""

import math

from dphpo_bench.leaderboard.values import Estimate
from dphpo_bench.records.measure import Measure

NOTHING = "–"


def measure_text(
    estimate: Estimate | None, measure: Measure | None, signed: bool = False, decimals: int | None = None
) -> str:
    """Return mean ± half of its interval, which is symmetric; in percent or points if the metric is a share."""
    if estimate is None or measure is None:
        return NOTHING
    half = None if estimate.high is None else estimate.high - estimate.mean
    if decimals is None:
        decimals = 2 if measure.share else _decimals(max(abs(estimate.mean), half or 0.0))
    mean = (change_text if signed else _number)(estimate.mean, measure, decimals)
    return mean if half is None else f"{mean} ± {_number(half, measure, decimals)}"


def metric_text(estimate: Estimate | None, measure: Measure | None) -> str:
    """Return mean ± half of its interval; of a logarithmic metric the geometric mean, and in brackets the ends."""
    if estimate is None or measure is None or not measure.logarithmic or estimate.low is None or estimate.high is None:
        return measure_text(estimate, measure)
    decimals = _decimals(estimate.mean)
    mean, low, high = (_number(value, measure, decimals) for value in (estimate.mean, estimate.low, estimate.high))
    return f"{mean} [{low}, {high}]"


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
