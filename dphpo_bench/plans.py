"""Plans that are made once and kept on disk: calibration takes seconds, and all seeds of a sweep share it.

A kept plan is a proposal like any other. The harness computes its ε from its event, and the session holds the
run to that event, so a damaged or forged file can make a run fail but not under-report.
"""

import hashlib
import json
from functools import cache
from importlib.metadata import version
from pathlib import Path

from dphpo_bench.data.cache import locked
from dphpo_bench.errors import UnsupportedEventError
from dphpo_bench.files import write_whole
from dphpo_bench.method import Method, Plan
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.registry import code_hash
from dphpo_bench.task import Task

FORMAT = 1


class PlanCache:
    """A folder of plans, safe to delete, shared by processes.

    Args:
        folder: where they are; made when the first is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def plan(self, method: Method, task: Task, budget: PrivacyBudget) -> Plan:
        """The method's plan, made if there is none for these parameters, this code and this budget.

        A process that wants a plan which another is making waits for it. A plan that JSON does not hold exactly
        is made each time.

        Raises:
            DphpoBenchError: what the method raises when it plans, or if the folder cannot be written to.
        """
        path = self._folder / f"{_key(method, task, budget)}.json"
        kept = _read(path)
        if kept is not None:
            return kept
        with locked(path):
            kept = _read(path)
            if kept is None:
                kept = method.plan(task.facts, budget)
                text = _exact_json(kept)
                if text is not None:
                    write_whole(path, text)
        return kept


def _key(method: Method, task: Task, budget: PrivacyBudget) -> str:
    names = {
        "format": FORMAT,
        "engine": _engine_hash(),
        "method": [method.name, method.parameters, code_hash(type(method))],
        "task": [task.name, task.model_name, code_hash(type(task))],
        "budget": [budget.epsilon, budget.delta],
    }
    return hashlib.sha256(json.dumps(names, sort_keys=True).encode()).hexdigest()[:20]


@cache
def _engine_hash() -> str:
    """A hash of what calibration depends on: this package's source, and the versions of what it computes with."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    digest.update(repr([version(name) for name in ("dp-accounting", "numpy", "scipy", "optuna")]).encode())
    return digest.hexdigest()


def _read(path: Path) -> Plan | None:
    try:
        return Plan.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError, RecursionError):  # missing, or damaged: it is made again
        return None


def _exact_json(plan: Plan) -> str | None:
    try:
        text = json.dumps(plan.to_json())
        return text if Plan.from_json(json.loads(text)) == plan else None
    except (TypeError, ValueError, AttributeError, UnsupportedEventError):
        return None
