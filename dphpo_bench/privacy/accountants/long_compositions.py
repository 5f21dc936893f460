"""Faster code for what `dp_accounting` does slowly: large grids, and releases repeated millions of times.

All functions keep its guarantees: ε is an upper bound. None composes distributions whose result would have more than
`MOST_POINTS` points. That number does not depend on the machine, so neither does ε.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import dp_event, rdp
from dp_accounting.pld import common, privacy_loss_distribution
from dp_accounting.pld.pld_pmf import DensePLDPmf, PLDPmf, SparsePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdditiveNoisePrivacyLoss, AdjacencyType, GaussianPrivacyLoss
from numpy.typing import ArrayLike, NDArray
from scipy import fft
from scipy.special import gammaln, log_ndtr, ndtr, ndtri

from dphpo_bench.privacy.accountants.refusals import MOST_POINTS, RefusedError, check_points

Array = NDArray[np.float64]

_TAIL = 1e-15
"""Mass that composing may move to an infinite loss, as in `dp_accounting`."""
_SPARSE = 1000
"""The library keeps a composition of at most this many points sparse."""
_VANISHING = -120.0  # logarithm of what is far below rounding
_MARGIN = 1e-6  # far above the difference of two logarithm functions
_ORDERS_OF_RANGE = np.outer(np.geomspace(1e-3, 40.0, 60), (-1.0, 1.0)).ravel()
"""Orders of Chernoff bounds, times the number of points of one release."""
_MOST_TERMS = 1000
"""The library gives up a series of this many terms."""
_TERMS_AT_ONCE = 50
_LARGEST_LOSS = 700.0  # of larger ones, the exponential may vanish


def epsilon_for_delta(distribution: PrivacyLossDistribution, delta: float) -> float:
    """Return `get_epsilon_for_delta`, to the last bit, without a loop in Python."""
    forward = _epsilon_one_way(distribution._pmf_remove, delta)
    return forward if distribution._symmetric else max(forward, _epsilon_one_way(distribution._pmf_add, delta))


def _epsilon_one_way(pmf: PLDPmf, delta: float) -> float:
    if not isinstance(pmf, DensePLDPmf):
        return float(pmf.get_epsilon_for_delta(delta))
    interval = pmf._discretization
    largest = (pmf._lower_loss + len(pmf._probs) - 1) * interval
    if not 0 < largest < _LARGEST_LOSS or pmf._infinity_mass >= delta:
        return float(pmf.get_epsilon_for_delta(delta))
    # Sums and losses as the library's loop has them, which adds one by one. Below a loss of 0 it would find ε = 0.
    masses = np.asarray(pmf._probs, dtype=float)[::-1][: math.ceil(largest / interval) + 2]
    losses = np.cumsum(np.r_[largest, np.full(len(masses) - 1, -interval)])
    factors = np.fromiter(map(math.exp, -losses), dtype=float, count=len(losses))
    upper = np.cumsum(np.r_[pmf._infinity_mass, masses])[:-1]  # before each loss
    lower = np.cumsum(np.r_[0.0, factors * masses])[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        near = (upper > delta) & (lower > 0) & (np.log((upper - delta) / lower) >= losses - _MARGIN)
    for at in np.flatnonzero(near):
        root = math.log((upper[at] - delta) / lower[at])
        if root >= losses[at]:
            return max(root, 0.0) if upper[at] > lower[at] + delta else 0.0
    return 0.0 if losses[-1] < 0 else float(pmf.get_epsilon_for_delta(delta))


def composed(first: PrivacyLossDistribution, second: PrivacyLossDistribution) -> PrivacyLossDistribution:
    """Return `first.compose(second)`.

    Raises:
        RefusedError: if it has too many points.
    """
    check_points(max(map(_span, _sides(first))) + max(map(_span, _sides(second))))
    return first.compose(second)


def sampled_gaussian(noise: float, rate: float, interval: float) -> PrivacyLossDistribution:
    """Return `from_gaussian_mechanism` of this noise multiplier and sample rate, to the last bit."""
    directions = (AdjacencyType.REMOVE, AdjacencyType.ADD)[: 2 if rate < 1 else 1]
    return PrivacyLossDistribution(*(_connected(_GaussianLoss(noise, rate, way), interval) for way in directions))


def _connected(loss: "_GaussianLoss", interval: float) -> PLDPmf:
    """Return what the library makes of a loss, without a dictionary of its points if they are many."""
    bounds = loss.connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
    if high - low < _SPARSE:
        return privacy_loss_distribution._create_pld_pmf_from_monotone_privacy_loss(
            loss, value_discretization_interval=interval, use_connect_dots=True
        )
    deltas = np.minimum.accumulate(loss.get_delta_for_epsilon(np.arange(low, high + 1) * interval))
    falls, width = np.diff(deltas), math.expm1(interval)
    first, last = 1 - deltas[0] + falls[0] / width, falls[-1] / math.expm1(-interval)
    masses = np.r_[first, (falls[1:] - falls[:-1] * math.exp(interval)) / width, last]
    return DensePLDPmf(interval, low, np.maximum(0.0, masses), deltas[-1], True)


@dataclass(frozen=True)
class _Normal:
    """Normal noise, as `scipy.stats.norm(scale=deviation)` computes it."""

    deviation: float

    def cdf(self, at: ArrayLike) -> Array:
        return np.asarray(ndtr(np.asarray(at) / self.deviation))

    def logcdf(self, at: ArrayLike) -> Array:
        return np.asarray(log_ndtr(np.asarray(at) / self.deviation))

    def ppf(self, probability: ArrayLike) -> Array:
        return np.asarray(ndtri(probability) * self.deviation)


class _GaussianLoss(GaussianPrivacyLoss):  # type: ignore[misc]  # dp_accounting has no types
    """The privacy loss of a sampled Gaussian, which inverts all losses of a grid at once."""

    def __init__(self, noise: float, rate: float, direction: AdjacencyType) -> None:
        AdditiveNoisePrivacyLoss.__init__(self, 1.0, False, rate, direction)
        self._standard_deviation = noise
        self._gaussian_random_variable = _Normal(noise)
        self._pessimistic_estimate = True
        self._log_mass_truncation_bound = -50

    def get_delta_for_epsilon(self, epsilon: Array) -> Array:
        removal, rate = self.adjacency_type == AdjacencyType.REMOVE, self.sampling_prob
        invert = self._inverse_privacy_loss_without_subsampling_remove
        if rate == 1:
            return self._deltas(epsilon, invert(epsilon))
        size = epsilon if removal else -epsilon
        inside = size > math.log1p(-rate)
        deltas = np.zeros_like(epsilon) if not removal else np.where(inside, 0.0, -np.expm1(epsilon))
        at = size[inside]
        # ln(1 + (e^ε − 1)/q), as `log_a_times_exp_b_plus_c` has it.
        raised, taken = at + np.log(1 / rate), np.log(1 / rate - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            unsampled = raised + np.log1p(-np.exp(taken - raised))
        cutoffs = np.asarray(invert(unsampled) if removal else self.sensitivity + invert(-unsampled))
        for odd in np.flatnonzero(
            (at == 0) | (raised <= taken) | np.isclose(at, math.log(1 - rate), rtol=1e-8, atol=0)
        ):
            cutoffs[odd] = self.inverse_privacy_loss(epsilon[inside][odd])
        deltas[inside] = self._deltas(epsilon[inside], cutoffs)
        return deltas

    def _deltas(self, epsilon: Array, cutoffs: Array) -> Array:
        lower = np.exp(epsilon + self.mu_lower_log_cdf(cutoffs))
        return np.asarray(np.clip(self.mu_upper_cdf(cutoffs) - lower, 0, 1))


class RenyiAccountant(rdp.RdpAccountant):  # type: ignore[misc]  # dp_accounting has no types
    """Accountant of Rényi DP that computes the moments of sampled Gaussians fast, to the library's last bit."""

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> object:
        if isinstance(event, dp_event.PoissonSampledDpEvent) and isinstance(event.event, dp_event.GaussianDpEvent):
            rate, noise = event.sampling_probability, event.event.noise_multiplier
            if do_compose and 0 < rate < 1 and noise > 0:
                moments = [_log_moment(rate, noise, order) for order in map(float, self._orders)]
                self._rdp += count * (np.array(moments) / (self._orders - 1))
                return None
        return super()._maybe_compose(event, count, do_compose)


