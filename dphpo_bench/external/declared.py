"""Declared work on private records, in the caller's own code: counted before it begins, recorded when it ends.

    >>> budget = PrivacyBudget(3, 1e-5)
    >>> steps = steps_within(budget, sample_rate=0.01, noise_multiplier=1.0)
    >>> with declared(dp_sgd_event(0.01, steps, 1.0), budget, name="mine") as run:  # doctest: +SKIP
    ...     train(steps)
    >>> run.finished.record  # doctest: +SKIP

The harness sees neither the records nor the training. It computes ε from the event that the caller declares, and
marks the record (`RunRecord.accounting`); such records are never on the board.
"""

import hashlib
import json
import math
import os
import secrets
import warnings
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from annotated_types import Interval
from dp_accounting.dp_event import DpEvent
from filelock import FileLock, Timeout

from dphpo_bench.base.checks import check_file_name, positive, ranged, short_text, typed, whole
from dphpo_bench.base.displays import Display, Displayed
from dphpo_bench.base.errors import (
    AccountError,
    BudgetTooSmallError,
    InvalidValueError,
    PlanOverBudgetError,
    RecordError,
)
from dphpo_bench.base.files import TORN
from dphpo_bench.base.tensors import RECORD
from dphpo_bench.contract import registry
from dphpo_bench.harness.account import DEFAULT, OPEN, Account, Entry, refuse_if_closed
from dphpo_bench.harness.account_report import AccountReport, report_of
from dphpo_bench.harness.journal import Journal
from dphpo_bench.harness.plan import warn_of_budget
from dphpo_bench.harness.recording import environment, epsilon_record, numbered
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.event_trees import hides_time
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.risk import risk
from dphpo_bench.recipes.dp_sgd import dp_sgd_event
from dphpo_bench.records.record import DECLARED, MAX_RECORD_BYTES, Identity, Privacy, RunRecord, Status, moment
from dphpo_bench.records.statement import lines, record_risk, recorded
from dphpo_bench.records.store import RecordStore
from dphpo_bench.training.randomness import Streams

_MOST_STEPS = 10**8


@dataclass(frozen=True, repr=False)
class Finished(Displayed):
    """The end of declared work.

    Attributes:
        record: says that its accounting was declared.
        path: of the record; None if no folder of results was named.
        account: what has been released from these records so far; None without an account.
    """

    record: RunRecord
    path: Path | None
    account: AccountReport | None

    def display(self) -> Display:
        """Return the record in short, where it lies, and what has been released so far."""
        return self.record.display(record=self.path, account=self.account)

    def statement(self) -> str:
        """Return the privacy statement, as `dphpo-bench statement` prints it."""
        account = self.account
        others = f"The account {account.name} counts this run. By now: {account.summary()}" if account else None
        return "\n".join(lines(self.record, record_risk(self.record), others))


@typed
def declared(
    event: DpEvent,
    budget: PrivacyBudget,
    *,
    name: str,
    results_dir: Path | str | None = "results",
    account: str | None = None,
    unit: str = RECORD,
    n_records: int | None = None,
) -> "DeclaredRun":
    """Return a context that counts work of yours on private records, and records it at its end.

    The block counts whole as soon as it begins. An exception that leaves it ends it with a record of status "failed".
    To do the work again is a second release, with a context of its own.

    Args:
        event: of everything that the block releases.
        budget: the (ε, δ) that the event may cost.
        name: of the work: at most 64 letters, digits, _ . and -. Records and accounts show it in place of a task.
        results_dir: folder of the record and the account; None: nothing is written or counted, with a warning.
        account: which account of the folder counts it; None: "main".
        unit: whose presence ε is about.
        n_records: N, if it is public.

    Raises:
        InvalidValueError: if an argument is out of range.
        PlanOverBudgetError: if the event costs more than the budget.
        UnsupportedEventError: if no accountant bounds the event.
        AccountError: when the block begins, if the account's cap does not cover it.
        RecordError: when the block begins, if the folder cannot be written, or work of this name is under way or was
            interrupted.
    """
    return DeclaredRun(
        event, budget, name=name, results_dir=results_dir, account=account, unit=unit, n_records=n_records
    )


