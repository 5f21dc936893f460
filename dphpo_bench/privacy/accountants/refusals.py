"""Refusals of an accountant: by the name of the event, while it computes."""

from collections.abc import Callable
from typing import TypeVar

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.privacy.event_trees import children, multiset
from dphpo_bench.privacy.events import BestOfDpEvent

T = TypeVar("T")

MOST_POINTS = 2**23
"""The most points of a privacy loss distribution. Composing takes some 70 bytes for each, 0.6 GiB in all.

The number does not depend on the machine, so neither does ε.
"""


class RefusedError(Exception):
    """An accountant has no bound for an event; the message is the reason."""


def check_points(points: int) -> None:
    """Raise RefusedError if a distribution would have more than `MOST_POINTS` points; call it before they are made."""
    if points > MOST_POINTS:
        raise RefusedError(f"would need a grid of {points:,} privacy losses, more than {MOST_POINTS:,}")


def no_rule(event: DpEvent) -> RefusedError:
    """Return the error of an accountant that has no theorem for an event."""
    return RefusedError(f"does not support {_name(event)}")


def of_parts(event: DpEvent, rule: Callable[[DpEvent], T]) -> dict[DpEvent, T]:
    """Apply a rule to each event that is composed at the top of a simplified tree.

    A refusal names that event, even if something inside it is to blame.
    """
    results = {}
    for part in multiset(event):
        try:
            results[part] = rule(part)
        except RefusedError:
            raise no_rule(part) from None
    return results


def _name(event: DpEvent) -> str:
    name = type(event).__name__
    if isinstance(event, BestOfDpEvent):
        adaptive = "" if event.low == event.high else ", adaptive"
        name = f"{name} ({event.runs.describe()}{adaptive})"
    if isinstance(event, dp_event.ComposedDpEvent | dp_event.SelfComposedDpEvent):
        return name
    inner = dict.fromkeys(_name(part) for child in children(event) for part in multiset(child))
    return f"{name} of {'; '.join(inner)}" if inner else name
