"""Rényi curves of trees of events, and the ε they give."""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from dp_accounting import dp_event, rdp
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from scipy.special import logsumexp

from dphpo_bench.privacy import event_trees, objective
from dphpo_bench.privacy.accountants.long_compositions import RenyiAccountant
from dphpo_bench.privacy.accountants.refusals import no_rule, of_parts
from dphpo_bench.privacy.event_trees import has_selection
from dphpo_bench.privacy.events import (
    BestOfDpEvent,
    FirstAboveDpEvent,
    ObjectivePerturbationDpEvent,
    OneOfDpEvent,
    PureDpEvent,
)
from dphpo_bench.privacy.run_counts import Poisson, RunCount, TruncatedNegativeBinomial

Array = NDArray[np.float64]

# Finer than the default at the large orders that small ε and small δ need.
ORDERS = (*rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS, 80, 96, 160, 192, 384, 768, 1536)
ROUGH_ORDERS = ORDERS[::5]
FEW_ORDERS = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 32.0)
"""Orders that are fast to compute."""
_WHOLE_ORDERS = np.arange(2.0, 13.0)
_OTHER_ORDERS = (4.0, 6.0, 8.0, 12.0, 20.0, 32.0, 48.0, 96.0, 192.0)
"""Further orders for events with a private selection, whose theorems take the best of all."""

# A logarithm of moments is a sum of up to thousands of terms in floating point, and can come out too small by
# this much for each composed event. Without the allowance, RDP near zero can turn negative: ε would read 0.
_ROUNDING = 1e-12


def epsilon(event: DpEvent, delta: float, orders: Sequence[float] = ORDERS) -> float:
    """Return ε of a simplified tree at this δ: the least that any of the orders gives.

    Raises:
        RefusedError: if a part has no Rényi curve here.
    """
    with _quiet_absl():  # orders whose series does not converge are left out with a warning; the rest bound ε
        if _gives_an_epsilon_above_0(event, delta):
            return _searched_epsilon(event, delta, orders)
        return _least_epsilon(np.array(orders, dtype=float), _curve(event, np.array(orders, dtype=float)), delta)


def _least_epsilon(orders: Array, curve: Array, delta: float) -> float:
    return float(rdp.rdp_privacy_accountant.compute_epsilon(orders, curve, delta)[0])


def _gives_an_epsilon_above_0(event: DpEvent, delta: float) -> bool:
    """Return whether ε > 0 at every order for sure, and the curve at an order depends on that order alone.

    The library returns ε = 0 below a divergence of about δ². By Pinsker, n Gaussians sampled at rate q have at least
    2 n (q erf(1/√8σ))² at every order.
    """
    if has_selection(event):
        return False
    squares = 0.0
    for part, count in event_trees.multiset(event).items():
        rate, noise = (part.sampling_probability, part.event) if _is_sampled(part) else (1.0, part)
        if isinstance(noise, dp_event.GaussianDpEvent):
            squares += count * (rate * math.erf(1 / math.sqrt(8) / noise.noise_multiplier)) ** 2
    return squares > max(delta**2, 1e-9)


def _is_sampled(event: DpEvent) -> bool:
    return isinstance(event, dp_event.PoissonSampledDpEvent)


def _searched_epsilon(event: DpEvent, delta: float, orders: Sequence[float]) -> float:
    """Return the least ε of all orders, to the last bit, without the curve at orders that cannot give it.

    Values at whole orders are exact up to rounding, which the margins exceed by far; series at broken ones are upper
    bounds. The moment (α − 1) ε(α) is convex, so values at whole orders bound it from below at broken ones.
    """
    at = np.array(sorted({*orders, *_WHOLE_ORDERS}), dtype=float)
    fixed = np.where(np.isin(at, orders), np.log1p(-1 / at) - np.log(delta * at) / (at - 1), np.inf)
    margin = 1e-9 + 10 * _ROUNDING * sum(event_trees.multiset(event).values())
    curve, known = np.zeros(len(at)), np.isin(at, _WHOLE_ORDERS)
    curve[known] = _curve(event, at[known])
    moments = np.r_[0.0, curve[known] * (_WHOLE_ORDERS - 1)]  # at 1, 2, ...
    slopes = np.r_[0.0, np.diff(moments), np.inf]  # from the whole order before
    left = np.clip(at.astype(int), 1, len(moments)) - 1
    from_left = moments[left] + slopes[left] * (at - 1 - left)
    right = np.minimum(left + 1, len(moments) - 1)
    with np.errstate(invalid="ignore"):
        from_right = moments[right] - slopes[right + 1] * np.maximum(right + 1 - at, 0.0)
    below = np.fmax(from_left, from_right)
    below = np.where(np.isfinite(below), below, 0.0) / (at - 1)
    while True:
        usable = known & np.isfinite(fixed)
        least = _least_epsilon(at[usable], curve[usable], delta) if usable.any() else math.inf
        worth_asking = np.flatnonzero(~known & (below * (1 - 1e-9) - margin / (at - 1) + fixed <= least))
        if not len(worth_asking):
            return least
        asked = worth_asking[np.argsort((below + fixed)[worth_asking])[:4]]
        curve[asked], known[asked] = _curve(event, at[asked]), True


