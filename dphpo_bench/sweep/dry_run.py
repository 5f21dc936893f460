"""Plan every cell of a sweep, and state what the sweep would cost."""

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field

from dphpo_bench.base.progress import Progress
from dphpo_bench.data.source import DataSource
from dphpo_bench.sweep.cells import Cell, CellPlan, job_of, plan_cell, planned
from dphpo_bench.sweep.driver import Stock
from dphpo_bench.sweep.executors import Executor, answer_of


@dataclass
class PlannedCells:
    """Cells that differ in nothing but their seed, and their plan; the seconds of one cell are from finished runs."""

    finished: list[Cell] = field(default_factory=list)
    failed: list[Cell] = field(default_factory=list)
    todo: list[Cell] = field(default_factory=list)
    plan: CellPlan | None = None
    error: str = ""
    seconds: float | None = None

    @property
    def cell(self) -> Cell:
        """First of the cells that are left, or else of the others."""
        return (self.todo or self.finished or self.failed)[0]


def plan_all(stock: Stock, executor: Executor, source: DataSource, progress: Progress) -> list[PlannedCells]:
    """Make each plan once, keep it for the sweep, and estimate times from the records."""
    alike: defaultdict[str, PlannedCells] = defaultdict(PlannedCells)
    for state in ("finished", "failed", "todo"):
        for cell in getattr(stock, state):
            getattr(alike[cell.identity.model_copy(update={"seed": None, "run": None}).key], state).append(cell)
    groups = list(alike.values())
    futures = [executor.submit(plan_cell, job_of(group.cell, source), group.cell.resources) for group in groups]
    with progress.track("Planning", len(futures)) as advance:
        for _ in as_completed(futures):
            advance()
    for group, future in zip(groups, futures, strict=True):
        plan = planned(answer_of(future))
        if isinstance(plan, str):
            group.error = plan
        else:
            group.plan, _ = plan
            group.seconds = stock.times.seconds(group.cell.identity, group.plan.examples)
    return groups


def total_seconds(groups: Sequence[PlannedCells]) -> float | None:
    """Return the seconds of all cells to run, one after the other; None if some times are unknown."""
    if any(group.todo and group.plan and group.seconds is None for group in groups):
        return None
    return sum(len(group.todo) * (group.seconds or 0.0) for group in groups)  # a cell without a plan fails at once
