"""From an event to ε: two accountants, each asked only what it was tested on; the tighter one is quoted.

Every number is an upper bound. Neighbouring datasets differ by one record added or removed.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from dp_accounting import dp_event, pld, rdp
from dp_accounting.dp_event import DpEvent

from dphpo_bench.errors import InvalidValueError, UnsupportedEventError
from dphpo_bench.privacy import events

ACCOUNTANTS = ("pld", "rdp")

# Finer than the default at the large orders that small ε and small δ need.
RDP_ORDERS = (*rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS, 80, 96, 160, 192, 384, 768, 1536)

# A logarithm of moments is a sum of up to thousands of terms in floating point, and can come out too small by
# this much for each composed event. Without the allowance, RDP near zero can turn negative: ε would read 0.
_RDP_ROUNDING = 1e-12

# Composition by Fourier transform misplaces about one rounding error of probability for each composed event,
# in either direction: measured against an exponentially tilted transform, up to 1e-16 each. PLD is asked
# about a δ smaller by twice that, and not at all where this would take more than an eighth of δ.
_PLD_ROUNDING = 2.2e-16
_PLD_ROUNDING_BASE = 50


@dataclass(frozen=True)
class EpsilonReport:
    """ε of one event at one δ, by each accountant.

    Attributes:
        epsilon: the quoted ε, the smallest of `by_accountant`.
        quoted: name of the accountant it is from.
        by_accountant: ε by each accountant that supports the event.
        refused: the others, each with the reason.
        delta: the δ that was asked.
    """

    epsilon: float
    quoted: str
    by_accountant: Mapping[str, float]
    refused: Mapping[str, str]
    delta: float


def epsilon(event: DpEvent, delta: float, *, coarseness: float = 1.0) -> EpsilonReport:
    """The ε of an event at this δ.

    The event is simplified by theorems first (see `events.simplify`), then evaluated.

    Args:
        event: any tree of privacy events.
        delta: δ in (0, 1).
        coarseness: how much wider than usual the grid of privacy losses is; above 1, fewer Rényi orders are
            tried too. More is faster, and ε is an upper bound at any value, only a looser one.

    Raises:
        InvalidValueError: if a number is out of range.
        UnsupportedEventError: if no accountant supports the event.
    """
    if not 0 < delta < 1:
        raise InvalidValueError(f"Expected 0 < delta < 1, got delta={delta}.")
    event = events.simplify(event)
    refused: dict[str, str] = {}
    if isinstance(event, dp_event.NoOpDpEvent | dp_event.NonPrivateDpEvent):
        value = 0.0 if isinstance(event, dp_event.NoOpDpEvent) else math.inf
        return _report(dict.fromkeys(ACCOUNTANTS, value), refused, delta)

    parts = events.multiset(event)
    for name, supports in (("pld", _pld_supports), ("rdp", _rdp_supports)):
        unsupported = [part for part in parts if not supports(part)]
        if unsupported:
            refused[name] = f"does not support {_name(unsupported[0])}"
    rounding = _PLD_ROUNDING * (_PLD_ROUNDING_BASE + sum(parts.values()))
    if "pld" not in refused and rounding > delta / 8:
        refused["pld"] = f"is not accurate at delta={delta} over {sum(parts.values())} releases"
    if len(refused) == len(ACCOUNTANTS):
        reasons = "; ".join(f"{name} {reason}" for name, reason in refused.items())
        raise UnsupportedEventError(f"No accountant bounds this event: {reasons}. Use events that one supports.")

    by_accountant: dict[str, float] = {}
    if "rdp" not in refused:
        by_accountant["rdp"] = _rdp_epsilon(event, delta, RDP_ORDERS if coarseness <= 1 else RDP_ORDERS[::5])
    if "pld" not in refused:
        interval = _loss_interval(parts, by_accountant.get("rdp", math.inf))
        by_accountant["pld"] = _pld_epsilon(event, delta - rounding, interval, coarseness)
    return _report(by_accountant, refused, delta)


def _report(by_accountant: Mapping[str, float], refused: Mapping[str, str], delta: float) -> EpsilonReport:
    ordered = {name: by_accountant[name] for name in ACCOUNTANTS if name in by_accountant}
    quoted = min(ordered, key=lambda name: ordered[name])
    return EpsilonReport(ordered[quoted], quoted, MappingProxyType(ordered), MappingProxyType(dict(refused)), delta)


# The lists below hold what the tests cover, not what dp_accounting accepts: its PLD accountant, for one,
# ignores the repeat count of randomised response.


def _pld_supports(event: DpEvent) -> bool:
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        event = event.event
    return isinstance(event, dp_event.GaussianDpEvent | dp_event.LaplaceDpEvent)


def _rdp_supports(event: DpEvent) -> bool:
    match event:
        case dp_event.GaussianDpEvent() | dp_event.LaplaceDpEvent():
            return True
        case dp_event.PoissonSampledDpEvent(event=part):
            return isinstance(part, dp_event.GaussianDpEvent)
        case dp_event.RepeatAndSelectDpEvent(event=part):
            return all(_rdp_supports(inner) for inner in events.multiset(part))
        case _:
            return False


def _name(event: DpEvent) -> str:
    name = type(event).__name__
    if isinstance(event, dp_event.PoissonSampledDpEvent | dp_event.RepeatAndSelectDpEvent):
        return f"{name} of {'; '.join(_name(part) for part in events.multiset(event.event))}"
    return name


def _pld_epsilon(event: DpEvent, delta: float, interval: float, coarseness: float) -> float:
    if interval > 20:  # ε is in the hundred thousands, and exponentials of the interval overflow
        return math.inf
    accountant = pld.PLDAccountant(value_discretization_interval=coarseness * interval)
    return float(accountant.compose(event).get_epsilon(delta))


def _rdp_epsilon(event: DpEvent, delta: float, orders: Sequence[float]) -> float:
    accountant = rdp.RdpAccountant(orders)
    with _quiet_absl():  # orders whose series does not converge are left out with a warning; the rest bound ε
        accountant.compose(event)
        releases = sum(events.multiset(event).values())
        curve = accountant.rdp + _RDP_ROUNDING * releases / (accountant.orders - 1)
        return float(rdp.rdp_privacy_accountant.compute_epsilon(orders, curve, delta)[0])


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


def _loss_interval(parts: Mapping[DpEvent, int], rough_epsilon: float) -> float:
    """Width of the grid of privacy losses on which PLD is fast and yet tight.

    A grid coarser than the losses of single steps inflates their variance, hence a sixteenth of their root
    mean square; 1e-4 is enough for any ε of interest. A grid of more than some 5e4 points costs seconds, and
    buys nothing where ε is large.
    """
    steps = sum(parts.values())
    typical = math.sqrt(sum(count * _typical_loss(part) ** 2 for part, count in parts.items()) / steps)
    largest_sum = sum(count * _largest_loss(part) for part, count in parts.items())
    reach = max(max(_largest_loss(part) for part in parts), min(rough_epsilon, largest_sum))
    return max(min(1e-4, typical / 16), reach / 2.5e4, 1e-7)


def _typical_loss(event: DpEvent) -> float:
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        return float(event.sampling_probability * _typical_loss(event.event))
    return float(1 / event.noise_multiplier)


def _largest_loss(event: DpEvent) -> float:
    """The privacy loss of one step that is exceeded with a probability of less than exp(-50)."""
    match event:
        case dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=part):
            return float(np.logaddexp(math.log1p(-rate), math.log(rate) + _largest_loss(part)))
        case dp_event.GaussianDpEvent(noise_multiplier=noise):
            return float(0.5 / noise**2 + 10 / noise)
        case _:
            return float(1 / event.noise_multiplier)
