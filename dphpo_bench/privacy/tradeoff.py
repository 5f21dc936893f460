"""Trade-off between false alarms and hits of an attack, from proven points of δ(ε). Proofs are in docs/accounting.md.

An attacker sees what a procedure released, knows all records but one, and tells whether that record was there. Each
proven δ at an ε ≥ 0, valid for both directions, bounds the hits t at false alarms a by two lines: t ≤ δ + e^ε a, and
its mirror image t ≤ 1 − e^−ε (1 − δ − a). The least of all lines is concave, so it is the hull of what is proven.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from dphpo_bench.privacy.accountants.profiles import MAX_EPSILON, Array

_MOST_POINTS = 20_000
"""Thinning to so many points moves μ by less than a millionth of itself, upwards."""

_ROUNDING = 1e-9
"""Relative allowance for rounding in slopes and quantiles, far above their errors."""


@dataclass(frozen=True)
class TradeOff:
    """Upper bounds `deltas` of δ at `epsilons` ≥ 0, ascending; shape (n,), n ≥ 1."""

    epsilons: Array
    deltas: Array

    @classmethod
    def of(cls, epsilons: Array, deltas: Array) -> "TradeOff":
        """Sort proven points, and leave out those of immense ε. That δ is at most 1 at ε = 0 always holds."""
        finite = epsilons <= MAX_EPSILON
        epsilons, deltas = np.r_[0.0, epsilons[finite]], np.r_[1.0, np.minimum(deltas[finite], 1.0)]
        order = np.lexsort((deltas, epsilons))
        distinct = np.r_[True, np.diff(np.exp(epsilons[order])) > 0]  # of equal ε, the least δ
        return cls(epsilons[order][distinct], deltas[order][distinct])

    @property
    def advantage(self) -> float:
        """The largest hits minus false alarms; the total variation of the two outputs.

        All lines of slope above 1 and their mirror images meet where t = 1 − a, so the least of them is largest above
        the diagonal there: tanh(ε/2) + 2δ/(e^ε + 1) for the best point.
        """
        return float(np.min(np.tanh(self.epsilons / 2) + 2 * self.deltas / (np.exp(self.epsilons) + 1)))

    def hits(self, false_alarms: float) -> float:
        """Return the largest share of true positives at this share of false positives, in [0, 1]."""
        with np.errstate(over="ignore"):
            line = self.deltas + np.exp(self.epsilons) * false_alarms
        mirrored = 1 - np.exp(-self.epsilons) * (1 - self.deltas - false_alarms)
        return min(1.0, float(np.min(line)), float(np.min(mirrored)))

    def mu(self, smallest: float) -> float:
        """Return the least μ whose Gaussian DP allows all that is possible here; infinite if the advantage is 1.

        Attacks count whose false alarms and misses are both at least `smallest`, and always the one at which both are
        equal. Between two vertices the curve is a chord, and the Gaussian's is concave, so vertices are enough; by
        symmetry, those with a + t ≤ 1.
        """
        middle = (1 - self.advantage) / 2
        ends = np.array([min(smallest, middle), middle])
        slopes, starts = self._envelope()
        vertices = (starts[:-1] - starts[1:]) / (slopes[1:] - slopes[:-1])
        inner = (vertices > ends[0]) & (vertices < middle)
        at = np.r_[ends, vertices[inner]]
        most = np.r_[[self.hits(end) for end in ends], (starts[:-1] + slopes[:-1] * vertices)[inner]]
        return max(0.0, float(np.max(ndtri(np.minimum(most, 1.0)) - ndtri(at)))) * (1 + _ROUNDING)

    def _envelope(self) -> tuple[Array, Array]:
        """Return slopes e^ε and starts δ of the lines of the lower hull of all points, ascending."""
        step = math.ceil(len(self.epsilons) / _MOST_POINTS)
        hull: list[tuple[float, float]] = []
        for slope, start in zip(np.exp(self.epsilons[::step]).tolist(), self.deltas[::step].tolist(), strict=True):
            while len(hull) > 1:
                (a, b), (c, d) = hull[-2:]
                if (d - b) * (slope - c) < (start - d) * (c - a):
                    break
                hull.pop()
            hull.append((slope, start))
        slopes, starts = np.array(hull).T
        return slopes, starts

    def regret(self, mu: float) -> float:
        """Return how far Gaussian DP of μ lies from this curve: the least κ with f(a + κ) − κ ≤ G_μ(a) for all a.

        f and G_μ are the misses at false alarms a (Gomez et al. 2025, arXiv:2503.10945). f is the largest of lines, so
        κ is the largest of (δ_μ(ε) − δ)/(1 + e^ε) over the points, with δ_μ the profile of Gaussian DP.
        """
        if mu in (0.0, math.inf):
            return 0.0
        shift = self.epsilons / mu
        gaussian = ndtr(mu / 2 - shift) - np.exp(self.epsilons) * ndtr(-mu / 2 - shift)
        return max(0.0, float(np.max((gaussian - self.deltas) / (1 + np.exp(self.epsilons)))))
