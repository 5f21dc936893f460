"""Run cells somewhere: like those of `concurrent.futures`, executors take a call and give a future."""

import os
import queue
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.sweep.processes import Answer, Function, NotStartedError, Processes
from dphpo_bench.sweep.resources import Resources


class Executor(Protocol):
    """Caller of functions from text to text."""

    shares_disk: bool
    """True if calls read and write the files of this machine."""

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
    shares_disk = True

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

    shares_disk = True

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
