"""Sweeps on a Ray cluster: two nodes on this machine, of which some are killed."""

import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.files import write_whole
from dphpo_bench.data.source import DataSource
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep import ray_executor
from dphpo_bench.sweep.cells import Cell, cells_of, run_cell
from dphpo_bench.sweep.driver import sweep
from dphpo_bench.sweep.executors import Answer, Function, Processes, Resources, SerialExecutor
from dphpo_bench.sweep.ray_executor import RayExecutor
from dphpo_bench.sweep.suite import load_suite
from tests.sweep.conftest import Silent

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]

ROOT = Path(__file__).parents[2]
GONE_SECONDS = 20.0
MARK = "DPHPO_BENCH_TEST_MARK"
NODE = "DPHPO_BENCH_TEST_NODE"


# What cells do here. Ray workers import this module, so these are at its top level.


def placed_cell(job: str) -> str:
    """A real run, which says where it is. The second on the node "doomed" hangs; the others wait for that."""
    folder, node = Path(os.environ[MARK]), os.environ[NODE]
    is_first = not places(folder, node)
    write_whole(folder / f"{node}-{secrets.token_hex(4)}", str(os.getpid()))
    if node == "doomed":
        time.sleep(0 if is_first else 600)
    else:
        assert wait_until(lambda: len(places(folder, "doomed")) == 2, 100)
    return run_cell(job)


def places(folder: Path, node: str) -> list[int]:
    """The processes of the cells that were started on a node."""
    return [int(path.read_text()) for path in folder.glob(f"{node}-*")]


def echo(text: str) -> str:
    return text


def sleep_long(path: str) -> str:
    write_whole(Path(path), str(os.getpid()))
    time.sleep(600)
    return ""


def kill_worker_once(path: str) -> str:
    """Kill the Ray worker, two levels up; whoever comes second just answers."""
    if Path(path).exists():
        return "second"
    write_whole(Path(path), str(os.getpid()))
    worker = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(worker), signal.SIGKILL)
    time.sleep(600)
    return ""


class Killing(Silent):
    """Does what a test wants when a cell has finished."""

    def __init__(self, finished: Callable[[], None]) -> None:
        super().__init__()
        self._finished = finished

    def finished(self, cell: Cell, record: RunRecord, elsewhere: bool) -> None:
        super().finished(cell, record, elsewhere)
        self._finished()


class Placed:
    """An executor of `placed_cell`."""

    def __init__(self, executor: RayExecutor) -> None:
        self._executor = executor

    @property
    def capacity(self) -> int:
        return self._executor.capacity

    def submit(self, function: Function, argument: str, resources: Resources) -> "Future[Answer]":
        return self._executor.submit(placed_cell if function is run_cell else function, argument, resources)

    def close(self) -> None:
        self._executor.close()


