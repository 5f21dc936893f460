"""Report progress of long work; the caller decides how to show it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

from dphpo_bench.base.meter import Meter


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
