"""The stage `record`: a run's identity, its environment and time, its record, and the command that repeats it."""

import hashlib
import math
import platform
import resource
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import torch

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError, RecordError, SealedDataError
from dphpo_bench.base.text import compact_json, shown, value_text
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import make_method
from dphpo_bench.contract.seals import sealed
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.account import VOID
from dphpo_bench.harness.journal import Journal
from dphpo_bench.harness.plan import parameters_of
from dphpo_bench.harness.reasons import MAX_REASON, reason_of
from dphpo_bench.harness.state import Run
from dphpo_bench.privacy.accountants.report import EpsilonReport
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.risk import CERTAIN, worst
from dphpo_bench.records.measure import Measure
from dphpo_bench.records.record import MAX_RECORD_BYTES, CostRecord, Epsilon, Identity, Privacy, RunRecord, moment
from dphpo_bench.records.statement import recorded
from dphpo_bench.session import checkpoints
from dphpo_bench.training.augmentation import augmentation_of

DISCRETE = "opendp"  # start of the noise's description in the record of a run with secure noise


def task_identity(task: Task, facts: TaskFacts, source: DataSource) -> dict[str, Any]:
    """Return the task's part of an identity, which all runs on it share; this builds the model.

    "sibling" is a function: only runs of methods that tune on the public sibling need its files.
    """
    public = facts.to_json()
    public["metrics"] = [Measure(each.name, each.higher_is_better, each.is_share).to_json() for each in task.metrics]
    if task.pretrained_models:
        public["pretrained"] = [
            {"name": model.name, "has_seen_records": model.has_seen_any(task.datasets)}
            for model in task.pretrained_models
        ]
    if augmentation := augmentation_of(task.augment):
        public["augmentation"] = augmentation.to_json()
    if not task.public:  # where it is absent, they are
        public["public"] = False
    data_fingerprint = task.data_fingerprint(source)
    with sealed() as complaints:
        model_fingerprint = task.model_fingerprint()
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


def numbered(identity: Identity, journal: Journal) -> Identity:
    """Return the identity, with a random number for runs without a seed or on private records: all are different.

    The number comes from the journal, so that a run that is interrupted after it was recorded does not count twice.
    """
    if identity.seed is not None and identity.facts.get("public", True):
        return identity
    number = journal.once("run", journal.nonce)  # says nothing about the seed
    return identity.model_copy(update={"run": f"{number:016x}"})


def _version_of(plug_in: Method | Task) -> int:
    if type(plug_in.version) is not int or plug_in.version < 1:
        raise InvalidValueError(
            f"Expected the version of {plug_in.name} to be an integer >= 1, got {shown(plug_in.version, form=repr)}."
        )
    return plug_in.version


def record(run: Run) -> None:
    """Record the run, or its failure if no record can hold the released values; note its end, and forget its journal.

    The record of a repeated run is there already, and one of a failed repetition is not written.
    """
    if not (run.counted and run.seed is not None):  # the sweep has a place for such a run
        run.identity = numbered(run.identity, run.journal)
    asked_nothing = run.ledger.untouched and run.status != "ok"
    try:
        run.record = _record(run)
        if (size := len(run.record.to_json().encode())) > MAX_RECORD_BYTES:
            raise RecordError(f"The record takes {size} bytes, more than {MAX_RECORD_BYTES}; release less.")
    except (ValueError, RecordError) as failure:
        reason = f"Expected released values that a record can hold: {reason_of(failure, hide=run.unseeded)}"
        run.fail(reason[:MAX_REASON])
        run.record = _record(run)
        if len(run.record.to_json().encode()) > MAX_RECORD_BYTES:  # because of the ledger
            run.record = run.record.model_copy(update={"privacy": None})
    run.note(status=VOID if run.is_first and asked_nothing else run.status)
    if run.store and (run.again is None or run.status == "ok"):
        path = run.store.path_of(run.identity)
        run.path = path if run.again is not None and path.exists() else run.store.write(run.record)
    if checkpoint := run.checkpoint_path:
        checkpoints.discard(checkpoint)
    run.journal.discard()


