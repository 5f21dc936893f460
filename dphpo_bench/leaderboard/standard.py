"""The standard that a board measures by."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dphpo_bench.base.text import compact_json
from dphpo_bench.contract.registry import make_method
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.leaderboard.submissions import TaskModel, task_model_of
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.sweep.extra_runs import ORACLE
from dphpo_bench.sweep.suite import load_suite

Who = tuple[str, str]
"""A method's name and its parameters as compact JSON."""

REFERENCES = frozenset({"grid_composed"})
"""Methods that are references although they are private from end to end. All methods that are not private are, too."""


@dataclass(frozen=True)
class Asked:
    """The seeds that a suite asks for on a task and model, and more of some methods.

    The further seeds say how often the runs of these methods collapse.
    """

    task: Task
    budget: PrivacyBudget
    seeds: frozenset[int]
    more_seeds: Mapping[str, frozenset[int]]

    @cached_property
    def task_model(self) -> TaskModel:
        """The task–model pair, by this machine's code: its facts, its data, its model, which is built for that."""
        of_task = task_identity(self.task, self.task.facts, DataSource.resolve())
        return task_model_of(identity_of(make_method("auto_clipping"), of_task, self.budget, 0))


@dataclass(frozen=True)
class Standard:
    """The anchors and tables that a board measures by. It comes with the code, so that no record can change it.

    Attributes:
        methods: a table counts if at least half of these are ranked in it; None for all that are ranked anywhere.
        tasks: by task and model, what is asked of the tables that may count; None for all, with any seeds.
        excused: method, task and model of what the suite leaves out, as taking too long. Who leaves out something else
            is not compared on the rest, or everybody could choose what to be judged by.
    """

    untuned: Who
    oracle: Who
    methods: frozenset[str] | None = None
    tasks: Mapping[tuple[str, str], Asked] | None = None
    epsilons: frozenset[float] | None = None
    excused: frozenset[tuple[str, str, str]] = frozenset()

    @classmethod
    def builtin(cls) -> "Standard":
        return cls(untuned=_default("auto_clipping"), oracle=_default(ORACLE))

    @classmethod
    def of_suite(cls, path: Path) -> "Standard":
        suite = load_suite(path)
        methods = {method.name for method, _ in suite.made_methods() if method.end_to_end_private}
        tasks = [task for task, _ in suite.made_tasks()]
        return replace(
            cls.builtin(),
            methods=frozenset(methods - REFERENCES),
            tasks={
                (task.facts.task, task.facts.model): Asked(
                    task,
                    suite.budgets(task)[0],
                    frozenset(suite.seeds_of(task)),
                    {name: frozenset(seeds) for name, seeds in suite.more_seeds_of(task).items()},
                )
                for task in tasks
            },
            epsilons=frozenset(suite.epsilons),
            excused=frozenset(
                (name, task.facts.task, task.facts.model)
                for task in tasks
                for name in methods
                if not suite.runs_on(name, task)
            ),
        )

    def may_count(self, task_model: TaskModel, target: float) -> bool:
        """Return True if a table is one of those that may count, by this code's facts, data and model of its task."""
        if self.epsilons is not None and target not in self.epsilons:
            return False
        if self.tasks is None:
            return True
        asked = self.tasks.get((task_model.task, task_model.model))
        return asked is not None and asked.task_model == task_model

    def asked(self, task_model: TaskModel, target: float) -> Asked | None:
        """Return the seeds that every entry in a table must have, so that none can choose; None: any."""
        if self.tasks is None or not self.may_count(task_model, target):
            return None
        return self.tasks[task_model.task, task_model.model]


def _default(name: str) -> Who:
    return name, compact_json(make_method(name).parameters)
