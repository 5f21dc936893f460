"""Sizes of audits: the canaries and runs that can refute a claim."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

from dphpo_bench.audit.bounds import Curve, Sides, all_right, ceiling, refutable, refutes, sides_for

FEWEST = 1400  # canaries by default, in at most two runs
MOST = 1400  # canaries of a run by default: each is another input of an attacked model
MOST_RUNS = 20  # runs by default: a claim that needs more is audited at the smallest size
MARGIN = 2  # share of the error probability that the p-value of all right guesses keeps to, at the default size
LARGEST = 100_000  # canaries of all runs, beyond which no size is looked for


LARGEST_RATIO = 30.0  # μ of a Gaussian that hides nothing
CHANCE = 0.9  # statistical power of an audit against the faults that it says it finds


@dataclass(frozen=True)
class Reach:
    """Smallest faults that the white box finds nine times of ten, if it attacks Gaussian noise as well as possible.

    Attributes:
        noise: the largest share of the claimed noise, if all releases have too little; 0: no share is found.
        rate: the least sample rate of a single release without noise; None: none is found.
    """

    noise: float
    rate: float | None


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
    each = min(most, MOST)
    total = _fewest(
        lambda total: refutable(total, delta, curve, error / MARGIN), min(FEWEST, 2 * each), MOST_RUNS * each
    )
    return Size(each, 1) if total is None else Size.of(total, each)


def size_for_curve(curve: Curve, delta: float, error: float, most: int) -> Size | None:
    """Return the smallest size at which right guesses refute the curve; None if it has more than `LARGEST` canaries."""
    total = _fewest(lambda total: refutable(total, delta, curve, error), 2, LARGEST) if curve else None
    return None if total is None else Size.of(total, most)


def size_for_epsilon(claimed: float, delta: float, error: float, most: int, curve: Curve = ()) -> Size | None:
    """Return the smallest size whose largest bound is above the claim; None as in `size_for_curve`."""
    if claimed >= -math.log(math.expm1(-math.log(error) / LARGEST)):  # the bound at δ = 0
        return None
    total = _fewest(lambda total: ceiling(total, delta, error, curve) > claimed, 2, LARGEST)
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


def reach(total: int, delta: float, curve: Curve, error: float) -> Reach:
    """Return what an audit with so many canaries finds if it has this claim and error probability."""
    tests = sides_for(total, delta, curve, error)
    ratios, rates = zip(*(_found_by(total, sides, curve, error / len(tests)) for sides in tests), strict=True)
    epsilon, at = curve[0]
    claimed = _root(lambda mu: CHANCE + _gaussian_delta(epsilon, mu) - at, LARGEST_RATIO)
    return Reach(claimed / min(ratios) if min(ratios) < math.inf else 0.0, min(rates) if min(rates) <= 1 else None)


def _found_by(total: int, sides: Sides, curve: Curve, error: float) -> tuple[float, float]:
    """Return the least μ of Gaussian DP, and the least sample rate without noise, that one test finds; or infinity."""
    every = all_right(total, sides)
    right = _fewest(lambda correct: refutes(replace(every, correct=correct), curve, error), 1, every.guessed)
    if right is None:
        return math.inf, math.inf
    enough = right - 1
    ratio = _root(lambda mu: binom.sf(enough, every.guessed, _right_share(mu, max(sides))), LARGEST_RATIO)
    # A batch without noise shows the canaries that it drew, of the half that is in. It shows none that is out.
    return ratio, math.inf if sides[1] else _root(lambda rate: binom.sf(enough, total, rate / 2), 1.0)


def _root(chance: Callable[[float], float], most: float) -> float:
    """Return where a rising chance reaches `CHANCE`; infinity if that is past `most`."""
    return float(brentq(lambda at: chance(at) - CHANCE, 1e-6, most)) if chance(most) >= CHANCE else math.inf


def _right_share(mu: float, side: float) -> float:
    """Return the share of right guesses about the extremes, `side` of the canaries each, in Gaussian DP of μ."""

    def beyond(edge: float) -> tuple[float, float]:
        return float(ndtr(mu / 2 - edge)), float(ndtr(-mu / 2 - edge))

    inside, outside = beyond(brentq(lambda edge: sum(beyond(edge)) / 2 - side, -50.0, 50.0))
    return inside / (inside + outside)


def _gaussian_delta(epsilon: float, mu: float) -> float:
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))
