"""Compare methods on any task: a sweep for whoever has a script or a notebook rather than a suite.

>>> table = compare(["hyfreedp", "auto_clipping"], task, epsilons=[1, 3])  # doctest: +SKIP
>>> print(table)  # doctest: +SKIP
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dphpo_bench.base.checks import exact_int, number, positive, typed, whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.comparison.result import Comparison
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import method_of, task_of
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.account import DEFAULT
from dphpo_bench.harness.counting import warn_of_seeds
from dphpo_bench.harness.loading import check_declared_data
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.records.reading import Result
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import Cell, with_seeds
from dphpo_bench.sweep.private_cells import PrivateCells, unseeded
from dphpo_bench.sweep.resources import Resources
from dphpo_bench.sweep.running import executor_for, run_cells

SEEDS = (0, 1, 2)
MAX_THREADS = 4096


@typed
def compare(
    methods: Sequence[str | Method],
    task: str | Task,
    epsilons: Sequence[float],
    seeds: Sequence[int] | None = None,
    *,
    delta: float | None = None,
    results_dir: Path | str = "results",
    retry_failed: bool = False,
    workers: int | None = None,
    threads: int = 1,
    gpus: float = 0,
    source: DataSource | None = None,
    quiet: bool = False,
    account: str | None = None,
    not_private: bool = False,
) -> Comparison:
    """Run each method on a task at each ε with each seed, and set the results side by side.

    Each run has a process and a record of its own. What has a record in `results_dir` is not run again, so that the
    same call goes on where an interrupted one ended. An `ArrayTask` whose records changed needs another `version`.

    Each run spends (ε, δ) of its own. On private records the choice of a method costs all runs together, as any search
    does: the sum is said before the first run, and their account counts each. Compare on public records if you can.

    Args:
        methods: methods, or registered names.
        task: a task or a registered name. One that is not registered, and a method that is not, are written to a
            temporary file for the processes that run them, in a folder that only the user can read.
        epsilons: target ε of the whole procedure.
        seeds: each makes a run, repeatable on this kind of machine, noise included. None: 0, 1, 2; on private records
            three runs without a seed, since whoever knows one can subtract the noise.
        delta: target δ; None: the task's default. A board takes at most 1e-3.
        results_dir: where records are read and written.
        retry_failed: whether to run again what has the record of a failure.
        workers: runs at a time; None: as many as this machine has room for.
        threads: computing threads of a run. Their number changes the rounding of sums.
        gpus: GPUs of a run, or a part of one; 0 trains on the CPU.
        source: where data are found; default: environment, then the hub.
        quiet: show failures only. Otherwise progress goes to standard error.
        account: of private records: the account in `results_dir` that counts; None: "main".
        not_private: let methods without privacy (ε = ∞) run on private records, because their output stays inside.

    Returns:
        All results, failed runs included.

    Raises:
        InvalidValueError: if a value is out of range or there twice, or a task or a method cannot be pickled.
        UnknownNameError: if a name is not registered.
        DataError: if the task's data are missing, or changed since there are results.
        RecordError: if a record cannot be written.
        AccountError: if the account's cap does not cover all runs, or it cannot be written.
    """
    chosen = [method_of(method) for method in _several(methods, "methods", "hyfreedp")]
    task = task_of(task)
    delta = task.facts.default_delta if delta is None else delta
    budgets = [PrivacyBudget(positive("epsilon", epsilon), delta) for epsilon in _several(epsilons, "epsilons", 3)]
    runs = [_checked_seed(seed) for seed in _several(SEEDS if seeds is None else seeds, "seeds", 0)]
    if seeds is not None:
        warn_of_seeds(task, f"the comparison seeds its runs with {shown(runs)}")
    source = source or DataSource.resolve()
    of_task = task_identity(task, task.facts, source)
    resources = Resources(threads=whole("threads", threads, low=1, high=MAX_THREADS), gpus=number("gpus", gpus, low=0))
    first = [
        Cell(method, task, budget, identity_of(method, of_task, budget, runs[0]), resources)
        for budget in budgets
        for method in chosen
    ]
    keys, targets = [cell.key for cell in first[: len(chosen)]], [budget.epsilon for budget in budgets]
    for name, values in (("method", keys), ("epsilon", targets), ("seed", runs)):
        if len(set(values)) < len(values):
            raise InvalidValueError(f"Expected each {name} once, got {name}s that are the same.")
    cells = with_seeds(first, runs)
    store = RecordStore(Path(results_dir))
    check_declared_data(store.root, task, cells[0].identity, source)
    if seeds is None:
        cells = unseeded(cells, store)
    private = PrivateCells(store, DEFAULT if account is None else account, not_private)
    with executor_for(cells, workers=workers) as (ready, executor):
        run_cells(ready, executor, store, source, retry_failed=retry_failed, quiet=quiet, private=private)
    records = [store.find(cell.identity) for cell in cells]
    paths = [str(store.path_of(cell.identity).relative_to(store.root)) for cell in cells]
    return Comparison(
        tuple(Result(path, record) for path, record in zip(paths, records, strict=True) if record), store.root
    )


def _several(values: Any, name: str, example: object) -> list[Any]:
    if isinstance(values, str | bytes | Mapping | Method) or not isinstance(values, Iterable):
        raise InvalidValueError(f"Expected {name} as a list, such as {[example]}, got {shown(values, form=repr)}.")
    listed = list(values)
    if not listed:
        raise InvalidValueError(f"Expected at least one of {name}, got none.")
    return listed


def _checked_seed(seed: Any) -> int:
    exact = exact_int(seed)
    if exact is None or exact < 0:
        raise InvalidValueError(f"Expected seeds to be integers >= 0, got {shown(seed, form=repr)}.")
    return exact
