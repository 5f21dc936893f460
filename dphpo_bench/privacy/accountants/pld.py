"""From a tree of events to its privacy loss distribution, through the rules for what the tree consists of."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from dp_accounting import dp_event, pld
from dp_accounting.dp_event import DpEvent
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from dphpo_bench.privacy import event_rules
from dphpo_bench.privacy.accountants import profiles
from dphpo_bench.privacy.accountants import rdp as renyi
from dphpo_bench.privacy.accountants import selection_curves as selection
from dphpo_bench.privacy.accountants.profiles import Curve, Profile
from dphpo_bench.privacy.events import BestOfDpEvent, FirstAboveDpEvent, PureDpEvent
from dphpo_bench.privacy.run_counts import Poisson, TruncatedNegativeBinomial

Bound = Literal["profile", "layer_cake"]

# Composition by Fourier transform misplaces about one rounding error of probability for each composed event,
# in either direction: measured against an exponentially tilted transform, up to 1e-16 each. δ is increased by
# twice that, and an answer is refused where this would take more than an eighth of δ.
_ROUNDING = 2.2e-16
_ROUNDING_BASE = 50

_ROUGH_DELTA = 1e-7
_MAX_INTERVAL = 20.0
"""From here on ε is in the hundred thousands, and exponentials of the interval overflow."""


@dataclass(frozen=True)
class Rules:
    """How a distribution is computed.

    Attributes:
        bound: the theorem used for private selection; None where there is none.
        coarseness: how much wider than usual the grids are.
        delta: δ that the answer is for; what is a millionth of it may be moved to an infinite loss.
    """

    bound: Bound | None
    coarseness: float
    delta: float


class LossesTooLargeError(ArithmeticError):
    """The losses cannot be represented on a grid; ε is then reported as infinite."""


# The lists below hold what the tests cover, not what dp_accounting accepts: its PLD accountant, for one,
# ignores the repeat count of randomised response.


def unsupported(event: DpEvent, bound: Bound | None) -> DpEvent | None:
    """The first part of a simplified tree that has no rule here under this bound, or None."""
    for part in event_rules.multiset(event):
        if _is_native(part) or isinstance(part, PureDpEvent):
            continue
        match part:
            case dp_event.PoissonSampledDpEvent():
                found = part if unsupported(part.event, bound) else None
            case FirstAboveDpEvent() if bound:
                found = part if unsupported(part.event, bound) else None
            case BestOfDpEvent(runs=runs) if bound == "profile":
                known = isinstance(runs, TruncatedNegativeBinomial | Poisson)
                found = None if known and not unsupported(part.event, bound) else part
            case BestOfDpEvent(low=1.0, high=1.0) if bound == "layer_cake":
                found = part if unsupported(part.event, bound) else None
            case _:
                found = part
        if found is not None:
            return found
    return None


def rounding(event: DpEvent) -> float:
    """What floating point may take from δ of a simplified tree."""
    total = 0.0
    parts = event_rules.multiset(event)
    for part, count in parts.items():
        if _is_native(part) or isinstance(part, PureDpEvent):
            continue
        factor = 1.0
        if isinstance(part, BestOfDpEvent):
            factor = part.high * part.runs.expected
        elif isinstance(part, FirstAboveDpEvent):
            factor = 1 / part.stop_probability
        total += count * factor * rounding(part.event)
    return total + _of_composition(parts)


def epsilon(event: DpEvent, rules: Rules, rough_epsilon: float | None = None) -> float:
    """ε of a simplified, supported tree.

    Args:
        event: the tree.
        rules: how to compute.
        rough_epsilon: a bound of ε from elsewhere, if there is one; it only chooses the grid.
    """
    parts = event_rules.multiset(event)
    try:
        if [*parts.values()] == [1] and _is_selection(next(iter(parts))):
            # Solved from the formula: no grid lies between it and the answer.
            curve = _selection_curve(next(iter(parts)), rules)
            return selection.first_epsilon(curve, rules.delta * (1 - 1e-9), profiles.MAX_EPSILON)
        distribution = _distribution(event, rules, rough_epsilon)
    except LossesTooLargeError:
        return math.inf
    return float(distribution.get_epsilon_for_delta(rules.delta - _of_composition(parts)))


def profile(event: DpEvent, rules: Rules) -> Profile:
    """The profile of a simplified, supported tree.

    Raises:
        LossesTooLargeError: if its losses cannot be represented.
    """
    parts = event_rules.multiset(event)
    if [*parts.values()] == [1]:
        (part,) = parts
        if _is_selection(part):
            return _selection_profile(part, rules)
        if isinstance(part, dp_event.PoissonSampledDpEvent) and not _is_native(part):
            return profiles.poisson_sampled(profile(part.event, rules), part.sampling_probability)
    return profiles.from_distribution(_distribution(event, rules), _of_composition(parts))


def _of_composition(parts: Mapping[DpEvent, int]) -> float:
    return _ROUNDING * (_ROUNDING_BASE + sum(parts.values()))


def _distribution(event: DpEvent, rules: Rules, rough_epsilon: float | None = None) -> PrivacyLossDistribution:
    parts = event_rules.multiset(event)
    interval = rules.coarseness * _loss_interval(event, parts, rough_epsilon)
    if interval > _MAX_INTERVAL:
        raise LossesTooLargeError
    native = {part: count for part, count in parts.items() if _is_native(part)}
    total = None
    if native:
        accountant = pld.PLDAccountant(value_discretization_interval=interval)
        total = accountant.compose(event_rules.from_multiset(native))._pld
    for part in sorted(parts.keys() - native.keys(), key=repr):
        one = _one_distribution(part, parts[part], interval, rules).self_compose(parts[part])
        total = one if total is None else total.compose(one)
    return privacy_loss_distribution.identity(interval) if total is None else total


def _one_distribution(event: DpEvent, count: int, interval: float, rules: Rules) -> PrivacyLossDistribution:
    """The distribution of one event that `dp_accounting` has no rule for."""
    if isinstance(event, PureDpEvent):
        return profiles.pure_distribution(event.epsilon, interval)
    # A single release may be described by few points; errors of many would add up.
    size = math.ceil((2000 if count == 1 else 40_000) / rules.coarseness)
    negligible = 1e-6 * rules.delta / count
    return profiles.to_distribution(profile(event, rules), interval, negligible=negligible, size=size)


# ------------------------------------------------------------------------------------------------- selection


def _is_selection(event: DpEvent) -> bool:
    return isinstance(event, BestOfDpEvent | FirstAboveDpEvent)


def has_selection(event: DpEvent) -> bool:
    """Whether any part of a simplified tree selects among runs."""
    inner = (getattr(part, "event", None) for part in event_rules.multiset(event))
    return any(map(_is_selection, event_rules.multiset(event))) or any(
        one is not None and has_selection(one) for one in inner
    )


def _selection_curve(event: DpEvent, rules: Rules, layers: int = selection.LAYERS) -> Curve:
    """The curve of a selection under the theorem that the rules name."""
    base = profiles.symmetrised(profile(event.event, rules))
    layers = max(300, int(layers / rules.coarseness))
    curve: Curve | None
    match event, rules.bound:
        case BestOfDpEvent(runs=runs, low=low, high=high), "profile":
            curve = selection.best_of_profile(base, runs, low, high)
        case BestOfDpEvent(runs=runs), "layer_cake":
            curve = selection.best_of_layer_cake(base, runs, layers)
        case FirstAboveDpEvent(stop_probability=stop), "profile":
            curve = selection.first_above_profile(base, stop)
        case FirstAboveDpEvent(stop_probability=stop), "layer_cake":
            curve = selection.first_above_layer_cake(base, stop, layers)
        case _:
            curve = None
    assert curve is not None, "asked only about what `unsupported` lets pass"
    return curve


def _selection_profile(event: DpEvent, rules: Rules) -> Profile:
    # Evaluated at many points, so with fewer layers than where ε is solved for.
    curve = _selection_curve(event, rules, layers=800)
    reach = profiles.end_of(curve, 1e-6 * rules.delta)
    points = profiles.tabulated(curve, reach, math.ceil(1000 / math.sqrt(rules.coarseness)))
    return profiles.symmetric(points, reach)


# ----------------------------------------------------------------------------------------------- grid widths


def _is_native(event: DpEvent) -> bool:
    """Whether the PLD accountant of `dp_accounting` is asked about this event."""
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        event = event.event
    return isinstance(event, dp_event.GaussianDpEvent | dp_event.LaplaceDpEvent)


def _loss_interval(event: DpEvent, parts: Mapping[DpEvent, int], rough_epsilon: float | None) -> float:
    """Width of the grid of privacy losses on which PLD is fast and yet tight.

    A grid coarser than the losses of single steps inflates their variance, hence a sixteenth of their root
    mean square; 1e-4 is enough for any ε of interest. A grid of more than some 5e4 points costs seconds, and
    buys nothing where ε is large.
    """
    if not parts:
        return 1e-4
    if rough_epsilon is None:
        supported = renyi.unsupported(event) is None
        rough_epsilon = renyi.epsilon(event, _ROUGH_DELTA, renyi.ROUGH_ORDERS) if supported else math.inf
    if rough_epsilon == math.inf:
        mean_square = _typical_loss(event) ** 2
        rough_epsilon = mean_square + 10 * math.sqrt(mean_square)
    typical = _typical_loss(event) / math.sqrt(sum(parts.values()))
    largest_sum = sum(count * _largest_loss(part) for part, count in parts.items())
    reach = max(max(_largest_loss(part) for part in parts), min(rough_epsilon, largest_sum))
    return max(min(1e-4, typical / 16), reach / 2.5e4, 1e-7)


def _typical_loss(event: DpEvent) -> float:
    """The root mean square of the privacy loss, roughly."""
    match event:
        case dp_event.GaussianDpEvent(noise_multiplier=noise) | dp_event.LaplaceDpEvent(noise_multiplier=noise):
            return float(1 / noise)
        case PureDpEvent(epsilon=epsilon):
            return epsilon
        case dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=part):
            return float(rate * _typical_loss(part))
        case BestOfDpEvent(event=part) | FirstAboveDpEvent(event=part):
            return _typical_loss(part)
        case _:
            return math.sqrt(
                sum(count * _typical_loss(part) ** 2 for part, count in event_rules.multiset(event).items())
            )


def _largest_loss(event: DpEvent) -> float:
    """The privacy loss of one step that is exceeded with a probability of less than about exp(-50)."""
    match event:
        case dp_event.GaussianDpEvent(noise_multiplier=noise):
            return float(0.5 / noise**2 + 10 / noise)
        case dp_event.LaplaceDpEvent(noise_multiplier=noise):
            return float(1 / noise)
        case PureDpEvent(epsilon=epsilon):
            return epsilon
        case dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=part):
            return float(np.logaddexp(math.log1p(-rate), math.log(rate) + _largest_loss(part)))
        case BestOfDpEvent(event=part) | FirstAboveDpEvent(event=part):
            return 3 * _largest_loss(part)
        case _:
            parts = event_rules.multiset(event)
            typical = _typical_loss(event)
            largest = max((_largest_loss(part) for part in parts), default=0.0)
            total = sum(count * _largest_loss(part) for part, count in parts.items())
            return float(min(total, max(largest, 0.5 * typical**2 + 10 * typical)))
