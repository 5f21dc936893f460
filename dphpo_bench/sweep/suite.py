"""Suites: TOML files that define the cells of a sweep.

description = "Two methods on the digits."
epsilons = [1, 3]
seeds = [0, 1, 2]
methods = ["auto_clipping", { name = "liu_talwar", parameters = { mean = 5 } }]
tasks = ["digits", { name = "mnist", models = ["linear", "cnn"], resources = { memory_gb = 4 } }]

[resources]
threads = 1
"""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.files import read_whole, text_of
from dphpo_bench.base.text import shown, unknown_name_message
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import make_method, make_task
from dphpo_bench.contract.task import Task
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.sweep.resources import Resources

MAX_SUITE_BYTES = 2**18
MAX_ENTRIES = 1000
MAX_SEEDS = 100_000
Place = tuple[str | int, ...]

TaskMaker = Callable[[str, str | None], Task]
"""Makes a task from its name and its model's, None for the first model, as `registry.make_task` does."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _named(value: Any) -> Any:
    """Return a table with that name for a text."""
    return {"name": value} if isinstance(value, str) else value


_SOME = Field(min_length=1, max_length=MAX_ENTRIES, strict=False)


class ResourceHints(_Entry):
    """Stated needs of cells; see `Resources`."""

    threads: Annotated[int, Field(ge=1)] | None = None
    gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    memory_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    time_limit_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class MethodEntry(_Entry):
    """Method with parameters that differ from its defaults."""

    name: str
    parameters: dict[str, Any] = {}
    resources: ResourceHints = ResourceHints()


Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=2**128)], ...], Field(min_length=1, max_length=MAX_SEEDS, strict=False)
]


class TaskEntry(_Entry):
    """Task with some of its models, by default the first.

    Attributes:
        seeds: of the runs on this task; None: the suite's.
        without: methods of the suite that are not run on this task, such as slow ones.
    """

    name: str
    models: Annotated[tuple[str, ...], _SOME] | None = None
    seeds: Seeds | None = None
    without: Annotated[tuple[str, ...], Field(max_length=MAX_ENTRIES, strict=False)] = ()
    resources: ResourceHints = ResourceHints()


class Suite(_Entry):
    """Methods × tasks × models × ε × seeds.

    Attributes:
        description: one line for people.
        methods: names, or tables of a name, parameters and resources.
        tasks: names, or tables of a name, models, seeds, omitted methods, and resources.
        epsilons: target ε of the whole procedure.
        delta: target δ; None: each task's default.
        seeds: one run each; a task may have its own.
        resources: needs of every cell; the largest value of suite, method and task counts.
    """

    description: str = ""
    methods: Annotated[tuple[Annotated[MethodEntry, BeforeValidator(_named)], ...], _SOME]
    tasks: Annotated[tuple[Annotated[TaskEntry, BeforeValidator(_named)], ...], _SOME]
    epsilons: Annotated[tuple[float, ...], _SOME]
    delta: float | None = None
    seeds: Seeds
    resources: ResourceHints = ResourceHints()

    def made_methods(self) -> list[tuple[Method, ResourceHints]]:
        """Make the methods with their parameters."""
        pairs: list[tuple[Method, ResourceHints]] = []
        for index, entry in enumerate(self.methods):
            with _at("methods", index, "name"):
                make_method(entry.name)
            with _at("methods", index, "parameters"):
                method = make_method(entry.name, entry.parameters)
            with _at("methods", index):
                _refuse_twice(f"{method.name} with these parameters", any(method == earlier for earlier, _ in pairs))
            pairs.append((method, entry.resources))
        return pairs

    def made_tasks(self, make_task: TaskMaker = make_task) -> list[tuple[Task, ResourceHints]]:
        """Make the tasks, one for each model."""
        pairs: list[tuple[Task, ResourceHints]] = []
        known: set[tuple[str, str]] = set()
        for index, entry in enumerate(self.tasks):
            with _at("tasks", index, "name"):
                make_task(entry.name, None)
            for position, model in enumerate(entry.models or (None,)):
                with _at("tasks", index, "models", position):
                    task = make_task(entry.name, model)
                    _refuse_twice(f"{task.name} ({task.model_name})", (task.name, task.model_name) in known)
                known.add((task.name, task.model_name))
                pairs.append((task, entry.resources))
        return pairs

    def budgets(self, task: Task) -> list[PrivacyBudget]:
        """Return the budgets on a task."""
        with _at("tasks"):
            delta = task.facts.default_delta if self.delta is None else self.delta
        budgets: list[PrivacyBudget] = []
        with _at("delta"):
            PrivacyBudget(1.0, delta)
        for index, epsilon in enumerate(self.epsilons):
            with _at("epsilons", index):
                budgets.append(PrivacyBudget(float(epsilon), delta))
                _refuse_twice(f"epsilon {epsilon:g}", budgets[-1] in budgets[:-1])
        return budgets

    def check(self, make_task: TaskMaker = make_task) -> None:
        """Reject wrong names and values, except for mistakes that only a plan can show."""
        self.made_methods()
        for task, _ in self.made_tasks(make_task):
            self.budgets(task)
        _refuse_seeds_twice(self.seeds, "seeds")
        known = [entry.name for entry in self.methods]
        for place, entry in enumerate(self.tasks):
            _refuse_seeds_twice(entry.seeds or (), "tasks", place, "seeds")
            for index, name in enumerate(entry.without):
                with _at("tasks", place, "without", index):
                    if name not in known:
                        raise UnknownNameError(unknown_name_message("method of the suite", name, known))

    def seeds_of(self, task: Task) -> tuple[int, ...]:
        """Return the seeds of the runs on this task with its model."""
        return self._entry_of(task).seeds or self.seeds

    def runs_on(self, method: str, task: Task) -> bool:
        """Return whether a method of this name is run on this task with its model."""
        return method not in self._entry_of(task).without

    def _entry_of(self, task: Task) -> TaskEntry:
        alike = [entry for entry in self.tasks if entry.name == task.name]
        named = [entry for entry in alike if task.model_name in (entry.models or ())]
        return (named or alike)[0]

    def resources_of(self, *entries: ResourceHints) -> Resources:
        """Return the needs of a cell of this method and this task."""
        stated = [hints.model_dump(exclude_none=True) for hints in (self.resources, *entries)]
        names = {name for hints in stated for name in hints}
        return Resources(**{name: max(hints[name] for hints in stated if name in hints) for name in names})


def load_suite(path: Path, make_task: TaskMaker = make_task) -> Suite:
    """Read and check a suite.

    Args:
        path: the file.
        make_task: makes a task from its name and its model's name.

    Raises:
        InvalidValueError: if it cannot be read, or something in it is wrong; the message names the key.
    """
    try:
        data = read_whole(path, MAX_SUITE_BYTES)
    except OSError as error:
        raise InvalidValueError(f"Cannot read the suite {path}: {error.strerror}.") from None
    if len(data) > MAX_SUITE_BYTES:
        raise InvalidValueError(f"The suite {path} is larger than {MAX_SUITE_BYTES} bytes.")
    try:
        values = tomllib.loads(text_of(data))
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{path} is not TOML: {shown(error, 300)}.") from None
    try:
        suite = Suite.model_validate(values)
        suite.check(make_task)
    except ValidationError as error:
        # Of a misspelt key pydantic says, too, that the right one is missing: name the misspelt one.
        first = min(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
        place = tuple(part for part in first["loc"] if not str(part).startswith("function-"))
        reason = _reason(first, place)
    except _MisplacedError as error:
        place, reason = error.place, str(error)
    else:
        return suite
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    raise InvalidValueError(f"{path}, {shown(key, 200)}: {reason}")


class _MisplacedError(Exception):
    """Wrong value at a place in the suite."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(reason)
        self.place = place


