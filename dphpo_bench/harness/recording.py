"""The record of a run: its identity, environment and time, and the error of a run that failed."""

import hashlib
import math
import platform
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError, RecordError, SealedDataError
from dphpo_bench.base.text import compact_json, shown
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.seals import sealed
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.attempt import Attempt
from dphpo_bench.harness.measuring import Measured
from dphpo_bench.harness.plan import CheckedPlan, parameters_of
from dphpo_bench.harness.reasons import MAX_REASON, reason_of
from dphpo_bench.harness.setup import Setup
from dphpo_bench.privacy.accountants.report import EpsilonReport
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.risk import CERTAIN, Risk, worst
from dphpo_bench.records.measure import Measure
from dphpo_bench.records.record import (
    MAX_RECORD_BYTES,
    CostRecord,
    Epsilon,
    Identity,
    Privacy,
    RunRecord,
    moment,
)
from dphpo_bench.records.risks import recorded
from dphpo_bench.training.augmentation import augmentation_of

if TYPE_CHECKING:
    from torch import nn


def task_identity(task: Task, facts: TaskFacts, source: DataSource) -> dict[str, Any]:
    """Return the task's part of an identity, which all runs on it share; this builds the model.

    "sibling" is a function: only runs of methods that tune on the public sibling need its files.
    """
    public = facts.to_json()
    public["metrics"] = [
        Measure(metric.name, metric.higher_is_better, metric.is_share).to_json() for metric in task.metrics
    ]
    if task.pretrained_models:
        public["pretrained"] = [
            {"name": model.name, "has_seen_records": model.has_seen_any(task.datasets)}
            for model in task.pretrained_models
        ]
    if augmentation := augmentation_of(task.augment):
        public["augmentation"] = augmentation.to_json()
    if not task.public:  # where it is absent, they are
        public["public"] = False
    try:
        data_fingerprint = task.data_fingerprint(source)
    except DphpoBenchError:
        raise
    except Exception as error:
        raise InvalidValueError(f"Task {facts.task} has no fingerprint: {reason_of(error)}") from None
    try:
        with sealed() as complaints:
            model_fingerprint = task.model_fingerprint()
    except DphpoBenchError:
        raise
    except Exception as error:
        raise InvalidValueError(f"Task {facts.task} builds no model {facts.model}: {reason_of(error)}") from None
    if complaints:
        raise SealedDataError(complaints[0])
    return {
        "task": public.pop("task"),
        "task_version": _version_of(task),
        "model": public.pop("model"),
        "facts": public,
        "model_fingerprint": model_fingerprint,
        "data_fingerprint": data_fingerprint,
        "sibling": partial(_sibling_hash, task, source),
    }


def _sibling_hash(task: Task, source: DataSource) -> str | None:
    if task.sibling is None:
        return None
    values = task_identity(task.sibling, task.sibling.facts, source)
    del values["sibling"]  # one's sibling may be the other
    return hashlib.sha256(compact_json(values).encode()).hexdigest()[:16]


def identity_of(method: Method, of_task: Mapping[str, Any], budget: PrivacyBudget, seed: int | None) -> Identity:
    return Identity.of(
        method=method.name,
        method_version=_version_of(method),
        parameters=parameters_of(method),
        epsilon=budget.epsilon,
        delta=budget.delta,
        seed=seed,
        **{**of_task, "sibling": of_task["sibling"]() if method.needs_sibling else None},
    )


def _version_of(plug_in: Method | Task) -> int:
    if type(plug_in.version) is not int or plug_in.version < 1:
        raise InvalidValueError(
            f"Expected the version of {plug_in.name} to be an integer >= 1, got {shown(plug_in.version, form=repr)}."
        )
    return plug_in.version


