"""Suites: TOML files that define the cells of a sweep; docs/scaling.md has an example."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.files import bytes_in, misfit, misplaced, toml_values
from dphpo_bench.base.text import compact_json, shown, unknown_name_message
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import make_method, make_task
from dphpo_bench.contract.task import Task
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.sweep.executors import Resources

MAX_SUITE_BYTES = 2**18

Configuration = tuple[str, str]
"""A method's name and its parameters as compact JSON."""

TaskMaker = Callable[[str, str | None], Task]
"""Makes a task from its name and its model's, None for the first model, as `registry.make_task` does."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_NAMED = BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)
_SOME = Field(min_length=1, strict=False)


class ResourceHints(_Entry):
    threads: Annotated[int, Field(ge=1)] | None = None
    gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    memory_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    time_limit_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class MethodEntry(_Entry):
    name: str
    parameters: dict[str, Any] = {}
    resources: ResourceHints = ResourceHints()


Seeds = Annotated[tuple[Annotated[int, Field(ge=0, lt=2**128)], ...], _SOME]


class MoreSeeds(_Entry):
    """Seeds that some methods have beside a task's, such as those that collapse now and then."""

    methods: Annotated[tuple[Annotated[MethodEntry, _NAMED], ...], _SOME]
    seeds: Seeds


class TaskEntry(_Entry):
    """Task with some of its models, by default the first, and without some methods, such as slow ones."""

    name: str
    models: Annotated[tuple[str, ...], _SOME] | None = None
    seeds: Seeds | None = None  # by default the suite's
    more_seeds: MoreSeeds | None = None
    without: Annotated[tuple[str, ...], Field(strict=False)] = ()
    resources: ResourceHints = ResourceHints()


class Suite(_Entry):
    """Methods × tasks × models × ε × seeds; of resources, the largest value of suite, method and task counts."""

    description: str = ""
    methods: Annotated[tuple[Annotated[MethodEntry, _NAMED], ...], _SOME]
    tasks: Annotated[tuple[Annotated[TaskEntry, _NAMED], ...], _SOME]
    epsilons: Annotated[tuple[float, ...], _SOME]
    delta: float | None = None  # by default each task's own
    seeds: Seeds
    resources: ResourceHints = ResourceHints()

    def made_methods(self) -> list[tuple[Method, ResourceHints]]:
        pairs: list[tuple[Method, ResourceHints]] = []
        for index, entry in enumerate(self.methods):
            with _at("methods", index):
                pairs.append((make_method(entry.name, entry.parameters), entry.resources))
        return pairs

    def made_tasks(self, make_task: TaskMaker = make_task) -> list[tuple[Task, ResourceHints]]:
        pairs: list[tuple[Task, ResourceHints]] = []
        known: set[tuple[str, str]] = set()
        for index, entry in enumerate(self.tasks):
            for model in entry.models or (None,):
                with _at("tasks", index):
                    task = make_task(entry.name, model)
                    if (task.name, task.model_name) in known:  # its own seeds would be ignored
                        raise InvalidValueError(f"{task.name} ({task.model_name}) is there twice.")
                known.add((task.name, task.model_name))
                pairs.append((task, entry.resources))
        return pairs

    def budgets(self, task: Task) -> list[PrivacyBudget]:
        with _at("tasks"):
            delta = task.facts.default_delta if self.delta is None else self.delta
        with _at("delta"):
            PrivacyBudget(1.0, delta)
        with _at("epsilons"):
            return [PrivacyBudget(float(epsilon), delta) for epsilon in self.epsilons]

    def check(self, make_task: TaskMaker = make_task) -> None:
        """Reject wrong names and values, except for mistakes that only a plan can show."""
        configurations = {configuration_of(method) for method, _ in self.made_methods()}
        for task, _ in self.made_tasks(make_task):
            self.budgets(task)
            with _at("tasks", self.tasks.index(self._entry_of(task)), "more_seeds"):
                for name, parameters in self.more_seeds_of(task).keys() - configurations:
                    raise UnknownNameError(
                        f"Expected a method of the suite, got {name} with {shown(parameters)}; write its parameters "
                        "as in methods."
                    )
        known = [entry.name for entry in self.methods]
        for index, entry in enumerate(self.tasks):
            with _at("tasks", index, "without"):
                for name in entry.without:
                    if name not in known:
                        raise UnknownNameError(unknown_name_message("method of the suite", name, known))

    def seeds_of(self, task: Task) -> tuple[int, ...]:
        return self._entry_of(task).seeds or self.seeds

    def more_seeds_of(self, task: Task) -> Mapping[Configuration, tuple[int, ...]]:
        """Return the further seeds by the method that has them."""
        if (more := self._entry_of(task).more_seeds) is None:
            return {}
        return {configuration_of(make_method(each.name, each.parameters)): more.seeds for each in more.methods}

    def runs_on(self, method: str, task: Task) -> bool:
        return method not in self._entry_of(task).without

    def _entry_of(self, task: Task) -> TaskEntry:
        entries = [entry for entry in self.tasks if entry.name == task.name]
        named = [entry for entry in entries if task.model_name in (entry.models or ())]
        return (named or entries)[0]

    def resources_of(self, *entries: ResourceHints) -> Resources:
        stated = [hints.model_dump(exclude_none=True) for hints in (self.resources, *entries)]
        names = {name for hints in stated for name in hints}
        return Resources(**{name: max(hints[name] for hints in stated if name in hints) for name in names})


def configuration_of(method: Method) -> Configuration:
    return method.name, compact_json(method.parameters)


def load_suite(path: Path, make_task: TaskMaker = make_task) -> Suite:
    """Read and check a suite; errors name the key."""
    values = toml_values(path, bytes_in(path, MAX_SUITE_BYTES, "suite"))
    try:
        suite = Suite.model_validate(values)
        suite.check(make_task)
    except ValidationError as error:
        raise misfit(path, error) from None
    except _MisplacedError as error:
        raise misplaced(path, *error.args) from None
    return suite


class _MisplacedError(Exception):
    """A place in the suite, and what is wrong there."""


@contextmanager
def _at(*place: str | int) -> Iterator[None]:
    """Add the place in the suite to any error, also to errors of plug-ins that check their own values."""
    try:
        yield
    except Exception as error:
        raise _MisplacedError(place, reason_of(error)) from None