@lru_cache(maxsize=2**14)  # an order is asked for again at another δ, and where a grid is chosen
def _log_moment(rate: float, noise: float, order: float) -> float:
    """Return ln E[(P/Q)^α] at the order α > 1; infinite if the series of a broken α does not converge."""
    if order.is_integer():
        total = -math.inf
        for term in _terms(rate, noise, order, 0, int(order) + 1)[0]:
            total = _log_sum(total, term)
        return total
    left = right = last_left = last_right = -math.inf
    for start in range(0, _MOST_TERMS, _TERMS_AT_ONCE):
        for term_left, term_right in zip(*_terms(rate, noise, order, start, start + _TERMS_AT_ONCE), strict=True):
            left, right = _log_sum(left, term_left), _log_sum(right, term_right)
            total = _log_sum(left, right)
            if term_left < last_left and term_right < last_right and max(term_left, term_right) < total - 30:
                return total
            last_left, last_right = term_left, term_right
    return math.inf


def _terms(rate: float, noise: float, order: float, start: int, stop: int) -> tuple[list[float], list[float]]:
    """Return logarithms of the series' terms on both sides of where P and Q are equal; of a whole α, of all in one."""
    index = np.arange(start, stop)
    rest = order - index
    chosen = gammaln(order + 1) - gammaln(index + 1) - gammaln(rest + 1)
    left = chosen + index * math.log(rate) + rest * math.log1p(-rate)
    if order.is_integer():
        return (left + (index * index - index) / (2 * noise**2)).tolist(), []
    right = chosen + rest * math.log(rate) + index * math.log1p(-rate)
    equal, scale = noise**2 * math.log(1 / rate - 1) + 0.5, math.sqrt(2) * noise
    below = math.log(0.5) + (math.log(2) + log_ndtr(-((index - equal) / scale) * 2**0.5))
    above = math.log(0.5) + (math.log(2) + log_ndtr(-((equal - rest) / scale) * 2**0.5))
    left = left + (index * index - index) / (2 * noise**2) + below
    return left.tolist(), (right + (rest * rest - rest) / (2 * noise**2) + above).tolist()


