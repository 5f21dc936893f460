"""Run cells on private records without seeds, and count them in an account before they run."""

import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dphpo_bench.base.errors import AccountError, InvalidValueError
from dphpo_bench.base.text import count
from dphpo_bench.harness.account import DEFAULT, VOID, Account, Entry
from dphpo_bench.harness.account_report import report_of, total_of
from dphpo_bench.harness.cache import code_of
from dphpo_bench.harness.journal import NONCE, Journal
from dphpo_bench.harness.loading import check_same_data, data_digest, folder_key, refuse_no_privacy
from dphpo_bench.harness.state import CONDITIONS, conditions_of
from dphpo_bench.privacy import event_texts
from dphpo_bench.privacy.events import no_op
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import Cell, Secret, device_of, job_of, plan_cell, planned
from dphpo_bench.sweep.executors import answer_of

if TYPE_CHECKING:
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.sweep.executors import Executor

STARTED = "started"  # key of a journal: the run has begun, and may have drawn noise


def unseeded(cells: Sequence[Cell], store: RecordStore) -> list[Cell]:
    """Return the cells, of which those on private records have no seed, but a number each.

    Whoever knows a seed can subtract the noise, and a suite is no secret. The numbers come from the folder's secret
    key, so that a sweep that goes on finds its own records.
    """
    if all(cell.task.public for cell in cells):
        return list(cells)
    key = folder_key(store.root)

    def numbered(cell: Cell) -> Cell:
        number = hmac.new(key, f"run {cell.identity.key}".encode(), hashlib.sha256).hexdigest()[:16]
        return replace(cell, identity=cell.identity.model_copy(update={"seed": None, "run": number}))

    return [cell if cell.task.public else numbered(cell) for cell in cells]


