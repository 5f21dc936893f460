"""Plan, run, verify, record: one procedure for every method and every task.

The harness believes no ε that a method states. It computes the ε of the plan before any data is read, and
the ε of the ledger after the run, and quotes the larger.
"""

import json
import logging
import math
import platform
import resource
import secrets
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.display import shown
from dphpo_bench.errors import (
    DataError,
    DphpoBenchError,
    InvalidValueError,
    OverBudgetError,
    PlanOverBudgetError,
    RecordError,
    RunFailedError,
    SealedDataError,
    UnsupportedEventError,
)
from dphpo_bench.journal import Journal
from dphpo_bench.method import Method, Outcome, Plan
from dphpo_bench.privacy.accountants import EpsilonReport, epsilon
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.distributions import has_selection
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.progress import Progress, SilentProgress
from dphpo_bench.randomness import Streams
from dphpo_bench.registry import make_method, make_task
from dphpo_bench.task import Split, Task, TaskFacts, sealed

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import nn

    from dphpo_bench.data.source import DataSource
    from dphpo_bench.plans import PlanCache
    from dphpo_bench.records import Identity, RunRecord, Status
    from dphpo_bench.session import Observer

logger = logging.getLogger(__name__)

# Rounding of two evaluations of one event, far below anything an accountant resolves.
EPSILON_ROUNDING = 1e-9

MAX_REASON = 2000

SECURE_NOISE = "secure noise"
"""In a journal: the run has drawn noise that no restart can draw again."""


@dataclass(frozen=True)
class CheckedPlan:
    """A plan whose cost the harness has computed and found within the budget.

    Attributes:
        method: the method that made it.
        facts: the task's public facts it was made from.
        plan: the plan itself.
        epsilon: ε of the whole procedure.
        tuning_share: 1 − ε(training releases alone) / ε(all releases), in [0, 1].
    """

    method: Method
    facts: TaskFacts
    plan: Plan
    epsilon: EpsilonReport
    tuning_share: float


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


def plan(
    method: str | Method, task: str | Task, budget: PrivacyBudget, *, plans: "PlanCache | None" = None
) -> CheckedPlan:
    """Fix a whole procedure and compute its ε; no data is read.

    Args:
        method: a method or a registered name.
        task: a task or a registered name.
        budget: (ε, δ) for tuning and training together.
        plans: where plans are kept; None makes a new one.

    Raises:
        UnknownNameError: if a name is not registered.
        BudgetTooSmallError: if no noise within reach meets the budget.
        PlanOverBudgetError: if the method's plan costs more than the budget.
        UnsupportedEventError: if no accountant bounds the plan's event.
    """
    method = make_method(method) if isinstance(method, str) else method
    task = make_task(task) if isinstance(task, str) else task
    facts = task.facts
    if budget.delta >= 1 / facts.n_records:
        warnings.warn(
            f"delta={budget.delta:g} is not below 1/N = {1 / facts.n_records:.3g}: such a guarantee permits "
            f"publishing a record. The default is N^-1.1 = {facts.default_delta:.3g}.",
            stacklevel=2,
        )
    with sealed() as complaints:
        made = method.plan(facts, budget) if plans is None else plans.plan(method, task, budget)
    if complaints:
        raise SealedDataError(complaints[0])
    if type(made) is not Plan:
        raise InvalidValueError(f"Expected method {method.name} to plan a Plan, got {type(made).__name__}.")
    made = replace(made)  # of which the method has no hold
    if made.budget != budget:  # noise streams and the recomputed ε depend on it
        raise InvalidValueError(f"Expected method {method.name} to plan for {budget}, got {made.budget}.")
    total = _quoted(made.event, budget.delta, made.accountant)
    # A reference that says it is not private may plan for ε = ∞; its row stands apart.
    reference = not method.end_to_end_private and total.epsilon == math.inf
    if not (total.epsilon <= budget.epsilon or reference):
        raise PlanOverBudgetError(
            f"The plan of {method.name} costs epsilon={total.epsilon:.6g}, more than the budget "
            f"epsilon={budget.epsilon:g} at delta={budget.delta:g}. No data was read."
        )
    return CheckedPlan(method, facts, made, total, _tuning_share(made, total, budget.delta))


