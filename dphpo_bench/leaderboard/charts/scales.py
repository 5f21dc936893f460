"""From values to places."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dphpo_bench.leaderboard.values import Estimate


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, whose places are percents from `start` to `end`."""

    low: float
    high: float
    form: Callable[[float], float] = float
    start: float = 0.0
    end: float = 100.0

    def at(self, value: float) -> float:
        """Return the place of a value in percent; what lies outside is at the edge."""
        low, high = self.form(self.low), self.form(self.high)
        share = (self.form(min(max(value, self.low), self.high)) - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1) + 0.0

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def estimates_axis(estimates: Iterable[Estimate], *marks: float, start: float = 2.0, end: float = 98.0) -> Axis:
    """Return an axis for all means and marks, and for all intervals but those that would dwarf the rest."""
    known = list(estimates)
    inside = [*marks, *(estimate.mean for estimate in known)]
    room = (max(inside) - min(inside)) or abs(inside[0]) or 1.0
    ends = [end for estimate in known for end in (estimate.low, estimate.high) if end is not None]
    low = max(min(inside) - room, min([*inside, *ends]))
    high = min(max(inside) + room, max([*inside, *ends]))
    if low == high:
        low, high = low - room / 2, high + room / 2
    return Axis(low, high, start=start, end=end)


def log_axis(values: Sequence[float], start: float = 4.0, end: float = 96.0) -> Axis:
    low, high = min(values), max(values)
    return Axis(low, high if high > low else 2 * low, math.log, start, end)


def ticks(axis: Axis, most: int = 6) -> list[float]:
    exponent = math.floor(math.log10((axis.high - axis.low) / most))
    for step in (first * 10.0**at for at in (exponent, exponent + 1, exponent + 2) for first in (1, 2, 5)):
        places = range(math.ceil(axis.low / step), math.floor(axis.high / step) + 1)
        if len(places) <= most:
            break
    return [float(f"{at * step:.9g}") for at in places]


def log_ticks(axis: Axis, most: int = 6) -> list[float]:
    """Return powers of ten on a logarithmic axis, with steps in between if there is room; its ends without any."""
    decades = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        values = [step * 10.0**decade for decade in decades for step in steps if axis.holds(step * 10.0**decade)]
        if len(values) <= most:
            return values or [axis.low, axis.high]
    return values[:: math.ceil(len(values) / most)]
