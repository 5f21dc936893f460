"""Sizes of audits: the canaries and runs that can refute a claim."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dphpo_bench.audit.bounds import ceiling, refutable
from dphpo_bench.audit.curves import Curve

FEWEST = 300  # canaries of a run by default, or half of the records if that is less
MOST = 1000  # canaries of a run by default: each is another input of an attacked model
MOST_RUNS = 20  # runs by default: a claim that needs more is audited at the smallest size
MARGIN = 2  # share of the error probability that the p-value of all right guesses keeps to, at the default size
LARGEST = 100_000  # canaries of all runs, beyond which no size is looked for


@dataclass(frozen=True)
class Size:
    """Size of an audit: canaries of each run, and runs for each attack."""

    canaries: int
    runs: int

    @property
    def total(self) -> int:
        return self.canaries * self.runs

    @classmethod
    def of(cls, total: int, most: int) -> "Size":
        runs = math.ceil(total / most)
        return cls(math.ceil(total / runs), runs)


def default_size(curve: Curve, delta: float, error: float, most: int) -> Size:
    """Return a size at which right guesses refute the curve with a margin; the smallest if none is within reach.

    `error` is the error probability of the attack that may err most, `most` the canaries of a run.
    """
    least = min(FEWEST, most)
    total = _fewest(lambda total: refutable(total, delta, curve, error / MARGIN), least, MOST_RUNS * min(most, MOST))
    return Size(least, 1) if total is None else Size.of(total, min(most, MOST))


def size_for_curve(curve: Curve, delta: float, error: float, most: int) -> Size | None:
    """Return the smallest size at which right guesses refute the curve; None if it has more than `LARGEST` canaries."""
    total = _fewest(lambda total: refutable(total, delta, curve, error), 2, LARGEST) if curve else None
    return None if total is None else Size.of(total, most)


def size_for_epsilon(claimed: float, delta: float, error: float, most: int) -> Size | None:
    """Return the smallest size whose largest bound is above the claim; None as in `size_for_curve`."""
    if claimed >= -math.log(math.expm1(-math.log(error) / LARGEST)):  # the bound at δ = 0
        return None
    total = _fewest(lambda total: ceiling(total, delta, error) > claimed, 2, LARGEST)
    return None if total is None else Size.of(total, most)


def _fewest(enough: Callable[[int], bool], least: int, most: int) -> int | None:
    low, high = least - 1, least
    while not enough(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
