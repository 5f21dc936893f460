"""Report progress of long work; the caller decides how to show it."""

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable


class Meter:
    """Counter of example passes, the unit of a plan's cost. It is public: batches count with their expected sizes.

    Args:
        total: how many are planned; 0 if nobody knows, or may know. Nothing is counted then.
        until: what follows and is not counted, such as "the test".
    """

    def __init__(self, total: float = 0.0, until: str = "the end") -> None:
        self.total, self.until = total, until
        self.done = 0.0
        self._first: tuple[float, float] | None = None  # when the first report came, and how much was done then

    def advance(self, examples: float) -> None:
        """Count some more."""
        if self.total:
            self.done += examples
            self._first = self._first or (time.monotonic(), self.done)

    def seconds_left(self) -> float | None:
        """Return the seconds for the rest at the rate since the first report; None if that is not known."""
        if self._first is None or self.total <= 0:
            return None
        since, before = self._first
        counted = self.done - before
        return (time.monotonic() - since) * max(self.total - self.done, 0.0) / counted if counted else None


class Advance(Protocol):
    """Callback that moves a progress display forward."""

    def __call__(self, amount: int = 1) -> None: ...


@runtime_checkable
class Progress(Protocol):
    """Receiver of reports on long work."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Open a display of `total` units, 0 if nobody knows how many; the context yields an `Advance`."""
        ...

    def whole(self, meter: Meter) -> AbstractContextManager[Meter]:
        """Show how long all the work takes that is counted while the context lasts.

        The context yields the meter to count with: of long work inside other long work, it is the outer one's.
        """
        ...

    def note(self, text: str) -> None:
        """Say something once."""


class NullProgress:
    """Progress that shows nothing."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Open nothing."""
        del description, total
        return nullcontext(_ignore)

    def whole(self, meter: Meter) -> AbstractContextManager[Meter]:
        """Count all the same."""
        return nullcontext(meter)

    def note(self, text: str) -> None:
        """Say nothing."""
        del text


def _ignore(amount: int = 1) -> None:
    del amount
