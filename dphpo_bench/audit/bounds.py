"""Lower bounds on ε from right guesses about canaries that coin flips put in or left out.

Theorem 5.2 and Corollary 5.4 of Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run"
(arXiv:2305.08846), bound ε at one δ. Theorems 3.1 and 3.2 of Mahloujifar, Melis and Chaudhuri 2025, "Auditing
f-differential privacy in one run" (arXiv:2410.22235), with the cap of the authors' code, test the claim's whole privacy
curve; docs/auditing.md has a proof of this form. Both bound the same probability, so the smaller bound holds. Guesses
of several runs with fresh canaries count together: a coin changes only one of the runs (parallel composition).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

ROUNDING = 1e-9  # more than the rounding errors of the recursion, as a share of the total probability
PER_DECADE = 2  # points of a curve for each factor of ten of δ. Six would lower p-values by a tenth

LARGEST_DELTA = 0.5
LARGEST_CLAIM = 500.0  # claims above this are refuted by no audit, and exponentials of some overflow


@dataclass(frozen=True)
class Guesses:
    """Numbers of an attack: of m canaries, r were guessed about, v of them correctly."""

    canaries: int
    guessed: int
    correct: int


Curve = Sequence[tuple[float, float]]
"""Pairs (ε, δ) that all hold at once, for adding and for removing a record; none: nothing is claimed."""


def claimed_curve(epsilon: "Callable[[float], float]", claim: tuple[float, float], error: float) -> Curve:
    """Return points of the curve that a plan claims, enough for tests at this error probability.

    Points of a δ far below the error probability refute nothing that others do not. `epsilon` is ∞ where it is not
    known; `claim` is (ε, δ) of the plan, and one of the points.
    """
    if claim[0] > LARGEST_CLAIM:
        return ()
    least = math.log10(max(claim[1], error / 100))
    steps = math.ceil(PER_DECADE * (math.log10(LARGEST_DELTA) - least))
    deltas = [10 ** (least + step / PER_DECADE) for step in range(steps)] + [LARGEST_DELTA]
    others = ((epsilon(delta), delta) for delta in deltas if delta > claim[1])
    return (claim, *(point for point in others if point[0] <= LARGEST_CLAIM))


def refutes(guesses: Guesses, curve: Curve, error: float) -> bool:
    """Return whether a mechanism of this curve has so many right guesses with a probability below `error`.

    The guesses may depend on everything that the mechanism released; their number may not.
    """
    return bool(curve) and least_total(guesses, curve, error) > 1 + ROUNDING


def least_total(guesses: Guesses, curve: Curve, tail: float) -> float:
    """Return the least sum of probabilities if so many right guesses have the probability `tail` (Algorithm 3).

    Above 1, they have not. The recursion stops there, so a larger number means nothing more.
    """
    total, canaries = guesses.guessed, guesses.canaries
    lines = [(delta, math.exp(-epsilon), delta + math.expm1(epsilon), math.exp(epsilon)) for epsilon, delta in curve]
    right, wrong = guesses.correct * tail, (total - guesses.correct) * tail  # expected numbers, on that event
    for count in range(guesses.correct - 1, -1, -1):
        share = right / canaries
        least = canaries * max(
            max((share - delta) * shrunk, grown * share - above) for delta, shrunk, above, grown in lines
        )
        if least <= wrong:
            break
        right += count / (total - count) * (least - wrong)
        wrong = least
        if right + wrong > total * (1 + 2 * ROUNDING):
            break
    return (right + wrong) / total if total else tail


LARGEST_EPSILON = 100.0  # more than any audit shows: with all of n guesses right, the bound is below ln n + 20

Sides = tuple[float, float]
"""Shares of the canaries that are guessed to be in, and to be out."""

SIDES: tuple[Sides, ...] = (
    *((0.01, 0.01), (0.025, 0.025), (0.05, 0.05), (0.1, 0.1), (0.25, 0.25), (0.5, 0.5)),
    (0.1, 0.0),  # a release without noise shows canaries that are in, and of no canary that it is out
)
"""Numbers of guesses that are tried, all fixed before any run."""

LARGE_DELTA = 0.1
"""Value of 2 m δ from which on an audit tries few numbers of guesses. The p-value has a term of 2 m δ / i, which
is small only with many more right guesses than expected, so each further test costs more than it may show."""

FEW_SIDES: tuple[Sides, ...] = ((0.1, 0.1), (0.1, 0.0))
MANY_GUESSES: Sides = (0.25, 0.25)
"""The only test where δ is large and none of `FEW_SIDES` could refute the curve."""


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on ε at the claim's δ, and what the same guesses say of the claim's whole curve."""

    epsilon: float  # ε is at least this, as the guesses show; 0 if they show nothing
    confidence: float  # probability that all of this is right
    guesses: Guesses
    ceiling: float  # the bound if all guesses had been right
    refutes: bool  # whether the guesses refute the curve
    refutable: bool  # whether right guesses alone would have refuted it


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return an upper bound on the probability of that many right guesses under (ε, δ)-DP (Theorem 5.2).

    f(v) + 2 m δ max_{1 ≤ i ≤ v} (f(v − i) − f(v)) / i with f(v) = Pr[Bin(r, e^ε / (1 + e^ε)) ≥ v].
    """
    right = 1 / (1 + math.exp(-epsilon))
    drops = np.arange(1, guesses.correct + 1)
    tail = float(binom.sf(guesses.correct - 1, guesses.guessed, right))
    if delta == 0 or not len(drops):
        return min(1.0, tail)
    gains = (binom.sf(guesses.correct - drops - 1, guesses.guessed, right) - tail) / drops
    return min(1.0, tail + 2 * guesses.canaries * delta * float(gains.max()))


@lru_cache(maxsize=1024)  # for each attack and number of runs, with all guesses right
def refuted_epsilon(guesses: Guesses, delta: float, error: float = 0.05) -> float:
    """Return the largest ε that so many right guesses refute at this error probability, by either theorem; at least 0.

    The guesses may depend on everything that the mechanism released; their number may not.
    """
    steinke_mahloujifar: tuple[Callable[[float], float], ...] = (
        lambda epsilon: p_value(guesses, epsilon, delta) - error,
        lambda epsilon: 1 + ROUNDING - least_total(guesses, [(epsilon, delta)], error),
    )
    # Both rise with ε. The bound is on the refuted side of the root.
    root = 0.0
    for excess in steinke_mahloujifar:
        if excess(root) < 0:
            root = brentq(excess, root, LARGEST_EPSILON, xtol=1e-9)
    return max(0.0, root - 1e-8)


def guess(scores: "NDArray[np.float64]", members: "NDArray[np.bool_]", sides: Sides) -> Guesses:
    """Guess that canaries with high scores are in and those with low scores are out, and count right guesses.

    A score, shape (m,), is higher if a canary seems to be in; NaN counts as the median.
    """
    canaries = len(scores)
    inside, outside = _numbers(canaries, sides)
    unknown = np.isnan(scores)
    known = np.sort(scores[~unknown])
    middle = known[len(known) // 2] if len(known) else 0.0
    order = np.argsort(np.where(unknown, middle, scores), kind="stable")
    right = np.count_nonzero(members[order[canaries - inside :]]) + np.count_nonzero(~members[order[:outside]])
    return Guesses(canaries, inside + outside, int(right))


def _numbers(canaries: int, sides: Sides) -> list[int]:
    return [max(1, math.floor(share * canaries)) if share else 0 for share in sides]


def all_right(canaries: int, sides: Sides) -> Guesses:
    """Return what an attack that errs nowhere has."""
    return Guesses(canaries, sum(_numbers(canaries, sides)), sum(_numbers(canaries, sides)))


def sides_for(canaries: int, delta: float, curve: Curve, error: float) -> Sequence[Sides]:
    """Return the tests that share an error probability: those whose right guesses refute the curve, if there are any.

    They depend on the claim and on the size alone.
    """
    usual = SIDES if 2 * canaries * delta < LARGE_DELTA else FEW_SIDES
    able = [sides for sides in usual if refutes(all_right(canaries, sides), curve, error / len(usual))]
    return able or (SIDES if usual is SIDES else (MANY_GUESSES,))


def ceiling(canaries: int, delta: float, error: float, curve: Curve = ()) -> float:
    """Return the largest ε that an audit of this claim and size can show."""
    tests = sides_for(canaries, delta, curve, error)
    return max(refuted_epsilon(all_right(canaries, sides), delta, error / len(tests)) for sides in tests)


def refutable(canaries: int, delta: float, curve: Curve, error: float) -> bool:
    """Return whether right guesses alone refute the curve."""
    tests = sides_for(canaries, delta, curve, error)
    return any(refutes(all_right(canaries, sides), curve, error / len(tests)) for sides in tests)


def best_bounds(
    attacks: "Sequence[tuple[NDArray[np.float64], NDArray[np.bool_]]]",
    delta: float,
    confidence: float,
    weights: Sequence[float],
    curves: Sequence[Curve],
) -> list[LowerBound]:
    """Return the best bound of each attack over several numbers of guesses, and whether any refutes the claim's curve.

    Each number is tested at a share of the error probability that is fixed in advance, so that all bounds hold at once
    with the stated confidence (union bound).

    Args:
        attacks: scores and coins of each, as in `guess`.
        confidence: of all bounds together.
        weights: the attacks' shares of the error probability, positive and of sum 1 at most.
        curves: of the claim, for each attack. Refuting a curve needs no error probability of its own: under the curve
            each of its points holds, too, and both tests bound the same probability.
    """
    best = []
    for (scores, members), weight, curve in zip(attacks, weights, curves, strict=True):
        error = (1 - confidence) * weight
        tests = [guess(scores, members, sides) for sides in sides_for(len(scores), delta, curve, error)]
        each = error / len(tests)
        strongest = max(tests, key=lambda guesses: refuted_epsilon(guesses, delta, each))
        best.append(
            LowerBound(
                refuted_epsilon(strongest, delta, each),
                confidence,
                strongest,
                ceiling(len(scores), delta, error, curve),
                any(refutes(guesses, curve, each) for guesses in tests),
                refutable(len(scores), delta, curve, error),
            )
        )
    return best


FEWEST = 1400  # canaries by default, in at most two runs
MOST = 1400  # canaries of a run by default: each is another input of an attacked model
MOST_RUNS = 20  # runs by default: a claim that needs more is audited at the smallest size
MARGIN = 2  # share of the error probability that the p-value of all right guesses keeps to, at the default size
LARGEST = 100_000  # canaries of all runs, beyond which no size is looked for


LARGEST_RATIO = 30.0  # μ of a Gaussian that hides nothing
CHANCE = 0.9  # statistical power of an audit against the faults that it says it finds


@dataclass(frozen=True)
class Reach:
    """Smallest faults that the white box finds nine times of ten, if it attacks Gaussian noise as well as possible."""

    noise: float  # the largest share of the claimed noise, if all releases have too little; 0: no share is found
    rate: float | None  # the least sample rate of a single release without noise; None: none is found


@dataclass(frozen=True)
class Size:
    """Size of an audit: canaries of each run, and runs for each attack."""

    canaries: int
    runs: int

    @property
    def total(self) -> int:
        return self.canaries * self.runs


def default_size(curve: Curve, delta: float, error: float, most: int) -> Size:
    """Return a size at which right guesses refute the curve with a margin; the smallest if none is within reach.

    `error` is the error probability of the attack that may err most, `most` the canaries of a run.
    """
    each = min(most, MOST)
    least, limit = min(FEWEST, 2 * each), MOST_RUNS * each
    return size_for_curve(curve, delta, error / MARGIN, each, least, limit) or Size(each, 1)


def size_for_curve(
    curve: Curve, delta: float, error: float, most: int, least: int = 2, limit: int = LARGEST
) -> Size | None:
    """Return the smallest size at which right guesses refute the curve; None if it has more than `limit` canaries."""
    total = _fewest(lambda total: refutable(total, delta, curve, error), least, limit) if curve else None
    if total is None:
        return None
    runs = math.ceil(total / most)
    return Size(math.ceil(total / runs), runs)


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