@contextmanager
def _at(*place: str | int) -> Iterator[None]:
    """Add the place in the suite to any error, also to errors of plug-ins that check their own values."""
    try:
        yield
    except Exception as error:
        raise _MisplacedError(place, reason_of(error)) from None


def _refuse_seeds_twice(seeds: Sequence[int], *place: str | int) -> None:
    seen: set[int] = set()
    for index, seed in enumerate(seeds):
        with _at(*place, index):
            _refuse_twice(f"seed {seed}", seed in seen)
        seen.add(seed)


def _refuse_twice(what: str, again: bool) -> None:
    if again:
        raise InvalidValueError(f"{what} is there twice.")


def _reason(error: Any, place: Place) -> str:
    """Return one line for an error of pydantic's."""
    match error["type"]:
        case "extra_forbidden":
            return unknown_name_message("key", str(place[-1]), _keys_at(place[:-1]))
        case "missing":
            return "This key is missing."
        case "tuple_type":
            return f"Expected a list, got {shown(shown(error['input']), form=repr)}."
        case "too_short":
            return "Expected at least one value, got none."
        case _:
            return f"{shown(error['msg'], 300)}, got {shown(shown(error['input']), 90, repr)}."


def _keys_at(place: Place) -> Sequence[str]:
    """Return the keys that a table at this place may have."""
    names = [part for part in place if isinstance(part, str)]
    models: dict[str, type[BaseModel]] = {"methods": MethodEntry, "tasks": TaskEntry, "resources": ResourceHints}
    return list((models[names[-1]] if names else Suite).model_fields)
