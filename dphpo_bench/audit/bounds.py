"""Lower bounds on ε from the number of right guesses about canaries that coin flips put in or left out.

Theorem 5.2 and Corollary 5.4 of Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run"
(arXiv:2305.08846), and `audit.curves`: both bound the same probability, so the smaller bound holds. Guesses of several
runs with fresh canaries count together: a coin changes only one of the runs (parallel composition).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom

from dphpo_bench.audit.curves import ROUNDING, Curve, Guesses, least_total, refutes

LARGEST_EPSILON = 100.0  # more than any audit shows: with all of n guesses right, the bound is below ln n + 20

SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the canaries that are guessed about, half as in and half as out; fixed before any run."""

LARGE_DELTA = 0.1
"""Value of 2 m δ from which on an audit tries a single number of guesses. The p-value has a term of 2 m δ / i, which
is small only with many more right guesses than expected, so each further test costs more than it may show."""


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


def guess(scores: "NDArray[np.float64]", members: "NDArray[np.bool_]", share: float) -> Guesses:
    """Guess that canaries with high scores are in and those with low scores are out, and count right guesses.

    A score, shape (m,), is higher if a canary seems to be in; NaN counts as the median.
    """
    canaries = len(scores)
    each = _on_each_side(canaries, share)
    unknown = np.isnan(scores)
    known = np.sort(scores[~unknown])
    middle = known[len(known) // 2] if len(known) else 0.0
    order = np.argsort(np.where(unknown, middle, scores), kind="stable")
    correct = int(np.count_nonzero(members[order[-each:]]) + np.count_nonzero(~members[order[:each]]))
    return Guesses(canaries, 2 * each, correct)


def _on_each_side(canaries: int, share: float) -> int:
    return max(1, math.floor(share * canaries / 2))


def _shares(canaries: int, delta: float) -> tuple[float, ...]:
    return SHARES if 2 * canaries * delta < LARGE_DELTA else (0.5,)


def _all_right(canaries: int, delta: float) -> list[Guesses]:
    guessed = [2 * _on_each_side(canaries, share) for share in _shares(canaries, delta)]
    return [Guesses(canaries, number, number) for number in guessed]


def ceiling(canaries: int, delta: float, error: float) -> float:
    tests = _all_right(canaries, delta)
    return max(refuted_epsilon(guesses, delta, error / len(tests)) for guesses in tests)


def refutable(canaries: int, delta: float, curve: Curve, error: float) -> bool:
    tests = _all_right(canaries, delta)
    return any(refutes(guesses, curve, error / len(tests)) for guesses in tests)


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
        tests = [guess(scores, members, share) for share in _shares(len(scores), delta)]
        each = error / len(tests)
        strongest = max(tests, key=lambda guesses: refuted_epsilon(guesses, delta, each))
        best.append(
            LowerBound(
                refuted_epsilon(strongest, delta, each),
                confidence,
                strongest,
                ceiling(len(scores), delta, error),
                any(refutes(guesses, curve, each) for guesses in tests),
                refutable(len(scores), delta, curve, error),
            )
        )
    return best
