"""Guesses about canaries against a whole privacy curve, of which (ε, δ) is one point.

Theorems 3.1 and 3.2 of Mahloujifar, Melis and Chaudhuri 2025, "Auditing f-differential privacy in one run"
(arXiv:2410.22235), with the cap of the authors' code; docs/auditing.md has a proof of this form.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDING = 1e-9  # more than the rounding errors of the recursion, as a share of the total probability
PER_DECADE = 2  # points of a curve for each factor of ten of δ. Six would lower p-values by a tenth

LARGEST_DELTA = 0.5
LARGEST_EPSILON = 500.0  # claims above this are refuted by no audit, and exponentials of some overflow


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
    if claim[0] > LARGEST_EPSILON:
        return ()
    least = math.log10(max(claim[1], error / 100))
    steps = math.ceil(PER_DECADE * (math.log10(LARGEST_DELTA) - least))
    deltas = [10 ** (least + step / PER_DECADE) for step in range(steps)] + [LARGEST_DELTA]
    others = ((epsilon(delta), delta) for delta in deltas if delta > claim[1])
    return (claim, *(point for point in others if point[0] <= LARGEST_EPSILON))


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
