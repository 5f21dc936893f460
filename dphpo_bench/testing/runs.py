"""Short runs of a method on a small task, and what of two runs must be the same."""

import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.contract.method import Method, Plan
from dphpo_bench.contract.task import Task
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.testing.expectations import ContractError, shortened
from dphpo_bench.testing.small_tasks import Blobs

if TYPE_CHECKING:
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.harness.attempt import Attempt
    from dphpo_bench.harness.plan import CheckedPlan
    from dphpo_bench.records.record import RunRecord

DELTA = 1e-4
EPSILON = 3.0
SECONDS = 300
"""After which a new process is given up."""


@dataclass(frozen=True)
class Bench:
    """A method whose plan on one task is made once, for several runs.

    Attributes:
        method: the method.
        task: what it is planned for. A run may be on another task with the same public facts.
        epsilon: of the budget; δ is `DELTA`.
    """

    method: Method
    task: Task
    epsilon: float = EPSILON

    def planned(self) -> "CheckedPlan":
        """The plan and its cost, as the harness sees them."""
        from dphpo_bench.harness.plan import plan

        return plan(self.method, self.task, PrivacyBudget(self.epsilon, DELTA))

    def run(
        self,
        seed: int = 0,
        task: Task | None = None,
        checked: "CheckedPlan | None" = None,
        order: Callable[[int], Sequence[int]] = range,
    ) -> "Attempt":
        """One run, verified, without a test and without a record.

        Args:
            seed: of the run.
            task: where the records are; default: the task planned for.
            checked: the plan; default: a new one.
            order: number of trials of a selection → their indices in the order in which they run.
        """
        from dphpo_bench.harness.attempt import execute
        from dphpo_bench.harness.setup import Setup

        task = task or self.task
        return execute(checked or self.planned(), task, task.load_train(_nowhere()), Setup(seed, order=order))


def _nowhere() -> "DataSource":
    """For tasks whose records come from no file."""
    from dphpo_bench.data.source import DataSource

    return DataSource.resolve()


def observed(attempt: "Attempt") -> dict[str, Any]:
    """All that a run lets out, as JSON values; of the weights a hash."""
    from dphpo_bench.training.structure import weights_hash

    outcome = attempt.outcome
    recomputed = attempt.recomputed
    seen = {
        "status": attempt.status,
        "error": attempt.error,
        "released": outcome.released if outcome else None,
        "weights": weights_hash(outcome.model) if outcome else None,
        "epsilon": recomputed.epsilon if recomputed else None,
        "ledger": attempt.ledger.to_json(),
    }
    return dict(json.loads(json.dumps(seen)))


def difference(one: Mapping[str, Any], two: Mapping[str, Any]) -> str | None:
    """Where two runs first differ, in words; None if they do not."""
    for name, value in one.items():
        if json.dumps(value) != json.dumps(two[name]):  # as texts, because NaN is not itself
            return f"{name} is {shortened(value, 120)} once and {shortened(two[name], 120)} the other time"
    return None


@contextmanager
def other_global_randomness(seed: int) -> Iterator[None]:
    """Seed the global random generators, which a method must not draw from, and put them back."""
    import numpy as np
    import torch

    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch compute with this many threads."""
    import torch

    kept = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(kept)


def import_name(cls: type) -> tuple[str, str]:
    """Module and name by which another process finds a class.

    Raises:
        ContractError: if there is no way.
    """
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise ContractError(
            f"{cls.__module__}:{cls.__qualname__} cannot be imported by another process, such as a sweep's. Define "
            "it at the top of a module."
        )
    return cls.__module__, cls.__qualname__


def ask_new_process(module: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Let a new Python process answer; it hashes and counts its threads otherwise than this one.

    Args:
        module: run as a program; reads the request from standard input as JSON, ends with a line of JSON.
        request: JSON values.

    Raises:
        ContractError: if the process ends otherwise.
    """
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONSAFEPATH": "1",  # the working directory may hold the plug-in's folder, which is not the plug-in
        "PYTHONHASHSEED": "7",
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=json.dumps(dict(request)),
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ContractError(f"Expected a new process to be done within {SECONDS} seconds.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ContractError(f"A new process that loads the plug-in ends with code {done.returncode}: {last}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def plan_from_json(made: Plan, method: Method) -> Plan:
    """The plan as it comes back from a file."""
    return Plan.from_json(json.loads(json.dumps(made.to_json())), method.plan_parameters)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of numerical libraries, which odd records cause."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def recorded(method: Method) -> "RunRecord":
    """The record of a short run, whatever its status."""
    from dphpo_bench.harness.run import run

    with quiet():
        budget = PrivacyBudget(EPSILON, DELTA)
        return run(method, Blobs(), budget, seed=0, source=_nowhere(), device="cpu", check=False).record
