"""Work on trees of privacy events: their kinds, rewriting by theorems, JSON and words.

A kind says the name of an event in files, what it holds, how to rebuild it and how to put it in words. All walks
through trees are written once, over the table of kinds.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.errors import InvalidValueError, UnsupportedEventError
from dphpo_bench.base.text import shown
from dphpo_bench.privacy import events, objective, run_counts
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
from dphpo_bench.privacy.run_counts import Poisson, RunCount, TruncatedNegativeBinomial


@dataclass(frozen=True)
class Kind:
    """One kind of event.

    Attributes:
        name: its name in files.
        build: checks the fields, given by name, and makes the event of exact values.
        fields: their names, in the order in which they are written. `event` and `events` hold the events inside.
        words: the event in words, from the event and the words of each event inside.
    """

    name: str
    type: type[DpEvent]
    build: Callable[..., DpEvent]
    fields: tuple[str, ...] = ()
    words: Callable[..., str] = lambda event, *_: type(event).__name__


def _best_of_words(event: events.BestOfDpEvent, inside: str) -> str:
    bounds = "" if event.low == event.high else f", density {event.low:.4g}..{event.high:.4g}"
    return f"BestOf({event.runs.describe()}{bounds}; {inside})"


def _one_of_words(event: events.OneOfDpEvent, *inside: str) -> str:
    shares = [""] * len(inside) if event.weights is None else [f"{weight:.3g}: " for weight in event.weights]
    return f"OneOf({' | '.join(share + text for share, text in zip(shares, inside, strict=True))})"


_KINDS = (
    Kind("no_op", dp_event.NoOpDpEvent, events.no_op),
    Kind("non_private", dp_event.NonPrivateDpEvent, events.non_private, (), lambda _: "non-private access"),
    Kind(
        "gaussian",
        dp_event.GaussianDpEvent,
        events.gaussian,
        ("noise_multiplier",),
        lambda event: f"Gaussian σ={event.noise_multiplier:.4g}",
    ),
    Kind(
        "laplace",
        dp_event.LaplaceDpEvent,
        events.laplace,
        ("noise_multiplier",),
        lambda event: f"Laplace b={event.noise_multiplier:.4g}",
    ),
    Kind("pure", events.PureDpEvent, events.pure_dp, ("epsilon",), lambda event: f"pure ε={event.epsilon:.4g}"),
    Kind(
        "objective_perturbation",
        events.ObjectivePerturbationDpEvent,
        events.objective_perturbation,
        ("noise_multiplier", "regularisation", "outputs"),
        lambda event: (
            f"ObjectivePerturbation(σ={event.noise_multiplier:.4g}, λ={event.regularisation:.4g}, "
            f"{event.outputs} outputs)"
        ),
    ),
    Kind("composed", dp_event.ComposedDpEvent, lambda events: dp_event.ComposedDpEvent(tuple(events)), ("events",)),
    Kind("repeated", dp_event.SelfComposedDpEvent, events.repeat, ("count", "event")),
    Kind(
        "poisson_sampled",
        dp_event.PoissonSampledDpEvent,
        events.poisson_sampled,
        ("sample_rate", "event"),
        lambda event, inside: f"Poisson(q={event.sampling_probability:.4g}; {inside})",
    ),
    Kind("best_of", events.BestOfDpEvent, events.best_of, ("runs", "low", "high", "event"), _best_of_words),
    Kind(
        "first_above",
        events.FirstAboveDpEvent,
        events.threshold_search,
        ("stop_probability", "event"),
        lambda event, inside: f"FirstAbove(γ={event.stop_probability:.4g}; {inside})",
    ),
    Kind(
        "part",
        events.PartDpEvent,
        events.on_part,
        ("partition", "part", "event"),
        lambda event, inside: f"{event.partition}={event.part}: {inside}",
    ),
    Kind("one_of", events.OneOfDpEvent, events.one_of, ("weights", "events"), _one_of_words),
)
KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""The kinds by name. A tree may hold other events of `dp_accounting`; no accountant here supports them."""

_BY_TYPE: Mapping[type[DpEvent], Kind] = MappingProxyType({kind.type: kind for kind in _KINDS})
_ATTRIBUTES = MappingProxyType({"sample_rate": "sampling_probability"})  # names of dp_accounting that differ


def kind_of(event: DpEvent) -> Kind | None:
    """Return the kind of an event, by its exact class: a class derived from it could answer otherwise each time."""
    return _BY_TYPE.get(type(event))


def fields_of(event: DpEvent) -> dict[str, Any]:
    """Return the fields of an event by name; none if it is of no kind here."""
    kind = kind_of(event)
    return {} if kind is None else {name: getattr(event, _ATTRIBUTES.get(name, name)) for name in kind.fields}


def children(event: DpEvent) -> tuple[DpEvent, ...]:
    """Return the events directly inside this one."""
    fields = fields_of(event)
    return tuple(fields["events"]) if "events" in fields else (fields["event"],) if "event" in fields else ()


