"""The ledger of releases: what was taken from the private data, written down before it is taken.

A ledger may be bound to the event of a plan. A release that the plan does not cover is then refused before it
happens, so that a method cannot overspend by mistake. ε is computed from the ledger alone.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.display import shown
from dphpo_bench.errors import InvalidValueError, OverBudgetError, UnsupportedEventError
from dphpo_bench.privacy import events

VERSION = 1
MAX_ENTRIES = 10_000

Scope = tuple[tuple[str, str], ...]
"""Parts of partitions, outermost first, whose records alone a release touches; empty for all records."""


class Account(Protocol):
    """Where releases are charged: a ledger, or one sampled batch of it."""

    def charge(self, event: DpEvent, scope: Scope = ()) -> None:
        """Write down a release. Call it before releasing."""

    def open_batch(self, rate: float, scope: Scope = ()) -> "Batch":
        """Start a batch that each record enters independently with probability `rate`."""

    def refuse(self, message: str) -> None:
        """Keep in mind that more was asked for than planned."""


class Ledger:
    """The releases so far, as counts of distinct events.

    Attributes:
        refused: the message of the first release that was refused, else None. It stays when the exception is
            swallowed, so that the run is known to have asked for more than it planned.
    """

    def __init__(self, allowance: DpEvent | None = None) -> None:
        """Start empty.

        Args:
            allowance: the event of the plan, which bounds all releases together; None for no bound.
        """
        self.refused: str | None = None
        self._spent: Counter[DpEvent] = Counter()
        self._allowed = None if allowance is None else events.multiset(allowance)
        self._contents: dict[DpEvent, Counter[DpEvent]] = {}
        self._closed = False

    @property
    def event(self) -> DpEvent:
        """All releases so far, composed."""
        return events.from_multiset(self._spent)

    @property
    def entries(self) -> tuple[tuple[DpEvent, int], ...]:
        """Distinct releases with their counts, in a fixed order."""
        return tuple(sorted(self._spent.items(), key=repr))

    def charge(self, event: DpEvent, scope: Scope = ()) -> None:
        """Write down a release that is not from a sampled batch. Call it before releasing.

        Args:
            event: what is released.
            scope: the parts of the records that it touches.

        Raises:
            OverBudgetError: if the plan does not cover it. Nothing is written then, and nothing may be
                released.
        """
        scoped = _within(scope, event)
        self._replace(Counter(), events.multiset(scoped), scoped)

    def open_batch(self, rate: float, scope: Scope = ()) -> "Batch":
        """Start a batch that each record enters independently with probability `rate`.

        All that is charged to it is composed first and sampled once. An unused batch costs nothing.

        Args:
            rate: in [0, 1].
            scope: the parts of the records that it is drawn from.

        Raises:
            InvalidValueError: if the rate is not in [0, 1].
        """
        return Batch(self, rate, scope)

    def _replace(self, old: Counter[DpEvent], new: Counter[DpEvent], asked: DpEvent) -> None:
        """Exchange entries for others if the plan covers the result."""
        if self._closed:
            raise OverBudgetError(
                f"The run, or the trial, is over; the release {events.describe(asked)[:400]} comes too late. "
                "Keep no session and no batch beyond the call that it was given to."
            )
        spent = self._spent.copy()
        spent.subtract(old)
        spent.update(new)
        spent = +spent
        if self._allowed is not None and self._left(spent) is None:
            left = events.from_multiset(self._left(self._spent) or Counter())
            message = (
                f"The plan does not cover the release {events.describe(asked)[:400]}; it still covers "
                f"{events.describe(left)[:400]}. Plan for all that the run may release, or release less."
            )
            self.refuse(message)
            raise OverBudgetError(message)
        self._spent = spent

    def refuse(self, message: str) -> None:
        """Keep in mind that more was asked for than planned, of this ledger or of one that it stands for."""
        self.refused = self.refused or message

    def close(self) -> None:
        """Refuse whatever is asked for from now on."""
        self._closed = True

    def _left(self, spent: Counter[DpEvent]) -> Counter[DpEvent] | None:
        """What the plan still allows after these releases, or None if it does not cover them.

        Equal events cover each other. A batch is also covered by a planned batch of its rate that contains
        it, since it is charged bit by bit; the largest batches take the smallest that contain them, which is
        optimal when the planned batches of a rate contain one another.
        """
        assert self._allowed is not None
        if events.non_private() in self._allowed:
            return self._allowed
        left = self._allowed - spent
        open_batches = spent - self._allowed
        for batch in sorted(open_batches, key=lambda event: -self._inside(event).total()):
            count = open_batches[batch]
            for planned in sorted(left, key=lambda event: self._inside(event).total()):
                if count and self._contains(planned, batch):
                    taken = min(count, left[planned])
                    left[planned] -= taken
                    count -= taken
            if count:
                return None
        return +left

    def _contains(self, planned: DpEvent, batch: DpEvent) -> bool:
        (scope, sample), (other_scope, other) = _opened(planned), _opened(batch)
        return (
            isinstance(sample, dp_event.PoissonSampledDpEvent)
            and isinstance(other, dp_event.PoissonSampledDpEvent)
            and scope == other_scope
            and sample.sampling_probability == other.sampling_probability
            and self._inside(batch) <= self._inside(planned)
        )

    def _inside(self, event: DpEvent) -> Counter[DpEvent]:
        """What a sampled batch consists of. Kept, for there are few kinds of batches and many of each."""
        if event not in self._contents:
            _, sample = _opened(event)
            is_batch = isinstance(sample, dp_event.PoissonSampledDpEvent)
            self._contents[event] = events.multiset(sample.event) if is_batch else Counter()
        return self._contents[event]

    def to_json(self) -> dict[str, Any]:
        """The ledger as JSON values; the plan is not part of it."""
        entries = [{"count": count, "event": events.to_json(event)} for event, count in self.entries]
        return {"version": VERSION, "refused": self.refused, "entries": entries}

    @classmethod
    def from_json(cls, obj: object) -> "Ledger":
        """Read what `to_json` wrote; without a plan.

        Raises:
            InvalidValueError: if the object is anything else, or has more than `MAX_ENTRIES` entries.
        """
        if not isinstance(obj, Mapping) or obj.keys() != {"version", "refused", "entries"}:
            raise InvalidValueError("Expected a ledger with the keys version, refused, entries.")
        if type(obj["version"]) is not int or obj["version"] != VERSION:
            raise InvalidValueError(f"Expected a ledger of version {VERSION}, got {shown(obj['version'], 20)}.")
        if not (obj["refused"] is None or (isinstance(obj["refused"], str) and len(obj["refused"]) <= 1000)):
            raise InvalidValueError("Expected refused to be a text of at most 1000 characters, or null.")
        if not isinstance(obj["entries"], list) or len(obj["entries"]) > MAX_ENTRIES:
            raise InvalidValueError(f"Expected a list of at most {MAX_ENTRIES} ledger entries.")
        ledger = cls()
        ledger.refused = obj["refused"]
        for entry in obj["entries"]:
            if not isinstance(entry, dict) or entry.keys() != {"count", "event"}:
                raise InvalidValueError("Expected a ledger entry with the keys count, event.")
            # Not by `charge`, which copies the ledger each time.
            ledger._spent.update(events.multiset(events.repeat(events.from_json(entry["event"]), entry["count"])))
        ledger._spent = +ledger._spent
        ledger.event  # noqa: B018  (raises if the counts add up to more than an event may repeat)
        return ledger


class Batch:
    """One sampled batch, to which releases are charged as they are asked for; made by `Ledger.open_batch`."""

    def __init__(self, ledger: Ledger, rate: float, scope: Scope = ()) -> None:
        self._ledger = ledger
        self._rate = rate
        self._scope = scope
        self._event = events.poisson_sampled(rate, events.no_op())
        self._entry: Counter[DpEvent] = Counter()

    def charge(self, event: DpEvent, scope: Scope = ()) -> None:
        """Write down one more release from this batch. Call it before releasing.

        Args:
            event: what is released.
            scope: the parts of the batch that it touches.

        Raises:
            OverBudgetError: if the plan does not cover the batch with it. Nothing is written then.
        """
        inner = events.compose(self._event.event, _within(scope, event))
        grown = events.poisson_sampled(self._rate, inner)
        scoped = _within(self._scope, grown)
        entry = events.multiset(scoped)
        self._ledger._replace(self._entry, entry, scoped)
        self._event, self._entry = grown, entry

    def open_batch(self, rate: float, scope: Scope = ()) -> "Batch":
        """A batch of a batch is not accounted for.

        Raises:
            UnsupportedEventError: always.
        """
        del rate, scope
        raise UnsupportedEventError("Cannot sample from a sample. Train inside the trials of a selection.")

    def refuse(self, message: str) -> None:
        """Keep in mind that more was asked for than planned."""
        self._ledger.refuse(message)


def _within(scope: Scope, event: DpEvent) -> DpEvent:
    if len({partition for partition, _ in scope}) < len(scope):
        # Read literally, this concerns records in two parts of one partition: nobody. It would cost nothing.
        raise InvalidValueError(f"Expected a scope that names each partition once, got {scope}.")
    for partition, part in reversed(scope):
        event = events.on_part(partition, part, event)
    return event


def _opened(event: DpEvent) -> tuple[Scope, DpEvent]:
    """The scope of a ledger's entry, and what happens there."""
    scope = []
    while isinstance(event, events.PartDpEvent):
        scope.append((event.partition, event.part))
        event = event.event
    return tuple(scope), event
