"""Plan, count, run, verify, record: one procedure for every method and every task.

The harness believes no ε that a method states. It computes the ε of the plan before any data is read, and
the ε of the ledger after the run, and quotes the larger. A run on private records is counted in their account before
they are read.
"""

import warnings
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from annotated_types import Interval

from dphpo_bench.base.checks import ranged, typed
from dphpo_bench.base.displays import Display, Displayed
from dphpo_bench.base.errors import (
    AccountError,
    DphpoBenchError,
    InvalidValueError,
    RecordError,
)
from dphpo_bench.base.meter import Meter
from dphpo_bench.base.progress import Progress
from dphpo_bench.base.tensors import Records
from dphpo_bench.base.terminal import TerminalProgress
from dphpo_bench.base.text import shown
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import method_of, task_of
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.account import VOID, Account, Entry
from dphpo_bench.harness.account_report import AccountReport, report_of
from dphpo_bench.harness.attempt import Attempt, execute
from dphpo_bench.harness.cache import Cache, code_of
from dphpo_bench.harness.continuing import check_continuable, must_not_change, releases_of, with_checkpoints
from dphpo_bench.harness.entry import (
    Counted,
    OpenEntry,
    account_of,
    check_again,
    refuse_no_privacy,
    told_apart,
    warn_of_seeds,
)
from dphpo_bench.harness.journal import Journal
from dphpo_bench.harness.measuring import Measured, measure
from dphpo_bench.harness.own_data import check_declared, check_same_data, data_digest, keeps_digest
from dphpo_bench.harness.plan import CheckedPlan, plan
from dphpo_bench.harness.recording import RunFailedError, identity_of, record_of, task_identity, timed
from dphpo_bench.harness.saving import write_model
from dphpo_bench.harness.setup import CONDITIONS, SECURE_NOISE, Setup
from dphpo_bench.harness.siblings import prepare_sibling
from dphpo_bench.harness.trained import TrainedModel
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.event_kinds import needs_density
from dphpo_bench.privacy.objective import NO_GRID
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore
from dphpo_bench.session import checkpoints

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn


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
    def model(self) -> "nn.Module | None":
        """The trained network, in evaluation mode."""
        return None if self.trained is None else self.trained.network

    def predict(self, data: Any) -> "NDArray[Any]":
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