def _quoted(event: "DpEvent", delta: float, accountant: str | None) -> EpsilonReport:
    """ε by every accountant; quoted is the one asked for, as long as it supports the event."""
    report = epsilon(event, delta)
    if accountant in report.by_accountant:
        assert accountant is not None
        return replace(report, epsilon=report.by_accountant[accountant], quoted=accountant)
    return report


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
            the seed can subtract the noise. None takes the noise from the operating system's entropy.
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
    from dphpo_bench.records import MAX_RECORD_BYTES, RecordStore

    if secure_noise:
        _check_secure_noise(seed)
    progress = progress or SilentProgress()
    method = make_method(method) if isinstance(method, str) else method
    task = make_task(task) if isinstance(task, str) else task
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
    outcome, status, error = attempt.outcome, attempt.status, attempt.error
    metrics: dict[str, float] = {}
    if status == "ok":
        assert outcome is not None
        try:
            with clock.measure("test"):
                test = task.load_test(source)
                with sealed() as complaints:  # the model is a method's, and its code runs
                    metrics = _measure_on_test(outcome.model, test, checked.facts)
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


def _tuning_share(made: Plan, total: EpsilonReport, delta: float) -> float:
    if made.training_event == made.event or not 0 < total.epsilon < math.inf:
        return 0.0
    return min(1.0, max(0.0, 1 - epsilon(made.training_event, delta).epsilon / total.epsilon))


@dataclass(frozen=True)
class Attempt:
    """What came of a method's run.

    Attributes:
        outcome: what it released; None if it failed.
        status: "ok", or why there is nothing.
        error: the reason in words.
        ledger: what was released.
        recomputed: ε of the ledger; None if it cannot be bounded.
    """

    outcome: Outcome | None
    status: "Status"
    error: str | None
    ledger: Ledger
    recomputed: EpsilonReport | None


def execute(
    checked: CheckedPlan,
    task: Task,
    train: Split,
    *,
    seed: int | None,
    journal: Journal | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    observer: "Observer | None" = None,
    secure_noise: bool = False,
) -> Attempt:
    """Let a method run on these records and verify what it released; no test data, no record.

    Args:
        checked: the plan, and the method that made it.
        task: where models come from.
        train: the private records. Their number may differ from the public one.
        seed: as in `run`.
        journal: where the seed of an unseeded run is kept until it is recorded; None: nowhere.
        device: a torch device.
        progress: where long work reports to.
        observer: is told what is released.
        secure_noise: as in `run`; without a seed.

    Raises:
        DphpoBenchError: at a mistake in the call that shows before anything is released.
    """
    ledger = Ledger(allowance=checked.plan.event)
    outcome, status, error = _attempt(
        checked,
        task,
        train,
        ledger,
        journal or Journal(),
        seed,
        device,
        progress or SilentProgress(),
        observer,
        secure_noise,
    )
    recomputed, status, error = _verify(checked, ledger, status, error)
    return Attempt(outcome if status == "ok" else None, status, error, ledger, recomputed)


def _attempt(
    checked: CheckedPlan,
    task: Task,
    train: Split,
    ledger: Ledger,
    journal: Journal,
    seed: int | None,
    device: str,
    progress: Progress,
    observer: "Observer | None",
    secure_noise: bool,
) -> "tuple[Outcome | None, Status, str | None]":
    """Let the method run; whatever it raises is a result, except what the user asked for."""
    from dphpo_bench.session import Session

    budget = checked.plan.budget
    hide = seed is None
    if secure_noise:
        _check_secure_noise(seed)
        journal.once(SECURE_NOISE, lambda: 1)
    bits = 256 if secure_noise else 128
    streams = Streams(journal.once("seed", lambda: secrets.randbits(bits)) if seed is None else seed, (), secure_noise)
    if _is_secret(checked, seed):
        progress = SilentProgress()
    session = Session(
        task,
        train,
        ledger,
        streams.within(
            checked.method.name,
            repr(sorted(_parameters(checked.method).items())),
            repr(budget),
            checked.facts.task,
            checked.facts.model,
        ),
        model_streams=streams,
        device=device,
        progress=progress,
        observer=observer,
    )
    try:
        with sealed() as complaints:
            outcome = checked.method.run(replace(checked.plan), session)
            unfit = _unfit(outcome, hide)
    except OverBudgetError as error:
        return None, "over_budget", reason_of(error, hide)
    except DphpoBenchError as error:
        if not ledger.entries and not complaints:  # a mistake in the call, found before anything was released
            raise
        return None, "failed", reason_of(error, hide)
    except (Exception, SystemExit) as error:
        return None, "failed", reason_of(error, hide)
    finally:
        session.close()
        if complaints:
            ledger.refuse(complaints[0])
    return (outcome, "ok", None) if unfit is None else (None, "failed", unfit)