def divergences(event: DpEvent, orders: Sequence[float]) -> tuple[float, ...]:
    """Bound the Rényi divergences of a simplified tree, in either direction, at each of a few orders α > 1.

    Raises:
        RefusedError: if a part has no Rényi curve here.
    """
    match event:
        case dp_event.NoOpDpEvent():
            return (0.0,) * len(orders)
        case dp_event.NonPrivateDpEvent():
            return (math.inf,) * len(orders)
    # The next whole order serves where the series of a broken one does not converge.
    asked = {*orders, *map(math.ceil, orders), *(_OTHER_ORDERS if has_selection(event) else ())}
    at = np.array(sorted(asked), dtype=float)
    with _quiet_absl():
        curve = _curve(event, at)
    curve = _monotone(np.where(np.isnan(curve), np.inf, np.maximum(curve, 0)), at)
    return tuple(float(curve[np.searchsorted(at, order)]) for order in orders)


def epsilon_at(order: float, divergence: float, delta: float) -> float:
    """Return ε at δ that a Rényi divergence at one order implies (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    return float(rdp.rdp_privacy_accountant.compute_epsilon([order], [divergence], delta)[0])


def largest_divergence(order: float, epsilon: float, delta: float) -> float:
    """Return the largest Rényi divergence at `order` that implies (ε, δ): the inverse of `epsilon_at`.

    It is rounded down, and negative where no divergence implies (ε, δ) at this order.
    """
    terms = -math.log1p(-1 / order), math.log(delta * order) / (order - 1)
    return epsilon + sum(terms) - 1e-12 * (epsilon + sum(map(abs, terms)))


def deltas(event: DpEvent, epsilons: Array) -> Array:
    """Bound δ of a simplified tree at each ε ≥ 0, shape (n,), by few orders; refused if a part has no Rényi curve."""
    with _quiet_absl():
        curve = _curve(event, np.array(ROUGH_ORDERS, dtype=float))
    compute = rdp.rdp_privacy_accountant.compute_delta
    return np.array([compute(ROUGH_ORDERS, curve, float(at))[0] for at in epsilons])


def _curve(event: DpEvent, orders: Array) -> Array:
    """Return ε(α) of a tree at each order α > 1."""
    counts = event_trees.multiset(event)
    ours = of_parts(event, lambda part: _one_curve(part, orders))
    accountant = RenyiAccountant(orders)
    accountant.compose(event_trees.from_multiset({part: counts[part] for part in counts if ours[part] is None}))
    total = np.asarray(accountant.rdp + _ROUNDING * sum(counts.values()) / (orders - 1))
    for part, curve in ours.items():
        if curve is not None:
            total = total + counts[part] * curve
    return total


def _one_curve(event: DpEvent, orders: Array) -> Array | None:
    """Return ε(α) of one event; None where the RDP of `dp_accounting` is asked. The list holds what the tests cover."""
    match event:
        case (
            dp_event.GaussianDpEvent()
            | dp_event.LaplaceDpEvent()
            | dp_event.PoissonSampledDpEvent(event=dp_event.GaussianDpEvent())
        ):
            return None
        case PureDpEvent(epsilon=epsilon):
            return _pure(epsilon, orders)
        case dp_event.PoissonSampledDpEvent(
            sampling_probability=rate, event=PureDpEvent() | dp_event.LaplaceDpEvent() as part
        ):
            loss = part.epsilon if isinstance(part, PureDpEvent) else 1 / part.noise_multiplier
            return _pure(float(np.logaddexp(math.log1p(-rate), math.log(rate) + loss)), orders)  # Balle et al. 2018
        case ObjectivePerturbationDpEvent():
            return objective.divergences(event, orders)
        case BestOfDpEvent(event=inner, runs=TruncatedNegativeBinomial() as runs, low=low, high=high):
            return best_of(_curve(inner, orders), orders, runs, low, high)
        case BestOfDpEvent(event=inner, runs=Poisson() as runs, low=1.0, high=1.0) if runs.mean >= 1:
            return best_of(_curve(inner, orders), orders, runs)
        case FirstAboveDpEvent(event=inner, stop_probability=stop):
            curve = np.full(len(orders), np.inf)
            whole = (orders > 2) & (orders == np.floor(orders))  # the rule needs α − 1 too; others are slow
            at = orders[whole]
            curve[whole] = threshold_search(_curve(inner, at), _curve(inner, at - 1), at, stop)
            return _monotone(curve, orders)
        case OneOfDpEvent(events=branches, weights=weights):
            return one_of([_curve(branch, orders) for branch in branches], orders, weights)
        case _:
            raise no_rule(event)


def one_of(curves: Sequence[Array], orders: Array, weights: Sequence[float] | None) -> Array:
    """Return the largest ε(α) of several events, or that of their mixture (docs/accounting.md, one of several events).

    `curves` are ε(α) of each event at the orders; `weights` are their probabilities, None if the choice is free.
    """
    if weights is None:
        return np.asarray(np.max(curves, axis=0))
    moments = logsumexp((orders - 1) * np.array(curves), axis=0, b=np.array(weights)[:, None])
    return np.asarray(moments / (orders - 1))


def _pure(epsilon: float, orders: Array) -> Array:
    """Return ε(α) of randomised response, the worst of all (ε, 0)-DP mechanisms at every order."""
    moments = np.logaddexp(epsilon * orders, epsilon * (1 - orders)) - np.logaddexp(0, epsilon)
    return np.asarray(np.maximum(moments, 0) / (orders - 1))


def best_of(base: Array, orders: Array, runs: RunCount, low: float = 1.0, high: float = 1.0) -> Array:
    """Return ε(α) of the best of K runs: Papernot and Steinke (2022), Theorems 2 and 6; Wang et al. (2023), adaptive.

    Theorem 2 adds (1+η) min over α' of ((1 − 1/α') ε(α') + ln(1/γ)/α') + ln E[K]/(α−1). A density of proposals
    between c and C adds (α/(α−1) + 1 + η) ln(C/c). Theorem 6 adds μ δ' + ln μ/(α−1), where a run is
    (ln(1 + 1/(α−1)), δ')-DP.

    `base` is ε(α) of a single run. The number of runs is a truncated negative binomial, or Poisson with c = C = 1.
    """
    if isinstance(runs, TruncatedNegativeBinomial):
        constant = (1 + runs.shape) * np.min((1 - 1 / orders) * base - math.log(runs.gamma) / orders)
        adaptive = (orders / (orders - 1) + 1 + runs.shape) * math.log(high / low)
        curve = base + math.log(runs.mean) / (orders - 1) + constant + adaptive
    else:
        compute_delta = rdp.rdp_privacy_accountant.compute_delta
        deltas = [compute_delta(orders, base, math.log1p(1 / (order - 1)))[0] for order in orders]
        curve = base + runs.expected * np.array(deltas) + math.log(runs.expected) / (orders - 1)
    return _monotone(curve, orders)


def threshold_search(base: Array, below: Array, orders: Array, stop: float) -> Array:
    """Return Papernot and Steinke's (2022) Corollary 16: ε(α) + (α−2)/(α−1) ε(α−1) + 2 ln(1/γ)/(α−1).

    `base` is ε(α) of a single run, `below` its ε(α−1), at `orders` α > 2, all of shape (n,); `stop` is γ.
    """
    return np.asarray(base + (orders - 2) / (orders - 1) * below - 2 * math.log(stop) / (orders - 1))


def _monotone(curve: Array, orders: Array) -> Array:
    """Lower each bound to the least at higher orders, which holds too: a Rényi divergence grows with its order."""
    ascending = np.argsort(orders)
    result = np.empty_like(curve)
    result[ascending] = np.minimum.accumulate(curve[ascending][::-1])[::-1]
    return result


@contextmanager
def _quiet_absl() -> Iterator[None]:
    logger = logging.getLogger("absl")

    def drop(_: logging.LogRecord) -> bool:
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
