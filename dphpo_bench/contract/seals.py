"""Seals on data: while a method plans or runs, no task gives out its records."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from dphpo_bench.base.errors import SealedDataError

if TYPE_CHECKING:
    from dphpo_bench.data.source import DataSource

T = TypeVar("T")

_seals: list[list[str]] = []  # of this process: another thread or context opens no records either

run_lock = threading.RLock()
"""A lock that a run holds from its start to its end, and a thread while it seals data: other threads wait."""


@contextmanager
def sealed() -> Iterator[list[str]]:
    """Seal the data: while this lasts, no task of this process gives out its training or its test records.

    Another thread that runs, plans or makes a method waits meanwhile: its loading would end this thread's run.

    Yields:
        The complaints: a message for each attempt, also if the method swallowed the error.
    """
    complaints: list[str] = []
    with run_lock:
        _seals.append(complaints)
        try:
            yield complaints
        finally:
            _seals[:] = [seal for seal in _seals if seal is not complaints]


def refuse_sealed(load: str, task: str) -> None:
    """Refuse to open a task's records while data are sealed.

    Pickle names this function and does not copy it; a copy would have seals of its own.
    """
    if _seals:
        complaint = (
            f"{load} of task {task} was called by the method, or by a model. A method sees no data while it plans, and "
            "only the session while it runs. The harness alone opens the test data, afterwards."
        )
        for complaints in _seals:
            complaints.append(complaint)
        raise SealedDataError(complaint)


def guarded(load: "Callable[[Any, DataSource], T]") -> "Callable[[Any, DataSource], T]":
    """Return a task's method that refuses to open records while data are sealed."""

    @wraps(load)
    def load_unless_sealed(self: Any, source: "DataSource") -> T:
        refuse_sealed(load.__name__, self.name)
        return load(self, source)

    load_unless_sealed.is_guarded = True  # type: ignore[attr-defined]
    return load_unless_sealed
