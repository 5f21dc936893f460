"""Lower bounds on ε from right guesses about canaries that coin flips put in or left out.

Theorem 5.2 and Corollary 5.4 of Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run"
(arXiv:2305.08846), bound ε at one δ. Theorems 3.1 and 3.2 of Mahloujifar, Melis and Chaudhuri 2025, "Auditing
f-differential privacy in one run" (arXiv:2410.22235), with the cap of the authors' code, test the claim's whole privacy
curve; docs/auditing.md has a proof of this form. Both bound the same probability, so the smaller bound holds. Guesses
of several runs with fresh canaries count together: a coin changes only one of the runs (parallel composition).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
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
        delta: of the claim.
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
