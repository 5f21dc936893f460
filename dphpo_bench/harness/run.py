"""Plan, run, verify, record: one procedure for every method and every task.

The harness believes no ε that a method states. It computes the ε of the plan before any data is read, and
the ε of the ledger after the run, and quotes the larger.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import (
    DataError,
    DphpoBenchError,
    InvalidValueError,
    RecordError,
    SealedDataError,
)
from dphpo_bench.base.progress import Progress, SilentProgress
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import make_method, make_task
from dphpo_bench.contract.task import Task, sealed
from dphpo_bench.harness.journal import Journal
from dphpo_bench.privacy.budget import PrivacyBudget

if TYPE_CHECKING:
    from torch import nn

    from dphpo_bench.data.source import DataSource
    from dphpo_bench.harness.plan_cache import PlanCache
    from dphpo_bench.records.record import RunRecord, Status

from dphpo_bench.harness.attempt import MAX_REASON, SECURE_NOISE, _check_secure_noise, _is_secret, execute, reason_of
from dphpo_bench.harness.failed import RunFailedError
from dphpo_bench.harness.plan import plan
from dphpo_bench.harness.recording import _Clock, _record, identity_of, task_identity


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        record: what was kept.
        path: where the record lies, or None if none was to be written.
        model: the trained model, or None if the run failed.
    """

    record: "RunRecord"
    path: Path | None
    model: "nn.Module | None"


def run(
    method: str | Method,
    task: str | Task,
    budget: PrivacyBudget,
    *,
    seed: int | None = None,
    source: "DataSource | None" = None,
    results_dir: Path | str | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    plans: "PlanCache | None" = None,
    secure_noise: bool = False,
    check: bool = True,
) -> RunResult:
    """Tune and train under one budget, verify what was released, measure the model on the test data.

    Args:
        method: a method or a registered name.
        task: a task or a registered name.
        budget: (ε, δ) for tuning and training together.
        seed: makes the run repeatable, noise included, which is right for public data only: whoever knows
            the seed can subtract the noise. Other data get a warning. None takes the noise from the operating system's
            entropy; each such run has a record of its own.
        source: where data are found; default: environment, then the hub.
        results_dir: where the record is written; None writes none.
        device: "auto", "cpu", "cuda" or another torch device.
        progress: where long work reports to.
        plans: where plans are kept; None makes a new one.
        secure_noise: draw exact noise on a grid, and everything else that privacy rests on from cryptographic
            generators (docs/accounting.md, secure noise). Needs OpenDP, no seed, and some 10 µs a coordinate.
        check: raise an error if the run does not end well. False: return it, with a status other than "ok".

    Returns:
        The result.

    Raises:
        RunFailedError: if the run failed, went over its budget or could not be verified; its record is written before.
        DphpoBenchError: if the plan, the data or the results folder make a run impossible.
    """
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.harness.seeds import told_apart, warn_of_seeds
    from dphpo_bench.records.record import MAX_RECORD_BYTES
    from dphpo_bench.records.store import RecordStore

    if secure_noise:
        _check_secure_noise(seed)
    progress = progress or SilentProgress()
    method = make_method(method) if isinstance(method, str) else method
    task = make_task(task) if isinstance(task, str) else task
    if seed is not None:
        warn_of_seeds(task, f"seed={seed}")
    store = None if results_dir is None else RecordStore(Path(results_dir))
    if store:
        store.check_writable()
    device = resolve_device(device)
    clock = _Clock()
    with clock.measure("plan"):
        checked = plan(method, task, budget, plans=plans)
    source = source or DataSource.resolve(progress=progress)
    with clock.measure("data"):
        train = task.load_train(source)
        identity = identity_of(method, task_identity(task, checked.facts, source), budget, seed)
    if store:
        store.check_free(identity)
    if len(train) != checked.facts.n_records:
        raise DataError(
            f"Task {task.name} declares N={checked.facts.n_records} public training records but loads {len(train)}."
        )

    journal_path = store.journal_of(identity) if store and seed is None else None
    journal = Journal(journal_path)
    if SECURE_NOISE in journal.values or (secure_noise and journal.values):
        raise RecordError(
            f"An earlier run of this was interrupted, and its noise cannot be drawn again. To start anew is a second "
            f"release: count ε and δ of both runs, and remove {journal_path} first."
        )
    if _is_secret(checked, seed):
        progress.note("Searching. How many trials there are is a secret, so there is nothing to show.")
    with clock.measure("train"):
        try:
            attempt = execute(
                checked,
                task,
                train,
                seed=seed,
                journal=journal,
                device=device,
                progress=progress,
                secure_noise=secure_noise,
            )
        except DphpoBenchError:
            if secure_noise:  # nothing has been drawn, so another try is the first one
                journal.discard()
            raise
    identity = told_apart(identity, journal)
    outcome, status, error = attempt.outcome, attempt.status, attempt.error
    metrics: dict[str, float] = {}
    if status == "ok":
        assert outcome is not None
        try:
            with clock.measure("test"):
                test = task.load_test(source)
                with sealed() as complaints:  # the model is a method's, and its code runs
                    metrics = _measure_on_test(outcome.model, test, task)
                if complaints:
                    raise SealedDataError(complaints[0])
        except Exception as failure:
            status, error, metrics = "failed", reason_of(failure, hide=seed is None), {}

    def made(status: "Status", error: str | None, metrics: dict[str, float], released: dict[str, Any]) -> "RunRecord":
        return _record(
            checked,
            identity,
            attempt,
            status=status,
            error=error,
            metrics=metrics,
            released=released,
            seconds=clock.seconds,
            device=device,
            secure_noise=secure_noise,
        )

    try:
        record = made(status, error, metrics, outcome.released if outcome and status == "ok" else {})
        size = len(record.to_json().encode())
        if size > MAX_RECORD_BYTES:
            raise RecordError(f"The record takes {size} bytes, more than {MAX_RECORD_BYTES}; release less.")
    except (ValueError, RecordError) as failure:
        status = "failed"
        reason = f"Expected released values that a record can hold: {reason_of(failure, hide=seed is None)}"
        record = made(status, reason[:MAX_REASON], {}, {})
        if len(record.to_json().encode()) > MAX_RECORD_BYTES:  # so it was the ledger
            record = record.model_copy(update={"privacy": None})
    if _is_secret(checked, seed):
        today = record.created.replace(hour=0, minute=0, second=0)
        hidden = {"seconds": clock.without("train"), "peak_memory_bytes": None, "created": today}
        record = record.model_copy(update=hidden)
    path = store.write(record) if store else None
    journal.discard()
    if check and record.status != "ok":
        raise RunFailedError(record, path)
    return RunResult(record, path, outcome.model if outcome and status == "ok" else None)


def resolve_device(device: str) -> str:
    """The torch device meant by `device`; "auto" is CUDA where there is one.

    Raises:
        InvalidValueError: if torch does not know the device, or this machine has none.
    """
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidValueError(f"Cannot use device {device!r}: {reason}. Try --device cpu.") from None
    return device


def _measure_on_test(model: "nn.Module", test: Records, task: Task) -> dict[str, float]:
    """The task's metrics on the test records; nothing if there are none.

    Raises:
        InvalidValueError: if one cannot be computed. No other stands in for it.
    """
    from dphpo_bench.training.evaluation import all_outputs

    if not len(test):
        return {}
    outputs = all_outputs(model, test)
    return {metric.name: metric.of(outputs, test.targets) for metric in task.metrics}
