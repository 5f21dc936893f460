"""One query at a time, in the process and the thread of the run, and with nobody watching.

What a query reveals is bounded, and charged, as if it ran alone. A second one that runs meanwhile could get the same
noise, overwrite what the first has gathered, or take what the other has been charged for.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.model_checks import refuse_watchers


class Guard:
    """Lets one query at a time see the private records of a run; all sessions of the run share it."""

    def __init__(self) -> None:
        self._owner = _here()
        self._busy = False

    def adopt(self) -> None:
        """Belong to this copy of the process from now on. For the copies that selections make."""
        self._owner = _here()

    def check(self) -> None:
        """Refuse whoever asks from another process or thread.

        Raises:
            InvalidValueError: if this is not the one that the run is in.
        """
        if _here() != self._owner:
            raise InvalidValueError(
                "Expected a session to be asked in the process and the thread that its method runs in. A copy of the "
                "process would get the same noise again, and threads would share a batch's memory. Ask one question "
                "after the other."
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let one query run, from its charge to its release.

        Raises:
            InvalidValueError: if another one is not over, if this is another process or thread, or if something
                watches; see `refuse_watchers`.
        """
        self.check()
        if self._busy:
            raise InvalidValueError("Expected one query of a session at a time. Ask again when the other is over.")
        self._busy = True
        # Whatever records the calls of torch, to trace or profile them, records their scalars and shapes, too.
        torch._C._autograd._enable_record_function(False)
        try:
            refuse_watchers()
            yield
        finally:
            torch._C._autograd._enable_record_function(True)
            self._busy = False


def _here() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()