@typed
def run(
    method: str | Method,
    task: str | Task,
    budget: PrivacyBudget,
    *,
    seed: int | None = None,
    source: DataSource | None = None,
    results_dir: Path | str | None = None,
    device: "str | torch.device" = "auto",
    progress: Progress | None = None,
    cache: Cache | None = None,
    secure_noise: bool = False,
    check: bool = True,
    account: str | None = None,
    not_private: bool = False,
    counted: Counted | None = None,
    checkpoint_every: int | None = None,
    again: str | None = None,
) -> RunResult:
    """Tune and train under one budget, verify what was released, measure the model on the test data.

    Args:
        method: a method or a registered name.
        task: a task or a registered name.
        budget: (ε, δ) for tuning and training together.
        seed: makes the run repeatable, noise included, if the data are public. Other data cause a warning: whoever
            knows the seed can subtract the noise, which follows the seed and the number of the run's entry in its
            account. None takes the noise from the operating system's entropy. Each run on private data, and each
            without a seed, has a record of its own.
        source: where data are found; default: environment, then the hub.
        results_dir: where the record is written; None writes none.
        device: "auto", "cpu", "cuda" or a CUDA device by its number.
        progress: where long work reports to; default: standard error. `NullProgress()` for nothing.
        cache: of plans, ε and risk; None: they are computed anew.
        secure_noise: draw exact noise on a grid, and everything else that privacy rests on from cryptographic
            generators (docs/accounting.md, secure noise). Needs OpenDP, no seed, and some 10 µs a coordinate.
        check: raise an error if the status of the run is not "ok". False: return the result all the same.
        account: of private records: which account in `results_dir` counts the run; None: "main".
        not_private: let a method without privacy (ε = ∞) run on private records, because its output stays inside.
        counted: of a run on private records that its caller has counted, as sweeps do; None: `run` counts it.
        checkpoint_every: steps between two checkpoints of a single training run. After a kill, the same call goes on
            from the last one, to the same record and model. The file lies in `.unfinished` of `results_dir` and is
            removed at the end. It holds weights and the positions of the random streams: whoever reads it can subtract
            the noise. None: no checkpoints.
        again: the number of a seeded run on private records (`identity.run` of its record), whose noise is drawn again
            for the same questions, such as to save its model. Nothing more is counted or written. A run that asks
            anything else is refused. None: the run has noise of its own.

    Raises:
        AccountError: if the account's cap does not cover the run, or the account cannot be written.
        RunFailedError: if the run failed, went over its budget or could not be verified; its record is written before.
        DphpoBenchError: if the plan, the data or the results folder make a run impossible.
    """
    seed = None if seed is None else int(ranged("seed", seed, int, Interval(ge=0)))
    setup = Setup(seed, secure_noise, progress=progress or TerminalProgress())
    method, task = method_of(method), task_of(task)
    if seed is not None:
        warn_of_seeds(task, f"seed={seed}")
    store = None if results_dir is None else RecordStore(Path(results_dir))
    book = None if counted else account_of(task, store, account)
    if again is not None and (book is None or seed is None or checkpoint_every is not None):
        raise InvalidValueError(
            "Expected again= (--again) with private records, the run's seed and results_dir, and without "
            "checkpoint_every: it draws the noise of a run that an account counts. Leave it out."
        )
    if store:
        store.check_writable()
    setup = replace(setup, device=resolve_device(device), code=code_of(method, task))
    seconds: dict[str, float] = {}
    with timed(seconds, "plan"), setup.progress.track(f"Planning {method.name} on {task.name}", 0):
        checked = plan(method, task, budget, cache=cache)
    if secure_noise and needs_density(checked.plan.event):
        raise InvalidValueError(NO_GRID)
    if counted:
        counted.check(checked)
    elif not task.public:
        refuse_no_privacy(Entry.of(checked, 0), not_private)
    if checkpoint_every is not None:
        check_continuable(checkpoint_every, store, checked, task, setup)
    source = source or DataSource.resolve(progress=setup.progress)
    setup = replace(setup, source=source)

    def load() -> Records:
        with timed(seconds, "data"), setup.progress.track("Preparing the data", 0):
            task.prepare(source)
            prepare_sibling(method, task, source)
            return task.load_train(source)

    # Of private records, the identity holds nothing; of public ones, a hash that may need them on disk.
    train = load() if task.public else None
    identity = identity_of(method, task_identity(task, checked.facts, source), budget, seed)
    if store:
        store.check_writable(identity)
        store.check_free(identity)
    goes_on = setup.unseeded or not task.public  # and then is counted once
    if counted:
        journal = counted.journal
    else:
        journal = Journal.claimed(store.journal_of(identity)) if store and goes_on and again is None else Journal()
    with closing(journal):
        path = journal.path
        checkpoint = path.with_suffix(".checkpoint") if path else store.checkpoint_of(identity) if store else None
        setup = replace(setup, journal=journal)
        if not counted:
            _check_goes_on(setup)
        if book and again is not None:
            check_again(again, book, checked, identity, setup)
        entry = OpenEntry.make(book, checked, identity, setup) if book and again is None else None
        with entry.voided_on_mistakes() if entry else nullcontext():
            train = load() if train is None else train
            check_declared(checked.facts, train)
            if store and keeps_digest(task):
                digest = data_digest(store.root, task, train, source)
                check_same_data(store.root, task, identity, digest)
                if entry:
                    entry.note(digest=digest)
            setup = replace(setup, releases=releases_of(setup, task, again is not None))
            if checkpoint and checkpoint_every is not None:
                conditions = must_not_change(identity, checked, task, train, setup)
                setup = with_checkpoints(checkpoint, checkpoint_every, conditions, setup, path)
        if setup.hides_trials(checked.plan.event):
            setup.progress.note("Searching. How many trials there are is a secret, so there is nothing to show.")
        planned = Meter(checked.plan.cost.examples, "the test")
        with timed(seconds, "train"), setup.progress.whole(planned) as meter:
            setup = replace(setup, meter=meter)
            attempt = _execute(checked, task, train, setup, entry)
        if not (counted and seed is not None):  # such a cell of a sweep has its place
            identity = told_apart(identity, journal)
        measured, model = Measured(), None
        if attempt.outcome:
            with timed(seconds, "test"), setup.progress.track("Testing", 0):
                attempt, measured, model = measure(attempt, attempt.outcome.model, task, source, setup)
        record = record_of(checked, identity, attempt, measured, seconds, setup)
        if entry:
            entry.end(attempt, record.status)
        if record.error != attempt.error:  # no record can hold what it released, or not even its ledger
            model = None
        path = _written(record, store, again)
        if checkpoint:
            checkpoints.discard(checkpoint)
        journal.discard()
    report = _reported(book, setup.progress) if book else None
    if line := record.guess_line():
        warnings.warn(line, stacklevel=3)
    if check and record.status != "ok":
        raise RunFailedError(record, path, model)
    return RunResult(record, path, None if model is None else TrainedModel.of(model, task, record), report)


