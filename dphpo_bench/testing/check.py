"""Run the contracts on plug-ins, without pytest."""

import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, distributions
from inspect import getdoc
from typing import Any
from unittest import SkipTest

from dphpo_bench.base.errors import DphpoBenchError, RegistryError, UnknownNameError
from dphpo_bench.base.text import one_line, unknown_name_message
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import GROUPS, SUFFIX, load_class, module_at, points
from dphpo_bench.contract.task import Task
from dphpo_bench.testing import ContractError, MethodContract, TaskContract

PREFIX = "test_"
MAX_REASON = 2000


@dataclass(frozen=True)
class Subject:
    """Plug-in to check: its class, the distribution it comes from, and the model if it is a task."""

    cls: type[Method] | type[Task]
    origin: str
    model: str | None = None

    @property
    def kind(self) -> str:
        return "method" if issubclass(self.cls, Method) else "task"

    @property
    def title(self) -> str:
        name = getattr(self.cls, "name", None) or "without a name"
        at = f" ({self.model})" if self.model is not None else ""
        return f"{self.kind} {name}{at}: {self.cls.__module__}:{self.cls.__qualname__} [{self.origin}]"

    def make(self) -> Method | Task:
        return self.cls() if issubclass(self.cls, Method) else self.cls(self.model)


@dataclass(frozen=True)
class Checked:
    name: str
    description: str  # the first line of its docstring
    reason: str | None  # why it failed
    seconds: float
    unchecked: str | None = None  # why it has no verdict


def subjects(plug_in: str) -> list[Subject]:
    """Return the plug-ins of a name, `module:Class`, `file.py:Class` or distribution; a task once for each model."""
    if plug_in.endswith(SUFFIX):
        raise UnknownNameError(f"Expected FILE.py:CLASS, got {plug_in!r}. Name the class of the method or the task.")
    file, _, name = plug_in.rpartition(":")
    if ":" in plug_in:
        plug_in = f"{module_at(file).__name__}:{name}"
        return _with_models(load_class(EntryPoint(plug_in, plug_in, "")), "not installed as a plug-in")
    installed = [point for group in GROUPS for point in points(group)]
    named = [point for point in installed if point.name == plug_in]
    if not named:
        try:
            named = [point for point in distribution(plug_in).entry_points if point.group in GROUPS]
        except (PackageNotFoundError, ValueError):
            providers = {each.name for each in distributions() if any(p.group in GROUPS for p in each.entry_points)}
            available = {point.name for point in installed} | providers
            raise UnknownNameError(unknown_name_message("plug-in", plug_in, available)) from None
        if not named:
            raise UnknownNameError(
                f"The distribution {plug_in!r} has no plug-in: no entry point in {' or '.join(GROUPS)}. Declare one in "
                "its pyproject.toml and install it again."
            )
    checked = []
    for point in dict.fromkeys(named):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else plug_in
        checked += _with_models(load_class(point), origin)
    return checked


def run_contract(subject: Subject) -> Iterator[Checked]:
    """Run the tests of a plug-in's contract, each on an instance of its own."""
    contract = MethodContract() if subject.kind == "method" else TaskContract()
    inherited = (name for cls in reversed(type(contract).__mro__) for name in vars(cls) if name.startswith(PREFIX))
    for name in dict.fromkeys(inherited):
        test: Callable[[Any], None] = getattr(contract, name)
        start = time.perf_counter()
        reason, unchecked = _outcome(test, subject)
        description = (getdoc(test) or name).splitlines()[0]
        yield Checked(name, description, reason, time.perf_counter() - start, unchecked)


def _outcome(test: Callable[[Any], None], subject: Subject) -> tuple[str | None, str | None]:
    try:
        test(subject.make())
    except SkipTest as skipped:
        return None, one_line(str(skipped), MAX_REASON)
    except (ContractError, DphpoBenchError) as error:
        return one_line(str(error), MAX_REASON), None
    except (Exception, SystemExit) as error:  # whatever a plug-in raises
        last = traceback.extract_tb(error.__traceback__)[-1]
        return one_line(f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})", MAX_REASON), None
    return None, None


def _with_models(cls: type[Method] | type[Task], origin: str) -> list[Subject]:
    if issubclass(cls, Method):
        return [Subject(cls, origin)]
    models = getattr(cls, "models", None)
    if not (isinstance(models, tuple) and models):
        raise RegistryError(
            f"{cls.__module__}:{cls.__qualname__} names no models. Set the class attribute models, a tuple of names."
        )
    return [Subject(cls, origin, model) for model in models]
