"""Run cells in processes: each call in a process of its own within limits, with an answer whatever happens to it.

`Processes` is the only launcher of workers. A server that has imported the modules of `preload` forks each process, so
that a process starts in milliseconds, shares no state with others, and torch has no threads yet. Each process leads a
group, which is killed as a whole, also when the caller dies. Like those of `concurrent.futures`, executors take a call
and give a future.
"""

import contextlib
import os
import queue
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from typing import Any, Protocol

from dphpo_bench.base.errors import InvalidValueError, SweepError
from dphpo_bench.harness.reasons import reason_of

DEFAULT_TIME_LIMIT_S = 12 * 3600.0


@dataclass(frozen=True)
class Resources:
    """Needs of a cell, which are not part of its identity."""

    threads: int = 1  # their number changes the rounding of sums, so it does not depend on the machine
    gpus: float = 0  # GPUs, or a part of one; 0 trains on the CPU
    memory_gb: float | None = None  # limit in 10⁹ bytes; mapped files, such as cached features, count in full
    time_limit_s: float = DEFAULT_TIME_LIMIT_S  # seconds after which the cell is stopped and counts as failed


Function = Callable[[str], str]

MAX_LOG_BYTES = 2**16

_PRELOAD = "dphpo_bench.sweep.preload"
COMPILER = "torch._dynamo"
"""Module that the wrappers of torch's optimisers import at the first call, in nearly a second."""

_FORKING = threading.Lock()  # multiprocessing looks after all processes when it starts one, and threads must not meet
_FORK_ATTEMPTS = 5
_END_SECONDS = 10.0
_LONGEST_WAIT = 2e6  # seconds; the system refuses to wait for more than some weeks


class NotStartedError(SweepError):
    """No process could be started, for lack of memory, file descriptors or space."""


@dataclass(frozen=True)
class Answer:
    text: str | None  # the function's result
    failure: str = ""  # why there is no result, in one line
    again: bool = False  # whether another attempt may succeed, as after a killed process
    log: str = ""  # the end of the process's standard output and error
    seconds: float = 0.0