def _record(run: Run) -> RunRecord:
    checked, recomputed = run.checked, run.recomputed
    proven = CERTAIN
    if recomputed and checked.end_to_end_private:  # a run that stops early is as private as its plan
        proven = worst([checked.risk, checked.cache.risk(run.ledger.event, checked.plan.budget.delta)])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    noise = f"{DISCRETE} {version('opendp')}, discrete" if run.secure_noise else "torch, not hardened"
    seconds = {stage: value for stage, value in run.seconds.items() if stage != "train" or not run.hides_time}
    return RunRecord(
        identity=run.identity,
        status=run.status,
        error=run.error,
        metrics=dict(run.metrics),
        released=run.outcome.released if run.outcome else {},
        privacy=Privacy(
            planned=epsilon_record(checked.epsilon),
            recomputed=epsilon_record(recomputed) if recomputed else None,
            epsilon=max(checked.epsilon.epsilon, recomputed.epsilon if recomputed else math.inf),
            tuning_share=checked.tuning_share,
            end_to_end_private=checked.end_to_end_private,
            ledger=run.ledger.to_json(),
            risk=recorded(proven),
        ),
        cost=CostRecord(**asdict(checked.plan.cost)),
        seconds=seconds,
        peak_memory_bytes=None if run.hides_time else memory,
        constant_guess=run.guess,
        output_noise=run.output_noise,
        further=dict(run.further),
        environment=environment(run.device, noise),
        created=moment(day_only=run.hides_time),
    )


def environment(device: str, noise: str) -> dict[str, str]:
    """Return what a record says of the machine, and of where the noise came from."""
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


def epsilon_record(report: EpsilonReport) -> Epsilon:
    return Epsilon(epsilon=report.epsilon, accountant=report.quoted, by_accountant=dict(report.by_accountant))


@dataclass(frozen=True)
class Call:
    """A call of `dphpo-bench run`; its text is the command. A run without a seed is another one each time."""

    method: str
    task: str
    model: str
    epsilon: float
    delta: float
    seed: int | str | None
    parameters: Mapping[str, Any]  # those that are not the method's defaults
    task_file: str | None = None  # of a task that is not registered
    secure_noise: bool = False
    device: str = "auto"
    threads: str | int | None = None  # of PyTorch, which the last digits of a result may depend on
    results_dir: str | None = None
    again: str | None = None  # number of a seeded run on private records

    @classmethod
    def of(cls, identity: Identity) -> "Call":
        who, changed = identity, changed_parameters(identity)
        again = None if who.seed is None else who.run
        return cls(who.method, who.task, who.model, who.epsilon, who.delta, who.seed, changed, again=again)

    @classmethod
    def of_record(cls, record: RunRecord, task_file: str | None = None) -> "Call":
        who, environment = record.identity, record.environment
        return replace(
            cls.of(who),
            seed=who.seed if who.seed is None or who.is_public else "YOUR_SEED",  # whoever sees it subtracts the noise
            task_file=task_file,
            secure_noise=environment.get("noise", "").startswith(DISCRETE),
            device=environment.get("device", "auto"),
            threads=environment.get("threads"),
        )

    def __str__(self) -> str:
        short = f"{self.epsilon:g}"
        epsilon = short if float(short) == self.epsilon else repr(self.epsilon)
        words = [] if self.threads is None else ["env", f"OMP_NUM_THREADS={self.threads}"]
        words += ["dphpo-bench", "run", "-m", self.method, "-t", self.task, "--model", self.model]
        words += [] if self.task_file is None else ["--task-file", self.task_file]
        words += ["--epsilon", epsilon, "--delta", repr(self.delta)]
        seed = "none" if self.seed is None else str(self.seed)
        words += ["--secure-noise"] if self.secure_noise else ["--seed", seed]
        for name, value in self.parameters.items():
            words += ["--set", f"{name}={'none' if value is None else value_text(value)}"]
        words += [] if self.device == "auto" else ["--device", self.device]
        words += [] if self.results_dir is None else ["--results-dir", self.results_dir]
        words += [] if self.again is None else ["--again", self.again]
        return shlex.join(words)


def changed_parameters(identity: Identity) -> Mapping[str, Any]:
    """Return the parameters that are not the method's defaults; all of them if there is no such method here."""
    try:
        defaults = make_method(identity.method).parameters
    except DphpoBenchError:
        defaults = {}
    return different(identity.parameters, defaults)


def different(parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name not in defaults or defaults[name] != value}
