"""Procedures in the caller's own code: counted before their first question, journaled, recorded as declared.

The harness sees neither the records nor the training. It computes ε from the event that the caller declares, and
marks the record (`RunRecord.accounting`); such records are never on the board.
"""

import hashlib
import math
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent
from filelock import FileLock, Timeout

from dphpo_bench.base.checks import whole
from dphpo_bench.base.displays import Display, Displayed
from dphpo_bench.base.errors import AccountError, InvalidValueError, PlanOverBudgetError, RecordError
from dphpo_bench.base.files import TORN
from dphpo_bench.external.declaration import Declaration
from dphpo_bench.harness.account import DEFAULT, VOID, Account, refuse_if_closed
from dphpo_bench.harness.account_report import AccountReport, report_of
from dphpo_bench.harness.journal import Journal
from dphpo_bench.harness.plan import warn_of_budget
from dphpo_bench.harness.recording import environment, epsilon_record, numbered
from dphpo_bench.harness.training import EPSILON_ROUNDING
from dphpo_bench.privacy.accountants.report import EpsilonReport, epsilon
from dphpo_bench.privacy.event_kinds import hides_time
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.risk import risk, worst
from dphpo_bench.records.record import DECLARED, MAX_RECORD_BYTES, Privacy, RunRecord, Status, moment
from dphpo_bench.records.risks import recorded
from dphpo_bench.records.store import RecordStore
from dphpo_bench.training.randomness import Streams

_DECLARATION = "declaration"  # key of a journal: a hash of what the caller declared