class Processes:
    """Launcher of processes, one for each call; safe to use from several threads.

    Args:
        modules: what the processes need beside the modules of `preload`. The first launcher decides, since all share
            one server; what the server lacks, each process imports for itself.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._modules = modules
        self._live: set[ForkServerProcess] = set()
        self._lock = threading.Lock()
        self._closed = False

    def call(self, function: Function, argument: str, resources: Resources, gpu: str | None = None) -> Answer:
        """Call a function at the top level of a module within its limits, and wait for the answer.

        The process sees this GPU, as in CUDA_VISIBLE_DEVICES; None leaves that as it is.
        """
        start = time.monotonic()
        context = get_context("forkserver")
        context.set_forkserver_preload([*self._modules, _PRELOAD])  # which freezes the objects of all
        with contextlib.ExitStack() as open_files:
            try:
                log = open_files.enter_context(tempfile.TemporaryFile(prefix="dphpo-bench-"))
                receiver, sender = map(open_files.enter_context, context.Pipe(duplex=False))
                output = open_files.enter_context(connection.Connection(os.dup(log.fileno()), readable=False))
                process = context.Process(target=_serve, args=(function, argument, sender, output, resources, gpu))
                self._start(process)
            except (OSError, EOFError) as error:
                raise NotStartedError(f"No process could be started: {error}.") from None
            sender.close()  # the process has a copy; while this one is open, the end of that one does not show
            try:
                text, failure, again = _wait(process, receiver, resources.time_limit_s)
            finally:
                self._end(process)
            log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
            return Answer(text, failure, again, log.read().decode(errors="replace"), time.monotonic() - start)

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
        with self._lock:
            self._live.discard(process)
            _kill(process)
        if _reap(process):
            process.close()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keep interrupts from what is started meanwhile: it would print a traceback, and its starter ends it."""
    resource_tracker.ensure_running()  # else the server starts it, which unblocks interrupts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(process: ForkServerProcess) -> None:
    """Start a process, with a new server if the old one was killed."""
    for attempt in range(_FORK_ATTEMPTS):
        try:
            with _FORKING, no_main_module():
                # Threads of OpenBLAS would be lost in a fork. Modules in the working folder are not ours.
                with environment({"OPENBLAS_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}), _uninterrupted():
                    ensure_running()
                process.start()
            return
        except (ConnectionError, EOFError):  # the server died before it answered, and may not be quite gone yet
            if attempt == _FORK_ATTEMPTS - 1:
                raise
            time.sleep(0.1 * 2**attempt)


@contextlib.contextmanager
def no_main_module() -> Iterator[None]:
    """Keep processes from running the caller's script again."""
    main: dict[str, Any] = vars(sys.modules["__main__"])
    before = dict(main)
    main.pop("__file__", None)
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update({name: before[name] for name in ("__file__", "__spec__") if name in before})


@contextlib.contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables for a while; None removes a variable."""

    def put(values: Mapping[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    before = {name: os.environ.get(name) for name in values}
    put(values)
    try:
        yield
    finally:
        put(before)


def _wait(
    process: ForkServerProcess, receiver: "connection.Connection", time_limit_s: float
) -> tuple[str | None, str, bool]:
    """Return the answer, why there is none, and whether another attempt may succeed."""
    limit = time_limit_s if time_limit_s < _LONGEST_WAIT else None
    if not connection.wait([receiver, process.sentinel], limit):
        return None, f"Stopped after the time limit of {time_limit_s:g} s.", False
    with contextlib.suppress(EOFError, OSError):  # the process ended before or while it sent its answer
        if receiver.poll():  # else nothing will come
            return receiver.recv_bytes().decode(errors="replace"), "", False
    _reap(process)
    code = process.exitcode
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        return None, f"The process was killed by {name}{hint}.", True
    return None, f"The process ended without an answer, exit code {code}.", True


def _kill(process: ForkServerProcess) -> None:
    """Kill a process and everything that it started, if they are still there."""
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with _FORKING, contextlib.suppress(ProcessLookupError):
            if process.is_alive():  # it may not lead its group yet
                os.kill(process.pid, signal.SIGKILL)


def _reap(process: ForkServerProcess) -> bool:
    connection.wait([process.sentinel], _END_SECONDS)
    with _FORKING:
        return not process.is_alive()


def _serve(
    function: Function,
    argument: str,
    sender: "connection.Connection",
    output: "connection.Connection",
    resources: Resources,
    gpu: str | None,
) -> None:
    os.setsid()  # no interrupt from the terminal reaches the process, and its children can be killed with it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_die_with_parent, daemon=True).start()
    for standard in (1, 2):
        os.dup2(output.fileno(), standard)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if resources.memory_gb is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = round(resources.memory_gb * 1e9)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    answer = function(argument).encode()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a plug-in may have closed it
            stream.flush()
    sender.send_bytes(answer)


def _die_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.killpg(os.getpgrp(), signal.SIGKILL)


class Executor(Protocol):
    """Caller of functions from text to text."""

    @property
    def capacity(self) -> int:
        """Number of calls to submit at a time; it may change."""

    def submit(self, function: Function, argument: str, resources: Resources) -> "Future[Answer]":
        """Call a function at the top level of a module.

        Errors of the call are in its answer. The future raises an error if the executor itself failed.
        """

    def close(self) -> None:
        """Stop what is running."""


class SerialExecutor:
    """Executor that calls in this process, for debugging, without limits or protection."""

    capacity = 1

    def submit(self, function: Function, argument: str, resources: Resources) -> "Future[Answer]":
        del resources
        future: Future[Answer] = Future()
        try:
            future.set_result(Answer(function(argument)))
        except Exception as error:
            future.set_result(Answer(None, reason_of(error), log=traceback.format_exc()))
        return future

    def close(self) -> None:
        """Do nothing: nothing is running."""


class ProcessExecutor:
    """Executor of `workers` calls at a time, each in a new process of this machine.

    GPUs are named as in CUDA_VISIBLE_DEVICES; each worker has a GPU, and may share it. For `modules`, the imports that
    workers share, see `Processes`.
    """

    def __init__(self, workers: int, gpus: Sequence[str] = (), modules: Sequence[str] = ()) -> None:
        if workers < 1:
            raise InvalidValueError(f"Expected workers >= 1, got {workers}.")
        self.capacity = workers
        self._processes = Processes(modules)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="cell")
        self._gpus: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        for index in range(workers):
            self._gpus.put(gpus[index % len(gpus)] if gpus else None)

    def submit(self, function: Function, argument: str, resources: Resources) -> "Future[Answer]":
        return self._threads.submit(self._call, function, argument, resources)

    def close(self) -> None:
        self._processes.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _call(self, function: Function, argument: str, resources: Resources) -> Answer:
        gpu = self._gpus.get()
        try:
            return self._processes.call(function, argument, resources, gpu if resources.gpus else None)
        finally:
            self._gpus.put(gpu)


def default_workers(needs: Sequence[Resources], n_gpus: int) -> int:
    """Return the number of cells of the largest needs that this machine can run at a time."""
    workers = len(os.sched_getaffinity(0)) // max(need.threads for need in needs)
    memory = max(need.memory_gb or 0 for need in needs)
    if memory:
        workers = min(workers, int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (memory * 1e9)))
    gpus = max(need.gpus for need in needs)
    if gpus:
        workers = min(workers, n_gpus * int(1 / gpus))
    return max(workers, 1)


def visible_gpus() -> list[str]:
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(index) for index in range(count)]


def answer_of(future: "Future[Answer]") -> Answer:
    """Return the executor's answer, also if the executor failed; raise `NotStartedError` only."""
    try:
        return future.result()
    except NotStartedError:
        raise
    except Exception as error:  # the executor's own failure, such as a lost node
        return Answer(None, f"{type(error).__name__}: {error}", again=True)
