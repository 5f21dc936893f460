"""Plans, ε and risk that are computed once and cached on disk, since all seeds of a sweep need the same.

A value's key is a hash of what it follows from, the code that computes it and the versions of its libraries. Its file
holds a checksum of the key and the value. So a file that is damaged, torn, renamed, or of other code is not believed,
and its value is computed again. A file that was forged is believed, as the trust model allows (docs/concepts.md); the
session still holds the run to the event of its plan. Whatever checks records computes their ε from their ledgers and
reads none of what runs have cached.
"""

import hashlib
import json
import logging
import sys
from copy import copy
from dataclasses import asdict, astuple
from functools import cache
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.checks import inside
from dphpo_bench.base.errors import UnsupportedEventError
from dphpo_bench.base.files import engine_hash, read_whole, write_whole
from dphpo_bench.contract.method import Method, Plan
from dphpo_bench.contract.registry import code_hash, source_of
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.accountants import report as reports
from dphpo_bench.privacy.accountants.report import OUT_OF_MEMORY, EpsilonReport
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.risk import Risk, risk

logger = logging.getLogger(__name__)

FORMAT = 1
MAX_VALUE_BYTES = 2**24
_CHECKSUM_DIGITS = 64


class CachedValues:
    """JSON values in a folder, each in a file named by a hash; safe to delete, shared by processes.

    Args:
        folder: made with the first value; None: values are cached in memory only.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[str, str] = {}

    @staticmethod
    def key(*parts: Any) -> str:
        """Return a hash of what a value depends on: these JSON values, the accounting code and its libraries."""
        text = json.dumps([FORMAT, engine_hash("privacy", "base"), *parts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def find(self, key: str) -> Any | None:
        """Return the value of this key; None if there is none, or its file is damaged or belongs to another key."""
        if key not in self._known and self._folder is not None:
            try:
                content = read_whole(self._folder / f"{key}.json", MAX_VALUE_BYTES).decode()
            except (OSError, ValueError):
                return None
            checksum, text = content[:_CHECKSUM_DIGITS], content[_CHECKSUM_DIGITS:]
            if checksum == _checksum(key, text):
                self._known[key] = text
        return json.loads(self._known[key]) if key in self._known else None

    def keep(self, key: str, value: Any) -> None:
        """Cache a value that JSON holds exactly; a disk that is full is no error."""
        self._known[key] = text = json.dumps(value)
        if self._folder is None:
            return
        try:
            write_whole(self._folder / f"{key}.json", _checksum(key, text) + text)
        except OSError as error:
            logger.warning("Cannot cache a plan or ε: %s", error)


def _checksum(key: str, text: str) -> str:
    return hashlib.sha256(f"{key} {text}".encode()).hexdigest()


class Cache:
    """Plans of methods, ε and risk of events.

    Args:
        folder: where they are cached; safe to delete, shared by processes, made with the first value. None: only the
            accountants remember some of what this process has computed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._values = None if folder is None else CachedValues(folder)

    @classmethod
    def of(cls, source: DataSource) -> "Cache":
        """Return the cache that lies beside a source's cached data."""
        return cls(source.cache_dir / "costs")

    def plan(self, method: Method, task: Task, budget: PrivacyBudget) -> Plan:
        """Return the method's plan, and make it if there is none for these parameters, this code and this budget.

        A plan that JSON does not hold exactly is made each time.
        """
        if self._values is None or source_of(type(method)) is None or source_of(type(task)) is None:
            return method.plan(copy(task.facts), budget)
        facts = {**asdict(task.facts), "search_space": repr(task.facts.search_space())}
        names = [method.name, method.parameters, repr(sorted(facts.items())), budget.epsilon, budget.delta]
        key = CachedValues.key("plan", code_of(method, task), *names)
        if plan := _plan_of(self._values.find(key), method):
            return plan
        plan = method.plan(copy(task.facts), budget)
        try:
            value = plan.to_json()
            if _plan_of(json.loads(json.dumps(value)), method) == plan:
                self._values.keep(key, value)
        except (TypeError, ValueError, AttributeError, UnsupportedEventError):  # a plug-in may plan anything
            pass
        return plan

    def epsilon(self, event: DpEvent, delta: float) -> EpsilonReport:
        """Return the ε of an event at this δ by each accountant; see `report.epsilon`."""
        delta = inside("delta", delta)
        key, value = self._find("epsilon", event, delta)
        if value is not None:
            return EpsilonReport(**value)
        report = reports.epsilon(event, delta)
        if self._values and key and _is_final(report):
            accountants = {"by_accountant": dict(report.by_accountant), "refused": dict(report.refused)}
            self._values.keep(key, {**vars(report), **accountants})
        return report

    def risk(self, event: DpEvent, delta: float) -> Risk:
        """Return what an attack on one record can achieve; see `risk`."""
        delta = inside("delta", delta)
        key, value = self._find("risk", event, delta)
        if value is not None:
            return Risk(*value)
        bounds = risk(event, delta)
        if self._values and key and _is_final(self.epsilon(event, delta)):
            self._values.keep(key, astuple(bounds))
        return bounds

    def _find(self, what: str, event: DpEvent, delta: float) -> tuple[str, Any]:
        """Return key and value of a cost; the key is empty if nothing is cached, or no file can name the event."""
        if self._values is None:
            return "", None
        try:
            trees = [event_trees.to_json(tree) for tree in event_trees.exposures(event)]
        except UnsupportedEventError:
            return "", None
        key = CachedValues.key(what, trees, delta)
        return key, self._values.find(key)


def _is_final(report: EpsilonReport) -> bool:
    """Return whether other processes would get the same report: memory may suffice there."""
    return OUT_OF_MEMORY not in report.refused.values()


def _plan_of(value: Any, method: Method) -> Plan | None:
    """Return the plan of a cached value; None if there is none, or it is of another form."""
    try:
        return Plan.from_json(value, method.plan_parameters)
    except (KeyError, TypeError, ValueError):
        return None


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