def _written(record: RunRecord, store: RecordStore | None, again: str | None) -> Path | None:
    """Write a record, and return its file; that of a repeated run is there already, and a failed try has none."""
    if store is None or (again is not None and record.status != "ok"):
        return None
    path = store.path_of(record.identity)
    return path if again is not None and path.exists() else store.write(record)


def _reported(book: Account, progress: Progress) -> AccountReport | None:
    """Say what has been released by now; the run is over, so a damaged account is a note and no error."""
    try:
        report = report_of(book)
    except AccountError as error:
        progress.note(str(error))
        return None
    progress.note(str(report))
    return report


def _check_goes_on(setup: Setup) -> None:
    """Check that a run that an earlier process began can repeat its questions and its noise.

    Raises:
        RecordError: if it cannot.
    """
    journal, path = setup.journal, setup.journal.path
    # A GPU rounds its sums otherwise each time: the same noise on them would show the difference.
    unrepeatable = setup.secure_noise or setup.device.startswith("cuda")
    if SECURE_NOISE in journal.values or (journal.values and unrepeatable):
        raise RecordError(
            f"An earlier run of this was interrupted, and its noise cannot be drawn again. To start anew is a second "
            f"release: count ε and δ of both runs, and remove {path} first."
        )
    if journal.values and journal.values.get(CONDITIONS) != setup.conditions():
        raise RecordError(
            "An earlier run of this was interrupted on another device or processor, with another number of threads, or "
            "by other code or another torch: the same noise on other sums would show the records. Go on as there; or "
            f"remove {path} to start anew, which is a second release: count ε and δ of both runs."
        )
    if journal.is_remembered:
        raise RecordError(
            "This run was interrupted in this process, which may remember what it had released: another question with "
            f"the same noise would show the records. Start a new process to go on; or remove {path} to start anew, "
            "which is a second release: count ε and δ of both runs."
        )


def _execute(checked: CheckedPlan, task: Task, train: Records, setup: Setup, entry: OpenEntry | None) -> Attempt:
    try:
        return execute(checked, task, train, setup)
    except DphpoBenchError:  # a mistake in the call, before anything was asked
        if entry and entry.is_new:
            entry.note(status=VOID)
        if setup.secure_noise:  # nothing has been drawn, so another try is the first one
            setup.journal.discard()
        raise


def resolve_device(device: "str | torch.device") -> str:
    """Return the torch device of this name, with its number; "auto" is the first CUDA device if there is one."""
    import torch

    if isinstance(device, str) and device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    reason = "runs need cpu, cuda or cuda with a number"
    try:
        if torch.device(device).type in ("cpu", "cuda"):
            # Numbered, so that it stays the same one if the current device changes.
            return str(torch.zeros(1, device=device).device)
    except (NotImplementedError, RuntimeError, AssertionError, TypeError) as error:
        if not isinstance(error, TypeError) and "device type at start of device string" not in str(error):
            reason = str(error).splitlines()[0].rstrip(".")
    raise InvalidValueError(f"Cannot use device {shown(str(device), form=repr)}: {reason}. Try --device cpu.")
