"""One query at a time, in the process and the thread of the run, and with nobody watching.

What a query reveals is bounded, and charged, as if it ran alone. A second one that runs meanwhile could get the same
noise, overwrite what the first has gathered, or take what the other has been charged for.
"""

import _signal  # type: ignore[import-not-found]  # its getsignal takes a fortieth of the time of the public one
import gc
import os
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch.optim import optimizer
from torch.utils.hooks import RemovableHandle

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.model_checks import refuse_watchers

_HOOKED = (torch.nn.modules.module, optimizer)
_FAR = 2**40
_LIBRARIES: Any = torch.backends
_PRODUCTS = (
    *(_LIBRARIES.cuda.matmul, _LIBRARIES.cudnn.conv, _LIBRARIES.cudnn.rnn),
    *(_LIBRARIES.mkldnn.matmul, _LIBRARIES.mkldnn.conv, _LIBRARIES.mkldnn.rnn),
)
"""Whose settings say how float32 numbers are multiplied."""

_SIGNALS = sorted(signal.valid_signals())


class Guard:
    """Lets one query at a time see the private records of a run; all sessions of the run share it."""

    def __init__(self) -> None:
        self._owner = _here()
        self._busy = False

    def adopt(self) -> None:
        """Belong to this copy of the process from now on. For the copies that selections make."""
        _QUIET.copied()
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
        try:
            refuse_watchers()
            with _signals_wait(), _undisturbed(), _no_autocast():
                yield
        finally:
            self._busy = False


def _here() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """While this lasts, nobody can begin to watch torch, nor count what it does.

    - No hooks of all modules or optimisers are added, from whatever thread.
    - Nothing is recorded of torch's calls, to trace or to profile them, and with them their scalars and shapes.
    - No garbage is collected, since finalizers run in the midst of what goes on.
    - Hooks have numbers, by which whoever adds one before and one after could tell how many a query has added. It goes
      on with numbers far beyond those.
    - Products of float32 numbers are of all their bits. TF32 and its kin round by 1e-3, and may do so for some sizes of
      a batch only, so that one record would change what the others add.
    """
    counted = False
    try:
        with _QUIET.lock:
            _QUIET.inside += 1
            counted = True
            if _QUIET.inside == 1:
                _QUIET.begin()
        yield
    finally:
        if counted:
            with _QUIET.lock:
                _QUIET.inside -= 1
                if _QUIET.inside == 0:
                    _QUIET.end()


class _Quiet:
    """What queries change for the whole process: of several runs in threads the first begins it, the last ends it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self._registries: list[tuple[ModuleType, str, Any]] = []
        self._number, self._collects = 0, True
        self._precisions: list[str] = []

    def begin(self) -> None:
        self._number, self._collects = RemovableHandle.next_id, gc.isenabled()
        self._registries = [
            (module, name, found)
            for module in _HOOKED
            for name, found in vars(module).items()
            if name.startswith("_global_") and isinstance(found, OrderedDict)
        ]
        self._precisions = [products.fp32_precision for products in _PRODUCTS]
        for products in _PRODUCTS:
            products.fp32_precision = "ieee"
        gc.disable()
        torch._C._autograd._enable_record_function(False)
        for module, name, _ in self._registries:
            setattr(module, name, _Closed())

    def end(self) -> None:
        for products, precision in zip(_PRODUCTS, self._precisions, strict=True):
            products.fp32_precision = precision
        for module, name, found in self._registries:
            setattr(module, name, found)
        torch._C._autograd._enable_record_function(True)
        RemovableHandle.next_id = self._number + _FAR  # not the number itself: another thread may have taken it
        if self._collects:
            gc.enable()

    def copied(self) -> None:
        """Begin anew in a copy of the process, in which other threads and their queries are not there."""
        if self.inside:
            self.end()
        self.lock, self.inside = threading.Lock(), 0


_QUIET = _Quiet()


@contextmanager
def _no_autocast() -> Iterator[None]:
    """While this lasts, nothing is in half precision: autocast keeps halves of weights that then change in place."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class _Closed(OrderedDict[int, Any]):
    """A registry of hooks that takes none."""

    def __setitem__(self, key: int, value: Any) -> NoReturn:
        raise RuntimeError("Expected no hook of all modules or optimisers while private records are used.")


@contextmanager
def _signals_wait() -> Iterator[None]:
    """While this lasts, handlers of signals wait, but for Python's own of Ctrl-C: they could begin to watch."""
    late: list[int] = []

    def note(number: int, _: object) -> None:
        late.append(number)

    handlers: dict[int, Callable[..., Any]] = {}
    if threading.current_thread() is threading.main_thread():
        own = ((one, _signal.getsignal(one)) for one in _SIGNALS)
        handlers = {one: found for one, found in own if callable(found) and found is not signal.default_int_handler}
    try:
        for one in handlers:
            signal.signal(one, note)
        yield
    finally:
        for one, found in handlers.items():
            signal.signal(one, found)
        with ExitStack() as stack:  # a handler that raises does not keep the next ones from running
            for one in reversed(dict.fromkeys(late)):
                stack.callback(signal.raise_signal, one)
