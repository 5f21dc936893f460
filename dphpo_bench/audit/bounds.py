"""Lower bounds on ε from the number of right guesses about canaries that coin flips put in or left out.

Theorem 5.2 and Corollary 5.4 of Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run"
(arXiv:2305.08846). The mechanism may run several times, each time with fresh canaries: a coin then changes only one of
the runs, so for the coins all runs together are as private as one (parallel composition), and their guesses count
together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom

from dphpo_bench.base.errors import InvalidValueError

LARGEST_EPSILON = 100.0
"""More than any audit shows: with all of n guesses right, the bound is below ln n + 20."""

SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the canaries that are guessed about, half as in and half as out; fixed before any run."""

LARGE_DELTA = 0.1
"""Of 2 m δ: from there on, only one number of guesses is tried. The p-value has a term of 2 m δ / i, which is small
only with many more right guesses than expected, so each further test costs more than it may show."""


@dataclass(frozen=True)
class Guesses:
    """How well an attacker guessed: of m canaries, r were guessed about, and v of these guesses were correct."""

    canaries: int
    guessed: int
    correct: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.guessed <= self.canaries:
            raise InvalidValueError(f"Expected 0 <= correct <= guessed <= canaries, got {self}.")


@dataclass(frozen=True)
class LowerBound:
    """With this confidence, ε is at least `epsilon`, as the guesses show; 0 if they show nothing."""

    epsilon: float
    confidence: float
    guesses: Guesses


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """An upper bound on the probability of that many right guesses under (ε, δ)-DP (Theorem 5.2).

    f(v) + 2 m δ max_{1 ≤ i ≤ v} (f(v − i) − f(v)) / i with f(v) = Pr[Bin(r, e^ε / (1 + e^ε)) ≥ v].
    """
    right = 1 / (1 + math.exp(-epsilon))
    drops = np.arange(1, guesses.correct + 1)
    tail = float(binom.sf(guesses.correct - 1, guesses.guessed, right))
    if delta == 0 or not len(drops):
        return min(1.0, tail)
    gains = (binom.sf(guesses.correct - drops - 1, guesses.guessed, right) - tail) / drops
    return min(1.0, tail + 2 * guesses.canaries * delta * float(gains.max()))


def lower_bound(guesses: Guesses, delta: float, confidence: float = 0.95) -> LowerBound:
    """The largest ε that so many right guesses refute with this confidence (Corollary 5.4).

    The guesses may depend on everything that the mechanism released; their number may not.

    Raises:
        InvalidValueError: if a value is out of range.
    """
    if not 0 < confidence < 1:
        raise InvalidValueError(f"Expected 0 < confidence < 1, got {confidence}.")
    if not 0 <= delta < 1:
        raise InvalidValueError(f"Expected 0 <= delta < 1, got {delta}.")

    def excess(epsilon: float) -> float:
        return p_value(guesses, epsilon, delta) - (1 - confidence)

    if excess(0.0) >= 0:
        return LowerBound(0.0, confidence, guesses)
    # The p-value rises with ε, to 1. The bound is on the refuted side of the root.
    root = brentq(excess, 0.0, LARGEST_EPSILON, xtol=1e-9)
    return LowerBound(max(0.0, root - 1e-8), confidence, guesses)


def guess(scores: "NDArray[np.float64]", members: "NDArray[np.bool_]", share: float) -> Guesses:
    """Guess that canaries with high scores are in and those with low scores are out, and count right guesses.

    Args:
        scores: shape (m,), higher if a canary seems to be in. NaN counts as the median.
        members: shape (m,), whether each canary is in.
        share: of the canaries that are guessed about, in (0, 1].
    """
    canaries = len(scores)
    each = max(1, math.floor(share * canaries / 2))
    if canaries < 2:
        raise InvalidValueError(f"Expected at least 2 canaries, got {canaries}.")
    unknown = np.isnan(scores)
    known = np.sort(scores[~unknown])
    middle = known[len(known) // 2] if len(known) else 0.0
    order = np.argsort(np.where(unknown, middle, scores), kind="stable")
    correct = int(np.count_nonzero(members[order[-each:]]) + np.count_nonzero(~members[order[:each]]))
    return Guesses(canaries, 2 * each, correct)


def best_bounds(
    attacks: "Sequence[tuple[NDArray[np.float64], NDArray[np.bool_]]]",
    delta: float,
    confidence: float,
    weights: Sequence[float] | None = None,
) -> list[LowerBound]:
    """The best bound of each attack over several numbers of guesses.

    Each number is tested at a share of the error probability that is fixed in advance, so that all bounds hold at once
    with the stated confidence (union bound).

    Args:
        attacks: scores and coins of each, as in `guess`.
        delta: δ of the claim.
        confidence: of all bounds together.
        weights: the attacks' shares of the error probability, of sum 1 at most; None: equal shares.

    Raises:
        InvalidValueError: if a value is out of range.
    """
    weights = [1 / len(attacks)] * len(attacks) if weights is None else list(weights)
    if min(weights) <= 0 or sum(weights) > 1 + 1e-9:
        raise InvalidValueError(f"Expected positive weights of sum 1 at most, got {weights}.")
    best = []
    for (scores, members), weight in zip(attacks, weights, strict=True):
        shares = SHARES if 2 * len(scores) * delta < LARGE_DELTA else (0.5,)
        each = 1 - (1 - confidence) * weight / len(shares)
        bounds = [lower_bound(guess(scores, members, share), delta, each) for share in shares]
        best.append(replace(max(bounds, key=lambda bound: bound.epsilon), confidence=confidence))
    return best
