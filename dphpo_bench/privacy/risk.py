"""Risk to one record: how often an attacker who knows all other records can tell whether it was there.

Every number is an upper bound: the most that is possible as far as it is proven, not what leaks.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.checks import inside, typed
from dphpo_bench.privacy import event_rules
from dphpo_bench.privacy.accountants import report
from dphpo_bench.privacy.accountants.refusals import RefusedError
from dphpo_bench.privacy.event_kinds import has_selection
from dphpo_bench.privacy.tradeoff import TradeOff

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
    return worst(_of_tree(tree, delta) for tree in event_rules.exposures(event))


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