def marked(mark: str) -> list[int]:
    """The processes with this mark in their environment, but for this one."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment:
            found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def wait_until(condition: Callable[[], bool], seconds: float = GONE_SECONDS) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A short path: those of sockets have at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="dr-", dir="/tmp", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Any]:
    """A Ray cluster of one node, to which tests add others."""
    Processes().call(echo, "", Resources())  # starts the server of processes, which has no mark and stays
    with pytest.MonkeyPatch.context() as patch:
        # Ray reads these when it is imported.
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv(MARK, str(folder))
        patch.setenv("PYTHONPATH", str(ROOT))  # for this module
        patch.delenv("RAY_ADDRESS", raising=False)
        from ray.cluster_utils import Cluster

        cluster = Cluster()
        try:
            start_node(cluster, "head", include_dashboard=False, temp_dir=str(folder / "ray"))
            yield cluster
        finally:
            cluster.shutdown()
    assert wait_until(lambda: not marked(str(folder)))


def start_node(cluster: Any, name: str, **options: Any) -> Any:
    return cluster.add_node(env_vars={NODE: name}, **options)


@pytest.mark.slow
def test_a_sweep_survives_a_node_that_is_killed(
    cluster: Any, tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(
        'tasks = ["digits"]\nepsilons = [1, 3]\nseeds = [0, 1, 2]\n'
        'methods = [{ name = "auto_clipping", parameters = { epochs = 2 } },'
        ' { name = "dp_sgd", parameters = { epochs = 2 } }]\n'
    )
    source = DataSource.resolve(None, tmp_path / "cache")
    cells = cells_of(load_suite(suite), source)
    assert len(cells) == 12
    doomed = start_node(cluster, "doomed")
    killed: list[int] = []

    def kill_node() -> None:
        if not killed and len(places(folder, "doomed")) == 2:
            killed.extend(places(folder, "doomed"))
            cluster.remove_node(doomed, allow_graceful=False)
            assert wait_until(lambda: all(map(is_gone, killed)))

    watcher = Killing(kill_node)
    store = RecordStore(tmp_path / "ray")
    summary = sweep(cells, store, Placed(RayExecutor(cluster.address, [Resources()])), source, watcher)
    assert len(watcher.records) == summary.run == 12
    assert not summary.failures
    assert not watcher.notes  # Ray itself started the lost cell again
    assert len(killed) == 2
    assert len(places(folder, "head")) == 11
    assert "raylet" not in capfd.readouterr().out
    expected = RecordStore(tmp_path / "serial")
    sweep(cells, expected, SerialExecutor(), source, Silent())
    assert len(list(store.root.rglob("*.json"))) == 12
    for cell in cells:
        assert without_circumstances(store.find(cell.identity)) == without_circumstances(expected.find(cell.identity))


def without_circumstances(record: RunRecord | None) -> dict[str, Any]:
    assert record is not None
    assert record.status == "ok"
    return record.model_dump(exclude={"seconds", "created", "peak_memory_bytes", "environment"})


@pytest.mark.slow
class TestCalls:
    """What happens to single calls; an executor for all, as joining takes seconds."""

    @pytest.fixture(scope="class")
    def executor(self, cluster: Any) -> Iterator[RayExecutor]:
        with closing(RayExecutor(cluster.address, [Resources()])) as executor:
            yield executor

    def test_a_killed_worker_is_replaced_and_leaves_no_process(self, executor: RayExecutor, tmp_path: Path) -> None:
        path = tmp_path / "pid"
        assert executor.submit(kill_worker_once, str(path), Resources()).result(240).text == "second"
        assert wait_until(lambda: is_gone(int(path.read_text())))

    def test_closing_kills_what_runs(self, executor: RayExecutor, tmp_path: Path) -> None:
        """The last one, therefore."""
        path = tmp_path / "pid"
        futures = [executor.submit(sleep_long, str(path), Resources()) for _ in range(3)]
        assert wait_until(path.exists, 60)
        executor.close()
        executor.close()
        assert all(future.done() for future in futures)
        assert wait_until(lambda: is_gone(int(path.read_text())))


def test_a_node_with_another_version_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "version", lambda _: "0.0.1")
    with pytest.raises(InvalidValueError, match=r"Expected dphpo-bench 0\.0\.1 on node .*, got"):
        RayExecutor(cluster.address, [Resources()])


@pytest.mark.parametrize("need", [Resources(threads=64), Resources(memory_gb=1e6)])
def test_what_no_node_has_is_refused(cluster: Any, need: Resources) -> None:
    with pytest.raises(InvalidValueError, match="No node of the Ray cluster has"):
        RayExecutor(cluster.address, [Resources(), need])


OWN_RAY = """
import json, sys, time
from pathlib import Path
from dphpo_bench.sweep.ray_executor import RayExecutor
from dphpo_bench.sweep.executors import Resources
from tests.sweep.test_ray import echo, sleep_long, wait_until

if __name__ == "__main__":
    executor = RayExecutor(None, [Resources()])
    answer = executor.submit(echo, "hello", Resources()).result(240)
    executor.submit(sleep_long, sys.argv[1], Resources())
    assert wait_until(Path(sys.argv[1]).exists, 60)
    if sys.argv[2] == "close":
        executor.close()
    print(answer.text, flush=True)
    time.sleep(0 if sys.argv[2] == "close" else 600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["close", "kill"])
def test_a_ray_of_its_own_leaves_nothing(ending: str, tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "pid"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = {**kept, "HOME": str(tmp_path), "TMPDIR": str(folder), MARK: str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", OWN_RAY, str(path), ending]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello\n"
        if ending == "kill":
            process.kill()
        assert process.wait(60) == (-signal.SIGKILL if ending == "kill" else 0)
    if ending == "close":  # a part of Ray that does not matter may outlive a killed driver by half a minute
        assert wait_until(lambda: not marked(str(tmp_path)))
    assert wait_until(lambda: is_gone(int(path.read_text())))
    assert not (tmp_path / ".ray").exists()
