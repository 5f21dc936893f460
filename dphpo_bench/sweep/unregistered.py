"""Pickle unregistered plug-ins for sweep workers."""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import cloudpickle

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import compact_json, shown
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import is_registered, make_method, make_task
from dphpo_bench.contract.task import Task
from dphpo_bench.records.record import Identity


@dataclass(frozen=True)
class Unregistered:
    """Methods by name and parameters, and tasks by name and model, for a process that finds them by no name."""

    methods: Mapping[tuple[str, str], Method] = field(default_factory=dict)
    tasks: Mapping[tuple[str, str], Task] = field(default_factory=dict)
    # Layers that functions define, and their full names: copies of classes lack them, and fingerprints hold them.
    nested: tuple[tuple[type, str], ...] = ()

    def method_of(self, identity: Identity) -> Method:
        method = self.methods.get((identity.method, compact_json(identity.parameters)))
        return make_method(identity.method, identity.parameters) if method is None else method

    def task_of(self, identity: Identity) -> Task:
        task = self.tasks.get((identity.task, identity.model))
        return make_task(identity.task, identity.model) if task is None else task


@contextmanager
def pickled(methods: Iterable[Method], tasks: Iterable[Task]) -> Iterator[str]:
    """Pickle what is not registered to a file that only the user can read, and remove the file at the end.

    The records of an `ArrayTask` are in that file. It stays if this process is killed. Yields its path, empty if all
    plug-ins are registered.
    """
    own_methods = {id(method): method for method in methods if not is_registered(type(method))}.values()
    own_tasks = {id(task): task for task in tasks if not is_registered(type(task))}.values()
    if not (own_methods or own_tasks):
        yield ""
        return
    plug_ins = Unregistered(
        {(method.name, compact_json(method.parameters)): method for method in own_methods},
        {(task.facts.task, task.facts.model): task for task in own_tasks},
        _nested_layers(own_tasks),
    )
    with TemporaryDirectory(prefix="dphpo-bench-") as folder:
        path = Path(folder) / "plug_ins.pickle"
        try:
            with path.open("wb") as file:
                cloudpickle.dump(plug_ins, file)
        except OSError as error:
            raise InvalidValueError(
                f"Cannot write {path}: {error.strerror}. Set TMPDIR to a folder with room."
            ) from None
        except Exception as error:  # whatever an object of somebody's raises when it is pickled
            names = ", ".join(name for name, _ in (*plug_ins.methods, *plug_ins.tasks))
            raise InvalidValueError(
                f"Cannot hand {shown(names)} to another process: {shown(error, 300)}. Keep open files, locks and "
                "generators out of it, or pass functions that make them."
            ) from None
        yield str(path)


def unpickled(path: str) -> Unregistered:
    """Return what `pickled` wrote; nothing for an empty path."""
    if not path:
        return Unregistered()
    plug_ins: Unregistered = pickle.loads(Path(path).read_bytes())
    for cls, name in plug_ins.nested:
        cls.__qualname__ = name
    return plug_ins


def _nested_layers(tasks: Iterable[Task]) -> tuple[tuple[type, str], ...]:
    import torch

    with torch.random.fork_rng(devices=[]):
        classes = {type(layer): None for task in tasks for layer in task.build_model().modules()}
    return tuple((cls, cls.__qualname__) for cls in classes if "<locals>" in cls.__qualname__)
