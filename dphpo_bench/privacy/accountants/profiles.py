"""Privacy profiles: δ as a function of ε, to and from privacy loss distributions, under Poisson sampling and selection.

A curve is the function ε ↦ H(P, Q) = ∫ [p − e^ε q]₊ of an ordered pair of output distributions (P, Q), for ε ≥ 0.
The curves of both orders determine each other's values at ε < 0. Every curve here is a non-increasing upper bound,
and each step keeps it one: chords of a curve that is convex in e^ε lie above it.

Of a private selection, u is the probability that a run beats the released output on one dataset, u' that on the
neighbouring one, w(u) = f'(1 − u) with the generating function f of the number of runs K. The selected output y has
density w(u(y)) Q(y), where Q is that of a single run, and the privacy of single runs bounds u' by
U(u) = min over real e of e^e u + δ(e). Proofs are in docs/accounting.md.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import ArrayLike, NDArray

from dphpo_bench.privacy.accountants.refusals import check_points
from dphpo_bench.privacy.run_counts import Binomial, Poisson, RunCount, TruncatedNegativeBinomial

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]
"""δ at each of an array of ε ≥ 0."""

MAX_EPSILON = 600.0
"""Losses above this count as infinite: their exponentials overflow."""

_MOST_POINTS = 100_000


@dataclass(frozen=True)
class Points:
    """A curve through given points at ascending ε from 0, linear in e^ε between them and constant after the last."""

    epsilons: Array
    deltas: Array

    def __call__(self, epsilon: Array) -> Array:
        # Interpolation in e^ε, relative to the left point so that no exponential overflows or cancels.
        at = np.minimum(epsilon, self.epsilons[-1])
        left = np.searchsorted(self.epsilons, at, side="right") - 1
        left = np.maximum(np.minimum(left, len(self.epsilons) - 2), 0)
        right = np.minimum(left + 1, len(self.epsilons) - 1)
        start = self.epsilons[left]
        width = np.expm1(self.epsilons[right] - start)
        share = np.divide(np.expm1(at - start), width, out=np.zeros_like(at), where=width > 0)
        return np.asarray(self.deltas[left] + np.clip(share, 0, 1) * (self.deltas[right] - self.deltas[left]))


@dataclass(frozen=True)
class Profile:
    """The curves of a mechanism for a record that is removed (P has it) and for one that is added (Q has it).

    `reach` is an ε from which on both are nearly constant.
    """

    removal: Curve
    addition: Curve
    reach: float

    def delta(self, epsilon: ArrayLike) -> Array:
        """Return the larger of the two curves, at any real ε."""
        epsilon = np.asarray(epsilon, dtype=float)
        size = np.abs(epsilon)
        forward = self.removal(size)
        return _reflect(epsilon, forward if self.is_symmetric else np.maximum(forward, self.addition(size)))

    @property
    def is_symmetric(self) -> bool:
        """True if both directions share one curve."""
        return self.removal is self.addition

    def one_way(self, epsilon: ArrayLike, *, removal: bool) -> Array:
        """Return one of the curves, at any real ε."""
        epsilon = np.asarray(epsilon, dtype=float)
        size = np.abs(epsilon)
        forward, backward = (self.removal, self.addition) if removal else (self.addition, self.removal)
        return _reflect(epsilon, np.where(epsilon >= 0, forward(size), backward(size)))


def _reflect(epsilon: Array, delta: Array) -> Array:
    """Return H at ε from H at |ε|: for ε < 0, H of (P, Q) is 1 − e^ε + e^ε times H of (Q, P) at −ε."""
    if np.all(epsilon >= 0):
        return delta
    below = np.minimum(epsilon, 0)
    return np.where(epsilon >= 0, delta, -np.expm1(below) + np.exp(below) * delta)


def symmetrised(profile: Profile) -> Profile:
    """Return the larger curve for both directions, which is faster to evaluate where both are given by points."""
    removal, addition = profile.removal, profile.addition
    if profile.is_symmetric or not (isinstance(removal, Points) and isinstance(addition, Points)):
        return profile
    epsilons = np.union1d(removal.epsilons, addition.epsilons)
    larger = Points(epsilons, np.maximum(removal(epsilons), addition(epsilons)))
    return Profile(larger, larger, profile.reach)


def points_of(profile: Profile) -> tuple[Array, Array]:
    """Return all ε at which a curve of either direction has a point, and the larger δ of both there."""
    tables = [curve.epsilons for curve in (profile.removal, profile.addition) if isinstance(curve, Points)]
    at = np.unique(np.concatenate(tables)) if tables else np.linspace(0.0, min(profile.reach, MAX_EPSILON), 2000)
    return at, np.asarray(profile.delta(at))


def from_distribution(distribution: PrivacyLossDistribution, rounding: float) -> Profile:
    """Return the profile of a pessimistic privacy loss distribution; `rounding`, for floating point, is added to δ."""
    removal = _points(distribution._pmf_remove, rounding)
    addition = removal if distribution._symmetric else _points(distribution._pmf_add, rounding)
    return Profile(removal, addition, max(_reach(removal), _reach(addition)))


def _points(pmf: Any, rounding: float) -> Points:
    pmf = pmf.to_dense_pmf()
    losses = (pmf._lower_loss + np.arange(len(pmf._probs))) * pmf._discretization
    positive = (losses > 0) & (losses <= MAX_EPSILON)
    beyond = pmf._infinity_mass + float(np.sum(pmf._probs[losses > MAX_EPSILON]))
    masses, epsilons = pmf._probs[positive], np.r_[0.0, losses[positive]]
    # δ at a loss is the sum over the greater losses l of P(l) (1 − e^(ε−l)), by tail sums.
    upper = np.r_[np.cumsum(masses[::-1])[::-1], 0.0]
    lower = np.r_[np.cumsum((masses * np.exp(-epsilons[1:]))[::-1])[::-1], 0.0]
    deltas = beyond + np.maximum(upper - np.exp(epsilons) * lower, 0.0)
    deltas = np.maximum.accumulate(deltas[::-1])[::-1]
    return Points(epsilons, np.minimum(deltas + rounding, 1.0))


def _reach(points: Points) -> float:
    # Where it is within a hundredth of its limit; the rest changes no answer.
    index = int(np.argmax(points.deltas <= 1.01 * points.deltas[-1]))
    return max(float(points.epsilons[index]), 1e-3)


def tabulated(curve: Curve, reach: float, size: int) -> Points:
    """Return a curve that is costly to evaluate, by chords of its values at `size` points up to `reach`."""
    epsilons = np.linspace(0.0, reach, size)
    deltas = np.clip(curve(epsilons), 0.0, 1.0)
    return Points(epsilons, np.minimum.accumulate(deltas))


def end_of(curve: Curve, negligible: float) -> float:
    """Return an ε at which the curve is below `negligible`, or near its limit."""
    grid = np.geomspace(1e-3, MAX_EPSILON, 300)
    values = curve(grid)
    return float(grid[int(np.argmax(values <= max(negligible, 1.01 * values[-1])))])


def to_distribution(profile: Profile, interval: float, *, negligible: float, size: int) -> PrivacyLossDistribution:
    """Return a privacy loss distribution that dominates every mechanism of this profile.

    The curve is evaluated at multiples of the interval, and the distribution is the one whose curve is the lower convex
    envelope of these points (Doroshenko et al. 2022, Connect the Dots). The true curve is convex in e^ε and lies below
    the points, hence also below their envelope's chords between the points it touches. About `size` points on each side
    of 0 are used at most; the probability `negligible` may be moved to an infinite loss.

    Raises:
        RefusedError: if the grid has too many points.
    """
    reach = max(end_of(curve, negligible) for curve in (profile.removal, profile.addition))
    step = max(1, math.ceil(reach / interval / size))
    last = math.ceil(reach / interval / step) * step
    check_points(2 * last + 1)
    indices = np.arange(-last, last + 1, step)
    removal = _connected(profile, indices, interval, removal=True)
    if profile.is_symmetric:
        return PrivacyLossDistribution(removal)
    return PrivacyLossDistribution(removal, _connected(profile, indices, interval, removal=False))


def _connected(profile: Profile, indices: NDArray[np.int64], interval: float, *, removal: bool) -> Any:
    epsilons = indices * interval
    deltas = np.clip(profile.one_way(epsilons, removal=removal), 0.0, 1.0)
    deltas = np.minimum.accumulate(deltas)
    hull = _lower_envelope(np.exp(epsilons), deltas)
    return pld_pmf.create_pmf_pessimistic_connect_dots(interval, indices[hull], deltas[hull])


def _lower_envelope(x: Array, y: Array) -> NDArray[np.int64]:
    """Return the indices of the points on the lower convex envelope, drawn from (0, 1), where every curve starts.

    Without that point, rounding errors of 1e-16 in y would become negative probabilities on a fine grid.
    """
    hull: list[int] = []
    xs, ys = [0.0], [1.0]
    for index, (right, value) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        while len(xs) > 1 and (ys[-1] - ys[-2]) * (right - xs[-1]) >= (value - ys[-1]) * (xs[-1] - xs[-2]):
            xs.pop()
            ys.pop()
            hull.pop()
        xs.append(right)
        ys.append(value)
        hull.append(index)
    return np.array(hull)


def pure_distribution(epsilon: float, interval: float) -> PrivacyLossDistribution:
    """Return randomised response, which dominates every (ε, 0)-DP mechanism (Kairouz, Oh and Viswanath 2015).

    Its curve is linear in e^ε between −ε₀ and ε₀, so four points of the grid describe it.
    """
    last = math.ceil(epsilon / interval * (1 - 1e-12))
    indices = np.unique([-last, 1 - last, last - 1, last])
    at = indices * interval
    # (e^ε₀ − e^ε) / (1 + e^ε₀), and the two lines that no curve falls below.
    inner = -np.expm1(at - epsilon) / (1 + math.exp(-epsilon))
    deltas = np.clip(np.maximum(np.maximum(inner, -np.expm1(at)), 0.0), 0.0, 1.0)
    return PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(interval, indices, deltas))


def poisson_sampled(profile: Profile, rate: float) -> Profile:
    """Return a mechanism on a batch that each record enters with probability `rate`, both directions exactly.

    H of ((1−q)Q + qP, Q) at e^ε is q H of (P, Q) at β = (e^ε − 1 + q)/q. H of (Q, (1−q)Q + qP) is
    (1 − (1−q)e^ε) times H of (Q, P) at q e^ε / (1 − (1−q)e^ε), and 0 where the factor is not positive
    (Balle, Barthe and Gaboardi 2018, Theorem 2; Zhu, Dong and Wang 2022, Theorem 11).
    """

    def removal(epsilon: Array) -> Array:
        # ε ≥ 0, so β ≥ 1; log β = log1p((e^ε − 1)/q).
        at = np.log1p(np.expm1(np.minimum(epsilon, MAX_EPSILON)) / rate)
        return rate * profile.one_way(at, removal=True)

    def addition(epsilon: Array) -> Array:
        left = np.maximum(rate - (1 - rate) * np.expm1(np.minimum(epsilon, MAX_EPSILON)), 0.0)
        inside = left > 0
        at = np.where(inside, math.log(rate) + epsilon - np.log(np.where(inside, left, 1.0)), MAX_EPSILON)
        return np.where(inside, left * profile.one_way(at, removal=False), 0.0)

    return Profile(removal, addition, math.log1p(rate * math.expm1(min(profile.reach, MAX_EPSILON))))


def one_of(branches: Sequence[Profile], weights: Sequence[float] | None) -> Profile:
    """Return the largest of several mechanisms' curves, or the average if the choice is a fresh draw.

    Where all curves are given by points, so is the result, at all of their points or at some of them. Its chords stay
    above the true curve, which is convex.
    """
    shares = np.ones(len(branches)) if weights is None else np.array(weights)
    combine = np.maximum.reduce if weights is None else np.sum

    def curve(of: Callable[[Profile], Curve]) -> Curve:
        curves = [of(branch) for branch in branches]

        def combined(epsilon: Array) -> Array:
            return np.asarray(
                combine([share * branch(epsilon) for share, branch in zip(shares, curves, strict=True)], axis=0)
            )

        points = [branch for branch in curves if isinstance(branch, Points)]
        if len(points) < len(curves):
            return combined
        epsilons = np.unique(np.concatenate([branch.epsilons for branch in points]))
        thinned = np.unique(np.r_[epsilons[:: math.ceil(len(epsilons) / _MOST_POINTS)], epsilons[-1]])
        return Points(thinned, combined(thinned))

    removal = curve(lambda branch: branch.removal)
    symmetric = all(branch.is_symmetric for branch in branches)
    addition = removal if symmetric else curve(lambda branch: branch.addition)
    return Profile(removal, addition, max(branch.reach for branch in branches))


Weight = Callable[[Array], Array]

LAYERS = 2000
_CELLS_PER_LAYER = 10  # finding ρ is cheap; evaluating the curve costs one look-up for each layer and ε
_CELLS_PER_FACTOR = 3
_AT_ONCE = 16  # more would not fit into a processor's cache


def first_epsilon(curve: Curve, delta: float, largest: float) -> float:
    """Return the least ε at which a curve is at most `delta`, or up to 1e-7 of it more; infinity past `largest`."""

    def is_enough(epsilon: float) -> bool:
        return float(curve(np.array([epsilon]))[0]) <= delta

    if is_enough(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not is_enough(high):
        low, high = high, 2 * high
        if low > largest:
            return math.inf
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def best_of_profile(base: Profile, runs: TruncatedNegativeBinomial | Poisson, low: float, high: float) -> Curve:
    """Return the curve of the best of K runs, from two values of the base curve.

    For a truncated negative binomial K and all ε₁: δ(ε) ≤ C E[K] δ_Q(ε − ρ) with
    ρ = (η+2) ln(C/c) + (η+1) ln(e^ε₁ + (1/γ − 1) δ_Q(ε₁)). For a Poisson K of mean μ:
    ρ = ln(C/c) + μ (C − c + C δ_Q(0)).

    For independent proposals, c = `low` = 1 and C = `high` = 1, this is the bound of Koskela, Redberg and Wang (2024,
    arXiv:2402.06701).
    """
    spread = math.log(high / low)
    if isinstance(runs, TruncatedNegativeBinomial):
        shift = (runs.shape + 2) * spread + (runs.shape + 1) * _log_ratio(base, runs.gamma)
    else:
        shift = spread + runs.mean * (high - low + high * float(base.delta(0.0)))
    return lambda epsilon: np.minimum(high * runs.expected * base.delta(epsilon - shift), 1.0)


def best_of_coins_profile(base: Profile, runs: Binomial) -> Curve:
    """Return the curve of the best of K independent runs, K binomial of n coins of probability p, from two values.

    δ(ε) ≤ n p δ_Q(ε − ρ) with ρ = (n−1) ln max(1 + p δ_Q(ε₁)/(1−p), 1 − p + p e^ε₁ + p δ_Q(ε₁)), for all ε₁ ≥ 0; at
    ε₁ = 0 the first is the larger.
    """

    def shifts(candidates: Array) -> Array:
        deltas = runs.success * base.delta(candidates)
        at_one = np.logaddexp(np.log(runs.failure + deltas), math.log(runs.success) + candidates)
        return np.asarray((runs.cap - 1) * np.maximum(np.log1p(deltas / runs.failure), at_one))

    candidates = _epsilons(base)
    best = int(np.argmin(shifts(candidates)))
    # The first falls and the second rises, so the least lies at a kink, where a coarse grid is far from it.
    shift = float(np.min(shifts(np.linspace(candidates[max(best - 1, 0)], candidates[best : best + 2][-1], 1001))))
    return lambda epsilon: np.minimum(runs.mean * base.delta(epsilon - shift), 1.0)


def first_above_profile(base: Profile, stop: float) -> Curve:
    """Return the curve of the first run above a threshold: δ(ε₂ + ln(e^ε₁ + (1/γ − 1) δ_Q(ε₁))) ≤ δ_Q(ε₂)/γ."""
    shift = _log_ratio(base, stop)
    return lambda epsilon: np.minimum(base.delta(epsilon - shift) / stop, 1.0)


def _log_ratio(base: Profile, gamma: float) -> float:
    """Return the least ln(e^ε₁ + (1/γ − 1) δ_Q(ε₁)) over a grid of ε₁; any ε₁ gives a bound."""
    candidates = _epsilons(base)
    return float(np.min(np.logaddexp(candidates, np.log((1 / gamma - 1) * base.delta(candidates) + 1e-300))))


def _epsilons(base: Profile) -> Array:
    """Return values of ε to minimise over: dense near 0 and near where the curve ends."""
    return np.unique(np.r_[0.0, np.geomspace(1e-5, base.reach, 1500), np.linspace(0.0, base.reach, 1500)])


def best_of_layer_cake(base: Profile, runs: RunCount, layers: int = LAYERS) -> Curve:
    """Return the curve of the best of any random number of independent runs, with about `layers` values of ρ.

    δ(ε) ≤ w(1) δ_Q(ε − ρ(1)) + ∫ −w'(s) δ_Q(ε − ρ(s)) ds over s from 0 to 1, with ρ(s) the greatest ln(w(r)/w(U(r)))
    over r ≤ s (docs/accounting.md, derived there). Each cell of the grid of s takes w at its left end and U at its
    right end, so the sum is an upper bound for every grid.
    """
    edges = _edges(base, runs.weight, _CELLS_PER_LAYER * layers)
    weights = runs.weight(edges)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(weights[:-1]) - np.log(runs.weight(_worst_beaten(base, edges[1:])))
    # 0/0 where both weights underflow: nothing is known of the ratio there.
    shifts = np.maximum.accumulate(np.where(np.isnan(ratios), np.inf, np.maximum(ratios, 0.0)))
    # The layer of constant weight w(1) is that of the last cell.
    shares = np.r_[weights[:-1] - weights[1:], weights[-1]]
    shifts = np.r_[shifts, shifts[-1]]
    shares, shifts = _joined(shares, shifts, layers)

    def curve(epsilon: Array) -> Array:
        return np.array([min(1.0, float(shares @ row)) for row in _shifted(base, epsilon, shifts)])

    return curve


def _shifted(base: Profile, epsilon: Array, shifts: Array) -> Iterator[Array]:
    """Yield δ_Q(ε − ρ) of all shifts ρ for each ε, looked up for several ε at a time, which is faster."""
    for at in range(0, len(epsilon), _AT_ONCE):
        yield from base.delta(epsilon[at : at + _AT_ONCE, None] - shifts)


def _joined(shares: Array, shifts: Array, layers: int) -> tuple[Array, Array]:
    """Join cells of nearly the same shift into layers, each with its greatest shift; `shifts` are ascending."""
    finite = np.isfinite(shifts)
    step = max(float(np.max(shifts, where=finite, initial=0.0)) / layers, 1e-300)
    group = np.where(finite, np.floor(np.where(finite, shifts, 0.0) / step), np.inf)
    starts = np.flatnonzero(np.r_[True, group[1:] > group[:-1]])
    return np.add.reduceat(shares, starts), shifts[np.r_[starts[1:], len(shifts)] - 1]


def first_above_layer_cake(base: Profile, stop: float, layers: int = LAYERS) -> Curve:
    """Return the sharper curve of the first run above a threshold.

    δ(ε) ≤ sup over p of δ_Q(ε − ln R(p)) / (γ + (1−γ) p), R(p) = (γ + (1−γ) U(p)) / (γ + (1−γ) p), where p is the
    unknown probability to reach the threshold. Each cell takes the ends that make the bound larger.
    """

    def reach(p: Array) -> Array:
        return np.asarray(stop + (1 - stop) * p)

    edges = _edges(base, lambda p: 1 / reach(p), _CELLS_PER_FACTOR * layers)
    factors = 1 / reach(edges[:-1])
    shifts = np.log(reach(_worst_beaten(base, edges[1:])) * factors)

    def curve(epsilon: Array) -> Array:
        return np.array([min(1.0, float(np.max(factors * row))) for row in _shifted(base, epsilon, shifts)])

    return curve


def _worst_beaten(base: Profile, beaten: Array) -> Array:
    """Return U(u), from above: the least of e^e u + δ_Q(e) over a grid of e of both signs."""
    positive = _epsilons(base)
    e = np.r_[-positive[:0:-1], positive]
    slopes, intercepts = np.exp(e), base.delta(e)
    # The lines cross from left to right as the slope falls, if the curve is convex; where rounding breaks this,
    # a line that is not the least one is taken, which is a bound too.
    crossings = (intercepts[:-1] - intercepts[1:]) / (slopes[1:] - slopes[:-1])
    crossings = np.minimum.accumulate(crossings)[::-1]
    best = len(e) - 1 - np.searchsorted(crossings, beaten)
    least: Array = slopes[best] * beaten + intercepts[best]
    return np.minimum(1.0, least)


def _edges(base: Profile, weight: Weight, layers: int) -> Array:
    """Return cells of u from 0 to 1 over which neither ln w(u) nor ln w(U(u)) changes much."""
    fine = np.r_[0.0, np.geomspace(1e-14, 1.0, 4000)]
    tiny = 1e-200
    progress = -np.log(weight(fine) + tiny) - np.log(weight(_worst_beaten(base, fine)) + tiny)
    # A share of the points is spread evenly over the logarithm of u, lest flat stretches get a single cell.
    progress = np.maximum.accumulate(progress - progress[0])
    position = 0.9 * progress / max(progress[-1], tiny) + 0.1 * np.linspace(0, 1, len(fine))
    edges = np.interp(np.linspace(0, 1, layers + 1), position, fine)
    return np.unique(np.r_[0.0, edges, 1.0])