class DeclaredRun:
    """Declared work: in the account before its first question, recorded at its end.

    Args:
        event: and the next six: see `declared`.
        method: name of the method, such as "papernot_steinke" or "dp_sgd".
        what: "selection" or "training".
        parameters: of the method, and whatever else distinguishes two runs of one name; JSON values.
        training_event: of plain training, for the share of ε that tuning takes; None: the event.
        accountant: whose ε is quoted if it supports the event; None: the tightest.
        goes_on: whether a process goes on with what an earlier one of this name began.

    Attributes:
        event, epsilon: of everything.
        journal: draws that a restart after a kill must not make again; in memory without a folder of results.
        streams: of all draws, the same after a restart.
        finished: None before the end.
    """

    journal: Journal
    streams: Streams

    def __init__(
        self,
        event: DpEvent,
        budget: PrivacyBudget,
        *,
        name: str,
        results_dir: Path | str | None,
        account: str | None = None,
        unit: str = RECORD,
        n_records: int | None = None,
        method: str = "dp_sgd",
        what: str = "training",
        parameters: Mapping[str, Any] = MappingProxyType({}),
        training_event: DpEvent | None = None,
        accountant: str | None = None,
        goes_on: bool = False,
    ) -> None:
        check_file_name("a name", name)
        if results_dir is None and account is not None:
            raise InvalidValueError("Expected results_dir with account: an account lies in a folder of results.")
        self.event, self.budget, self.name, self._what = event, budget, name, what
        self._unit = short_text("unit", unit)
        self._n_records = None if n_records is None else whole("n_records", n_records, low=1, high=10**12)
        self._method, self._parameters, self._training_event = method, dict(parameters), training_event
        self._store = None if results_dir is None else RecordStore(Path(results_dir))
        self._book = None if self._store is None else Account(self._store.root, DEFAULT if account is None else account)
        self._goes_on = goes_on
        self._lock: FileLock | None = None
        self._number: str | None = None
        self.finished: Finished | None = None
        self.epsilon = report = epsilon(event, budget.delta)
        if accountant is not None and accountant in report.by_accountant:
            self.epsilon = replace(report, epsilon=report.by_accountant[accountant], quoted=accountant)
        if not self.epsilon.epsilon <= budget.epsilon:
            raise PlanOverBudgetError(
                f"The declared event costs epsilon={self.epsilon.epsilon:.6g}, more than the budget epsilon="
                f"{budget.epsilon:g} at delta={budget.delta:g}. No data was read."
            )
        self._event_text = json.dumps(event_trees.to_json(event), sort_keys=True)
        event_trees.from_json(json.loads(self._event_text))  # refused here if no account can hold it

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.finished is None and kind is None:
            self.finish()
        elif self.finished is None and self._goes_on:
            self.release()
        elif self.finished is None:
            self.finish(status="failed", error=f"{kind.__name__ if kind else ''} ended the block.")

    def open(self) -> Self:
        """Count the work in the account.

        Raises:
            AccountError: if the account's cap does not cover it, or the account cannot be written.
            RecordError: if the folder cannot be written, or this name is under way elsewhere, interrupted or over.
        """
        if self.finished:  # its second end would write no record
            raise RecordError(f"The {self._what} {self.name} has ended. Another is a release of its own: make it anew.")
        if self._n_records is not None:
            warn_of_budget(self.budget, self._n_records, self._unit, stacklevel=4)
        if self._store is None:
            refuse_if_closed()
            warnings.warn(
                "No account counts this, and a restart after a kill would be a second release: name a folder with "
                "results_dir.",
                stacklevel=4,
            )
            self._begin(Journal())
            return self
        self._store.check_writable(self.identity)
        self._process = os.getpid()
        self._lock = _locked(self._unfinished.with_suffix(".lock"), f"{self._what} {self.name}")
        try:
            self._begin(Journal(self._unfinished))
            self._count()
        except BaseException:
            self.release()
            raise
        return self

    def _begin(self, journal: Journal) -> None:
        hash_ = int(hashlib.sha256(self.identity.key.encode()).hexdigest()[:15], 16)
        self._is_resumed = bool(journal.values)
        if self._is_resumed and not self._goes_on:
            raise RecordError(
                f"An earlier {self._what} named {self.name} was interrupted, and code of yours cannot go on in the "
                "middle: to begin again is a second release. Name it anew; the earlier one stays counted."
            )
        if journal.once("declaration", lambda: hash_) != hash_:
            raise RecordError(
                f"An earlier {self._what} named {self.name} was interrupted, and it was declared otherwise. Go on with "
                "the same arguments; or name this one anew, which is a second release. The earlier one stays counted; "
                f"forget it by removing {self._unfinished}."
            )
        secret = journal.once("seed", lambda: secrets.randbits(128))
        number = f"run {journal.nonce():016x}"
        self.journal, self.streams = journal, Streams(secret).within("declared", self.name, number)

    def _count(self) -> None:
        assert self._book is not None
        entry = Entry(
            number=f"{self.journal.nonce():016x}",
            what=self._what,
            method=self._method,
            task=self.name,
            model="declared",
            unit=self._unit,
            epsilon=float(self.epsilon.epsilon),
            delta=float(self.budget.delta),
            event=self._event_text,
            date=datetime.now(UTC).date().isoformat(),
            record=numbered(self.identity, self.journal).key,
            status=OPEN,
        )
        try:
            self._book.count([entry])
        except AccountError:
            if not self._is_resumed:
                self.journal.discard()
            raise
        self._number = entry.number

    @property
    def identity(self) -> Identity:
        """The identity of the record, but for the run's number."""
        known = registry.methods().working(self._method)
        facts = {
            "accounting": DECLARED,
            "event": hashlib.sha256(self._event_text.encode()).hexdigest()[:16],
            "public": False,
            **({} if self._unit == RECORD else {"unit": self._unit}),
            **({} if self._n_records is None else {"n_records": self._n_records}),
        }
        return Identity.of(
            method=self._method,
            method_version=known.cls.version if known else 1,
            parameters=self._parameters,
            task=self.name,
            task_version=1,
            facts=facts,
            model="declared",
            model_fingerprint="declared",
            data_fingerprint="declared",
            epsilon=float(self.budget.epsilon),
            delta=float(self.budget.delta),
            seed=None,
        )

    @property
    def _unfinished(self) -> Path:
        root = Path() if self._store is None else self._store.root
        return root / ".unfinished" / f"declared-{self.name}.jsonl"

    @property
    def state_path(self) -> Path | None:
        """A file that its owner only may read, for what must outlive a kill; None without a folder of results."""
        return None if self._store is None else self._unfinished.with_suffix(".state")

    def release(self) -> None:
        """Let another call of this name go on; journal, state and entry stay."""
        if self._lock and os.getpid() == self._process:  # a copy that was forked shares the lock
            self._lock.release()

    def finish(
        self,
        *,
        released: Mapping[str, Any] = MappingProxyType({}),
        status: Status = "ok",
        error: str | None = None,
        metrics: Mapping[str, float] = MappingProxyType({}),
    ) -> Finished:
        """Write the record, note the end in the account, and remove journal and state.

        Args:
            released: hyperparameters and other values that ε covers; JSON values.
            status, error: "ok" and None; or how it ended, and why.
            metrics: of public test records.
        """
        record = self._record(status, error, dict(released), dict(metrics))
        if len(record.to_json().encode()) > MAX_RECORD_BYTES:
            raise RecordError(f"The record takes more than {MAX_RECORD_BYTES} bytes; release less.")
        path = self._store.write(record) if self._store else None
        if self._book and self._number:
            self._book.note(self._number, status=status)
        self.journal.discard()
        if state := self.state_path:
            state.unlink(missing_ok=True)
            for torn in state.parent.glob(f".{state.name}.*{TORN}"):  # of a process that was killed while it wrote
                torn.unlink(missing_ok=True)
        self.release()
        self.finished = Finished(record, path, report_of(self._book) if self._book else None)
        return self.finished

    def _record(
        self, status: Status, error: str | None, released: dict[str, Any], metrics: dict[str, float]
    ) -> RunRecord:
        ledger, delta, total = Ledger(), self.budget.delta, self.epsilon.epsilon
        ledger.charge(self.event)
        share, training = 0.0, self._training_event
        if training is not None and training != self.event and 0 < total < math.inf:
            share = min(1.0, max(0.0, 1 - epsilon(training, delta).epsilon / total))
        return RunRecord(
            identity=numbered(self.identity, self.journal),
            status=status,
            error=error,
            metrics=metrics,
            released=released,
            privacy=Privacy(
                planned=epsilon_record(self.epsilon),
                recomputed=epsilon_record(self.epsilon),
                epsilon=total,
                tuning_share=share,
                end_to_end_private=True,
                ledger=ledger.to_json(),
                risk=recorded(risk(self.event, delta)),
            ),
            cost=None,
            seconds={},
            environment=environment("the caller's device", "drawn by the caller, as declared"),
            accounting=DECLARED,
            created=moment(day_only=hides_time(self.event)),
        )