def _log_sum(first: float, second: float) -> float:
    """Return ln(e^a + e^b)."""
    less, more = (first, second) if first < second else (second, first)
    return more if less == -math.inf else math.log1p(math.exp(less - more)) + more


def self_composed(distribution: PrivacyLossDistribution, count: int) -> PrivacyLossDistribution:
    """Return `distribution.self_compose(count)`, or `composed_often` where that has too many points.

    Raises:
        RefusedError: if both have too many points.
    """
    try:
        sides = [_self_composed(side, count) for side in _distinct_sides(distribution)]
    except RefusedError:
        return composed_often(distribution, count)
    return PrivacyLossDistribution(*sides)


def _self_composed(pmf: PLDPmf, count: int) -> PLDPmf:
    """Return `pmf.self_compose(count)`, to the last bit. Refused before memory is taken if it has too many points."""
    if isinstance(pmf, SparsePLDPmf) and (count == 1 or pmf.size == 1 or (count < 10 and pmf.size**count <= _SPARSE)):
        return pmf.self_compose(count)
    pmf = pmf.to_dense_pmf()
    masses = np.asarray(pmf._probs, dtype=float)
    low, high = common.compute_self_convolve_bounds(masses, count, _TAIL, _binding_orders(masses, count))
    check_points(high - low + 1)
    size = fft.next_fast_len(max(high - low + 1, len(masses)))
    powers = np.real(fft.ifft(fft.fft(masses, size) ** count))
    infinite = _TAIL - math.expm1(count * math.log1p(-pmf._infinity_mass))
    return DensePLDPmf(
        pmf._discretization,
        pmf._lower_loss * count + low,
        np.roll(powers, -low)[: high - low + 1],
        infinite,
        pmf._pessimistic_estimate,
    )


def _binding_orders(masses: Array, count: int) -> list[float]:
    """Return those of the library's 40 orders of Chernoff bounds that can give the tightest window.

    All 40 bounds are computed fast and roughly. The library computes those again that are near the best.
    """
    size = len(masses)
    slack = 1 + 1e-11 * count * size
    binding: list[float] = []
    for sign in (-1.0, 1.0):
        orders = sign * np.arange(1, 21) / size
        growth, weighted, moments = np.exp(sign * np.arange(size) / size), masses, []
        for _ in orders:
            weighted = weighted * growth
            moments.append(weighted.sum())
        with np.errstate(divide="ignore", invalid="ignore"):
            bounds = sign * (count * np.log(moments) + math.log(2 / _TAIL)) / orders
        binding += orders[~(bounds > np.fmin.reduce(bounds) + slack)].tolist()
    return binding


