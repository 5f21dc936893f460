"""Plan, count, load, train, verify, measure, record: the stages of every run of every method on every task.

The harness believes no ε that a method states. It computes the ε of the plan before any data is read, and
the ε of the ledger after the run, and quotes the larger. A run on private records is counted in their account before
they are read.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from annotated_types import Interval
from numpy.typing import NDArray
from torch import nn

from dphpo_bench.base.checks import ranged, typed
from dphpo_bench.base.displays import Display, Displayed
from dphpo_bench.base.errors import AccountError, DphpoBenchError, InvalidValueError
from dphpo_bench.base.progress import Progress, TerminalProgress
from dphpo_bench.base.text import shown
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import method_of, task_of
from dphpo_bench.contract.seals import run_lock
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.account import Entry
from dphpo_bench.harness.account_report import AccountReport, report_of
from dphpo_bench.harness.cache import Cache, code_of
from dphpo_bench.harness.journal import Journal
from dphpo_bench.harness.loading import (
    Counted,
    account_of,
    check_continuable,
    count,
    load,
    refuse_no_privacy,
    warn_of_seeds,
)
from dphpo_bench.harness.plan import plan
from dphpo_bench.harness.recording import record
from dphpo_bench.harness.state import Run, timed
from dphpo_bench.harness.trained import TrainedModel, write_model
from dphpo_bench.harness.training import measure, train, verify
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.event_trees import needs_density
from dphpo_bench.privacy.objective import NO_GRID
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore

BEFORE_THE_FIRST_QUESTION = (count, load)
"""Stages that ask the records nothing: where one of them fails, the run's entry is taken back."""

FROM_THE_FIRST_QUESTION_ON = (train, verify, measure, record)


@dataclass(frozen=True)
class AccountOptions:
    """Options of a run on private records: which account counts it, and as what.

    Attributes:
        name: which account in `results_dir`; None: "main".
        not_private: let a method without privacy (ε = ∞) run on private records, because its output stays inside.
        again: the number of a seeded run on private records (`identity.run` of its record), whose noise is drawn again
            for the same questions, such as to save its model. Nothing more is counted or written. A run that asks
            anything else is refused. None: the run has noise of its own.
    """

    name: str | None = None
    not_private: bool = False
    again: str | None = None


@dataclass(frozen=True)
class ExecutionOptions:
    """Options of the execution of a run: device, data, cache, noise, checkpoints; no part of its record's name.

    Attributes:
        device: "auto", "cpu", "cuda" or a CUDA device by its number.
        source: where data are found; None: environment, then the hub.
        cache: of plans, ε and risk; None: they are computed anew.
        secure_noise: draw exact noise on a grid, and everything else that privacy rests on from cryptographic
            generators (docs/accounting.md, secure noise). Needs OpenDP, no seed, and some 10 µs a coordinate.
        checkpoint_every: steps between two checkpoints of a single training run. After a kill, the same call goes on
            from the last one, to the same record and model. The file lies in `.unfinished` of `results_dir` and is
            removed at the end. It holds weights and the positions of the random streams: whoever reads it can subtract
            the noise. None: no checkpoints.
    """

    device: str | torch.device = "auto"
    source: DataSource | None = None
    cache: Cache | None = None
    secure_noise: bool = False
    checkpoint_every: int | None = None


@dataclass(frozen=True, repr=False)
class RunResult(Displayed):
    """A finished run.

    Attributes:
        record: the record of the run.
        path: where the record lies, or None if none was to be written.
        trained: the trained model with what its predictions need, or None if the run failed, unless only its test did:
            it has been paid for.
        account: what has been released from these private records so far; None where no account is kept.
    """

    record: RunRecord
    path: Path | None
    trained: TrainedModel | None
    account: AccountReport | None = None

    def display(self) -> Display:
        """Return the record in short, where it lies, and what has been released so far."""
        model = None if self.trained is None else "trained, with predict(data) and save(path)"
        return self.record.display(model=model, record=self.path, account=self.account)

    @property
    def model(self) -> nn.Module | None:
        """The trained network, in evaluation mode."""
        return None if self.trained is None else self.trained.network

    def predict(self, data: Any) -> NDArray[Any]:
        """Predict in the labels of the training records; see `TrainedModel.predict`.

        Raises:
            InvalidValueError: if there is no model.
        """
        return self._trained("to predict with").predict(data)

    def save(self, path: Path | str) -> Path:
        """Write the trained model to a new file that ends in .safetensors; `load_model` reads it. Returns the path.

        Raises:
            InvalidValueError: if there is no model, or the path is unfit.
            DataError: if the disk is full, or the like.
        """
        return write_model(self._trained("to save"), Path(path))

    def _trained(self, purpose: str) -> TrainedModel:
        if self.trained is None:
            raise InvalidValueError(f"There is no model {purpose}: the run is {self.record.status}.")
        return self.trained


for _options in (AccountOptions, ExecutionOptions):  # their fields are checked as arguments of functions are
    _options.__init__ = typed(_options.__init__)  # type: ignore[method-assign]