def _locked(path: Path, what: str) -> FileLock:
    """Return the lock of a name, held; a process that dies lets go of it."""
    lock = FileLock(path, mode=0o600)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise RecordError(
            f"The {what} is under way in another process, or in an earlier call of this one. Wait for its end; restart "
            "this process, such as a notebook's kernel, if it was interrupted here; or name this one anew, which is a "
            "release of its own."
        ) from None
    except OSError as error:
        raise RecordError(f"Cannot write {path}: {error.strerror}.") from None
    return lock


@typed
def steps_within(budget: PrivacyBudget, sample_rate: float, noise_multiplier: float) -> int:
    """Return the largest number of steps of DP-SGD within a budget, at most 100 million.

        >>> steps_within(PrivacyBudget(3, 1e-5), sample_rate=0.01, noise_multiplier=1.0)
        2666

    The accountants that compute ε of records check the number that is returned.

    Args:
        budget: the (ε, δ) of all steps together.
        sample_rate: rate of the Poisson batches.
        noise_multiplier: standard deviation of the noise / clipping norm.

    Raises:
        BudgetTooSmallError: if the budget does not cover a single step.
        InvalidValueError: if the rate is not in (0, 1], or the noise is not positive.
    """
    noise = positive("noise_multiplier", noise_multiplier)
    rate = float(ranged("sample_rate", sample_rate, float, Interval(gt=0, le=1)))

    def spent(steps: int, accountant: str | None = None) -> float:
        return epsilon(dp_sgd_event(rate, steps, noise), budget.delta, accountant=accountant).epsilon

    # The Rényi accountant takes milliseconds, and errs upwards: the search begins where it ends.
    counts = range(1, _MOST_STEPS + 1)
    low = bisect_right(counts, budget.epsilon, key=lambda steps: spent(steps, "rdp"))
    high = low + low // 8 + 1
    while high < _MOST_STEPS and spent(high) <= budget.epsilon:
        low, high = high, 2 * high
    steps = bisect_right(counts, budget.epsilon, low, min(high, _MOST_STEPS), key=spent)
    if not steps:
        raise BudgetTooSmallError(
            f"No step fits epsilon={budget.epsilon:g} at delta={budget.delta:g}: with one step it is {spent(1):.4g}. "
            "Raise epsilon or the noise, or take smaller batches."
        )
    return steps
