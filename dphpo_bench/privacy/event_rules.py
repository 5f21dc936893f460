"""Rewriting trees of privacy events by theorems."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.errors import InvalidValueError, UnsupportedEventError
from dphpo_bench.base.text import shown
from dphpo_bench.privacy import objective
from dphpo_bench.privacy.event_kinds import kind_of, rebuilt, walk
from dphpo_bench.privacy.events import (
    BestOfDpEvent,
    FirstAboveDpEvent,
    ObjectivePerturbationDpEvent,
    OneOfDpEvent,
    PartDpEvent,
    PureDpEvent,
    compose,
    gaussian,
    no_op,
    non_private,
    on_part,
    one_of,
    poisson_sampled,
    repeat,
)

NEGLIGIBLE_NOISE = 1e-6
"""Multipliers below this are accounted as no noise at all: rounding errors would outweigh what they protect."""

LARGEST_NOISE = 1e100
"""Multipliers above this are accounted as this one, which costs more: squares of larger ones overflow."""

SMALLEST_RATE = 1e-100
"""Sample rates between 0 and this are accounted as this one, which costs more; smaller ones underflow."""

MAX_PURE_EPSILON = 1 / NEGLIGIBLE_NOISE
"""A pure ε above this is accounted as no privacy, as negligible noise is."""

MAX_EXPOSURES = 64


def frozen(event: DpEvent) -> DpEvent:
    """Return the same event, which nobody can change any more: exact types, tuples for lists. Errors as `multiset`."""
    return from_multiset(multiset(event))


def opened(kind: DpEvent) -> tuple[float, DpEvent]:
    """Return rate q > 0 and frozen contents of a kind of batches Poisson(q; event); refuse anything else."""
    if type(kind) is not dp_event.PoissonSampledDpEvent:
        raise InvalidValueError(
            "Expected a kind of batches as the plan has it, poisson_sampled(rate, what may be asked), got "
            f"{shown(kind)}."
        )
    sampled = rebuilt(kind, frozen)
    if sampled.sampling_probability == 0:
        raise InvalidValueError("Expected 0 < sample_rate <= 1, got sample_rate=0.")
    return sampled.sampling_probability, sampled.event


def multiset(event: DpEvent) -> Counter[DpEvent]:
    """Return the events that are composed at the top of a tree, with their counts.

    Only the writing changes, by no theorem of privacy: compositions are flattened, inside samples and parts too,
    numbers become floats, and a Poisson sample of rate 1, which is everybody, opens. Trees that differ in the order
    of a composition give equal results, so the keys serve to compare releases with a plan. Numbers out of range and
    events that cannot be compared with others are refused.
    """
    if type(event) is dp_event.RepeatAndSelectDpEvent:
        event = rebuilt(event)
    if kind_of(event) is None:
        name = type(event).__name__
        if getattr(dp_event, name, None) is not type(event):  # it might claim to equal another
            raise UnsupportedEventError(f"{name} is no event of dp_accounting or dphpo_bench.")
        try:
            return Counter({event: 1})
        except TypeError:
            raise UnsupportedEventError(f"{name} has no rule for its contents.") from None
    counts: Counter[DpEvent] = Counter()
    match event:
        case dp_event.NoOpDpEvent():
            pass
        case dp_event.ComposedDpEvent(events=parts):
            for part in parts:
                counts.update(multiset(part))
        case dp_event.SelfComposedDpEvent(event=part):
            times = rebuilt(event).count
            counts.update({key: times * count for key, count in multiset(part).items() if times})
        case PartDpEvent(partition=partition, part=name, event=part):
            # Events inside on other parts of the same partition read no record at all.
            inner = multiset(restrict(part, {partition: name}))
            counts.update({on_part(partition, name, key): count for key, count in inner.items()})
        case _:
            exact = rebuilt(event, frozen)
            everybody = isinstance(exact, dp_event.PoissonSampledDpEvent) and exact.sampling_probability == 1
            counts = multiset(exact.event) if everybody else Counter({exact: 1})
    return counts


def from_multiset(counts: Mapping[DpEvent, int]) -> DpEvent:
    """Return the tree of a multiset, in one order whatever the order it was collected in."""
    parts = [event if counts[event] == 1 else repeat(event, counts[event]) for event in sorted(counts, key=repr)]
    if len(parts) == 1:
        return parts[0]
    return compose(*parts) if parts else no_op()


def restrict(event: DpEvent, parts: Mapping[str, str]) -> DpEvent:
    """Return what a record is exposed to, also inside selections and samples, given its part in some partitions.

    Events on the record's own parts stand open, and events on other parts of the same partitions become no releases.
    """
    if type(event) is PartDpEvent and event.partition in parts:
        return restrict(event.event, parts) if parts[event.partition] == event.part else no_op()
    return rebuilt(event, lambda inner: restrict(inner, parts))


def partitions(event: DpEvent) -> dict[str, set[str]]:
    """Return the partitions that a tree names, each with the parts it names."""
    parts: dict[str, set[str]] = {}
    for inner in walk(event):
        if isinstance(inner, PartDpEvent):
            parts.setdefault(inner.partition, set()).add(inner.part)
    return parts


def exposures(event: DpEvent) -> list[DpEvent]:
    """Return what records are exposed to: one simplified tree for each combination of parts, without repetition.

    ε of a tree is the largest ε of these trees (docs/accounting.md, parts). Records in parts that the tree does not
    name are exposed to less than any of them. More than `MAX_EXPOSURES` combinations are refused.
    """
    choices = [[(partition, part) for part in sorted(parts)] for partition, parts in sorted(partitions(event).items())]
    combinations = math.prod(len(choice) for choice in choices)
    if combinations > MAX_EXPOSURES:
        raise UnsupportedEventError(
            f"The parts of this event have {combinations} combinations, more than {MAX_EXPOSURES}. "
            "Use fewer partitions."
        )
    trees = (simplify(restrict(event, dict(combination))) for combination in itertools.product(*choices))
    return list(dict.fromkeys(trees))


def simplify(event: DpEvent) -> DpEvent:
    """Rewrite a tree into an equivalent one that more accountants understand.

    Only exact equivalences are used, proved in docs/accounting.md. Noise above `LARGEST_NOISE` and rates below
    `SMALLEST_RATE` are the exception: they are made worse.

    - Gaussians of multipliers σᵢ on the same data are one Gaussian of the joint multiplier (Σ σᵢ⁻²)^(-1/2), also
      inside a Poisson sample, where all of them see the same batch.
    - A sample of rate 0 releases nothing. Noise of multiplier below `NEGLIGIBLE_NOISE` is no privacy, and neither is
      anything composed with, or sampled from, a release that is not private.
    - One of equal events is that event, one of several Gaussians, if anybody chooses, that of least noise. One of
      several is not private if any of them is not.

    What no rule covers is left as it stands, for the accountants to refuse by name. The result is a single event, one
    repeated event, or a composition of these in an order of its own.
    """
    simple: Counter[DpEvent] = Counter()
    for part, count in multiset(event).items():
        # A rewritten part may itself be a composition, hence the second flattening.
        for key, times in multiset(_simplify_part(part)).items():
            simple[key] += times * count
    if non_private() in simple:
        return non_private()
    gaussians = {key: count for key, count in simple.items() if isinstance(key, dp_event.GaussianDpEvent)}
    if sum(gaussians.values()) > 1:
        for key in gaussians:
            del simple[key]
        joint = 1 / math.hypot(*sorted(math.sqrt(count) / key.noise_multiplier for key, count in gaussians.items()))
        simple[gaussian(joint)] = 1
        if joint < NEGLIGIBLE_NOISE:
            return non_private()
    return from_multiset(simple)


def _simplify_part(event: DpEvent) -> DpEvent:
    event = rebuilt(event, simplify)
    match event:
        case dp_event.GaussianDpEvent(noise_multiplier=noise) | dp_event.LaplaceDpEvent(noise_multiplier=noise):
            return type(event)(min(noise, LARGEST_NOISE)) if noise >= NEGLIGIBLE_NOISE else non_private()
        case ObjectivePerturbationDpEvent(noise_multiplier=noise):
            if noise < NEGLIGIBLE_NOISE or objective.log_determinant(event) > MAX_PURE_EPSILON:
                return non_private()
            return replace(event, noise_multiplier=min(noise, LARGEST_NOISE))
        case PureDpEvent(epsilon=epsilon):
            if epsilon > MAX_PURE_EPSILON:
                return non_private()
            return event if epsilon else no_op()
        case dp_event.PoissonSampledDpEvent(sampling_probability=0):
            return no_op()
        case dp_event.PoissonSampledDpEvent(event=part) | BestOfDpEvent(event=part) | FirstAboveDpEvent(event=part) if (
            isinstance(part, dp_event.NoOpDpEvent | dp_event.NonPrivateDpEvent)
        ):
            # A record in a sample is seen raw, so sampling does not amplify a release that is not private.
            return part
        case dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=part):
            return poisson_sampled(max(rate, SMALLEST_RATE), part)
        case OneOfDpEvent(events=branches, weights=weights):
            if non_private() in branches:
                return non_private()
            if weights:
                return branches[0] if len(set(branches)) == 1 else event
            # A free choice gains nothing from a branch that is listed twice, or from a Gaussian of more noise.
            noise = [branch.noise_multiplier for branch in branches if isinstance(branch, dp_event.GaussianDpEvent)]
            left = dict.fromkeys(
                gaussian(min(noise)) if isinstance(branch, dp_event.GaussianDpEvent) else branch for branch in branches
            )
            return one_of(list(left)) if len(left) > 1 else next(iter(left))
        case _:
            return event