def record_of(
    checked: CheckedPlan,
    identity: Identity,
    attempt: Attempt,
    measured: Measured,
    seconds: Mapping[str, float],
    setup: Setup,
) -> RunRecord:
    """Return the record of a run, or that of a failed run if no record can hold the released values."""
    proven, hidden = _risk_of(checked, attempt), setup.hides_time(checked.plan.event, attempt.ledger)

    def record_with(attempt: Attempt, measured: Measured) -> RunRecord:
        recomputed = attempt.recomputed
        return RunRecord(
            identity=identity,
            status=attempt.status,
            error=attempt.error,
            metrics=dict(measured.metrics),
            released=attempt.outcome.released if attempt.outcome else {},
            privacy=Privacy(
                planned=epsilon_record(checked.epsilon),
                recomputed=epsilon_record(recomputed) if recomputed else None,
                epsilon=max(checked.epsilon.epsilon, recomputed.epsilon if recomputed else math.inf),
                tuning_share=checked.tuning_share,
                end_to_end_private=checked.end_to_end_private,
                ledger=attempt.ledger.to_json(),
                risk=recorded(proven),
            ),
            cost=CostRecord(**asdict(checked.plan.cost)),
            seconds=dict(seconds),
            peak_memory_bytes=_peak_memory_bytes(),
            constant_guess=measured.guess,
            further=dict(measured.further),
            environment=environment(
                setup.device, f"opendp {version('opendp')}, discrete" if setup.secure_noise else "torch, not hardened"
            ),
            created=moment(day_only=hidden),
        )

    try:
        record = record_with(attempt, measured)
        size = len(record.to_json().encode())
        if size > MAX_RECORD_BYTES:
            raise RecordError(f"The record takes {size} bytes, more than {MAX_RECORD_BYTES}; release less.")
    except (ValueError, RecordError) as failure:
        reason = f"Expected released values that a record can hold: {reason_of(failure, hide=setup.unseeded)}"
        record = record_with(attempt.failed(reason[:MAX_REASON]), Measured())
        if len(record.to_json().encode()) > MAX_RECORD_BYTES:  # because of the ledger
            record = record.model_copy(update={"privacy": None})
    if hidden:
        shown_seconds = {phase: value for phase, value in seconds.items() if phase != "train"}
        record = record.model_copy(update={"seconds": shown_seconds, "peak_memory_bytes": None})
    return record


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def environment(device: str, noise: str) -> dict[str, str]:
    """Return what a record says of the machine, and of where the noise came from."""
    import torch

    return {
        "python": platform.python_version(),
        "platform": platform.system(),
        "machine": platform.machine(),
        "device": device,
        **({"gpu": torch.cuda.get_device_name(device)} if device.startswith("cuda") else {}),
        "threads": str(torch.get_num_threads()),
        "noise": noise,
        **{name: version(name) for name in ("dphpo-bench", "torch", "dp-accounting")},
    }


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = time.perf_counter() - start


def _risk_of(checked: CheckedPlan, attempt: Attempt) -> Risk:
    """Return the worse risk of plan and ledger: a run that stops early is as private as its plan."""
    if attempt.recomputed is None or not checked.end_to_end_private:
        return CERTAIN
    return worst([checked.risk, checked.cache.risk(attempt.ledger.event, checked.plan.budget.delta)])


def epsilon_record(report: EpsilonReport) -> Epsilon:
    return Epsilon(epsilon=report.epsilon, accountant=report.quoted, by_accountant=dict(report.by_accountant))


class RunFailedError(DphpoBenchError):
    """A run failed, in its training or its test, went over its budget, or could not be verified.

    Attributes:
        record: the record of the run.
        path: where the record lies; None if none was to be written.
        model: the trained model, where only its test failed; not in another process.
    """

    exit_code = 1

    def __init__(self, record: RunRecord, path: Path | None, model: "nn.Module | None" = None) -> None:
        who, reason = record.identity, (record.error or "").rstrip(".")
        also = "" if model is None else "; the trained model is this error's `model`"
        where = "No record was written." if path is None else f"Its record is {path}."
        super().__init__(
            f"The run of {who.method} on {who.task} ended with status {record.status}: {reason}. {where} "
            f"With check=False, run returns the result instead{also}."
        )
        self.record = record
        self.path = path
        self.model = model

    def __reduce__(self) -> "tuple[type[RunFailedError], tuple[RunRecord, Path | None]]":
        """Return how to make it, so that it comes whole out of another process."""
        return type(self), (self.record, self.path)
