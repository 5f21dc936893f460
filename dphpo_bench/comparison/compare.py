"""Compare methods on any task: a sweep for whoever has a script or a notebook rather than a suite.

>>> table = compare(["hyfreedp", "auto_clipping"], task, epsilons=[1, 3])  # doctest: +SKIP
>>> print(table)  # doctest: +SKIP
"""

import html
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.checks import exact_int, number, positive, typed
from dphpo_bench.base.displays import html_table
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import MAX_LINE, duration_text, one_line, shown, value_text, varying_names
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import method_of, task_of
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.account import DEFAULT
from dphpo_bench.harness.loading import check_declared_data, warn_of_seeds
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.harness.run import AccountOptions
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.records.measure import NOTHING, Estimate, Measure, compared_value, metric_mean, metric_text
from dphpo_bench.records.reading import Result, frame, guesses_line
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import Cell, PrivateCells, unseeded, with_seeds
from dphpo_bench.sweep.executors import Resources
from dphpo_bench.sweep.running import executor_for, run_cells

if TYPE_CHECKING:
    import pandas as pd

SEEDS = (0, 1, 2)
WIDTH = 160
MAX_FAILURES = 5


@dataclass(frozen=True)
class Line:
    """A method with its parameters, and its results."""

    label: str  # the name, and the parameters in which methods of this name differ
    private: bool  # whether its ε covers tuning. The others are there to compare with, not to choose.
    # Target ε → mean over seeds of the metric on test data, with a 95 % interval; None if no run ended well, or nothing
    # was measured.
    by_epsilon: Mapping[float, Estimate | None]
    failed: int  # number of failed runs, which are in no mean
    seconds: float | None  # median time of a run; None if none tells

    def order(self, measure: Measure) -> tuple[bool, float, str]:
        """Return the key by which lines are sorted: private ones first, then the best mean over all ε."""
        means = [estimate.mean for estimate in self.by_epsilon.values() if estimate]
        mean = fmean(means) if means else -math.inf if measure.higher_is_better else math.inf
        return not self.private, -mean if measure.higher_is_better else mean, self.label


@dataclass(frozen=True, repr=False)
class Comparison:
    """Methods side by side on one task.

    Attributes:
        results: a record and its path below `root` for each run; failed runs are among them.
        root: the folder of records.
    """

    results: tuple[Result, ...]
    root: Path

    @property
    def records(self) -> tuple[RunRecord, ...]:
        """The records."""
        return tuple(result.record for result in self.results)

    @property
    def failures(self) -> tuple[RunRecord, ...]:
        """The records of runs that did not end well; their `error` says why."""
        return tuple(record for record in self.records if record.status != "ok")

    @property
    def measure(self) -> Measure:
        """The metric that is compared."""
        return next((result.measure for result in self.results if result.value is not None), self.results[0].measure)

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The target ε, sorted."""
        return tuple(sorted({record.identity.epsilon for record in self.records}))

    @property
    def lines(self) -> tuple[Line, ...]:
        """The methods, the best one first; those that are not private come last."""

        def who(result: Result) -> tuple[str, str]:
            return result.record.identity.method, result.parameters

        lines = []
        for method, same in groupby(sorted(self.results, key=who), key=lambda result: who(result)[0]):
            groups = [list(group) for _, group in groupby(same, key=who)]
            parameters = [_texts(group[0].record) for group in groups]
            varying = varying_names(parameters)
            for group, each in zip(groups, parameters, strict=True):
                details = ", ".join(f"{name}={each[name]}" for name in varying if name in each)
                lines.append(self._line(one_line(f"{method} ({details})" if details else method, WIDTH // 2), group))
        return tuple(sorted(lines, key=lambda line: line.order(self.measure)))

    def _line(self, label: str, group: Sequence[Result]) -> Line:
        by_epsilon: dict[float, Estimate | None] = {}
        for epsilon in self.epsilons:
            values = [
                compared_value(result.measure, result.value, result.record.identity.facts)
                for result in group
                if result.record.identity.epsilon == epsilon
                if result.record.status == "ok" and result.value is not None
            ]
            values = [value for value in values if math.isfinite(value)]
            by_epsilon[epsilon] = metric_mean(values, self.measure) if values else None
        private = [result.record.privacy.end_to_end_private for result in group if result.record.privacy]
        times = [result.seconds for result in group if result.seconds is not None]
        return Line(
            label=label,
            private=all(private),
            by_epsilon=by_epsilon,
            failed=sum(result.record.status != "ok" for result in group),
            seconds=median(times) if times else None,
        )

    def frame(self) -> "pd.DataFrame":
        """Return a row for each run: identity, ε, metrics, cost, times."""
        return frame(self.results)

    def _title(self) -> str:
        identity = self.records[0].identity
        runs = max(Counter(result.group for result in self.results).values())
        noun = "runs" if identity.seed is None else "seeds"
        title = f"{identity.task} ({identity.model}), δ = {identity.delta:.3g}: {self.measure.header} on test data"
        average = f"mean of {runs} {noun} ± 95 % interval" if runs > 1 else f"one {noun[:-1]}"
        return f"{one_line(title)}, {average}"

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the header, and a row for each method, with a column for each ε."""
        lines = self.lines
        header = ["method", *(f"ε = {epsilon:g}" for epsilon in self.epsilons), "a run"]
        header += ["failed"] if any(line.failed for line in lines) else []
        rows = []
        for line in lines:
            name = line.label if line.private else f"{line.label}, not private"
            cells = [metric_text(estimate, self.measure) for estimate in line.by_epsilon.values()]
            time = NOTHING if line.seconds is None else duration_text(line.seconds)
            rows.append([name, *cells, time, str(line.failed or "")][: len(header)])
        return header, rows

    def _notes(self) -> Iterator[str]:
        """Yield lines on failed runs, and on those that learned nothing."""
        for record in self.failures[:MAX_FAILURES]:
            failed = record.identity
            which = f"run {failed.run}" if failed.seed is None else f"seed {failed.seed}"
            who = f"{failed.method}, ε {failed.epsilon:g}, {which}"
            yield one_line(f"{who}: {record.status}: {record.error}")
        if unlearned := guesses_line(self.results):
            yield one_line(unlearned, 2 * MAX_LINE)

    def __str__(self) -> str:
        """Return the table: a row for each method, a column for each ε."""
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        (first, *others), rows = self._cells()
        table = Table(first, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title_justify="left")
        for name in others:
            table.add_column(name, justify="right", no_wrap=name != "failed")
        for row in rows:
            table.add_row(*map(Text, row))
        buffer = io.StringIO()
        console = Console(file=buffer, width=WIDTH, markup=False, highlight=False)
        console.print(Text(self._title()), soft_wrap=True)
        console.print(table)
        for note in self._notes():
            console.print(Text(note), soft_wrap=True)
        return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        header, rows = self._cells()
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes())
        return html_table(self._title(), rows, header) + notes


