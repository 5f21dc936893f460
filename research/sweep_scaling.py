"""What the driver of a sweep costs, with cells that do nothing: 1,000, 10,000, 100,000 of them.

    python -m research.sweep_scaling [CELLS ...] [--executor inline|process|ray]

"inline" answers in the driver's own process, so that what is measured is the driver alone: it reads and writes
records as in a real sweep. The figures in docs/scaling.md are from here.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path

from dphpo_bench.data.source import DataSource
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import Cell, cells_of, job_of, run_cell
from dphpo_bench.sweep.driver import sweep, take_stock
from dphpo_bench.sweep.executors import Answer, Executor, Function, ProcessExecutor, Resources
from dphpo_bench.sweep.running import SweepDisplay
from dphpo_bench.sweep.suite import load_suite

TEMPLATE = "DPHPO_BENCH_SCALING_TEMPLATE"
METHODS = ["auto_clipping", "dp_sgd", "hyfreedp", "liu_talwar", "papernot_steinke"]


def no_op(job: str) -> str:
    """A record without a run: one that was made before, under this cell's identity."""
    record = json.loads(Path(os.environ[TEMPLATE]).read_text())
    record["identity"] = json.loads(job)["identity"]
    return json.dumps(record)


class Inline:
    """Answers at once, in the driver's process."""

    capacity = 2
    shares_disk = True

    def submit(self, function: Function, argument: str, resources: Resources) -> "Future[Answer]":
        del resources
        future: Future[Answer] = Future()
        future.set_result(Answer(no_op(argument) if function is run_cell else ""))
        return future

    def close(self) -> None:
        """Nothing is open."""


class NoOp:
    """An executor whose cells do nothing."""

    shares_disk = True

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    @property
    def capacity(self) -> int:
        return self._inner.capacity

    def submit(self, function: Function, argument: str, resources: Resources) -> "Future[Answer]":
        return self._inner.submit(no_op if function is run_cell else function, argument, resources)

    def close(self) -> None:
        self._inner.close()


def executor_of(name: str, cells: list[Cell]) -> Executor:
    if name == "inline":
        return Inline()
    if name == "process":
        return NoOp(ProcessExecutor(2))
    from dphpo_bench.sweep.ray_executor import RayExecutor

    return NoOp(RayExecutor(None, [cells[0].resources]))


def measure(count: int, name: str) -> dict[str, float]:
    """Seconds of each part of a sweep of so many cells."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source = DataSource.resolve(cache_dir=root / "cache")
        suite = root / "suite.toml"
        suite.write_text(
            f'methods = {json.dumps(METHODS)}\ntasks = ["digits", "mnist"]\nepsilons = [1, 3]\n'
            f"seeds = {list(range(count // (4 * len(METHODS))))}\n"
        )
        seconds: dict[str, float] = {}

        def timed(what: str, start: float) -> float:
            seconds[what] = time.perf_counter() - start
            return time.perf_counter()

        start = time.perf_counter()
        cells = cells_of(load_suite(suite), source)
        assert len(cells) == count
        start = timed("list", start)
        template = root / "template.json"
        template.write_text(run_cell(job_of(cells[0], source)))
        os.environ[TEMPLATE] = str(template)
        executor = executor_of(name, cells)
        store = RecordStore(root / "results")
        digits_only = [cell for cell in cells if cell.identity.task == "digits"]  # others' data may not be here
        executor.submit(str, "", cells[0].resources).result()  # its start is measured elsewhere
        start = time.perf_counter()
        with SweepDisplay(quiet=True) as display:
            sweep(digits_only if name != "inline" else cells, store, executor, source, display)
        done = len(digits_only) if name != "inline" else count
        start = timed("run", start)
        seconds["each (ms)"] = 1000 * seconds["run"] / done
        if name == "inline":
            assert len(take_stock(cells, store).finished) == count
            start = timed("skip", start)
            script = (
                "import sys; from pathlib import Path; from dphpo_bench.records.reading import read_results; "
                "from dphpo_bench.records.reading import frame; frame(read_results(Path(sys.argv[1]))[0])"
            )
            subprocess.run([sys.executable, "-c", script, str(store.root)], check=True)
            timed("results", start)
            seconds["disk (MB)"] = sum(path.stat().st_blocks for path in store.root.rglob("*.json")) * 512 / 1e6
        seconds["driver's peak memory (MB)"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", type=int, nargs="*", default=[1000, 10000, 100000])
    parser.add_argument("--executor", default="inline", choices=["inline", "process", "ray"])
    arguments = parser.parse_args()
    for count in arguments.cells:
        found = measure(count, arguments.executor)
        sys.stdout.write(f"{count:,} cells, {arguments.executor}: ")
        sys.stdout.write(", ".join(f"{what} {value:.3g}" for what, value in found.items()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    from research import sweep_scaling  # by its name, for the processes that call its functions

    sweep_scaling.main()
