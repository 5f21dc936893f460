"""Cells: the single runs of a sweep, as pure functions of their identity."""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import make_method, make_task
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.attempt import reason_of
from dphpo_bench.harness.plan import plan
from dphpo_bench.harness.plan_cache import PlanCache
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.harness.run import run
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.records.filters import Only
from dphpo_bench.records.record import Identity, RunRecord
from dphpo_bench.sweep.resources import Resources
from dphpo_bench.sweep.suite import Suite

MAX_CELLS = 1_000_000


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        method: with its parameters.
        task: with its model.
        budget: (ε, δ) of tuning and training together.
        identity: names and values, seed included: what decides whether it has been run.
        resources: what it needs; no part of its identity.
    """

    method: Method
    task: Task
    budget: PrivacyBudget
    identity: Identity
    resources: Resources

    @cached_property
    def key(self) -> str:
        """The identity's key."""
        return self.identity.key

    def __str__(self) -> str:
        identity = self.identity
        return f"{identity.method} on {identity.task} ({identity.model}), ε {identity.epsilon:g}, seed {identity.seed}"


@dataclass(frozen=True)
class CellPlan:
    """What the plan of a cell says.

    Attributes:
        epsilon: ε of the whole procedure.
        accountant: whose ε that is.
        tuning_share: the share of ε that is spent on tuning.
        runs: training runs, in expectation.
        steps: optimiser steps over all runs.
        examples: per-example passes over all runs.
    """

    epsilon: float
    accountant: str
    tuning_share: float
    runs: int
    steps: int
    examples: float


def cells_of(suite: Suite, source: DataSource, only: Sequence[str] = ()) -> list[Cell]:
    """The cells of a checked suite.

    Seeds vary slowest. So every method has its first seed before any has its second, and runs that share a plan
    are far apart: it is made when the second wants it.

    Args:
        suite: the suite.
        source: where tasks that need their data for that find their fingerprint.
        only: texts such as "method=hyfreedp,task=mnist", as in `Only.parse`.

    Raises:
        InvalidValueError: if no cell is left, there are more than `MAX_CELLS`, or a task has no fingerprint or model.
        UnknownNameError: if `only` names what the suite does not have.
    """
    tasks = suite.made_tasks()
    wanted = Only.parse(
        only,
        {
            "method": {entry.name for entry in suite.methods},
            "task": {task.name for task, _ in tasks},
            "model": {task.model_name for task, _ in tasks},
            "epsilon": set(suite.epsilons),
            "seed": set(suite.seeds),
        },
    )
    methods = [(method, hints) for method, hints in suite.made_methods() if wanted.accepts("method", method.name)]
    seeds = [seed for seed in suite.seeds if wanted.accepts("seed", seed)]
    count = len(methods) * len(tasks) * len(suite.epsilons) * len(seeds)
    if count > MAX_CELLS:
        raise InvalidValueError(f"Expected at most {MAX_CELLS:,} cells, got up to {count:,}. Choose some with --only.")
    first: list[Cell] = []
    for task, task_hints in tasks:
        if not (wanted.accepts("task", task.name) and wanted.accepts("model", task.model_name)):
            continue
        of_task = task_identity(task, task.facts, source)
        for budget in suite.budgets(task):
            if wanted.accepts("epsilon", budget.epsilon):
                for method, method_hints in methods:
                    identity = identity_of(method, of_task, budget, seeds[0])
                    resources = suite.resources_of(method_hints, task_hints)
                    first.append(Cell(method, task, budget, identity, resources))
    if not first:
        raise InvalidValueError(f"No cell of the suite is all of --only {shown(','.join(only), 300)}.")
    return [_at_seed(cell, seed) for seed in seeds for cell in first]


def _at_seed(cell: Cell, seed: int) -> Cell:
    return replace(cell, identity=cell.identity.model_copy(update={"seed": seed}))


def job_of(cell: Cell, source: DataSource) -> str:
    """The argument of `run_cell`, `plan_cell` and `prepare_data`."""
    return json.dumps(
        {
            "identity": cell.identity.model_dump(),
            "threads": cell.resources.threads,
            "device": device_of(cell),
            "data_dir": None if source.data_dir is None else str(source.data_dir.absolute()),
            "cache_dir": str(source.cache_dir.absolute()),
        }
    )


def device_of(cell: Cell) -> str:
    """Where a cell computes; it does not depend on the machine, as results do not."""
    return "cuda" if cell.resources.gpus else "cpu"


class _Job:
    """A job on the other side."""

    def __init__(self, text: str) -> None:
        import torch

        job = json.loads(text)
        self.identity = Identity.model_validate(job["identity"])
        self.budget = PrivacyBudget(self.identity.epsilon, self.identity.delta)
        self.device = str(job["device"])
        self.source = DataSource.resolve(job["data_dir"], job["cache_dir"])
        self.plans = PlanCache(self.source.cache_dir / "plans")
        torch.set_num_threads(job["threads"])
        logging.basicConfig()  # to the cell's log, tracebacks included
        logging.getLogger("dphpo_bench").setLevel(logging.DEBUG)

    def method(self) -> Method:
        """The method with its parameters."""
        return make_method(self.identity.method, self.identity.parameters)

    def task(self) -> Task:
        """The task with its model."""
        return make_task(self.identity.task, self.identity.model)


def run_cell(job: str) -> str:
    """Run a cell; whatever goes wrong is in the record.

    Args:
        job: from `job_of`.

    Returns:
        The record as JSON.
    """
    start = time.monotonic()
    given = _Job(job)
    try:
        result = run(
            given.method(),
            given.task(),
            given.budget,
            seed=given.identity.seed,
            source=given.source,
            device=given.device,
            plans=given.plans,
            check=False,
        )
    except Exception as error:
        return failed_record(given.identity, reason_of(error), time.monotonic() - start).to_json()
    return result.record.to_json()


def plan_cell(job: str) -> str:
    """Plan a cell, and keep the plan for its run.

    Args:
        job: from `job_of`.

    Returns:
        The fields of a `CellPlan` as JSON, or {"error": reason}.
    """
    given = _Job(job)
    try:
        checked = plan(given.method(), given.task(), given.budget, plans=given.plans)
        report = checked.epsilon
        planned = CellPlan(report.epsilon, report.quoted, checked.tuning_share, **asdict(checked.plan.cost))
        return json.dumps(asdict(planned))
    except Exception as error:
        return json.dumps({"error": reason_of(error)})


def prepare_data(job: str) -> str:
    """Load the data of a cell's task, so that downloads and features are there before its runs.

    Args:
        job: from `job_of`.

    Returns:
        The error that a user can mend, else nothing.
    """
    given = _Job(job)
    task = given.task()
    try:
        task.load_train(given.source)
        task.load_test(given.source)
    except DphpoBenchError as error:
        return str(error)
    return ""


def failed_record(identity: Identity, reason: str, seconds: float) -> RunRecord:
    """The record of a run that did not get far enough to make its own.

    What it released before it ended is unknown, so it states no ε.
    """
    return RunRecord(
        identity=identity,
        status="failed",
        error=reason,
        privacy=None,
        cost=None,
        seconds={"total": seconds},
        peak_memory_bytes=None,
        environment={"dphpo-bench": version("dphpo-bench")},
        created=datetime.now(UTC).replace(microsecond=0),
    )