@dataclass
class PrivateCells:
    """Account of a sweep's runs on private records."""

    store: RecordStore
    name: str = DEFAULT
    not_private: bool = False  # methods with ε = ∞ may run, because their output stays inside
    what: str = "run"  # kind of the runs in the account
    _releases: dict[str, Entry | str] = field(default_factory=dict)  # by plan; or why there is none
    _digests: dict[tuple[str, str], str] = field(default_factory=dict)  # of the records, by task and model
    _shares_disk: bool = True  # workers can note what they release
    _numbers: dict[str, tuple[str, bool]] = field(default_factory=dict)  # by cell; and whether no try came before

    @property
    def account(self) -> Account:
        return Account(self.store.root, self.name)

    def prepare(self, cells: Sequence[Cell], executor: "Executor", source: "DataSource") -> str:
        """Plan the cells on private records and check that they may run; return a line that says what they cost."""
        self._shares_disk = executor.shares_disk
        private = [cell for cell in cells if not cell.task.public]
        groups = {_plan_key(cell): cell for cell in private}
        futures = {
            key: executor.submit(plan_cell, job_of(cell, source), cell.resources) for key, cell in groups.items()
        }
        for key, future in futures.items():
            plan = planned(answer_of(future))
            self._releases[key] = plan if isinstance(plan, str) else plan[1]
        known = [(cell, release) for cell in private if isinstance(release := self._release(cell), Entry)]
        if not known:
            return ""
        for cell, release in known:
            refuse_no_privacy(release, self.not_private)
            task, of_task = cell.task, (cell.identity.task, cell.identity.model)
            if task.fingerprint_is_declared and of_task not in self._digests:
                self._digests[of_task] = data_digest(self.store.root, task, source)
        cap, before = self.account.read()
        if cap:  # a list fixed in advance may fit where its runs one after the other would not
            self.account.count([self._numbered(cell, release, self._journal(cell).nonce()) for cell, release in known])
        releases = [release for _, release in known]
        earlier = f", after {len(before)} earlier ones" if before else ""
        by_unit: dict[str, list[Entry]] = {}
        for release in releases:
            by_unit.setdefault(release.unit, []).append(release)
        each = "; ".join(f"{count(len(some), 'run')}, together {total_of(some).text()}" for some in by_unit.values())
        return f"On private records{earlier}: {each}."

    def for_digest(self, cell: Cell) -> Secret | None:
        """Return what the preparation of a task's private records needs for their digest; None if it keeps none."""
        if cell.task.public or cell.task.fingerprint_is_declared:
            return None
        return Secret(key=folder_key(self.store.root).hex())

    def see(self, cell: Cell, digest: str) -> None:
        """Reject private records that changed since results were put into the folder."""
        if digest:
            check_same_data(self.store.root, cell.task, cell.identity, digest)
            self._digests[cell.identity.task, cell.identity.model] = digest

    def start(self, cell: Cell) -> Secret:
        """Count a cell, and return what its process needs to run it."""
        release = self._release(cell)
        if isinstance(release, str):
            raise InvalidValueError(release)
        self.store.check_writable(cell.identity)
        journal = self._journal(cell)
        # The same noise on other sums, or on other questions, would show the records.
        repeatable = not cell.resources.gpus and journal.values.get(CONDITIONS) == _conditions(cell)
        if STARTED in journal.values and not (repeatable and self._shares_disk):
            journal.discard()
        entry = self._numbered(cell, release, journal.nonce())
        known = self.account.find(entry.number)
        if known and known.event != release.event:  # so would the same noise on other questions
            journal.discard()
            entry = self._numbered(cell, release, journal.nonce())
        is_first = STARTED not in journal.values
        self._numbers[cell.key] = entry.number, self.account.count([entry]) and is_first
        journal.once(CONDITIONS, lambda: _conditions(cell))
        journal.once(STARTED, lambda: 1)
        values = {NONCE: journal.nonce()}
        if cell.identity.run is not None:
            seed = journal.once("seed", lambda: secrets.randbits(128))
            values |= {"seed": seed, "run": int(cell.identity.run, 16)}
        releases = self._journal(cell).releases if self._shares_disk else None
        return Secret(values, release.event, releases=str(releases.absolute()) if releases else "")

    def refuse(self, cell: Cell) -> None:
        """Note a cell that cannot be planned: its record has cost nothing."""
        who, nothing = cell.identity, json.dumps(event_texts.to_json(no_op()))
        today = datetime.now(UTC).date().isoformat()
        names = f"{secrets.randbits(64):016x}", self.what, who.method, who.task, who.model, who.unit
        self.account.write_void(Entry(*names, 0.0, who.delta, nothing, today, cell.key))

    def end(self, cell: Cell, record: RunRecord) -> None:
        """Note how a cell ended, and forget what its noise was drawn from."""
        if cell.key not in self._numbers:
            return
        number, is_new = self._numbers.pop(cell.key)
        asked_nothing = record.privacy is not None and record.asked_nothing  # of a worker that was killed nobody knows
        status = VOID if is_new and asked_nothing and record.status != "ok" else record.status
        digest = self._digests.get((cell.identity.task, cell.identity.model), "")
        with suppress(AccountError):  # it counts all the same
            self.account.note(number, status=status, digest=digest)
        self._journal(cell).discard()

    def summary(self) -> str:
        return report_of(self.account).summary()

    def _release(self, cell: Cell) -> Entry | str:
        return self._releases[_plan_key(cell)]

    def _journal(self, cell: Cell) -> Journal:
        return Journal(self.store.journal_of(cell.identity))

    def _numbered(self, cell: Cell, release: Entry, number: int) -> Entry:
        return replace(release, number=f"{number:016x}", record=cell.key, what=self.what)


def _conditions(cell: Cell) -> int:
    return conditions_of(device_of(cell), cell.resources.threads, code_of(cell.method, cell.task))


def _plan_key(cell: Cell) -> str:
    return cell.identity.model_copy(update={"seed": None, "run": None}).key
