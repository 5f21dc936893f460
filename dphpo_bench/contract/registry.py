"""Find methods and tasks by their entry points, built-ins in the same way as plug-ins; and tasks in files."""

import hashlib
import importlib
import inspect
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from inspect import isabstract, isfunction
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from dphpo_bench.base.checks import typed, unexpected
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError, RegistryError, SealedDataError, UnknownNameError
from dphpo_bench.base.text import shown, unknown_name_message
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.seals import sealed
from dphpo_bench.contract.task import Task

PlugIn = TypeVar("PlugIn", Method, Task)

GROUPS: Mapping[str, type[Method] | type[Task]] = {"dphpo_bench.methods": Method, "dphpo_bench.tasks": Task}
"""Groups of entry points, and what their classes are."""


@dataclass(frozen=True)
class Registered(Generic[PlugIn]):
    """Class of a plug-in, and where it comes from."""

    cls: type[PlugIn]
    origin: str  # distribution and version, such as "dphpo-bench 0.1.0"


class Plugins(Mapping[str, Registered[PlugIn]]):
    """The plug-ins of one group by name, sorted. Each is loaded when it is asked for, so that none disturbs another.

    Args:
        group: a key of `GROUPS`.
    """

    def __init__(self, group: str, base: type[PlugIn]) -> None:
        self._kind = base.__name__.lower()
        self._points: dict[str, list[EntryPoint]] = {}
        for point in sorted(points(group), key=lambda point: point.name):
            self._points.setdefault(point.name, []).append(point)

    def __iter__(self) -> Iterator[str]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)

    def __contains__(self, name: object) -> bool:
        return name in self._points

    def __getitem__(self, name: str) -> Registered[PlugIn]:
        """Load a plug-in."""
        point, *others = self._points[name]
        for other in others:
            if other.value != point.value:
                raise RegistryError(
                    f"Two plug-ins provide the {self._kind} {name!r}: {point.value} ({_origin(point.dist)}) and "
                    f"{other.value} ({_origin(other.dist)}). Uninstall one of them."
                )
        with sealed():
            cls: Any = load_class(point)
        return Registered(cls, _origin(point.dist))

    def working(self, name: str) -> Registered[PlugIn] | None:
        """Load a plug-in; None if there is no such plug-in. A broken one is a warning, and None."""
        if name not in self:
            return None
        try:
            return self[name]
        except Exception as error:
            point = self._points[name][0]
            warnings.warn(
                f"Skipped the broken {self._kind} plug-in {name!r} ({point.value}, {_origin(point.dist)}): {error}",
                stacklevel=3,
            )
            return None

    def loaded(self) -> dict[str, Registered[PlugIn]]:
        """Load all plug-ins but broken ones."""
        return {name: plug_in for name in self if (plug_in := self.working(name))}


def methods() -> Plugins[Method]:
    """Return all methods by name."""
    return Plugins("dphpo_bench.methods", Method)  # type: ignore[type-abstract]


def tasks() -> Plugins[Task]:
    """Return all tasks by name."""
    return Plugins("dphpo_bench.tasks", Task)  # type: ignore[type-abstract]


def is_registered(cls: type[Method] | type[Task]) -> bool:
    """Return whether an entry point names this class."""
    group: Plugins[Any] = methods() if issubclass(cls, Method) else tasks()
    plug_in = group.working(getattr(cls, "name", ""))
    return plug_in is not None and plug_in.cls is cls


@typed
def make_method(name: str, overrides: Mapping[str, Any] | None = None) -> Method:
    """Make the method of this name with some parameters replaced.

    Args:
        name: a registered name.
        overrides: parameter → value, or a text that is read according to the parameter's type; "none" is None where
            the type allows it.

    Raises:
        UnknownNameError: if there is no such method or parameter.
        InvalidValueError: if a value is not of the parameter's type, or the method refuses it.
    """
    available = methods()
    if name not in available:
        raise UnknownNameError(unknown_name_message("method", name, available))
    cls = available[name].cls
    parameters = read_parameters(cls, overrides) if overrides else {}
    with sealed() as complaints:
        try:
            method = cls(**parameters)
        except TypeError as error:  # a parameter without a default, say
            raise InvalidValueError(
                f"Cannot make {name}: {shown(error, 300)}. Set its parameters with --set NAME=VALUE; a method is a "
                "frozen dataclass whose fields all have defaults."
            ) from None
    if complaints:
        raise SealedDataError(complaints[0])
    return method


