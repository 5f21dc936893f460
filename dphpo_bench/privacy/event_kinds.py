"""The kinds of events: name in files, contents, how to rebuild one and how to put it in words.

Whatever walks through trees (`event_rules`, `event_texts`) is written once, over this table.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.privacy import events
from dphpo_bench.privacy.run_counts import Poisson, TruncatedNegativeBinomial


@dataclass(frozen=True)
class Kind:
    """One kind of event.

    Attributes:
        name: its name in files.
        type: its class.
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