def rebuilt(event: DpEvent, change: Callable[[DpEvent], DpEvent] = lambda inner: inner) -> DpEvent:
    """Return the event made anew of exact, checked values, with `change` applied to each event directly inside.

    A `RepeatAndSelectDpEvent` becomes the `best_of` that it means. An event of no kind here is returned as it is.
    """
    if type(event) is dp_event.RepeatAndSelectDpEvent:
        mean, shape = event.mean, event.shape
        runs = Poisson(mean) if shape == math.inf else TruncatedNegativeBinomial(mean, shape)
        event = events.best_of(event.event, runs)
    kind, fields = kind_of(event), fields_of(event)
    if kind is None:
        return event
    if "event" in fields:
        fields["event"] = change(fields["event"])
    if "events" in fields:
        fields["events"] = [change(inner) for inner in fields["events"]]
    return kind.build(**fields)


def walk(event: DpEvent) -> Iterator[DpEvent]:
    """Return the event, made anew, and all events inside, at any depth."""
    event = rebuilt(event)
    yield event
    for inner in children(event):
        yield from walk(inner)


def has_selection(event: DpEvent) -> bool:
    """Return whether any part of a tree selects among runs."""
    return any(isinstance(inner, events.BestOfDpEvent | events.FirstAboveDpEvent) for inner in walk(event))


def needs_density(event: DpEvent) -> bool:
    """Return whether the theorem of any part of a tree is about real numbers, and not about noise on a grid."""
    return any(isinstance(inner, events.ObjectivePerturbationDpEvent) for inner in walk(event))


def hides_time(event: DpEvent) -> bool:
    """Return whether the time of a run is a secret: it tells the number of trials, or how fast a solver converged."""
    return has_selection(event) or needs_density(event)


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


MAX_DEPTH = 20
MAX_NODES = 20_000


def to_json(event: DpEvent) -> dict[str, Any]:
    """Return the event as JSON values, under type names of our own; refused if a part has no name here."""
    event = rebuilt(event)
    kind = kind_of(event)
    if kind is None:
        raise UnsupportedEventError(f"{type(event).__name__} has no written form.")
    return {"type": kind.name, **{name: _written(value) for name, value in fields_of(event).items()}}


def _written(value: Any) -> Any:
    match value:
        case DpEvent():
            return to_json(value)
        case RunCount():
            return value.to_json()
        case tuple():
            return [_written(item) for item in value]
        case _:
            return value


def from_json(obj: object) -> DpEvent:
    """Read what `to_json` wrote, a tree of at most `MAX_DEPTH` levels and `MAX_NODES` events; anything else is refused.

    Files come from strangers: types are looked up in a list, never imported.
    """
    nodes = 0

    def read(obj: object, depth: int, within: tuple[object, ...]) -> DpEvent:
        nonlocal nodes
        nodes += 1
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise InvalidValueError(f"Expected an event of at most {MAX_DEPTH} levels and {MAX_NODES} parts.")
        if not isinstance(obj, dict) or not isinstance(obj.get("type"), str) or obj["type"] not in KINDS:
            name = shown(obj.get("type") if isinstance(obj, dict) else obj, form=repr)
            raise InvalidValueError(f"Expected an event of a type in {sorted(KINDS)}, got {name}.")
        kind = KINDS[obj["type"]]
        if obj.keys() != {"type", *kind.fields}:
            keys = shown(list(obj), 200, repr)
            raise InvalidValueError(f"Expected the keys type{', '.join(['', *sorted(kind.fields)])}, got {keys}.")
        fields = {name: obj[name] for name in kind.fields}
        if kind.name == "part":
            if fields["partition"] in within:
                # Read literally, this concerns records in two parts of one partition: nobody.
                raise InvalidValueError("Expected an event that is within one part of a partition only.")
            within = (*within, fields["partition"])
        if "runs" in fields:
            fields["runs"] = run_counts.from_json(fields["runs"])
        if "event" in fields:
            fields["event"] = read(fields["event"], depth + 1, within)
        if "events" in fields:
            if not isinstance(fields["events"], list):
                raise InvalidValueError(f"Expected a list of {kind.name} events.")
            fields["events"] = [read(item, depth + 1, within) for item in fields["events"]]
        return kind.build(**fields)

    return read(obj, 1, ())


def describe(event: DpEvent) -> str:
    """Return a line such as `293 × Poisson(q=0.16; Gaussian σ=2.4, 3 × Gaussian σ=31) + Laplace b=2`.

    Equal events are counted together; nothing is rewritten by a theorem.
    """
    return _describe(event, " + ")


def _describe(event: DpEvent, separator: str) -> str:
    texts = []
    for part, count in multiset(event).items():
        kind = kind_of(part)
        text = kind.words(part, *(_describe(child, ", ") for child in children(part))) if kind else type(part).__name__
        texts.append(text if count == 1 else f"{count} × {text}")
    return separator.join(texts) or "nothing"