def _unfit(outcome: Any, hide: bool) -> str | None:
    """Why what a method returns cannot be released; None if it can, and its values are plain then."""
    import torch

    if not (isinstance(outcome, Outcome) and isinstance(outcome.model, torch.nn.Module)):
        return f"Expected an Outcome with a torch.nn.Module, got {type(outcome).__name__}."
    try:
        text = json.dumps(outcome.released, ensure_ascii=False)
        text.encode()
        outcome.released = dict(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        return f"Expected a dictionary of released values that JSON can hold: {reason_of(error, hide)}."
    if not all(torch.isfinite(parameter).all() for parameter in outcome.model.parameters()):
        return "The trained model has weights that are not finite."
    return None


def _check_secure_noise(seed: int | None) -> None:
    from dphpo_bench.training.secure_noise import require_opendp

    if seed is not None:
        raise InvalidValueError(
            f"Expected no seed with secure noise, got {seed}: whoever knows a seed can subtract the noise. "
            "Leave out one of the two."
        )
    require_opendp()


def reason_of(error: BaseException, hide: bool = False) -> str:
    """One line for a record; the traceback goes to the debug log.

    Args:
        error: what was raised.
        hide: whether the text may quote private records, as that of any exception can which the engine did not
            raise itself. The line then has the type of the exception and where it was raised.
    """
    logger.debug("A run failed.", exc_info=error)
    frames = traceback.extract_tb(error.__traceback__)
    raised_here = bool(frames) and Path(frames[-1].filename).parent.is_relative_to(Path(__file__).parent)
    if hide and not (isinstance(error, DphpoBenchError) and raised_here):
        where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        return f"{type(error).__name__}{where}; its text may quote private records and is in the debug log only."
    try:
        text = str(error) if isinstance(error, DphpoBenchError) else f"{type(error).__name__}: {error}"
    except Exception:  # a plug-in's error that cannot be printed
        text = type(error).__name__
    return " ".join(text.split())[:MAX_REASON].encode(errors="replace").decode()


def _is_secret(checked: CheckedPlan, seed: int | None) -> bool:
    """Whether the number of runs must not be known: then the time and the memory they took must not be, either.

    With a seed there is no secret to keep: whoever knows it can compute everything.
    """
    return seed is None and has_selection(checked.plan.event)


def _verify(
    checked: CheckedPlan, ledger: Ledger, status: "Status", error: str | None
) -> "tuple[EpsilonReport | None, Status, str | None]":
    """Recompute ε from what was released, and hold it against the plan."""
    budget = checked.plan.budget
    try:
        recomputed = _quoted(ledger.event, budget.delta, checked.plan.accountant)
    except UnsupportedEventError as refusal:
        return None, "unverified", str(refusal)
    if ledger.refused:
        return recomputed, "over_budget", ledger.refused
    if ledger.failed:  # the method may have gone on as if nothing had happened
        return recomputed, "failed", ledger.failed
    if recomputed.epsilon > checked.epsilon.epsilon + EPSILON_ROUNDING:
        return (
            recomputed,
            "over_budget",
            f"The releases cost epsilon={recomputed.epsilon:.6g}, more than the planned "
            f"epsilon={checked.epsilon.epsilon:.6g}.",
        )
    return recomputed, status, error


def _measure_on_test(model: "nn.Module", test: Split, facts: TaskFacts) -> dict[str, float]:
    """Accuracy and mean cross-entropy on the test records; nothing if there are none."""
    import torch

    if not len(test):
        return {}

    model.eval()
    device = next(model.parameters()).device
    correct, loss = 0, 0.0
    with torch.inference_mode():
        for start in range(0, len(test), 1024):
            rows = slice(start, start + 1024)
            logits = model(test.inputs[rows].to(device).float())
            labels = test.targets[rows].to(device)
            correct += int((logits.argmax(dim=1) == labels).sum())
            loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
    return {facts.metric.name: correct / len(test), "cross_entropy": loss / len(test)}


def task_identity(task: Task, facts: TaskFacts, source: "DataSource") -> dict[str, Any]:
    """The task's part of an identity, which all runs on it share; its model is built for that, without data.

    Args:
        task: with its model.
        facts: the task's.
        source: where a task that needs its data for that finds its fingerprint.

    Raises:
        InvalidValueError: if the task does not tell its version, model or fingerprint.
        SealedDataError: if it opens its records to build its model.
    """
    told = facts.to_json()
    try:
        data_fingerprint = task.fingerprint(source)
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
        "task": told.pop("task"),
        "task_version": _version_of(task),
        "model": told.pop("model"),
        "facts": told,
        "model_fingerprint": model_fingerprint,
        "data_fingerprint": data_fingerprint,
    }


