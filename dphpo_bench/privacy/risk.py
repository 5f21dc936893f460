"""Risk to one record: how often an attacker who knows all other records can tell whether it was there.

Every number is an upper bound: the most that is possible as far as it is proven, not what leaks. The trade-off between
false alarms and hits of an attack follows from proven points of δ(ε); proofs are in docs/accounting.md.

An attacker sees what a procedure released, knows all records but one, and tells whether that record was there. Each
proven δ at an ε ≥ 0, valid for both directions, bounds the hits t at false alarms a by two lines: t ≤ δ + e^ε a, and
its mirror image t ≤ 1 − e^−ε (1 − δ − a). The least of all lines is concave, so it is the hull of what is proven.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent
from scipy.special import ndtr, ndtri

from dphpo_bench.base.checks import inside, typed
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.accountants import report
from dphpo_bench.privacy.accountants.profiles import MAX_EPSILON, Array
from dphpo_bench.privacy.accountants.refusals import RefusedError
from dphpo_bench.privacy.event_trees import has_selection

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


_WITHOUT_A_CURVE = (RefusedError, ArithmeticError, IndexError, ValueError, MemoryError)
"""Errors of bounds and libraries at extreme losses. The quoted points remain, and the record of the run is not lost."""


@dataclass(frozen=True)
class Risk:
    """Bounds of membership inference on one record, over all attacks.

    Attributes:
        advantage: true positives minus false positives at most, in [0, 1].
        tpr_at_1pct: true positives at most where 1 % of absent records are taken for present ones.
        tpr_at_01pct: the same at 0.1 %.
        mu: the least μ of Gaussian DP that allows all attacks whose errors of both kinds are at least δ.
        mu_fit: how far that Gaussian's curve is from the proven one, a probability; 0 is a perfect fit.
    """

    advantage: float
    tpr_at_1pct: float
    tpr_at_01pct: float
    mu: float
    mu_fit: float


CERTAIN = Risk(1.0, 1.0, 1.0, math.inf, 0.0)
"""Nothing is kept secret, or nobody can say: ε is infinite."""


@typed
def risk(event: DpEvent, delta: float) -> Risk:
    """Bound what an attack on one record can achieve.

    The event is a whole procedure, as `epsilon` takes it. A record may lie in any part; the worst part counts.

    Raises:
        InvalidValueError: if δ is out of range.
        UnsupportedEventError: if no accountant supports the event.
    """
    inside("delta", delta)
    return worst(_of_tree(tree, delta) for tree in event_trees.exposures(event))


def risk_of_point(epsilon: float, delta: float) -> Risk:
    """Bound what an attack can achieve if nothing but (ε, δ)-DP is known."""
    return _risk(TradeOff.of(np.array([epsilon]), np.array([delta])), delta)


def worst(risks: Iterable[Risk]) -> Risk:
    """Return the larger of each bound; the fit is that of the larger μ."""
    each = list(risks)
    fit = max(each, key=lambda bound: (bound.mu, bound.mu_fit))
    return Risk(
        advantage=max(bound.advantage for bound in each),
        tpr_at_1pct=max(bound.tpr_at_1pct for bound in each),
        tpr_at_01pct=max(bound.tpr_at_01pct for bound in each),
        mu=fit.mu,
        mu_fit=fit.mu_fit,
    )


@lru_cache(maxsize=1024)  # the harness asks for a plan's risk again when it verifies the run
def _of_tree(tree: DpEvent, delta: float) -> Risk:
    return _risk(trade_off(tree, delta), delta)


def _risk(curve: TradeOff, delta: float) -> Risk:
    mu = curve.mu(delta)
    return Risk(curve.advantage, curve.hits(0.01), curve.hits(0.001), mu, curve.regret(mu))


def trade_off(tree: DpEvent, delta: float) -> TradeOff:
    """Return the curve of a simplified tree without parts, from everything that is proven about it.

    Every accountant's ε at δ is a point; most accountants have a whole curve.

    Raises:
        UnsupportedEventError: if no accountant supports the tree.
    """
    if isinstance(tree, dp_event.NoOpDpEvent | dp_event.NonPrivateDpEvent):
        return TradeOff(np.zeros(1), np.array([float(isinstance(tree, dp_event.NonPrivateDpEvent))]))
    bounds = report.epsilon(tree, delta).by_accountant
    curves = [(np.array([*bounds.values()]), np.full(len(bounds), delta))]
    for name in report.accountants_for(selects=has_selection(tree)):
        more = report.ACCOUNTANTS[name].curve
        if more is not None:
            with suppress(*_WITHOUT_A_CURVE):
                curves.append(more(tree, delta, bounds))
    return TradeOff.of(*map(np.concatenate, zip(*curves, strict=True)))
