"""From a tree of events to its privacy loss distribution, with one rule for each kind of event."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Literal

import numpy as np
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from dphpo_bench.privacy import event_trees, objective
from dphpo_bench.privacy.accountants import profiles
from dphpo_bench.privacy.accountants import rdp as renyi
from dphpo_bench.privacy.accountants.long_compositions import (
    composed,
    composed_often,
    epsilon_for_delta,
    sampled_gaussian,
    self_composed,
)
from dphpo_bench.privacy.accountants.profiles import Curve, Profile
from dphpo_bench.privacy.accountants.refusals import RefusedError, no_rule, of_parts
from dphpo_bench.privacy.events import (
    BestOfDpEvent,
    FirstAboveDpEvent,
    ObjectivePerturbationDpEvent,
    OneOfDpEvent,
    PureDpEvent,
)
from dphpo_bench.privacy.run_counts import Binomial, Poisson, TruncatedNegativeBinomial

Bound = Literal["profile", "layer_cake"]

# Composition by Fourier transform misplaces about one rounding error of probability for each composed event,
# in either direction: measured against a transform of higher accuracy, up to 1e-16 each. δ is increased by
# twice that, and an answer is refused where this would take more than an eighth of δ.
_ROUNDING = 2.2e-16
_ROUNDING_BASE = 50

_OFTEN = 100_000
"""Compositions of more than this many equal parts are dense beyond doubt, and `dp_accounting` is told so."""

_ROUGH_DELTA = 1e-7
_MAX_INTERVAL = 20.0
"""Beyond this, ε is in the hundred thousands, and exponentials of the interval overflow."""
_MAX_TYPICAL = 100.0
"""Beyond this, ε of a single release is in the thousands, and its exponential overflows."""


@dataclass(frozen=True)
class Rules:
    """Rules for computing a distribution. A millionth of δ may be moved to an infinite loss."""

    bound: Bound | None  # the theorem for private selection, if any
    coarseness: float  # how much wider than usual the grids are
    delta: float  # the δ that the answer is for


class LossesTooLargeError(ArithmeticError):
    """The losses cannot be represented on a grid; ε is then reported as infinite."""


def epsilon(event: DpEvent, rules: Rules, rough_epsilon: float | None = None) -> float:
    """Return ε of a simplified tree; `rough_epsilon`, a bound from elsewhere, only chooses the grid.

    Raises:
        RefusedError: if a part has no rule here, or floating point might take more than an eighth of δ.
    """
    try:
        composed = _Composition.of(event, rules)
        if composed.rounding > rules.delta / 8:
            raise RefusedError(f"is not accurate at delta={rules.delta} over {composed.releases} releases")
        if composed.only is not None and composed.only.curve is not None:
            # Solved from the curve itself, without a grid.
            curve = composed.only.curve()
            return profiles.first_epsilon(curve, rules.delta * (1 - 1e-9), profiles.MAX_EPSILON)
        distribution = _distribution(composed, rough_epsilon)
    except LossesTooLargeError:
        return math.inf
    return epsilon_for_delta(distribution, rules.delta - composed.own_rounding)


def profile(event: DpEvent, rules: Rules, rough_epsilon: float | None = None) -> Profile:
    """Return the profile of a simplified tree. Raises what `epsilon` does, and `LossesTooLargeError`."""
    return _Composition.of(event, rules).profile(rough_epsilon)


@dataclass(frozen=True)
class _Mechanism:
    """Privacy loss of one event. Nothing is computed until it is needed.

    Attributes:
        typical: its root mean square, roughly.
        largest: what it exceeds with a probability of less than about exp(-50).
        rounding: how much of δ floating point may take in what is computed inside.
        profile: computes its profile; None if its distribution is known.
        curve: computes a curve from which ε is solved without a grid; None if there is none.
    """

    typical: float
    largest: float
    rounding: float = 0.0
    profile: Callable[[], Profile] | None = None
    curve: Callable[[], Curve] | None = None

    def __post_init__(self) -> None:
        if self.typical > _MAX_TYPICAL:
            raise LossesTooLargeError


def _mechanism(event: DpEvent, rules: Rules) -> _Mechanism:
    """Return what is known of one event; the only place that lists the supported events.

    The list holds what the tests cover, not what dp_accounting accepts: its PLD accountant, for one, ignores the repeat
    count of randomised response.
    """
    match event:
        case dp_event.GaussianDpEvent(noise_multiplier=noise):
            return _Mechanism(float(1 / noise), float(0.5 / noise**2 + 10 / noise))
        case dp_event.LaplaceDpEvent(noise_multiplier=noise):
            return _Mechanism(float(1 / noise), float(1 / noise))
        case PureDpEvent(epsilon=epsilon):
            return _Mechanism(epsilon, epsilon)
        case ObjectivePerturbationDpEvent(noise_multiplier=noise, outputs=outputs):
            extra = objective.log_determinant(event)
            largest = extra + 0.5 / noise**2 + (10 + math.sqrt(2 * math.log(outputs))) / noise
            curve: Curve = partial(objective.deltas, event)
            whole = Profile(curve, curve, largest)
            return _Mechanism(extra + 1 / noise, largest, profile=lambda: whole, curve=lambda: curve)
        case dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=part):
            inner = _Composition.of(part, rules)
            typical = float(rate * inner.typical)
            largest = float(np.logaddexp(math.log1p(-rate), math.log(rate) + inner.largest))
            if _is_native(event):
                return _Mechanism(typical, largest)
            return _Mechanism(typical, largest, inner.rounding, lambda: profiles.poisson_sampled(inner.profile(), rate))
        case BestOfDpEvent() | FirstAboveDpEvent():
            return _selection(event, rules)
        case OneOfDpEvent(events=branches, weights=weights):
            options = [_Composition.of(branch, rules) for branch in branches]

            def profile() -> Profile:
                return profiles.one_of([option.profile() for option in options], weights)

            return _Mechanism(
                max(option.typical for option in options),
                max(option.largest for option in options),
                max(option.rounding for option in options),
                profile,
                lambda: profile().delta,
            )
        case _:
            raise no_rule(event)


def _selection(event: DpEvent, rules: Rules) -> _Mechanism:
    """Apply the theorem for private selection that the rules name."""
    inner = _Composition.of(event.event, rules)
    bound_of: Callable[[Profile, int], Curve]
    match event, rules.bound:
        case BestOfDpEvent(runs=TruncatedNegativeBinomial() | Poisson() as known, low=low, high=high), "profile":
            factor = high * known.expected
            bound_of = lambda base, _: profiles.best_of_profile(base, known, low, high)  # noqa: E731
        case BestOfDpEvent(runs=Binomial() as coins, low=1.0, high=1.0), "profile":
            factor = coins.expected
            bound_of = lambda base, _: profiles.best_of_coins_profile(base, coins)  # noqa: E731
        case BestOfDpEvent(runs=runs, low=1.0, high=1.0), "layer_cake":
            factor = runs.expected
            bound_of = lambda base, layers: profiles.best_of_layer_cake(base, runs, layers)  # noqa: E731
        case FirstAboveDpEvent(stop_probability=stop), "profile":
            factor = 1 / stop
            bound_of = lambda base, _: profiles.first_above_profile(base, stop)  # noqa: E731
        case FirstAboveDpEvent(stop_probability=stop), "layer_cake":
            factor = 1 / stop
            bound_of = lambda base, layers: profiles.first_above_layer_cake(base, stop, layers)  # noqa: E731
        case _:
            raise no_rule(event)

    def curve(layers: int = profiles.LAYERS) -> Curve:
        base = profiles.symmetrised(inner.profile())
        return bound_of(base, max(300, int(layers / rules.coarseness)))

    def profile() -> Profile:
        # Evaluated at many points, so with fewer layers than where ε is solved for.
        rough = curve(layers=800)
        reach = profiles.end_of(rough, 1e-6 * rules.delta)
        points = profiles.tabulated(rough, reach, math.ceil(1000 / math.sqrt(rules.coarseness)))
        return Profile(points, points, reach)

    return _Mechanism(inner.typical, 3 * inner.largest, factor * inner.rounding, profile, curve)


@dataclass(frozen=True)
class _Composition:
    """The composition of the parts of a simplified tree, each `counts` times."""

    event: DpEvent
    rules: Rules
    mechanisms: dict[DpEvent, _Mechanism] = field(compare=False)
    counts: dict[DpEvent, int] = field(compare=False)

    @classmethod
    def of(cls, event: DpEvent, rules: Rules) -> "_Composition":
        """Return the composition of a simplified tree, unless a part has no rule."""
        if not event_trees.has_selection(event):
            rules = replace(rules, bound=None)  # the same for every bound, and computed once for all
        mechanisms = of_parts(event, lambda part: _mechanism(part, rules))
        return cls(event, rules, mechanisms, dict(event_trees.multiset(event)))

    @property
    def only(self) -> _Mechanism | None:
        """The only part, if there is just one, composed once."""
        return next(iter(self.mechanisms.values())) if [*self.counts.values()] == [1] else None

    @property
    def releases(self) -> int:
        """Number of composed events."""
        return sum(self.counts.values())

    @property
    def own_rounding(self) -> float:
        """Share of δ that floating point may take in this composition."""
        return _ROUNDING * (_ROUNDING_BASE + self.releases)

    @property
    def rounding(self) -> float:
        """Share of δ that floating point may take in this composition and inside its parts."""
        return sum(n * self.mechanisms[part].rounding for part, n in self.counts.items()) + self.own_rounding

    @property
    def typical(self) -> float:
        """The root mean square of the privacy loss, roughly."""
        if self.only is not None:
            return self.only.typical
        return math.sqrt(sum(n * self.mechanisms[part].typical ** 2 for part, n in self.counts.items()))

    @property
    def largest(self) -> float:
        """Loss that is exceeded with a probability of less than about exp(-50)."""
        largest = max((mechanism.largest for mechanism in self.mechanisms.values()), default=0.0)
        return float(min(self._largest_sum, max(largest, 0.5 * self.typical**2 + 10 * self.typical)))

    @property
    def _largest_sum(self) -> float:
        return sum(n * self.mechanisms[part].largest for part, n in self.counts.items())

    def profile(self, rough_epsilon: float | None = None) -> Profile:
        """Return the profile of the whole."""
        if self.only is not None and self.only.profile is not None:
            return self.only.profile()
        return profiles.from_distribution(_distribution(self, rough_epsilon), self.own_rounding)

    def distribution(self, rough_epsilon: float | None = None) -> PrivacyLossDistribution:
        """Return the privacy loss distribution of the whole, unless its losses cannot be represented."""
        interval = self.rules.coarseness * self._loss_interval(rough_epsilon)
        if interval > _MAX_INTERVAL:
            raise LossesTooLargeError
        native = {part: count for part, count in self.counts.items() if _is_native(part)}
        often = {part: native.pop(part) for part in [*native] if _is_slow(part, native[part])}
        total = None
        if native:
            total = _native(tuple(sorted(native.items(), key=repr)), interval)
        for part in sorted(self.counts.keys() - native.keys(), key=repr):
            if part in often:
                releases = composed_often(_native(((part, 1),), interval), self.counts[part])
            else:
                releases = self_composed(self._one_distribution(part, interval), self.counts[part])
            if _is_boundless(releases):  # nothing finite is left to compose
                raise LossesTooLargeError
            total = releases if total is None else composed(total, releases)
        return privacy_loss_distribution.identity(interval) if total is None else total

    def _one_distribution(self, part: DpEvent, interval: float) -> PrivacyLossDistribution:
        """Return the distribution of one event that `dp_accounting` has no rule for."""
        if isinstance(part, PureDpEvent):
            return profiles.pure_distribution(part.epsilon, interval)
        # A single release may be described by few points; errors of many would add up.
        count, profile = self.counts[part], self.mechanisms[part].profile
        assert profile is not None
        size = math.ceil((2000 if count == 1 else 40_000) / self.rules.coarseness)
        negligible = 1e-6 * self.rules.delta / count
        return profiles.to_distribution(profile(), interval, negligible=negligible, size=size)

    def _loss_interval(self, rough_epsilon: float | None) -> float:
        """Return the width of the grid of privacy losses on which PLD is fast and yet tight.

        A grid coarser than the losses of single steps inflates their variance, hence a sixteenth of their root mean
        square; 1e-4 is enough for any ε of interest. More than some 5e4 points cost time, and gain nothing where ε is
        large. Steps whose losses are smaller than such a grid's width take a finer one, up to 8e5 points.
        """
        if not self.counts:
            return 1e-4
        if rough_epsilon is None:
            try:
                rough_epsilon = _rough_epsilon(self.event)
            except RefusedError:
                rough_epsilon = math.inf
        if rough_epsilon == math.inf:
            mean_square = self.typical**2
            rough_epsilon = mean_square + 10 * math.sqrt(mean_square)
        widest = max(mechanism.largest for mechanism in self.mechanisms.values())
        reach = max(widest, min(rough_epsilon, self._largest_sum))
        usual = max(min(1e-4, self.typical / math.sqrt(self.releases) / 16), reach / 2.5e4)
        sizes = ((n, self.mechanisms[part].typical) for part, n in self.counts.items())
        inflated = [size for n, size in sizes if n * size * usual > 1e-3 * self.typical**2]
        return max(min(usual, max(0.4 * min(inflated, default=math.inf), reach / 4e5)), 1e-7)


@lru_cache(maxsize=32)
def _rough_epsilon(event: DpEvent) -> float:
    return renyi.epsilon(event, _ROUGH_DELTA, renyi.ROUGH_ORDERS)


@lru_cache(maxsize=8)  # risk and each bound of a selection start from the distributions that ε was read from
def _distribution(whole: _Composition, rough_epsilon: float | None) -> PrivacyLossDistribution:
    return whole.distribution(rough_epsilon)


@lru_cache(maxsize=32)  # both bounds of a selection start from those of each branch of a joint search
def _native(counts: tuple[tuple[DpEvent, int], ...], interval: float) -> PrivacyLossDistribution:
    """Return the distribution of events with counts, to the last bit that of the library's PLD accountant.

    That accountant says nothing of how many points it will ask for.
    """
    total = privacy_loss_distribution.identity(interval)
    for event, count in counts:
        total = composed(total, _repeated(event, count, interval))
    return total


def _repeated(event: DpEvent, count: int, interval: float) -> PrivacyLossDistribution:
    """Return the distribution of an event that is native, `count` times."""
    rate, noise = 1.0, event
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        rate, noise = event.sampling_probability, event.event
    if isinstance(event, dp_event.GaussianDpEvent):  # several are one
        return sampled_gaussian(event.noise_multiplier / math.sqrt(count), 1.0, interval)
    if isinstance(noise, dp_event.GaussianDpEvent):
        return self_composed(sampled_gaussian(noise.noise_multiplier, rate, interval), count)
    laplace = privacy_loss_distribution.from_laplace_mechanism(
        noise.noise_multiplier, value_discretization_interval=interval, sampling_prob=rate
    )
    return self_composed(laplace, count)


def _is_boundless(distribution: PrivacyLossDistribution) -> bool:
    """Return whether all of the losses are infinite, but for what rounding makes of them."""
    return bool(max(distribution._pmf_remove._infinity_mass, distribution._pmf_add._infinity_mass) > 1 - 1e-12)


def _is_slow(event: DpEvent, count: int) -> bool:
    """Return whether `dp_accounting` takes long to see that the distribution becomes dense: it computes size ** count.

    Gaussians that are not sampled are composed without that.
    """
    return count > _OFTEN and isinstance(event, dp_event.PoissonSampledDpEvent)


def _is_native(event: DpEvent) -> bool:
    """Return whether the PLD accountant of `dp_accounting` is asked about this event."""
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        event = event.event
    return isinstance(event, dp_event.GaussianDpEvent | dp_event.LaplaceDpEvent)
