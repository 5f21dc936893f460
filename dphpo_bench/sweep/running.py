"""Cells on an executor chosen by name, with their progress shown."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.method import Method
from dphpo_bench.data.source import DataSource
from dphpo_bench.recipes.optimizer_run import OptimizerRun
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import Cell
from dphpo_bench.sweep.display import SweepDisplay
from dphpo_bench.sweep.driver import Summary, sweep
from dphpo_bench.sweep.executors import Executor, ProcessExecutor, SerialExecutor, default_workers, visible_gpus
from dphpo_bench.sweep.private_cells import PrivateCells
from dphpo_bench.sweep.processes import COMPILER
from dphpo_bench.sweep.unregistered import pickled


@contextmanager
def executor_for(
    cells: Sequence[Cell], name: str = "process", workers: int | None = None, address: str | None = None
) -> Iterator[tuple[list[Cell], Executor]]:
    """Yield the cells in a form that other processes can run, and an executor for them, which is closed at the end.

    Its name is "process", with as many workers by default as this machine has room for, "serial", or "ray", with the
    address of a cluster; None starts a Ray on this machine.
    """
    with pickled((cell.method for cell in cells), (cell.task for cell in cells)) as path:
        ready = [replace(cell, plug_ins=path) for cell in cells]
        with closing(_make_executor(name, workers, address, ready)) as executor:
            yield ready, executor


def run_cells(
    cells: Sequence[Cell],
    executor: Executor,
    store: RecordStore,
    source: DataSource,
    *,
    retry_failed: bool,
    quiet: bool,
    private: PrivateCells | None = None,
) -> Summary:
    with SweepDisplay(executor.capacity, quiet=quiet) as display:
        return sweep(cells, store, executor, source, display, retry_failed=retry_failed, private=private)


def _make_executor(name: str, workers: int | None, address: str | None, cells: Sequence[Cell]) -> Executor:
    if workers is not None and name != "process":
        raise InvalidValueError(f"Expected --workers with --executor process only, got --executor {name}.")
    if address is not None and name != "ray":
        raise InvalidValueError(f"Expected --address with --executor ray only, got --executor {name}.")
    needs = list({cell.resources: None for cell in cells})
    if name == "serial":
        return SerialExecutor()
    if name == "ray":
        from dphpo_bench.sweep.ray_executor import RayExecutor

        # What Ray starts again by itself nobody counts, and with the same noise it might ask other questions.
        return RayExecutor(address, needs, 3 if all(cell.task.public for cell in cells) else 0)
    most = max(need.gpus for need in needs)
    gpus = visible_gpus() if most else []
    if most > min(1, len(gpus)):
        raise InvalidValueError(
            f"Cells ask for gpus={most:g}; here a cell has one of this machine's {len(gpus)}, or a part of it. "
            f"More need --executor ray."
        )
    modules = [COMPILER] if any(_may_make_optimizers(cell.method) for cell in cells) else []
    return ProcessExecutor(default_workers(needs, len(gpus)) if workers is None else workers, gpus, modules)


def _may_make_optimizers(method: Method) -> bool:
    """Return True if a method may construct optimisers of torch itself, as those of other packages do."""
    return isinstance(method, OptimizerRun) or not type(method).__module__.startswith("dphpo_bench.")
