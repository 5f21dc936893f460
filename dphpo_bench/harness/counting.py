"""The stage `count`: identity, journal and the entry in an account, before the private records are read."""

import hashlib
import json
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dphpo_bench.base.errors import InvalidValueError, RecordError
from dphpo_bench.base.text import shown
from dphpo_bench.contract.task import Task
from dphpo_bench.harness.account import DEFAULT, Account, Entry, refuse_if_closed
from dphpo_bench.harness.journal import NONCE, Journal
from dphpo_bench.harness.loading import read
from dphpo_bench.harness.plan import CheckedPlan
from dphpo_bench.harness.recording import identity_of, numbered, task_identity
from dphpo_bench.harness.state import CONDITIONS, SECURE_NOISE, Run
from dphpo_bench.records.store import RecordStore


@dataclass(frozen=True)
class Counted:
    """A run that its caller has counted in an account: what it draws from, and the event of its plan, as text."""

    journal: Journal
    event: str

    def check(self, checked: CheckedPlan) -> None:
        """Reject another plan than the one that was counted."""
        if Entry.of(checked, 0).event != self.event:
            raise InvalidValueError(
                f"Method {checked.method.name} planned otherwise than when its run was counted. A plan follows from "
                "facts and budget alone; run its contract with dphpo-bench check."
            )


def count(run: Run) -> None:
    """Name the run, take its journal, and write its entry. From here on, no other process has the journal."""
    if run.task.public:  # the identity holds a hash that may need them on disk; of private records it holds nothing
        read(run)
    checked = run.checked
    of_task = task_identity(run.task, checked.facts, run.source)
    run.identity = identity_of(checked.method, of_task, checked.plan.budget, run.seed)
    if run.store:
        run.store.check_writable(run.identity)
        run.store.check_free(run.identity)
        if not run.counted and run.again is None and (run.unseeded or not run.task.public):
            run.journal = Journal.claimed(run.store.journal_of(run.identity))
    if not run.counted:
        run.is_first = not run.journal.values
        _check_goes_on(run)
    if run.account and run.again is not None:
        check_again(run, run.account, run.again)
    elif run.account:
        run.streams()  # notes the conditions under which the run may go on, and draws its number
        entry = _entry(run)
        if not run.unseeded:
            run.journal.releases = run.account.notes_of(entry.number)  # these stay, for a run that repeats it
        run.is_first = run.account.count([entry]) and run.is_first
        run.entry = entry


def _entry(run: Run) -> Entry:
    """Return the run's line in an account, with a hash of what must not change where it is repeated."""
    same = hashlib.sha256(json.dumps([run.identity.key, run.conditions()]).encode()).hexdigest()[:16]
    key = numbered(run.identity, run.journal).key
    return replace(Entry.of(run.checked, run.journal.nonce(), "run", key), hash=same)


def check_again(run: Run, account: Account, number: str) -> None:
    """Let a run draw the noise of an earlier one, if it is the same run: then it releases nothing new.

    What the hash cannot see, such as a global value that a network reads, `Releases` notices before it is released.

    Raises:
        InvalidValueError: if no finished run has this number, or the present one differs from it.
    """
    known = account.find(number)
    if known is None or known.status != "ok" or not account.notes_of(number).exists():
        raise InvalidValueError(
            f"Expected again= (--again) with the number of a seeded run that ended well in {account.path}, got "
            f"{shown(number, form=repr)}. Leave it out for a run of its own."
        )
    run.journal.once(NONCE, lambda: int(number, 16))
    run.journal.releases = account.notes_of(number)
    entry = _entry(run)
    if (entry.hash, entry.event) != (known.hash, known.event):
        raise InvalidValueError(
            f"The run {number} was of another task, method, seed, code, device or plan: the same noise on other "
            "questions would show the records. Leave out again= (--again) for a run of its own, which is a release."
        )


def _check_goes_on(run: Run) -> None:
    """Check that a run that an earlier process began can repeat its questions and its noise.

    Raises:
        RecordError: if it cannot.
    """
    journal, begun = run.journal, "An earlier run of this was interrupted"
    anew = f"remove {journal.path} to start anew, which is a second release: count ε and δ of both runs"
    if not journal.values:
        return
    # A GPU rounds its sums otherwise each time: the same noise on them would show the difference.
    if SECURE_NOISE in journal.values or run.secure_noise or run.device.startswith("cuda"):
        raise RecordError(f"{begun}, and its noise cannot be drawn again: {anew}.")
    if journal.values.get(CONDITIONS) != run.conditions():
        raise RecordError(
            f"{begun} on another device or processor, with another number of threads, or by other code or another "
            f"torch: the same noise on other sums would show the records. Go on as there; or {anew}."
        )
    if journal.is_remembered:
        raise RecordError(
            f"{begun} in this process, which may remember what it had released: another question with the same noise "
            f"would show the records. Start a new process to go on; or {anew}."
        )


def account_of(task: Task, store: RecordStore | None, name: str | None) -> Account | None:
    """Return the account that counts a run on private records; None where there is none."""
    if task.public:
        if name is not None:
            raise InvalidValueError(f"Expected no account: the data of task {task.name} are public. Leave it out.")
        return None
    if store is None:
        if name is not None:
            raise InvalidValueError(
                f"Expected results_dir with account={shown(name, form=repr)}: an account lies in a folder of results."
            )
        refuse_if_closed()
        warnings.warn(
            f"Task {task.name} has private data, and no account counts this run: name a folder with results_dir.",
            stacklevel=3,
        )
        return None
    return Account(store.root, DEFAULT if name is None else name)


def refuse_no_privacy(entry: Entry, allowed: bool) -> None:
    """Reject a method without privacy on private records, unless its output stays inside."""
    if entry.epsilon == math.inf and allowed is not True:
        raise InvalidValueError(
            f"Method {entry.method} has no privacy (ε = ∞), and the data of task {entry.task} are private. Use another "
            "method; or say with --not-private (not_private=True) that its output stays inside; the account says ∞."
        )


def check_may_spend(tasks: Iterable[Task], allowed: bool, what: str) -> None:
    """Reject work beside the runs that were asked for, `what`, on private records, unless it is allowed."""
    private = next((task.name for task in tasks if not task.public), None)
    if private and not allowed:
        raise InvalidValueError(
            f"The data of task {private} are private, and this takes {what}: each is a release that costs ε. Use "
            "public data; or say with --private-records (private_records=True) that the account may count them."
        )


def default_seed(task: Task) -> int | None:
    """Return the seed of a run that names none: 0 if the data are public, else no seed."""
    return 0 if task.public else None


def warn_of_seeds(task: Task, seeds: str) -> None:
    """Warn if runs on private data have seeds, which the warning calls `seeds`, such as "seed=3"."""
    if not task.public:
        warnings.warn(
            f"Task {task.name} has private data, and {seeds}: whoever learns a seed can subtract the noise. Leave the "
            "seed out, or keep it and the records secret.",
            stacklevel=3,
        )