def method_of(method: str | Method) -> Method:
    """Return a method, or make the method of this name.

    Raises:
        UnknownNameError: if there is no such method.
        InvalidValueError: if it is no method, or an edited copy that has the name of a registered one, whose records
            would be taken for its own.
    """
    if isinstance(method, str):
        return make_method(method)
    if not isinstance(method, Method):
        raise unexpected("Expected one method, or its name", method)
    cls, name, available = type(method), getattr(type(method), "name", None), methods()
    known = available[name] if isinstance(name, str) and name in available else None
    if known is not None and known.cls is not cls and code_hash(known.cls) != code_hash(cls):
        raise InvalidValueError(
            f"Expected another name than {name!r} of the method {shown(cls.__name__)}: {known.origin} has a method "
            "of this name, and their records would be the same files. Set the class attribute `name`."
        )
    return method


def task_of(task: str | Task) -> Task:
    """Return a task, or make the task of this name."""
    if not isinstance(task, str | Task):
        raise unexpected("Expected one task, or its name", task)
    return make_task(task) if isinstance(task, str) else task


@typed
def make_task(name: str, model: str | None = None) -> Task:
    """Make the task of this name with this model.

    Raises:
        UnknownNameError: if there is no such task or model.
    """
    available = tasks()
    if name not in available:
        raise UnknownNameError(f"{unknown_name_message('task', name, available)} One of your own: --task-file FILE.py.")
    return available[name].cls(model)


def source_of(cls: type) -> bytes | None:
    """Return the file that defines a class; None if it was typed into an interpreter, so that no edit would show."""
    try:
        return Path(inspect.getfile(cls)).read_bytes()
    except (OSError, TypeError):
        return None


@cache
def code_hash(cls: type[Method] | type[Task]) -> str:
    """Return a hash of a plug-in's own source, so that an edited method or task counts as another."""
    contract = Method if issubclass(cls, Method) else Task
    bases = cls.__mro__[: cls.__mro__.index(contract)]
    sources = [source_of(base) or repr(base).encode() for base in bases]
    return hashlib.sha256(b"".join(sources)).hexdigest()[:12]


def points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group; read all that is installed once, until a folder of it changes."""
    folders = [folder for folder in map(Path, sys.path) if folder.exists()]
    return _points_of(group, tuple((folder, folder.stat().st_mtime_ns) for folder in folders))


@cache
def _points_of(group: str, changed: tuple[tuple[Path, int], ...]) -> tuple[EntryPoint, ...]:
    del changed
    return tuple(entry_points(group=group))


def load_class(point: EntryPoint) -> type[Method] | type[Task]:
    """Load the class that an entry point names; one without a group stands for a class that is not installed."""
    label = f"{point.name} = {point.value}" if point.group else point.value
    try:
        cls: Any = point.load()
    except (Exception, SystemExit) as error:
        raise RegistryError(f"Cannot load {label}: {type(error).__name__}: {error}.") from None
    expected = (GROUPS[point.group],) if point.group else (Method, Task)
    if not (isinstance(cls, type) and issubclass(cls, expected)):
        names = " or ".join(f"dphpo_bench.{base.__name__}" for base in expected)
        raise RegistryError(f"{label} is no subclass of {names}.")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise RegistryError(f"{label} lacks {missing}. Define what its base class leaves open.")
    if not point.group:
        return cls
    name = getattr(cls, "name", None)
    if name != point.name:
        raise RegistryError(f"The entry point {label} names a class whose `name` is {name!r}. Make the two equal.")
    if not isinstance(getattr(cls, "summary", None), str):
        raise RegistryError(f"{label} has no `summary`. Set this class attribute to a line of text.")
    return cls


@cache
def _origin(distribution: Distribution | None) -> str:
    if distribution is None:
        return "unknown distribution"
    metadata = distribution.metadata  # parsed anew each time it is asked for
    return f"{metadata['Name']} {metadata['Version']}"


def read_parameters(cls: type[Method], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Read parameters by the types of the method's dataclass fields: texts loosely, JSON values strictly."""
    from pydantic import TypeAdapter, ValidationError

    names = [f.name for f in fields(cls) if f.init]  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in overrides.items():
        if name not in names:
            raise UnknownNameError(unknown_name_message(f"parameter of {cls.name}", name, names))
        try:
            adapter = TypeAdapter(hints[name])
            if isinstance(value, str) and value.lower() == "none" and NoneType in get_args(hints[name]):
                values[name] = None
            elif isinstance(value, str) and value.startswith("[") and hints[name] is not str:  # a list, as JSON
                values[name] = adapter.validate_json(value)
            elif isinstance(value, str):
                values[name] = adapter.validate_strings(value)
            else:
                values[name] = adapter.validate_json(json.dumps(value, default=_plain), strict=True)
        except (ValidationError, TypeError, ValueError, RecursionError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise InvalidValueError(
                f"Parameter {name}={shown(value, form=repr)} of {cls.name}: {shown(reason, 300)}."
            ) from None
    return values


def _plain(value: Any) -> Any:
    """Return a number of NumPy or torch as Python's."""
    if getattr(value, "ndim", None) != 0:
        raise TypeError(f"a {type(value).__name__} is no value of a parameter")
    return value.item()


SUFFIX = ".py"


@dataclass(frozen=True)
class TaskFiles:
    """Tasks by name: of some files and modules, and the registered ones.

    Attributes:
        tasks: tasks, or classes of tasks that take the name of a model, by name.
        places: the file or module of each, as the user wrote it.
    """

    tasks: Mapping[str, Task | type[Task]] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, places: Sequence[str]) -> "TaskFiles":
        """Find the tasks at these places: `my_task.py`, `package.module`, or one object in them, as `my_task.py:fraud`.

        Without the name of an object, these are all tasks, and all classes of tasks, that the module defines. A
        function that is named is called without arguments, and returns a task.
        """
        by_name: dict[str, Task | type[Task]] = {}
        places_of: dict[str, str] = {}
        for place in places:
            for task in _tasks_at(place):
                if by_name.setdefault(task.name, task) is not task or task.name in tasks():
                    raise RegistryError(f"Two tasks are named {shown(task.name, form=repr)}. Rename that of {place}.")
                places_of[task.name] = place
        return cls(by_name, places_of)

    def make(self, name: str, model: str | None = None) -> Task:
        """Make the task of this name with this model, as `make_task` does."""
        if name not in self.tasks:
            known = tasks()
            if name not in known:
                raise UnknownNameError(unknown_name_message("task", name, [*self.tasks, *known]))
            return make_task(name, model)
        task = self.tasks[name]
        if isinstance(task, type):
            return task(model)
        models = (task.model_name, task.facts.model)
        if model not in (None, *models):
            raise UnknownNameError(unknown_name_message("model", str(model), models))
        return task


