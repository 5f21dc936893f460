"""Methods and tasks that no entry point names: what the processes of a sweep are given instead of names."""

import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import cloudpickle

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import compact_json, shown
from dphpo_bench.contract import registry
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import make_method, make_task
from dphpo_bench.contract.task import Task
from dphpo_bench.records.record import Identity


@dataclass(frozen=True)
class Luggage:
    """Methods and tasks as they were given, for a process that finds none by their names.

    Attributes:
        methods: the methods.
        tasks: the tasks.
        nested: the classes of their models' layers that functions define, and their full names, which a copy of a class
            lacks and a model's fingerprint holds.
    """

    methods: tuple[Method, ...] = ()
    tasks: tuple[Task, ...] = ()
    nested: tuple[tuple[type, str], ...] = ()

    def method_of(self, identity: Identity) -> Method:
        """The method of a run: one of these, or the registered one."""
        asked = identity.method, compact_json(identity.parameters)
        found = (one for one in self.methods if (one.name, compact_json(one.parameters)) == asked)
        return next(found, None) or make_method(identity.method, identity.parameters)

    def task_of(self, identity: Identity) -> Task:
        """The task of a run with its model: one of these, or the registered one."""
        asked = identity.task, identity.model
        found = (one for one in self.tasks if (one.facts.task, one.facts.model) == asked)
        return next(found, None) or make_task(*asked)


@contextmanager
def packed(methods: Iterable[Method], tasks: Iterable[Task]) -> Iterator[str]:
    """Write those that are not registered to a file in a folder that only the user can read, and remove it at the end.

    The records of an `ArrayTask` are in that file. It stays if this process is killed.

    Yields:
        The file's path; empty if all are registered.

    Raises:
        InvalidValueError: if an object cannot be written.
    """
    known = {registered.cls for group in (registry.methods(), registry.tasks()) for registered in group.values()}
    own_methods = tuple({id(one): one for one in methods if type(one) not in known}.values())
    own_tasks = tuple({id(one): one for one in tasks if type(one) not in known}.values())
    if not (own_methods or own_tasks):
        yield ""
        return
    luggage = Luggage(own_methods, own_tasks, _nested_layers(own_tasks))
    with TemporaryDirectory(prefix="dphpo-bench-") as folder:
        path = Path(folder) / "luggage.pickle"
        try:
            with path.open("wb") as file:
                cloudpickle.dump(luggage, file)
        except OSError as error:
            raise InvalidValueError(
                f"Cannot write {path}: {error.strerror}. Set TMPDIR to a folder with room."
            ) from None
        except Exception as error:  # whatever an object of somebody's raises when it is pickled
            names = ", ".join([*(one.name for one in luggage.methods), *(one.name for one in luggage.tasks)])
            raise InvalidValueError(
                f"Cannot hand {shown(names)} to another process: {shown(error, 300)}. Keep open files, locks and "
                "generators out of it, or pass functions that make them."
            ) from None
        yield str(path)


def unpacked(path: str) -> Luggage:
    """What `packed` wrote; nothing for an empty path."""
    if not path:
        return Luggage()
    with Path(path).open("rb") as file:
        loaded = pickle.load(file)
    assert isinstance(loaded, Luggage)
    for cls, name in loaded.nested:
        cls.__qualname__ = name
    return loaded


def _nested_layers(tasks: Iterable[Task]) -> tuple[tuple[type, str], ...]:
    import torch

    with torch.random.fork_rng(devices=[]):
        classes = {type(layer): None for task in tasks for layer in task.build_model().modules()}
    return tuple((cls, cls.__qualname__) for cls in classes if "<locals>" in cls.__qualname__)
