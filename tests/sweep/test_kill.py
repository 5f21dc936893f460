"""kill -9 at random points: of the driver, of what it started, of the server that processes are forked from."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dphpo_bench.data.source import DataSource
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import cells_of
from dphpo_bench.sweep.driver import sweep
from dphpo_bench.sweep.executors import SerialExecutor
from dphpo_bench.sweep.suite import load_suite
from tests.sweep.conftest import Silent, contents

SUITE = """
methods = ["auto_clipping", { name = "faulty", parameters = { sleep = 0.2 } }]
tasks = ["blobs"]
epsilons = [1, 3]
seeds = [%s]
"""


class Sweep:
    """The command, run again and again on one folder of results."""

    def __init__(self, folder: Path, suite: Path, results: str) -> None:
        command = [sys.executable, "-m", "dphpo_bench", "sweep", str(suite)]
        self._arguments = [*command, "--results-dir", results, "--workers=2"]
        self._folder = folder
        self.log = folder / f"{results}.log"

    def start(self, *options: str) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "DPHPO_BENCH_CACHE": str(self._folder / "cache"), "OMP_NUM_THREADS": "1"}
        with self.log.open("ab") as log:
            arguments = [*self._arguments, *options]
            return subprocess.Popen(arguments, cwd=self._folder, env=environment, stdout=log, stderr=log)


def descendants(pid: int) -> list[int]:
    found = []
    try:
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, path.read_text().split()):
                found += [child, *descendants(child)]
    except OSError:  # it ended while we looked
        pass
    return found


def kill_at_random(command: Sweep, store: RecordStore, kills: int, generator: random.Random) -> dict[str, int]:
    """Kill so many times, starting anew whenever the driver is gone; finished records must not change."""
    killed = {"driver": 0, "other": 0}
    finished: dict[Path, bytes] = {}
    driver = command.start()
    while sum(killed.values()) < kills:
        time.sleep(generator.uniform(0, 2.5))
        while sum(killed.values()) % 2 and driver.poll() is None and not descendants(driver.pid):
            time.sleep(0.05)  # where a driver starts slowly, only drivers would be killed
        if driver.poll() is not None:
            assert driver.returncode in (0, 1, -9), command.log.read_text()
            driver = command.start("--retry-failed")
            continue
        others = descendants(driver.pid)
        victim = generator.choice([driver.pid, *others, *others])
        try:
            os.kill(victim, 9)
        except ProcessLookupError:
            continue
        killed["driver" if victim == driver.pid else "other"] += 1
        for path in store.root.rglob("*.json"):
            content = path.read_bytes()
            assert finished.get(path, content) == content
            if b'"status": "ok"' in content:
                finished[path] = content
    driver.wait()
    return killed


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_nothing_is_lost_or_doubled(plugin: Path, tmp_path: Path, source: DataSource, kills: int) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE % ", ".join(map(str, range(kills))))
    disturbed = Sweep(tmp_path, suite, "disturbed")
    store, calm = RecordStore(tmp_path / "disturbed"), RecordStore(tmp_path / "calm")
    killed = kill_at_random(disturbed, store, kills, random.Random(kills))
    failed = [record for record in contents(store).values() if record.status != "ok"]
    # A failed row takes two kills of its cell's processes; two of the server fail the two cells that were running.
    assert len(failed) <= kills
    assert all(record.error.endswith("(attempt 2)") for record in failed)
    assert disturbed.start("--retry-failed").wait() == 0, disturbed.log.read_text()
    sweep(cells_of(load_suite(suite), source), calm, SerialExecutor(), source, Silent())
    assert contents(store) == contents(calm)
    assert len(contents(store)) == 4 * kills
    if kills >= 50:
        assert min(killed.values()) >= 5  # neither kind was spared
