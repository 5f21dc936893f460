"""Functions called in copies of this process, of which nothing is left but their answers.

What a function stores in variables, lists or models is stored in its copy and ends with it. This is what makes "only
the winner of a selection is released" true of code that nobody has read. Files, sockets and memory that is shared on
purpose outlive the copy (docs/pitfalls.md).
"""

import contextlib
import ctypes
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

import cloudpickle

from dphpo_bench.base.errors import InvalidValueError

_CHUNK = 2**20
_SIZE = 8
_PR_SET_PDEATHSIG = 1


def call_apart(functions: Sequence[Callable[[], Any]], at_once: int = 1) -> Generator[Any]:
    """Call each function in a copy of this process, with one thread for torch; what it prints is not seen.

    A copy is killed when it has answered, and on Linux when this process dies.

    Args:
        functions: each returns what `cloudpickle` can write, and not None.
        at_once: how many run at a time.

    Yields:
        The answers in order; None for a function that raised or whose copy died. The reason is not told: an exception
        may hold what must not be seen.

    Raises:
        InvalidValueError: where a process cannot be copied.
    """
    if not hasattr(os, "fork"):
        raise InvalidValueError("Expected a system with os.fork, to run trials apart. Use trials of type Trial here.")
    waiting = iter(functions)
    running: deque[_Copy] = deque()
    try:
        while True:
            for function in islice(waiting, max(1, at_once) - len(running)):
                running.append(_start(function))
            if not running:
                return
            answer = running[0].answer()
            running.popleft().end()
            yield pickle.loads(answer) if answer else None
    finally:
        for copy in running:
            copy.end()


@dataclass(frozen=True)
class _Copy:
    """A copy of this process at work.

    Attributes:
        pid: its number.
        pipe: what it writes its answer to: the length in eight bytes, then the answer.
    """

    pid: int
    pipe: int

    def answer(self) -> bytes:
        """Its whole answer; empty if it ended without one."""
        received = bytearray()
        while len(received) < _SIZE or len(received) < _SIZE + int.from_bytes(received[:_SIZE], "big"):
            chunk = os.read(self.pipe, _CHUNK)
            if not chunk:
                return b""
            received += chunk
        return bytes(received[_SIZE:])

    def end(self) -> None:
        """Kill it, if it is still there."""
        os.close(self.pipe)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _start(function: Callable[[], Any]) -> _Copy:
    receiver, sender = os.pipe()
    original = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(receiver)
        os.close(sender)
        raise
    if pid == 0:
        _work(function, sender, original)
    os.close(sender)
    return _Copy(pid, receiver)


def _work(function: Callable[[], Any], sender: int, original: int) -> NoReturn:
    """What the copy does. It ends here whatever happens, and cleans up nothing, for all belongs to the original."""
    try:
        import torch

        _die_with(original)
        with contextlib.suppress(ValueError):  # in a thread; the original will kill the copy
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        torch.set_num_threads(1)  # the threads of the original are not there
        answer = cloudpickle.dumps(function())
        view = memoryview(len(answer).to_bytes(_SIZE, "big") + answer)
        while view:
            view = view[os.write(sender, view) :]
    finally:
        os._exit(0)


def _die_with(original: int) -> None:
    """Have the system kill this process when the original ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != original:
        os._exit(0)
