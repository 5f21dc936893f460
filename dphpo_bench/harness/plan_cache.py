"""Plans that are made once and kept on disk, since calibration takes seconds and all seeds of a sweep share it.

The harness computes ε of a kept plan from its event, and the session holds the run to that event. So a forged file can
make a run fail or state another cost, but it cannot lower ε.
"""

import hashlib
import json
import logging
import sys
from contextlib import ExitStack
from copy import copy
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dphpo_bench.base.engine_hash import engine_hash
from dphpo_bench.base.errors import DataError, UnsupportedEventError
from dphpo_bench.base.files import read_whole, write_whole
from dphpo_bench.contract.method import Method, Plan
from dphpo_bench.contract.registry import code_hash, source_of
from dphpo_bench.contract.task import Task
from dphpo_bench.data.cache import locked
from dphpo_bench.privacy.budget import PrivacyBudget

if TYPE_CHECKING:
    from dphpo_bench.data.source import DataSource

logger = logging.getLogger(__name__)

FORMAT = 2
MAX_PLAN_BYTES = 2**24


class PlanCache:
    """A folder of plans, safe to delete, shared by processes; it is made with the first plan."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of(cls, source: "DataSource") -> "PlanCache":
        return cls(source.cache_dir / "plans")

    def plan(self, method: Method, task: Task, budget: PrivacyBudget) -> Plan:
        """Return the method's plan, and make it if there is none for these parameters, this code and this budget.

        A process waits for a plan that another process is making. A plan that JSON does not hold exactly, or that
        cannot be written, is made each time.
        """
        if source_of(type(method)) is None or source_of(type(task)) is None:
            return method.plan(copy(task.facts), budget)
        path = self._folder / f"{_key(method, task, budget)}.json"
        if plan := _read(path, method, budget):
            return plan
        with ExitStack() as lock:
            try:
                lock.enter_context(locked(path))
                plan = _read(path, method, budget)
            except (OSError, DataError) as error:
                logger.warning("Cannot keep the plan of %s: %s", method.name, error)
                return method.plan(copy(task.facts), budget)
            if plan is None:
                plan = method.plan(copy(task.facts), budget)
                _keep(plan, method, path)
            return plan


def _key(method: Method, task: Task, budget: PrivacyBudget) -> str:
    facts = {**asdict(task.facts), "search_space": repr(task.facts.search_space())}
    names = {
        "format": FORMAT,
        "engine": engine_hash(),
        "method": [method.name, method.parameters, code_hash(type(method)), _neighbours(type(method).__module__)],
        "task": [repr(sorted(facts.items())), code_hash(type(task)), _neighbours(type(task).__module__)],
        "budget": [budget.epsilon, budget.delta],
    }
    return hashlib.sha256(json.dumps(names, sort_keys=True).encode()).hexdigest()[:20]


def code_of(method: Method, task: Task) -> str:
    """Return a hash of all code that a run of a method on a task may execute, but for that of other packages."""
    classes = type(method), type(task)
    parts = [engine_hash(), *map(code_hash, classes), *(_neighbours(cls.__module__) for cls in classes)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


@cache
def _neighbours(module: str) -> str:
    """Return a hash of the source that a plug-in's module may import: its package, or the modules beside it."""
    first = module.partition(".")[0]
    if first == __package__.partition(".")[0]:
        return ""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in (first, module))
    file = next((Path(name) for name in files if name), None)
    if file is None:
        return ""
    if file.parent.name in ("site-packages", "dist-packages"):
        sources = [file]
    else:
        sources = sorted(file.parent.glob("**/*.py" if file.stem == "__init__" else "*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources if path.is_file())).hexdigest()[:12]


def _read(path: Path, method: Method, budget: PrivacyBudget) -> Plan | None:
    try:
        plan = Plan.from_json(json.loads(read_whole(path, MAX_PLAN_BYTES)), method.plan_parameters)
        return plan if plan.budget == budget else None
    except (OSError, KeyError, TypeError, ValueError, RecursionError):  # missing or damaged: the plan is made again
        return None


def _keep(plan: Plan, method: Method, path: Path) -> None:
    """Write a plan, if JSON holds it exactly."""
    try:
        text = json.dumps(plan.to_json())
        exact = Plan.from_json(json.loads(text), method.plan_parameters) == plan
    except (TypeError, ValueError, AttributeError, UnsupportedEventError):
        return
    if exact and len(text) <= MAX_PLAN_BYTES:
        try:
            write_whole(path, text)
        except OSError as error:
            logger.warning("Cannot keep the plan of %s: %s", method.name, error)
