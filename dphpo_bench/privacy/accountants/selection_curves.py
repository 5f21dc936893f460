"""Privacy curves of private selection, from the curve δ of a single run. Proofs are in docs/accounting.md.

Notation: u is the probability that a run beats the released output on one dataset, u' that on the neighbouring
one, w(u) = f'(1 − u) with the generating function f of the number of runs K. The selected output y has density
w(u(y)) Q(y), where Q is that of a single run, and the privacy of single runs bounds u' by
U(u) = min over real e of e^e u + δ(e).
"""

import math
from collections.abc import Callable

import numpy as np

from dphpo_bench.privacy.accountants.profiles import Array, Curve, Profile
from dphpo_bench.privacy.run_counts import Binomial, Poisson, RunCount, TruncatedNegativeBinomial

Weight = Callable[[Array], Array]

LAYERS = 2000
_CELLS_PER_LAYER = 10  # finding ρ is cheap; evaluating the curve costs one look-up for each layer and ε
_CELLS_PER_FACTOR = 3


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
        return np.array([min(1.0, float(shares @ base.delta(at - shifts))) for at in epsilon])

    return curve


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
        return np.array([min(1.0, float(np.max(factors * base.delta(at - shifts)))) for at in epsilon])

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
