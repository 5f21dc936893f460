"""Folders of records as strangers would submit them."""

import tempfile
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dphpo_bench.base.errors import UnknownNameError
from dphpo_bench.contract.registry import make_method
from dphpo_bench.leaderboard.build import score
from dphpo_bench.leaderboard.reruns import read_checked
from dphpo_bench.leaderboard.submissions import NOT_PRIVATE, Submissions, read_submissions
from dphpo_bench.leaderboard.tables import Board
from dphpo_bench.privacy.accountants.report import epsilon_by
from dphpo_bench.privacy.events import compose, gaussian, non_private
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.records.record import CostRecord, Epsilon, Identity, Privacy, RunRecord
from dphpo_bench.records.store import RecordStore

DELTA = 1e-5
NOISE = {1.0: 3.744, 3.0: 1.395, 8.0: 0.602}  # ε a little below the target, at δ = 1e-5


@cache
def _defaults(method: str) -> dict[str, Any]:
    try:
        return make_method(method).parameters
    except UnknownNameError:
        return {}


@cache
def _spent(noise_multiplier: float | None) -> tuple[float, dict[str, Any]]:
    """ε and ledger of one Gaussian release, or of one that is not private."""
    ledger = Ledger()
    event = non_private() if noise_multiplier is None else compose(gaussian(noise_multiplier))
    ledger.charge(event)
    return epsilon_by(ledger.event, DELTA, "pld"), ledger.to_json()


def _facts(metric: str, higher_is_better: bool) -> dict[str, Any]:
    told = {} if metric == "accuracy" else {"metrics": [{"name": metric, "higher_is_better": higher_is_better}]}
    return {"n_records": 1000, **told}


def make_record(
    method: str = "auto_clipping",
    task: str = "toy",
    *,
    seed: int | None = 0,
    target: float = 1.0,
    accuracy: float | None = 0.9,
    metric: str = "accuracy",
    higher_is_better: bool = True,
    private: bool | None = None,
    parameters: dict[str, Any] | None = None,
    noise_multiplier: float | None = None,
    method_version: int = 1,
    task_version: int = 1,
    facts: dict[str, Any] | None = None,
    created: datetime = datetime(2026, 1, 2, tzinfo=UTC),
    examples: float = 1000.0,
    runs: int = 1,
    released: dict[str, Any] | None = None,
    **changes: Any,
) -> RunRecord:
    """A valid record with the ledger of one Gaussian; a failed run if there is no accuracy, or value of the metric.

    Parameters are the defaults of a method that exists, else none; what is private is known by its name.
    """
    private = method not in NOT_PRIVATE if private is None else private
    epsilon, ledger = _spent((noise_multiplier or NOISE[target]) if private else None)
    bound = Epsilon(epsilon=epsilon, accountant="pld", by_accountant={"pld": epsilon})
    record = RunRecord(
        identity=Identity(
            method=method,
            parameters=_defaults(method) if parameters is None else parameters,
            method_version=method_version,
            task=task,
            task_version=task_version,
            facts=facts or _facts(metric, higher_is_better),
            model="linear",
            model_fingerprint="e" * 64,
            data_fingerprint="f" * 64,
            epsilon=target,
            delta=DELTA,
            seed=seed,
        ),
        status="ok" if accuracy is not None else "failed",
        error=None if accuracy is not None else "ValueError: it broke",
        metrics={} if accuracy is None else {metric: accuracy},
        privacy=Privacy(
            planned=bound,
            recomputed=bound,
            epsilon=epsilon,
            tuning_share=0.25,
            end_to_end_private=private,
            ledger=ledger,
        ),
        released=released or {},
        cost=CostRecord(runs=runs, steps=10, examples=examples),
        seconds={"train": 2.0, "test": 0.5},
        peak_memory_bytes=None,
        environment={},
        created=created,
    )
    return record.model_copy(update=changes)


def runs_of(
    method: str, mean: float, task: str, seeds: range, noise: float = 0.002, target: float = 1.0
) -> list[RunRecord]:
    """Records of a method on a task whose accuracies scatter around a mean."""
    rng = np.random.default_rng([len(method), ord(method[0]), ord(task[0]), 1])
    return [
        make_record(method, task, seed=seed, target=target, accuracy=mean + noise * float(rng.standard_normal()),
                    facts={"n_records": 1000, "task": task, "inputs": {"shape": [9], "dtype": "float"}})
        for seed in seeds
    ]  # fmt: skip


_KEPT = tempfile.TemporaryDirectory(prefix="dphpo-bench-")


def read(*paths: Path) -> Submissions:
    """Read records; ε of ledgers that were read before in this process are kept, which saves starting others."""
    return read_submissions(paths, Path(_KEPT.name))


def read_all(*paths: Path) -> Submissions:
    """The same, with extra runs checked against the records they name."""
    return read_checked(paths, Path(_KEPT.name))


def board_of(folder: Path, *records: RunRecord) -> Board:
    """The board of records that are written to a folder, of which none may be rejected."""
    submit(folder, *records)
    submissions = read(folder)
    assert submissions.rejected == ()
    return score(submissions)


def submit(folder: Path, *records: RunRecord) -> list[Path]:
    """Write records where they belong."""
    store = RecordStore(folder)
    return [store.write(record) for record in records]
