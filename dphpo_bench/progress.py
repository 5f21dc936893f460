"""Progress of long work: the library reports, whoever called it decides how that looks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Callback that moves a progress display forward."""

    def __call__(self, amount: int = 1) -> None: ...


class Progress(Protocol):
    """Where long work reports to."""

    def track(self, description: str, total: int) -> "TrackContext":
        """Open a display of `total` units; the context yields an `Advance`."""
        ...


class TrackContext(Protocol):
    """Context manager around one piece of long work."""

    def __enter__(self) -> Advance: ...
    def __exit__(self, *exc_info: object) -> bool | None: ...


class SilentProgress:
    """Reports nowhere; the default of the library."""

    def track(self, description: str, total: int) -> TrackContext:
        del description, total
        return _silent()


@contextmanager
def _silent() -> Iterator[Advance]:
    def advance(amount: int = 1) -> None:
        del amount

    yield advance