def _sides(distribution: PrivacyLossDistribution) -> tuple[PLDPmf, PLDPmf]:
    return distribution._pmf_remove, distribution._pmf_add


def _distinct_sides(distribution: PrivacyLossDistribution) -> tuple[PLDPmf, ...]:
    return (distribution._pmf_remove,) if distribution._symmetric else _sides(distribution)


def _span(pmf: PLDPmf) -> int:
    """Return the points of a distribution once it is dense."""
    if isinstance(pmf, SparsePLDPmf):
        return max(pmf._loss_probs) - min(pmf._loss_probs) + 1 if pmf._loss_probs else 1
    return int(pmf.size)


def composed_often(distribution: PrivacyLossDistribution, count: int) -> PrivacyLossDistribution:
    """Return the distribution of very many releases of one distribution, on few points.

    Raises:
        RefusedError: if it has too many points all the same.
    """
    remove = distribution._pmf_remove.to_dense_pmf()
    sides = [remove] if distribution._symmetric else [remove, _reversed(remove)]
    return PrivacyLossDistribution(*(_composed(side, count) for side in sides))


def _reversed(pmf: DensePLDPmf) -> DensePLDPmf:
    """Return the distribution for the exchanged pair, without the rounding errors of one computed from its own δ.

    A pessimistic distribution ω is that of a pair (P, Q): P has ω(l) at the loss l, Q has e^−l ω(l), and the rest where
    P has nothing. The pair's curve is nowhere below the mechanism's, at any real ε. Nor is that of (Q, P), since the
    curves of both orders are reflections (`profiles`). Of (Q, P), the loss −l has the probability e^−l ω(l), and an
    infinite one has the rest.
    """
    losses = (pmf._lower_loss + np.arange(pmf.size)) * pmf._discretization
    masses = np.asarray(pmf._probs * np.exp(-losses))[::-1]
    rest = max(0.0, 1 - math.fsum(masses))
    return DensePLDPmf(pmf._discretization, 1 - pmf.size - pmf._lower_loss, masses, rest, pmf._pessimistic_estimate)


def _composed(pmf: DensePLDPmf, count: int) -> DensePLDPmf:
    """Return `self_compose` of few points, very often.

    The library's window is found with steep exponentials only, so it is many times too wide. Its transform takes the
    power of every frequency, though nearly all powers vanish.
    """
    masses = np.asarray(pmf._probs, dtype=float)
    low, high = common.compute_self_convolve_bounds(masses, count, _TAIL, list(_orders(masses, count)))
    if high - low >= MOST_POINTS:  # far from normal: rare large losses want orders that suit the range instead
        low, high = common.compute_self_convolve_bounds(masses, count, _TAIL, _ORDERS_OF_RANGE / len(masses))
    check_points(high - low + 1)
    size = fft.next_fast_len(max(high - low + 1, len(masses)), real=True)
    transform = fft.rfft(masses, size)
    with np.errstate(divide="ignore"):
        visible = count * np.log(np.abs(transform)) > _VANISHING
    powers = np.zeros_like(transform)
    powers[visible] = transform[visible] ** count
    losses = np.roll(fft.irfft(powers, size), -low)[: high - low + 1]
    infinite = _TAIL - math.expm1(count * math.log1p(-pmf._infinity_mass))
    return DensePLDPmf(pmf._discretization, pmf._lower_loss * count + low, losses, infinite, pmf._pessimistic_estimate)


def _orders(masses: "np.ndarray[tuple[int], np.dtype[np.float64]]", count: int) -> Iterator[float]:
    """Yield orders of Chernoff bounds near the best of the normal limit, in units of the grid; any order is valid."""
    at = np.arange(len(masses))
    mean = float(masses @ at) / float(masses.sum())
    variance = float(masses @ (at - mean) ** 2)
    best = math.sqrt(2 * math.log(2 / _TAIL) / (count * variance)) if variance else 1.0
    for scale in np.geomspace(1 / 8, 8, 13):
        yield from (-best * scale, best * scale)