def identity_of(method: Method, of_task: Mapping[str, Any], budget: PrivacyBudget, seed: int | None) -> "Identity":
    """What makes two runs the same run; `of_task` is from `task_identity`.

    Raises:
        InvalidValueError: if the method's version is not an integer from 1.
    """
    from dphpo_bench.records import Identity

    return Identity(
        method=method.name,
        method_version=_version_of(method),
        parameters=_parameters(method),
        epsilon=budget.epsilon,
        delta=budget.delta,
        seed=seed,
        **of_task,
    )


def _parameters(method: Method) -> dict[str, Any]:
    """The method's parameters, which it tells without looking at data.

    Raises:
        SealedDataError: if it looks.
    """
    with sealed() as complaints:
        told = method.parameters
    if complaints:
        raise SealedDataError(complaints[0])
    return told


def _version_of(plug_in: Method | Task) -> int:
    if type(plug_in.version) is not int or plug_in.version < 1:
        raise InvalidValueError(
            f"Expected the version of {plug_in.name} to be an integer >= 1, got {shown(plug_in.version, form=repr)}."
        )
    return plug_in.version


def _record(
    checked: CheckedPlan,
    identity: "Identity",
    attempt: Attempt,
    *,
    device: str,
    secure_noise: bool,
    **measured: Any,
) -> "RunRecord":
    from dphpo_bench.records import CostRecord, Privacy, RunRecord

    planned, recomputed = checked.epsilon.epsilon, attempt.recomputed
    return RunRecord(
        identity=identity,
        privacy=Privacy(
            planned=_epsilon_record(checked.epsilon),
            recomputed=_epsilon_record(recomputed) if recomputed else None,
            epsilon=max(planned, recomputed.epsilon if recomputed else math.inf),
            tuning_share=checked.tuning_share,
            end_to_end_private=checked.method.end_to_end_private,
            ledger=attempt.ledger.to_json(),
        ),
        cost=CostRecord(**asdict(checked.plan.cost)),
        peak_memory_bytes=peak_memory_bytes(),
        environment=_environment(device, secure_noise),
        created=datetime.now(UTC).replace(microsecond=0),
        **measured,
    )


def peak_memory_bytes() -> int:
    """The process's largest resident set so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _environment(device: str, secure_noise: bool) -> dict[str, str]:
    import torch

    return {
        "python": platform.python_version(),
        "platform": platform.system(),
        "machine": platform.machine(),
        "device": device,
        "threads": str(torch.get_num_threads()),
        "noise": f"opendp {version('opendp')}, discrete" if secure_noise else "torch, not hardened",
        **{name: version(name) for name in ("dphpo-bench", "torch", "opacus", "dp-accounting")},
    }


class _Clock:
    """Wall-clock seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def without(self, phase: str) -> dict[str, float]:
        """The seconds of the other phases."""
        return {name: seconds for name, seconds in self.seconds.items() if name != phase}


def _epsilon_record(report: EpsilonReport) -> "Any":
    from dphpo_bench.records import Epsilon

    return Epsilon(epsilon=report.epsilon, accountant=report.quoted, by_accountant=dict(report.by_accountant))
