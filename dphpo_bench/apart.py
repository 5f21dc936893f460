"""Functions called in copies of this process, of which nothing is left but their answers.

What a function stores in variables, lists or models is stored in its copy and ends with it. This is what makes "only
the winner of a selection is released" true of code that nobody has read. Files, sockets and memory that is shared on
purpose outlive the copy (docs/pitfalls.md).
"""

import contextlib
import logging
import os
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

import cloudpickle

from dphpo_bench.errors import InvalidValueError

logger = logging.getLogger(__name__)

_CHUNK = 2**20


def call_apart(functions: Sequence[Callable[[], Any]], at_once: int = 1) -> Generator[Any]:
    """Call each function in a copy of this process, with one thread for torch; what it prints is not seen.

    Args:
        functions: each returns what `cloudpickle` can write, and not None.
        at_once: how many run at a time.

    Yields:
        The answers in order; None for a function that raised or whose copy died. Why goes to the debug log.

    Raises:
        InvalidValueError: where a process cannot be copied.
    """
    if not hasattr(os, "fork"):
        raise InvalidValueError("Expected a system with os.fork, to run trials apart. Use trials of type Trial here.")
    waiting = iter(functions)
    running = deque(map(_start, islice(waiting, at_once)))
    try:
        while running:
            answer = running[0].answer()
            running.popleft()
            running.extend(map(_start, islice(waiting, 1)))
            yield _loaded(answer)
    finally:
        for copy in running:
            copy.end()


@dataclass(frozen=True)
class _Copy:
    """A copy of this process at work.

    Attributes:
        pid: its number.
        pipe: what it writes its answer to.
    """

    pid: int
    pipe: int

    def answer(self) -> bytes:
        """All that it writes until it ends."""
        received = bytearray()
        while chunk := os.read(self.pipe, _CHUNK):
            received += chunk
        self.end()
        return bytes(received)

    def end(self) -> None:
        """Kill it, if it is still there."""
        os.close(self.pipe)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _start(function: Callable[[], Any]) -> _Copy:
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receiver)
        _work(function, sender)
    os.close(sender)
    return _Copy(pid, receiver)


def _work(function: Callable[[], Any], sender: int) -> NoReturn:
    """What the copy does. It ends here whatever happens, and cleans up nothing: all of it belongs to the original."""
    try:
        import torch

        with contextlib.suppress(ValueError):  # in a thread; the original will kill the copy
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        torch.set_num_threads(1)  # the threads of the original are not there
        try:
            answer = cloudpickle.dumps((function(), None))
        except BaseException:
            answer = pickle.dumps((None, traceback.format_exc()))
        view = memoryview(answer)
        while view:
            view = view[os.write(sender, view) :]
    finally:
        os._exit(0)


def _loaded(answer: bytes) -> Any:
    if not answer:
        logger.debug("A process that ran a trial died.")
        return None
    found, why = pickle.loads(answer)
    if why is not None:
        logger.debug("A trial failed.\n%s", why)
    return found
