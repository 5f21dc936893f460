"""Cells on an executor chosen by name, with their progress shown."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.method import Method
from dphpo_bench.data.source import DataSource
from dphpo_bench.recipes.optimizer_run import OptimizerRun
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import Cell, portable
from dphpo_bench.sweep.display import SweepDisplay
from dphpo_bench.sweep.driver import Summary, sweep
from dphpo_bench.sweep.executors import Executor, ProcessExecutor, SerialExecutor, default_workers, visible_gpus
from dphpo_bench.sweep.private_cells import PrivateCells
from dphpo_bench.sweep.processes import COMPILER


@contextmanager
def executor_for(
    cells: Sequence[Cell], name: str = "process", workers: int | None = None, address: str | None = None
) -> Iterator[tuple[list[Cell], Executor]]:
    """Open an executor for cells, and close it at the end.

    Args:
        cells: the cells that it will run.
        name: "process", "serial" or "ray".
        workers: processes at a time, for "process"; None for as many as this machine has room for.
        address: of the Ray cluster; None starts a Ray on this machine.

    Yields:
        The cells in a form that other processes can run, and the executor.

    Raises:
        InvalidValueError: if the options do not fit together, the cells need more than there is, or a method or a task
            that is not registered cannot be pickled.
    """
    with portable(cells) as ready, closing(_make_executor(name, workers, address, ready)) as executor:
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
    """Run the cells that have no record, and show progress on standard error."""
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
        return (
            RayExecutor(address, needs) if all(cell.task.public for cell in cells) else RayExecutor(address, needs, 0)
        )
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
