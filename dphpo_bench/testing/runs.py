"""Short runs of a method on a small task, to compare; assertions whose messages say value, rule and way out."""

import json
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.progress import NullProgress
from dphpo_bench.base.text import shown
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.data.source import DataSource
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.testing.small_tasks import blobs_for

if TYPE_CHECKING:
    from dphpo_bench.harness.plan import CheckedPlan
    from dphpo_bench.harness.state import Run
    from dphpo_bench.records.record import RunRecord


NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")


class ContractError(AssertionError):
    """A plug-in breaks its contract."""


def expect(condition: bool, message: str) -> None:
    """Raise a `ContractError` with this message unless the condition holds; `assert` would be lost under `-O`."""
    if not condition:
        raise ContractError(message)


def shortened(value: object, width: int = 200) -> str:
    return shown(value, width, repr)


def expect_name_and_version(plug_in: Any, option: str) -> None:
    """Expect a name that the command line and folders can carry, and an integer version from 1."""
    expect(
        isinstance(plug_in.name, str) and NAME.fullmatch(plug_in.name) is not None,
        f"Expected a name of lower-case letters, digits and underscores that starts with a letter, got "
        f"{plug_in.name!r}. It is used by {option}, in suites and in the folders of records.",
    )
    expect(
        type(plug_in.version) is int and plug_in.version >= 1,
        f"Expected version to be an integer >= 1, got {shortened(plug_in.version)}. It is part of a run's identity: "
        "raise it when results change.",
    )


def expect_line(name: str, value: object) -> None:
    ok = isinstance(value, str) and value.strip() == value != "" and "\n" not in value
    expect(ok, f"Expected {name} to be one line of text, got {shortened(value)}.")


DELTA = 1e-4
EPSILON = 3.0


@contextmanager
def quiet() -> Iterator[None]:
    """Drop the warnings of numerical libraries, which odd records cause."""
    with warnings.catch_warnings(action="ignore"):
        yield


@contextmanager
def empty_folder() -> Iterator[None]:
    """Work in an empty folder: what lies in the caller's, such as results of earlier runs, hides no mistake."""
    with TemporaryDirectory(prefix="dphpo-bench-check-") as folder, chdir(folder):
        yield


@dataclass(frozen=True)
class Bench:
    """A method, the task that it is planned for, and ε; equal if methods, public facts and ε are, as plans are then."""

    method: Method
    task: Task = field(compare=False)
    epsilon: float = EPSILON
    facts: TaskFacts = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "facts", self.task.facts)

    def planned(self) -> "CheckedPlan":
        """Return the plan and its cost; made once for all equals of this."""
        try:
            return _planned(self)
        except TypeError:  # a parameter without a hash, or a mistake of the method's that shows again
            return self.newly_planned()

    @quiet()
    def newly_planned(self) -> "CheckedPlan":
        from dphpo_bench.harness.plan import plan

        return plan(self.method, self.task, PrivacyBudget(self.epsilon, DELTA))

    @quiet()
    def run(self, seed: int = 0, task: Task | None = None, checked: "CheckedPlan | None" = None, **setup: Any) -> "Run":
        """Run the method once, and verify, without a test and without a record.

        The records are from `task`, with the same public facts; `setup` are more settings of the run by the names of
        `harness.state.Run`.
        """
        from dphpo_bench.harness.journal import NONCE, Journal
        from dphpo_bench.harness.state import Run
        from dphpo_bench.harness.training import execute

        task, checked = task or self.task, checked or self.planned()
        setup = {"journal": Journal.holding({NONCE: 0}), **setup}  # runs that are compared share their noise
        return execute(Run(checked=checked, task=task, train=task.load_train(DataSource.resolve()), seed=seed, **setup))

    def seen(self, seed: int = 0, **how: Any) -> dict[str, Any]:
        """Return all that a run lets out, as JSON values, with a hash of the weights; takes the arguments of `run`."""
        from dphpo_bench.training.structure import weights_hash

        attempt = self.run(seed, **how)
        outcome, recomputed = attempt.outcome, attempt.recomputed
        seen = {
            "status": attempt.status,
            "error": attempt.error,
            "released": outcome.released if outcome else None,
            "weights": weights_hash(outcome.model) if outcome else None,
            "epsilon": recomputed.epsilon if recomputed else None,
            "ledger": attempt.ledger.to_json(),
        }
        return dict(json.loads(json.dumps(seen)))


@lru_cache(maxsize=256)
def _planned(bench: Bench) -> "CheckedPlan":
    return bench.newly_planned()


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Return the first name at which the values differ, in words; None if there is none."""
    for name, value in first.items():
        if repr(value) != repr(second[name]):  # as texts, because NaN is not itself
            return f"{name} is {shortened(value, 120)} once and {shortened(second[name], 120)} the other time"
    return None


@contextmanager
def other_global_randomness(seed: int) -> Iterator[None]:
    """Seed the global random generators, which a method must not draw from, and put them back."""
    import numpy as np
    import torch

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@contextmanager
def threads(number: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@quiet()
def recorded(method: Method, task: Task | None = None, source: DataSource | None = None) -> "RunRecord":
    """Return the record of a short run, by default on `Blobs`, whatever its status."""
    from dphpo_bench.harness.run import ExecutionOptions, run

    task, budget = task or blobs_for(method), PrivacyBudget(EPSILON, DELTA)
    execution = ExecutionOptions("cpu", source or DataSource.resolve())
    return run(method, task, budget, seed=0, execution=execution, progress=NullProgress(), check=False).record