def _texts(record: RunRecord) -> dict[str, str]:
    return {name: value_text(value) for name, value in record.identity.parameters.items()}


@typed
def compare(
    methods: Sequence[str | Method],
    task: str | Task,
    epsilons: Sequence[float],
    seeds: Sequence[int] | None = None,
    *,
    delta: float | None = None,
    results_dir: Path | str = "results",
    workers: int | None = None,
    gpus: float = 0,
    quiet: bool = False,
    account: str | AccountOptions | None = None,
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
        results_dir: where records are read and written. Remove the record of a failure to run it again.
        workers: runs at a time; None: as many as this machine has room for.
        gpus: GPUs of a run, or a part of one; 0 trains on the CPU.
        quiet: show failures only. Otherwise progress goes to standard error.
        account: of private records: the name of the account in `results_dir` that counts, or more options; see
            `AccountOptions`.

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
    options = account if isinstance(account, AccountOptions) else AccountOptions(account)
    if options.again is not None:
        raise InvalidValueError("Expected no again= in a comparison: it draws the noise of a single run. Leave it out.")
    task = task_of(task)
    delta = task.facts.default_delta if delta is None else delta
    budgets = [PrivacyBudget(positive("epsilon", epsilon), delta) for epsilon in _several(epsilons, "epsilons", 3)]
    runs = []
    for seed in _several(SEEDS if seeds is None else seeds, "seeds", 0):
        exact = exact_int(seed)
        if exact is None or exact < 0:
            raise InvalidValueError(f"Expected seeds to be integers >= 0, got {shown(seed, form=repr)}.")
        runs.append(exact)
    if seeds is not None:
        warn_of_seeds(task, f"the comparison seeds its runs with {shown(runs)}")
    source = DataSource.resolve()
    of_task = task_identity(task, task.facts, source)
    resources = Resources(gpus=number("gpus", gpus, low=0))
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
    private = PrivateCells(store, DEFAULT if options.name is None else options.name, options.not_private)
    with executor_for(cells, workers=workers) as (ready, executor):
        run_cells(ready, executor, store, source, retry_failed=False, quiet=quiet, private=private)
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
