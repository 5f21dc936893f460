"""Find tasks in files and modules that no entry point names."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import isabstract, isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError, RegistryError, UnknownNameError
from dphpo_bench.base.text import shown, unknown_name_message
from dphpo_bench.contract import registry
from dphpo_bench.contract.task import Task

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

        Raises:
            InvalidValueError: if there is no such file, module or task.
            RegistryError: if a module cannot be imported, or two tasks have one name.
        """
        tasks: dict[str, Task | type[Task]] = {}
        places_of: dict[str, str] = {}
        for place in places:
            for task in _tasks_at(place):
                if tasks.setdefault(task.name, task) is not task or task.name in registry.tasks():
                    raise RegistryError(f"Two tasks are named {shown(task.name, form=repr)}. Rename that of {place}.")
                places_of[task.name] = place
        return cls(tasks, places_of)

    def make(self, name: str, model: str | None = None) -> Task:
        """Make the task of this name with this model, as `registry.make_task` does.

        Raises:
            UnknownNameError: if there is no such task or model.
        """
        if name not in self.tasks:
            known = registry.tasks()
            if name not in known:
                raise UnknownNameError(unknown_name_message("task", name, [*self.tasks, *known]))
            return registry.make_task(name, model)
        task = self.tasks[name]
        if isinstance(task, type):
            return task(model)
        models = (task.model_name, task.facts.model)
        if model not in (None, *models):
            raise UnknownNameError(unknown_name_message("model", str(model), models))
        return task


def import_file(path: Path) -> ModuleType:
    """Import a file as Python does where it lies: as a module of its name, with its folder on the path of modules.

    So other processes can import it, too.

    Raises:
        InvalidValueError: if there is no such file, or no module can have its name.
        RegistryError: if it cannot be imported.
    """
    place, name = path.resolve(), path.stem
    if not place.is_file():
        raise InvalidValueError(f"Expected a file of Python, got {path}: no such file.")
    if not name.isidentifier():
        raise InvalidValueError(f"Expected a file named as a module can be, got {path.name}. Rename it.")
    if str(place.parent) not in sys.path:
        sys.path.append(str(place.parent))
    try:
        spec = find_spec(name)
    except ValueError:  # a module without a spec, such as a script that runs
        spec = None
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != place:
        raise InvalidValueError(f"A module {shown(name, form=repr)} is installed already. Rename {path}.")
    return _imported(name)


def _installed_or_here(name: str) -> ModuleType:
    """Import a module that is installed, or lies below the working directory."""
    if not name or any(not part.isidentifier() for part in name.split(".")):
        raise InvalidValueError(f"Expected FILE.py, FILE.py:NAME, MODULE or MODULE:NAME, got {shown(name, form=repr)}.")
    look_here_for(name)
    return _imported(name)


def look_here_for(module: str) -> None:
    """Let a module be found in the working directory if it is not installed.

    The folder of an installed package would otherwise hide the package.
    """
    try:
        known = find_spec(module) is not None
    except (ImportError, ValueError):
        known = False
    except Exception:  # its package cannot be imported; whoever imports the module says so
        known = True
    here = str(Path.cwd())
    if not known and here not in sys.path:
        sys.path.append(here)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except DphpoBenchError:
        raise
    except (Exception, SystemExit) as error:
        raise RegistryError(f"Cannot import {shown(name)}: {type(error).__name__}: {shown(error, 300)}.") from None


def _tasks_at(place: str) -> "list[Task | type[Task]]":
    where, _, name = (place, "", "") if place.endswith(SUFFIX) or ":" not in place else place.rpartition(":")
    module = import_file(Path(where)) if where.endswith(SUFFIX) else _installed_or_here(where)
    candidates = {key: value for key, value in vars(module).items() if _is_task(value, module)}
    if name:
        return [_named(module, name, candidates)]
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


def _makers(module: ModuleType) -> list[str]:
    """Return the public functions that a module defines: any may return a task."""
    return [
        key
        for key, value in vars(module).items()
        if isfunction(value) and value.__module__ == module.__name__ and key[0] != "_"
    ]


def _named(module: ModuleType, name: str, candidates: Mapping[str, Any]) -> Task | type[Task]:
    value = getattr(module, name, None)
    if value is None:
        raise UnknownNameError(
            unknown_name_message(f"task in {module.__name__}", name, [*candidates, *_makers(module)])
        )
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