@dataclass(frozen=True, repr=False)
class Finished(Displayed):
    """The end of a declared procedure.

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


class DeclaredRun:
    """A declared procedure under way: in the account before its first question, and recorded at its end.

    Attributes:
        declaration: of the caller.
        journal: draws that a restart after a kill must not make again; in memory without a folder of results.
        streams: of all draws, the same after a restart.
        state_path: a file that its owner only may read, for what must outlive a kill; None without a folder of results.
        resumed: whether an earlier process began it.
        epsilon: ε of the planned event.
    """

    def __init__(
        self,
        declaration: Declaration,
        planned: EpsilonReport,
        seed: int | None,
        journal: Journal,
        store: RecordStore | None,
        lock: FileLock | None,
    ) -> None:
        self.declaration, self.epsilon, self.journal = declaration, planned, journal
        self.resumed = bool(journal.values)
        self._store, self._lock = store, lock
        self._account: Account | None = None
        self._is_new = False
        text = f"{declaration.identity.key} {seed}"
        hash_ = int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)
        if journal.once(_DECLARATION, lambda: hash_) != hash_:
            raise RecordError(
                f"An earlier {declaration.what} named {declaration.name} was interrupted, and it was declared "
                f"otherwise. Go on with the same arguments; or name this one anew, which is a second release. "
                f"The earlier one stays counted; forget it by removing {_unfinished(store, declaration)}."
            )
        unseeded = journal.once("seed", lambda: secrets.randbits(128))
        number = f"run {journal.nonce():016x}"  # so that no two runs share noise, even at one seed
        self.streams = Streams(unseeded if seed is None else seed).within("declared", declaration.name, number)
        identity = declaration.identity.model_copy(update={"seed": seed})
        self.identity = numbered(identity, journal)

    @classmethod
    def open(
        cls,
        declaration: Declaration,
        *,
        results_dir: Path | str | None,
        account: str | None = None,
        seed: int | None = None,
    ) -> "DeclaredRun":
        """Check the declaration against its budget, and count it in the account.

        Args:
            declaration: of the caller.
            results_dir: folder of the record, the journal and the account; None: nothing is written or counted.
            account: which account of the folder counts it; None: "main".
            seed: a secret seed; all draws follow it and the run's number, which no other run has. None: a random one.

        Raises:
            PlanOverBudgetError: if the event costs more than the budget.
            UnsupportedEventError: if no accountant bounds the event.
            AccountError: if the account's cap does not cover it, or the account cannot be written.
            RecordError: if the folder cannot be written, another process runs this name, or an unfinished procedure of
                this name was declared otherwise.
        """
        planned, budget = declaration.epsilon_of(declaration.event), declaration.budget
        if not planned.epsilon <= budget.epsilon:
            raise PlanOverBudgetError(
                f"The declared event costs epsilon={planned.epsilon:.6g}, more than the budget epsilon="
                f"{budget.epsilon:g} at delta={budget.delta:g}. No data was read."
            )
        if declaration.n_records is not None:
            warn_of_budget(budget, declaration.n_records, declaration.unit, stacklevel=5)
        if seed is not None:
            seed = whole("seed", seed, low=0, high=2**63)
            warnings.warn(
                f"seed={seed}: whoever learns it can subtract the noise. Leave it out unless the data are public.",
                stacklevel=4,
            )
        if results_dir is None:
            if account is not None:
                raise InvalidValueError("Expected results_dir with account: an account lies in a folder of results.")
            refuse_if_closed()
            warnings.warn(
                "No account counts this, and a restart after a kill would be a second release: name a folder with "
                "results_dir.",
                stacklevel=4,
            )
            return cls(declaration, planned, seed, Journal(), None, None)
        store = RecordStore(Path(results_dir))
        book = Account(store.root, DEFAULT if account is None else account)
        store.check_writable(declaration.identity)
        lock = _locked(store, declaration)
        try:
            run = cls(declaration, planned, seed, Journal(_unfinished(store, declaration)), store, lock)
            run._count(book)
        except BaseException:
            lock.release()
            raise
        return run

    def _count(self, book: Account) -> None:
        self._account = book
        try:
            entry = self.declaration.entry(self.journal.nonce(), self.epsilon, self.identity.key)
            self._is_new = book.count([entry]) and not self.resumed
        except AccountError:
            if not self.resumed:
                self.journal.discard()
            raise
        self._number = entry.number

    @property
    def state_path(self) -> Path | None:
        """See above."""
        return None if self._store is None else _unfinished(self._store, self.declaration).with_suffix(".state")

    def finish(
        self,
        *,
        released: Mapping[str, Any] | None = None,
        spent: DpEvent | None = None,
        status: Status = "ok",
        error: str | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Finished:
        """Write the record, note the end in the account, and remove journal and state.

        Args:
            released: hyperparameters and other values that ε covers; JSON values.
            spent: what was released; None: all that was planned.
            status: "ok", or how it ended.
            error: why it did not end well.
            metrics: of public test records.

        Raises:
            RecordError: if the record cannot be written.
        """
        spent = self.declaration.event if spent is None else spent
        recomputed = self.declaration.epsilon_of(spent)
        changes: dict[str, Any] = {}
        if recomputed.epsilon > self.epsilon.epsilon + EPSILON_ROUNDING:
            status = "over_budget"
            error = (
                f"What was released costs epsilon={recomputed.epsilon:.6g}, more than the declared epsilon="
                f"{self.epsilon.epsilon:.6g}."
            )
            more = replace(self.declaration, event=spent).entry(0, recomputed, "")  # it happened, whatever the cap says
            changes = {"event": more.event, "epsilon": more.epsilon}
        record = self._record(spent, recomputed, status, error, released or {}, metrics or {})
        if len(record.to_json().encode()) > MAX_RECORD_BYTES:
            raise RecordError(f"The record takes more than {MAX_RECORD_BYTES} bytes; release less.")
        path = self._store.write(record) if self._store else None
        self._note(status, **changes)
        self._discard()
        return Finished(record, path, report_of(self._account) if self._account else None)

    def cancel(self) -> None:
        """Take the entry back, if no other process has run this: nothing was asked of the records."""
        if self._is_new:
            self._note(VOID)
            self._discard()
        self.release()

    def release(self) -> None:
        """Let another call of this name go on; journal, state and entry stay."""
        if self._lock:
            self._lock.release()

    def _note(self, status: str, **changes: Any) -> None:
        if self._account:
            self._account.note(self._number, status=status, **changes)

    def _discard(self) -> None:
        self.journal.discard()
        if path := self.state_path:
            path.unlink(missing_ok=True)
            for torn in path.parent.glob(f".{path.name}.*{TORN}"):  # of a process that was killed while it wrote
                torn.unlink(missing_ok=True)
        self.release()

    def _record(
        self,
        spent: DpEvent,
        recomputed: EpsilonReport,
        status: Status,
        error: str | None,
        released: Mapping[str, Any],
        metrics: Mapping[str, float],
    ) -> RunRecord:
        plan, delta = self.declaration, self.declaration.budget.delta
        ledger = Ledger()
        ledger.charge(spent)
        share, training = 0.0, plan.training_event
        if training is not None and training != plan.event and 0 < self.epsilon.epsilon < math.inf:
            share = min(1.0, max(0.0, 1 - epsilon(training, delta).epsilon / self.epsilon.epsilon))
        return RunRecord(
            identity=self.identity,
            status=status,
            error=error,
            metrics=dict(metrics),
            released=dict(released),
            privacy=Privacy(
                planned=epsilon_record(self.epsilon),
                recomputed=epsilon_record(recomputed),
                epsilon=max(self.epsilon.epsilon, recomputed.epsilon),
                tuning_share=share,
                end_to_end_private=True,
                ledger=ledger.to_json(),
                risk=recorded(worst([risk(event, delta) for event in {plan.event, spent}])),
            ),
            cost=None,
            seconds={},
            environment=environment("the caller's device", "drawn by the caller, as declared"),
            accounting=DECLARED,
            created=moment(day_only=hides_time(plan.event) and self.identity.seed is None),
        )


def _unfinished(store: RecordStore | None, declaration: Declaration) -> Path:
    root = Path() if store is None else store.root
    return root / ".unfinished" / f"declared-{declaration.name}.jsonl"


def _locked(store: RecordStore, declaration: Declaration) -> FileLock:
    """Return the lock of a name, held; a process that dies lets go of it."""
    path = _unfinished(store, declaration).with_suffix(".lock")
    lock = FileLock(path, mode=0o600)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise RecordError(
            f"The {declaration.what} {declaration.name} is under way in another process, or in an earlier call of this "
            "one. Wait for its end; restart this process, such as a notebook's kernel, if it was interrupted here; or "
            "name this one anew, which is a release of its own."
        ) from None
    except OSError as error:
        raise RecordError(f"Cannot write {path}: {error.strerror}.") from None
    return lock
