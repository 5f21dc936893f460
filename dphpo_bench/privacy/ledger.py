"""The ledger of releases: what was taken from the private data, written down before it is taken.

A ledger may be bound to the event of a plan. It then refuses any release that the plan does not cover before the
release happens. ε is computed from the ledger alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.errors import InvalidValueError, OverBudgetError, UnsupportedEventError
from dphpo_bench.base.text import shown
from dphpo_bench.privacy import event_trees, events
from dphpo_bench.privacy.events import OneOfDpEvent

VERSION = 1
MAX_ENTRIES = event_trees.MAX_NODES  # as many as the event of a plan may hold
MAX_REFUSED = 1000

LOCKED = "an account that is locked"
"""Reason of a refusal by a locked ledger."""

Scope = tuple[tuple[str, str], ...]
"""The parts, outermost first, to whose records a release is confined; empty for all records."""


class Ledger:
    """The releases so far, as counts of distinct events; of a run, of a trial, or of one sampled batch.

    What it may be asked is fixed when it is made: any number of releases in any order, each chosen from the earlier
    answers, interleaved with those of other batches, as long as all of them together are within the allowance
    (docs/accounting.md, kinds of batches).

    Attributes:
        refused: the message of the first release that was refused, else None. It stays when the exception is
            swallowed, so that the run is known to have asked for more than it planned.
        failed: why a computation on private records ended without a result, else None. Nothing is released after it.
        hides_time: whether the time of the run tells of the records, as a solver's does, though no event may say so.
    """

    def __init__(
        self, allowance: DpEvent | None = None, *, within: "Ledger | None" = None, is_batch: bool = False
    ) -> None:
        """Start empty.

        Args:
            allowance: what bounds all releases together: the event of the plan, of a trial, or what a batch may be
                asked; None for no bound.
            within: the ledger to which all of this has been charged as a whole, if there is one.
            is_batch: whether this is the account of one sampled batch, or of what is asked within one.
        """
        self.refused: str | None = None
        self.failed: str | None = None
        self.hides_time = False
        self._within = within
        self._is_batch = is_batch
        self._spent: Counter[DpEvent] = Counter()
        self._allowed = None if allowance is None else event_trees.multiset(allowance)
        self._closed = False
        self._locked = False

    @property
    def event(self) -> DpEvent:
        """All releases so far, composed."""
        return event_trees.from_multiset(self._spent)

    @property
    def untouched(self) -> bool:
        """True if nothing was asked of the records: no release, and no computation on them that failed."""
        return not self._spent and self.failed is None

    @property
    def entries(self) -> tuple[tuple[DpEvent, int], ...]:
        """Distinct releases with their counts, in a fixed order."""
        return tuple(sorted(self._spent.items(), key=repr))

    def charge(self, event: DpEvent, scope: Scope = ()) -> None:
        """Write down a release, of the parts in `scope`, before it happens.

        Raises:
            OverBudgetError: if the plan does not cover it. Then nothing is written, and nothing may be released.
        """
        scoped = within_scope(scope, event)
        releases = event_trees.multiset(scoped)
        for ledger in self._chain():
            if ledger._closed:
                raise OverBudgetError(
                    f"The run, or the trial, is over; the release {event_trees.describe(scoped)[:400]} comes too late. "
                    "Keep no session and no batch beyond the call that it was given to."
                )
        if self.root._locked:
            self._refuse(
                f"The release {event_trees.describe(scoped)[:400]} is asked of {LOCKED}: while a "
                "selection runs, each of its trials asks its own session. Ask before the selection, or after it."
            )
        spent = self._spent + releases
        if self._allowed is not None and not (events.non_private() in self._allowed or spent <= self._allowed):
            self._refuse(self._not_covered(scoped, self._allowed))
        self._spent = spent

    def go_on(self, earlier: "Ledger") -> None:
        """Take over the releases that this run had before its process died.

        Raises:
            OverBudgetError: if the plan does not cover them.
        """
        self._spent = Counter()
        self.charge(earlier.event)

    def open_batch(self, rate: float, contents: DpEvent, scope: Scope = ()) -> "Ledger":
        """Charge a whole batch, asked or not, and get the account of what may be asked of it.

        `contents` is all that may be asked: composed first, then sampled once at `rate`, from the parts in `scope`.

        Raises:
            OverBudgetError: if the plan has no such batch left.
            UnsupportedEventError: if this is itself the account of a batch; no theorem here covers a batch of a batch.
        """
        if self._is_batch:
            raise UnsupportedEventError("Cannot sample from a sample. Train inside the trials of a selection.")
        contents = event_trees.frozen(contents)
        self.charge(events.poisson_sampled(rate, contents), scope)
        return Ledger(contents, within=self, is_batch=True)

    def open_one_of(self, choice: OneOfDpEvent, index: int, scope: Scope = ()) -> "Ledger":
        """Charge one of several events, whichever it is, and get the account of the one that is taken.

        If the choice has weights, the index must be a fresh draw by these. Charge what is taken with the same scope.

        Raises:
            OverBudgetError: if the plan does not cover the choice.
        """
        self.charge(choice, scope)
        return Ledger(within_scope(scope, choice.events[index]), within=self, is_batch=self._is_batch)

    def _not_covered(self, asked: DpEvent, allowed: Counter[DpEvent]) -> str:
        left = event_trees.describe(event_trees.from_multiset(allowed - self._spent))[:400]
        if not self._is_batch:
            return (
                f"The plan does not cover the release {event_trees.describe(asked)[:400]}; it still covers {left}. "
                "Plan for all that the run may release, or release less."
            )
        return (
            f"The batch was not opened for the release {event_trees.describe(asked)[:400]}; what it may still be "
            f"asked is {left}. A batch does not grow when its answers are known: open each batch that may be asked "
            "this as one of a kind that has it, and plan for as many of that kind."
        )

    def _refuse(self, message: str) -> NoReturn:
        self.refuse(message)
        raise OverBudgetError(message)

    def refuse(self, message: str) -> None:
        """Remember, here and in the ledgers above, that more was asked for than planned."""
        for ledger in self._chain():
            ledger.refused = ledger.refused or message[:MAX_REFUSED]

    def fail(self, message: str) -> None:
        """Remember that a computation on private records ended without a result, and release nothing more."""
        self.root.failed = self.root.failed or message[:MAX_REFUSED]
        self.root.close()

    def close(self) -> None:
        """Refuse whatever is asked for from now on, also of batches."""
        self._closed = True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Refuse all charges, here and in the ledgers above, while this lasts."""
        root = self.root
        before, root._locked = root._locked, True
        try:
            yield
        finally:
            root._locked = before

    @property
    def root(self) -> "Ledger":
        """The ledger of the run or trial that this belongs to."""
        return [*self._chain()][-1]

    def _chain(self) -> "Iterator[Ledger]":
        ledger: Ledger | None = self
        while ledger is not None:
            yield ledger
            ledger = ledger._within

    def to_json(self) -> dict[str, Any]:
        """Return the ledger as JSON values; the plan is not part of it."""
        entries = [{"count": count, "event": event_trees.to_json(event)} for event, count in self.entries]
        ended = {"failed": self.failed} if self.failed else {}
        return {"version": VERSION, "refused": self.refused, **ended, "entries": entries}

    @classmethod
    def from_json(cls, obj: object) -> "Ledger":
        """Read what `to_json` wrote, at most `MAX_ENTRIES` entries, without a plan; anything else is refused."""
        if not isinstance(obj, Mapping) or obj.keys() - {"failed"} != {"version", "refused", "entries"}:
            raise InvalidValueError("Expected a ledger with the keys version, refused, entries, and perhaps failed.")
        if type(obj["version"]) is not int or obj["version"] != VERSION:
            raise InvalidValueError(f"Expected a ledger of version {VERSION}, got {shown(obj['version'], 20)}.")
        for name in ("refused", "failed"):
            text = obj.get(name)
            if not (text is None or (isinstance(text, str) and len(text) <= MAX_REFUSED)):
                raise InvalidValueError(f"Expected {name} to be a text of at most {MAX_REFUSED} characters, or null.")
        if not isinstance(obj["entries"], list) or len(obj["entries"]) > MAX_ENTRIES:
            raise InvalidValueError(f"Expected a list of at most {MAX_ENTRIES} ledger entries.")
        ledger = cls()
        ledger.refused, ledger.failed = obj["refused"], obj.get("failed")
        for entry in obj["entries"]:
            if not isinstance(entry, dict) or entry.keys() != {"count", "event"}:
                raise InvalidValueError("Expected a ledger entry with the keys count, event.")
            # Not by `charge`, which copies the ledger each time.
            ledger._spent.update(
                event_trees.multiset(events.repeat(event_trees.from_json(entry["event"]), entry["count"]))
            )
        ledger._spent = +ledger._spent
        ledger.event  # noqa: B018  (raises if the counts add up to more than an event may repeat)
        return ledger


def within_scope(scope: Scope, event: DpEvent) -> DpEvent:
    """Return the event, run on the records of these parts."""
    if len({partition for partition, _ in scope}) < len(scope):
        # Read literally, this concerns records in two parts of one partition: nobody. It would cost nothing.
        raise InvalidValueError(f"Expected a scope that names each partition once, got {scope}.")
    for partition, part in reversed(scope):
        event = events.on_part(partition, part, event)
    return event
