"""A function called in a process of its own: whatever happens to that process, the caller gets an answer.

Processes are forked from a server that has imported what runs need and done nothing else, so a fresh process
costs milliseconds and shares no state with any other; torch has no threads yet when it is forked. A process leads
a group of its own, which is killed as a whole; when the caller dies, so does it.
"""

import contextlib
import math
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path

from dphpo_bench.records import MAX_RECORD_BYTES
from dphpo_bench.sweep.resources import Resources

Function = Callable[[str], str]

MAX_ANSWER_BYTES = 2 * MAX_RECORD_BYTES
MAX_LOG_BYTES = 2**16

_PRELOAD = ["dphpo_bench.sweep.preload"]
_FORKING = threading.Lock()
_FORK_ATTEMPTS = 5


@dataclass(frozen=True)
class Answer:
    """What became of a call.

    Attributes:
        text: what the function returned, or None if it did not.
        failure: why there is no text, one line; else empty.
        again: whether another attempt may succeed, as after a killed process.
        log: the end of what the process wrote to its standard output and error.
        seconds: how long it took.
    """

    text: str | None
    failure: str = ""
    again: bool = False
    log: str = ""
    seconds: float = 0.0


class Processes:
    """Calls functions in processes of their own; safe to use from several threads."""

    def __init__(self) -> None:
        self._live: set[ForkServerProcess] = set()
        self._lock = threading.Lock()
        self._closed = False

    def call(self, function: Function, argument: str, resources: Resources, gpu: str | None = None) -> Answer:
        """Call a function and wait for its answer.

        Args:
            function: a function at the top level of a module.
            argument: its argument.
            resources: its limits.
            gpu: the GPU it is to see, as in CUDA_VISIBLE_DEVICES; None leaves that as it is.
        """
        start = time.monotonic()
        try:
            with _log_file() as log:
                text, failure, again = self._call(function, argument, resources, gpu, log)
                return Answer(text, failure, again, _tail(log), time.monotonic() - start)
        except (OSError, EOFError) as error:  # no memory, no file descriptor, no room in the temporary folder
            reason = f"No process could be started: {error}."
            return Answer(None, reason, again=True, seconds=time.monotonic() - start)

    def _call(
        self, function: Function, argument: str, resources: Resources, gpu: str | None, log: Path
    ) -> tuple[str | None, str, bool]:
        receiver, sender = _context().Pipe(duplex=False)
        process = _context().Process(target=_serve, args=(function, argument, sender, str(log), resources, gpu))
        with receiver:
            with sender:  # the process has its own; while this one is open, its end would not show
                self._start(process)
            try:
                return _wait(process, receiver, resources.time_limit_s)
            finally:
                self._end(process)

    def close(self) -> None:
        """Kill what is running and start nothing more."""
        with self._lock:
            self._closed = True
            for process in self._live:
                _kill(process)

    def _start(self, process: ForkServerProcess) -> None:
        with self._lock:
            if self._closed:
                raise OSError("the executor is closed")
            _fork(process)
            self._live.add(process)

    def _end(self, process: ForkServerProcess) -> None:
        """Whatever happened, the process and its children are gone after this."""
        with self._lock:
            self._live.discard(process)
            _kill(process)
        process.join()
        process.close()


def _context() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


def _fork(process: ForkServerProcess) -> None:
    """Start a process; if the server was killed, with a new server.

    Raises:
        OSError, EOFError: if that fails again and again.
    """
    for attempt in range(_FORK_ATTEMPTS):
        try:
            with _FORKING:
                _ensure_server()
                process.start()
            return
        except (ConnectionError, EOFError):  # the server died before it answered, and may not be quite gone yet
            if attempt == _FORK_ATTEMPTS - 1:
                raise
            time.sleep(0.1 * 2**attempt)


def _ensure_server() -> None:
    """Start the server, if need be, with an OpenBLAS that keeps no threads: a fork would lose them."""
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        ensure_running()
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _wait(
    process: ForkServerProcess, receiver: "connection.Connection", time_limit_s: float
) -> tuple[str | None, str, bool]:
    ready = connection.wait([receiver, process.sentinel], timeout=None if math.isinf(time_limit_s) else time_limit_s)
    if not ready:
        return None, f"Stopped after the time limit of {time_limit_s:g} s.", False
    try:
        if receiver.poll():
            return receiver.recv_bytes(MAX_ANSWER_BYTES).decode(), "", False
    except (EOFError, ConnectionResetError):
        pass
    except (OSError, UnicodeDecodeError) as error:
        return None, f"The process sent an answer that is no text of at most {MAX_ANSWER_BYTES} bytes: {error}.", False
    process.join(timeout=5)  # between the end of the pipe and the end of the process
    return None, *_ending(process.exitcode)


def _ending(code: int | None) -> tuple[str, bool]:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        return f"The process was killed by {name}{hint}.", True
    return f"The process ended without an answer, exit code {code}.", True


def _kill(process: ForkServerProcess) -> None:
    """Kill a process and all that it started; nothing happens if they are gone."""
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.is_alive():  # it may not have led its group yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _serve(
    function: Function,
    argument: str,
    sender: "connection.Connection",
    log: str,
    resources: Resources,
    gpu: str | None,
) -> None:
    """What the process does."""
    os.setsid()  # no interrupt from the terminal reaches it, and its children can be killed with it
    threading.Thread(target=_die_with_parent, daemon=True).start()
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if resources.memory_gb is not None:
        limit = round(resources.memory_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    answer = function(argument).encode()
    sys.stdout.flush()
    sys.stderr.flush()
    sender.send_bytes(answer)


def _die_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.killpg(os.getpgrp(), signal.SIGKILL)


@contextlib.contextmanager
def _log_file() -> Iterator[Path]:
    descriptor, name = tempfile.mkstemp(prefix="dphpo-bench-", suffix=".log")
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
        return file.read().decode(errors="replace")
