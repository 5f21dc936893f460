"""A guard that lets one query at a time run, in the process and thread of the run, in full precision, without hooks.

The ledger charges a query as if it ran alone. A second query at the same time could draw the same noise, overwrite the
sums of the first, or spend its charge.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.model_checks import refuse_watchers

_LIBRARIES: Any = torch.backends
_PRODUCTS = (
    *(_LIBRARIES.cuda.matmul, _LIBRARIES.cudnn.conv, _LIBRARIES.cudnn.rnn),
    *(_LIBRARIES.mkldnn.matmul, _LIBRARIES.mkldnn.conv, _LIBRARIES.mkldnn.rnn),
)
"""Libraries whose settings say how float32 numbers are multiplied."""


class Guard:
    """Gate to the private records of a run, one query at a time; all sessions of the run share it."""

    def __init__(self) -> None:
        self._owner = os.getpid(), threading.get_ident()
        self._busy = False

    def check(self) -> None:
        """Refuse whoever asks from another process or thread than those that the run is in."""
        if (os.getpid(), threading.get_ident()) != self._owner:
            raise InvalidValueError(
                "Expected a session to be asked in the process and the thread that its method runs in. A copy of the "
                "process would get the same noise again, and threads would share a batch's memory. Ask one question "
                "after the other."
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let one query run, from its charge to its release."""
        self.check()
        if self._busy:
            raise InvalidValueError("Expected one query of a session at a time. Ask again when the other is over.")
        self._busy = True
        try:
            refuse_watchers()
            with _full_precision():
                yield
        finally:
            self._busy = False


_lock = threading.Lock()
_queries: set[object] = set()  # that are under way, in any thread
_precisions: list[str] = []  # of the products, before the first of these queries


@contextmanager
def _full_precision() -> Iterator[None]:
    """Compute with all bits of float32 numbers, without TF32 and without autocast.

    TF32 rounds by 1e-3, and may do so for some sizes of a batch only, so that one record would change what the others
    add. Autocast keeps halves of weights that then change in place. Of several runs in threads, the first query sets
    the precision of products, which the last puts back.
    """
    query = object()
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        with _lock:
            if not _queries:
                _precisions[:] = [product.fp32_precision for product in _PRODUCTS]
            _queries.add(query)
            for product in _PRODUCTS:
                product.fp32_precision = "ieee"
        try:
            yield
        finally:
            with _lock:
                _queries.discard(query)
                for product, precision in zip(_PRODUCTS, _precisions if not _queries else (), strict=False):
                    product.fp32_precision = precision
