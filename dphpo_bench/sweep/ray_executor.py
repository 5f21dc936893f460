"""Run cells on a Ray cluster. Ray finds a node with room, and starts the cells of a lost node again on another.

Inside a Ray worker a cell still has its own process, with the same limits and log as without Ray. The folders of data
and caches have to be the same on all nodes. The folder of records need not, since only the driver writes records.
"""

import contextlib
import importlib
import logging
import os
import re
import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from importlib.metadata import version
from typing import Any

from dphpo_bench.base.errors import InvalidValueError, require_extra
from dphpo_bench.sweep.executors import COMPILER, Answer, Function, NotStartedError, Processes, Resources, environment

PROBE_SECONDS = 60.0
TOKEN = secrets.token_hex(32)  # the same throughout this process, since Ray reads it once


class RayExecutor:
    """Executor on a Ray cluster, whose nodes may join and leave at any time, or on a Ray of its own on this machine.

    `address` is "auto" or "host:port" of a cluster that this machine is a node of; None starts a Ray on this machine.
    Ray starts a call again `retries` times after it lost its node or worker, or for lack of memory.
    """

    def __init__(self, address: str | None, needs: Sequence[Resources], retries: int = 3) -> None:
        os.environ.setdefault("RAY_task_oom_retries", str(retries))  # read when Ray is imported
        require_extra("ray", "This executor needs", "ray")
        # Not an import statement, so that types are the same with and without Ray.
        self._ray: Any = importlib.import_module("ray")
        self._needs = tuple(needs) or (Resources(),)
        for need in self._needs:
            if need.gpus > 1 and need.gpus % 1:
                raise InvalidValueError(f"Expected gpus={need.gpus:g} to be at most 1 or a whole number.")
        self._running: dict[Any, Future[Answer]] = {}  # by Ray's references
        self._lock = threading.Lock()
        with contextlib.ExitStack() as stack:
            if address is None:
                stack.enter_context(_started(self._ray))
            else:
                stack.enter_context(_initialized(self._ray, address, f"Cannot join the Ray cluster at {address!r}"))
                self._check_versions()
            self._check_room()
            # Else each GPU call would have a new Ray worker. Here the cell's own process holds the GPU.
            self._call = self._ray.remote(max_retries=retries, max_calls=0)(_call)
            self._stack = stack.pop_all()

    @property
    def capacity(self) -> int:
        """As many of the smallest calls as there is room for, and a quarter more that wait for a node that joins."""
        slots = sum(max(_room(node, need) for need in self._needs) for node in self._nodes())
        return slots + slots // 4 + 1

    def submit(self, function: Function, argument: str, resources: Resources) -> "Future[Answer]":
        options = {"num_cpus": resources.threads, "num_gpus": resources.gpus}
        if resources.memory_gb is not None:
            options["memory"] = _bytes(resources.memory_gb)
        reference = self._call.options(**options).remote(function, argument, resources)
        answered: Future[Answer] = Future()
        with self._lock:
            self._running[reference] = answered

        def pass_on(future: "Future[Answer]") -> None:
            with self._lock:
                mine = self._running.pop(reference, None) is not None  # else the executor was closed
            if mine:
                _answer(answered, future)

        reference.future().add_done_callback(pass_on)
        return answered

    def close(self) -> None:
        """Kill what is running, and leave the cluster; a Ray of its own is stopped."""
        with self._lock:
            running, self._running = self._running, {}
        for reference, answered in running.items():
            answered.cancel()
            with contextlib.suppress(Exception):
                self._ray.cancel(reference, force=True)
        self._stack.close()

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _check_versions(self) -> None:
        """Reject nodes of another version, where cells of private records would fail once they are counted."""
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        probe, here = self._ray.remote(num_cpus=0, max_retries=0)(_version), _version()
        for node in self._nodes():
            pinned = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answer = probe.options(scheduling_strategy=pinned).remote()
            try:
                there = self._ray.get(answer, timeout=PROBE_SECONDS)
            except self._ray.exceptions.RayTaskError as error:
                there = _one_line(error)
            except self._ray.exceptions.RayError:
                continue  # the node has left again
            if there != here:
                where = f"on node {node['NodeManagerAddress']} of the Ray cluster"
                raise InvalidValueError(f"Expected dphpo-bench {here} {where}, got: {there}.")

    def _check_room(self) -> None:
        """Reject needs that no node can meet; Ray would wait for ever."""
        for need in self._needs:
            if not any(_room(node, need) for node in self._nodes()):
                raise InvalidValueError(
                    f"No node of the Ray cluster has the {need.threads} CPUs, {need.gpus:g} GPUs and "
                    f"{need.memory_gb or 0:g} GB of a cell. Ask for less in the suite's 'resources', or add a node."
                )


def _version() -> str:
    return version("dphpo-bench")


def _answer(answered: "Future[Answer]", future: "Future[Answer]") -> None:
    """Pass on Ray's answer; its errors, such as a lost node, have many types and many lines."""
    error = future.exception()
    if error is None:
        answered.set_result(future.result())
    elif isinstance(error, NotStartedError):  # whose text holds a traceback, too
        answered.set_exception(NotStartedError(_one_line(error).partition(": ")[2]))
    else:
        answered.set_result(Answer(None, f"Ray: {_one_line(error)}", again=True))


def _call(function: Function, argument: str, resources: Resources) -> Answer:
    # Ray gives a worker other GPUs for each call, but the server that processes are forked from keeps its first ones.
    return Processes([COMPILER]).call(function, argument, resources, os.environ.get("CUDA_VISIBLE_DEVICES"))


@contextlib.contextmanager
def _started(ray: Any) -> Iterator[None]:
    """Start a Ray on this machine.

    It listens on the network and wants a secret, which Ray would write to the home folder if the environment had none.
    """
    values = {
        "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE"),  # Ray sets it
        "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN") or TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    # Sockets lie in the folder. The path of a socket has at most 107 characters, of which Ray uses 70.
    usual = tempfile.gettempdir()
    place = usual if len(usual) <= 20 else "/tmp"
    folder = tempfile.TemporaryDirectory(prefix="dphpo-", dir=place, ignore_cleanup_errors=True)
    with folder as path, environment(values):
        options = {"include_dashboard": False, "object_store_memory": 100 * 2**20, "_temp_dir": path}
        with _initialized(ray, "local", "Cannot start Ray", num_cpus=len(os.sched_getaffinity(0)), **options):
            yield


@contextlib.contextmanager
def _initialized(ray: Any, address: str, failure: str, **options: Any) -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    # Ray would print pages on standard output for every lost worker, and has no option against that.
    ray._private.worker.print_to_stdstream = lambda *_: None
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:
        raise InvalidValueError(f"{failure}: {_one_line(error)}.") from None
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)  # Ray has set its own
    try:
        yield
    finally:
        ray.shutdown()


def _bytes(gigabytes: float) -> int:
    return round(gigabytes * 1e9)


def _room(node: dict[str, Any], need: Resources) -> int:
    """Return the number of calls with this need that an empty node has room for."""
    needed = {"CPU": need.threads, "GPU": need.gpus, "memory": _bytes(need.memory_gb or 0)}
    return min(int(node["Resources"].get(name, 0.0) / each + 1e-9) for name, each in needed.items() if each)


def _one_line(error: object) -> str:
    """Return the most telling line of an error of Ray's, whose messages are tracebacks and advice."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    text = (named or lines[:1] or [""])[-1].rstrip(".")
    name = type(error).__name__
    return text if isinstance(error, str) or text.startswith(name) or named else f"{name}: {text}"
