"""Progress of long work: the library reports, whoever called it decides how that looks."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Advance(Protocol):
    """Callback that moves a progress display forward."""

    def __call__(self, amount: int = 1) -> None: ...


class Progress(Protocol):
    """Where long work reports to."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Open a display of `total` units; the context yields an `Advance`."""
        ...

    def note(self, text: str) -> None:
        """Say something once."""


class SilentProgress:
    """Reports nowhere; the default of the library."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Open nothing."""
        del description, total
        return nullcontext(_ignore)

    def note(self, text: str) -> None:
        """Say nothing."""
        del text


def _ignore(amount: int = 1) -> None:
    del amount