def module_at(place: str) -> ModuleType:
    """Import a module by its name, also below the working directory, or by its file.

    A file becomes the module of its name, with its folder on the path of modules, so that other processes can import
    it, too.
    """
    is_file, path = place.endswith(SUFFIX), Path(place).resolve()
    if is_file and not path.is_file():
        raise InvalidValueError(f"Expected a file of Python, got {place}: no such file.")
    name, folder = (path.stem, path.parent) if is_file else (place, Path.cwd())
    try:
        # The folder of an installed package would otherwise hide the package.
        if find_spec(name.partition(".")[0]) is None and str(folder) not in sys.path:
            sys.path.append(str(folder))
        module = importlib.import_module(name)
    except DphpoBenchError:
        raise
    except (Exception, SystemExit) as error:
        raise RegistryError(f"Cannot import {shown(name)}: {type(error).__name__}: {shown(error, 300)}.") from None
    if is_file and Path(module.__file__ or "").resolve() != path:
        raise InvalidValueError(f"A module {shown(name, form=repr)} is installed already. Rename {place}.")
    return module


def _tasks_at(place: str) -> "list[Task | type[Task]]":
    where, _, name = (place, "", "") if place.endswith(SUFFIX) or ":" not in place else place.rpartition(":")
    module = module_at(where)
    candidates = {key: value for key, value in vars(module).items() if _is_task(value, module)}
    if name:
        return [_object_named(module, name, candidates)]
    if not candidates:
        raise InvalidValueError(
            f"{place} defines no task: neither an ArrayTask nor a subclass of Task. Name a function that returns one: "
            f"{place}:FUNCTION."
        )
    return list({id(task): task for task in candidates.values()}.values())


def _is_task(value: Any, module: ModuleType) -> bool:
    if isinstance(value, type) and issubclass(value, Task):
        return value.__module__ == module.__name__ and not isabstract(value) and hasattr(value, "name")
    return isinstance(value, Task)


def _object_named(module: ModuleType, name: str, candidates: Mapping[str, Any]) -> Task | type[Task]:
    value = getattr(module, name, None)
    if value is None:
        names = [*candidates, *(key for key, maker in vars(module).items() if isfunction(maker) and key[0] != "_")]
        raise UnknownNameError(unknown_name_message(f"task in {module.__name__}", name, names))
    if callable(value) and not isinstance(value, type | Task):
        try:
            value = value()
        except DphpoBenchError:
            raise
        except Exception as error:  # whatever a function of somebody's raises
            raise RegistryError(f"{name}() raises {type(error).__name__}: {shown(error, 300)}.") from None
    if not (isinstance(value, Task) or (isinstance(value, type) and issubclass(value, Task))):
        raise InvalidValueError(
            f"Expected {name} of {module.__name__} to be a task, got {shown(type(value).__name__)}."
        )
    return value
