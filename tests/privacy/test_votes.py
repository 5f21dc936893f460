"""Noisy counts of the parts' candidates: every pair of neighbours, and the exact distribution of the winner."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from scipy.special import ndtr

from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.events import gaussian
from tests.privacy.brute_force import hockey_stick

PARTS, CANDIDATES = 3, 3
VOTES = [
    np.isin(range(CANDIDATES), tied) / len(tied)
    for size in range(1, CANDIDATES + 1)
    for tied in itertools.combinations(range(CANDIDATES), size)
]
"""Every vote of a part: shared among any set of candidates that tie."""


def neighbours() -> set[tuple[tuple[float, ...], ...]]:
    """The counts before and after a record comes or goes: one part votes otherwise, in any way."""
    others = [sum(parts) for parts in itertools.product(VOTES, repeat=PARTS - 1)]
    pairs = itertools.product(others, itertools.permutations(VOTES, 2))
    return {tuple(tuple((other + vote).round(12)) for vote in pair) for other, pair in pairs}


@cache
def winner(given: tuple[float, ...], deviation: float) -> np.ndarray:
    """P(candidate i has the largest noisy count), by quadrature."""
    counts = np.array(given)
    x = np.linspace(min(counts) - 9 * deviation, max(counts) + 9 * deviation, 1001)
    below = ndtr((x[:, None] - counts) / deviation)
    density = np.exp(-(((x[:, None] - counts) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))
    rest = np.stack([np.delete(below, i, axis=1).prod(axis=1) for i in range(len(counts))], axis=1)
    return np.trapezoid(density * rest, x, axis=0)


def test_one_record_moves_the_counts_by_the_root_of_two_at_most() -> None:
    distances = [math.dist(*pair) for pair in neighbours()]
    assert max(distances) == pytest.approx(math.sqrt(2), abs=1e-9)


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_no_winner_tells_more_than_is_charged(noise: float) -> None:
    """Exactly, over all neighbours: δ of the winner is at most δ of the event, and with half of the noise it is not."""
    for delta in (0.1, 0.01):
        claimed = epsilon(gaussian(noise), delta).epsilon
        for share, kept in ((1.0, True), (0.5, False)):
            seen = [[winner(counts, share * noise * math.sqrt(2)) for counts in pair] for pair in neighbours()]
            worst = max(hockey_stick(p, q, claimed) for p, q in seen)
            assert (worst <= delta + 1e-9) == kept