@typed
def run(
    method: str | Method,
    task: str | Task,
    budget: PrivacyBudget,
    *,
    seed: int | None = None,
    results_dir: Path | str | None = None,
    account: str | AccountOptions | Counted | None = None,
    execution: ExecutionOptions | None = None,
    progress: Progress | None = None,
    check: bool = True,
) -> RunResult:
    """Tune and train under one budget, verify what was released, measure the model on the test data.

    Threads that call it wait for each other.

    Args:
        method: a method or a registered name.
        task: a task or a registered name.
        budget: (ε, δ) for tuning and training together.
        seed: makes the run repeatable, noise included, if the data are public. Other data cause a warning: whoever
            knows the seed can subtract the noise, which follows the seed and the number of the run's entry in its
            account. None takes the noise from the operating system's entropy. Each run on private data, and each
            without a seed, has a record of its own.
        results_dir: where the record is written; None writes none.
        account: of private records: the name of the account in `results_dir` that counts the run, or more options; see
            `AccountOptions`. A sweep has counted its runs.
        execution: device, data, caches, secure noise, checkpoints; see `ExecutionOptions`.
        progress: where long work reports to; default: standard error. `NullProgress()` for nothing.
        check: raise an error if the status of the run is not "ok". False: return the result all the same.

    Raises:
        AccountError: if the account's cap does not cover the run, or the account cannot be written.
        RunFailedError: if the run failed, went over its budget or could not be verified; its record is written before.
        DphpoBenchError: if the plan, the data or the results folder make a run impossible.
    """
    seed = None if seed is None else int(ranged("seed", seed, int, Interval(ge=0)))
    method, task = method_of(method), task_of(task)
    store = None if results_dir is None else RecordStore(Path(results_dir))
    execution, progress = execution or ExecutionOptions(), progress or TerminalProgress()
    counted, options = (account, AccountOptions()) if isinstance(account, Counted) else (None, account)
    if not isinstance(options, AccountOptions):
        options = AccountOptions(options)
    with run_lock:
        if seed is not None:
            warn_of_seeds(task, f"seed={seed}")
        book = None if counted else account_of(task, store, options.name)
        if options.again is not None and (book is None or seed is None or execution.checkpoint_every is not None):
            raise InvalidValueError(
                "Expected again= (--again) with private records, the run's seed and results_dir, and without "
                "checkpoint_every: it draws the noise of a run that an account counts. Leave it out."
            )
        if store:
            store.check_writable()
        device, seconds = resolve_device(execution.device), dict[str, float]()
        with timed(seconds, "plan"), progress.track(f"Planning {method.name} on {task.name}", 0):
            checked = plan(method, task, budget, cache=execution.cache)
        this_run = Run(
            checked=checked,
            task=task,
            seed=seed,
            secure_noise=execution.secure_noise,
            device=device,
            code=code_of(method, task),
            progress=progress,
            source=execution.source or DataSource.resolve(progress=progress),
            store=store,
            account=book,
            again=options.again,
            counted=counted is not None,
            checkpoint_every=execution.checkpoint_every,
            seconds=seconds,
        )
        if this_run.secure_noise and needs_density(checked.plan.event):
            raise InvalidValueError(NO_GRID)
        if counted:
            counted.check(checked)
            this_run.journal = Journal.holding(counted.values, Path(counted.releases) if counted.releases else None)
        elif not task.public:
            refuse_no_privacy(Entry.of(checked, 0), options.not_private)
        if this_run.checkpoint_every is not None:
            check_continuable(this_run)
        try:
            try:
                for stage in BEFORE_THE_FIRST_QUESTION:
                    stage(this_run)
            except BaseException:
                this_run.take_back()
                raise
            for stage in FROM_THE_FIRST_QUESTION_ON:
                stage(this_run)
        finally:
            this_run.journal.close()
        report = None
        if book:
            try:
                report = report_of(book)
            except AccountError as error:  # the run is over, so a damaged account is a note and no error
                progress.note(str(error))
            else:
                progress.note(str(report))
    if line := this_run.record.guess_line():
        warnings.warn(line, stacklevel=3)
    if check and this_run.status != "ok":
        raise RunFailedError(this_run.record, this_run.path, this_run.model)
    model = this_run.model
    trained = None if model is None else TrainedModel.of(model, task, this_run.record)
    return RunResult(this_run.record, this_run.path, trained, report)


def resolve_device(device: str | torch.device) -> str:
    """Return the torch device of this name, with its number; "auto" is the first CUDA device if there is one."""
    if isinstance(device, str) and device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if torch.device(device).type not in ("cpu", "cuda"):
            raise RuntimeError("runs need cpu, cuda or cuda with a number")
        return str(torch.zeros(1, device=device).device)  # numbered, so that it stays if the current device changes
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InvalidValueError(
            f"Cannot use device {shown(device, form=repr)}: {shown(error, 200)}. Try --device cpu."
        ) from None


class RunFailedError(DphpoBenchError):
    """A run failed, in its training or its test, went over its budget, or could not be verified.

    Attributes:
        record: the record of the run.
        path: where the record lies; None if none was to be written.
        model: the trained model, where only its test failed; not in another process.
    """

    exit_code = 1

    def __init__(self, record: RunRecord, path: Path | None, model: nn.Module | None = None) -> None:
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
