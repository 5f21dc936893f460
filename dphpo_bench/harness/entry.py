"""Seeds, which are for public data, and the entry of one run in the account of its private records."""

import hashlib
import math
import secrets
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from dphpo_bench.base.errors import AccountError, InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract.task import Task
from dphpo_bench.harness.account import DEFAULT, VOID, Account, Entry, refuse_if_closed
from dphpo_bench.harness.attempt import Attempt
from dphpo_bench.harness.journal import Journal
from dphpo_bench.harness.plan import CheckedPlan
from dphpo_bench.harness.setup import Setup
from dphpo_bench.records.record import Identity
from dphpo_bench.records.store import RecordStore

ENTRY = "entry"  # key of a journal without a seed of its own: the number of the run's entry


def number_of(seed: int) -> int:
    """Return the number of the entry of a run that draws from this secret seed.

    So a run that goes on after a kill is counted once, and two seeds are never counted as one run.
    """
    return int.from_bytes(hashlib.sha256(f"entry {seed}".encode()).digest()[:8], "big")


@dataclass(frozen=True)
class OpenEntry:
    """A run's line in an account, written before the data are read."""

    account: Account
    number: str
    is_new: bool  # this process wrote it; otherwise the run goes on after a kill, and may have released something
    setup: Setup

    @classmethod
    def make(cls, account: Account, checked: CheckedPlan, identity: Identity, setup: Setup) -> "OpenEntry":
        is_fresh = not setup.journal.values
        setup.streams()  # notes the conditions under which the run may go on, before anything else is drawn
        if setup.unseeded:
            number = number_of(setup.journal.values["seed"])
        else:
            number = setup.journal.once(ENTRY, lambda: secrets.randbits(64))
        try:
            entry = Entry.of(checked, number, "run", told_apart(identity, setup.journal).key)
            return cls(account, entry.number, account.count([entry]) and is_fresh, setup)
        except AccountError:
            if is_fresh:
                setup.journal.discard()
            raise

    @contextmanager
    def voided_on_mistakes(self) -> Iterator[None]:
        """Take the entry back if the data cannot be loaded: nothing has been asked of them."""
        try:
            yield
        except BaseException:
            if self.is_new:
                self.note(status=VOID)
                self.setup.journal.discard()
            raise

    def note(self, **changes: Any) -> None:
        """Note more of the run. The entry counts also where that fails, as on a full disk."""
        with suppress(AccountError):
            self.account.note(self.number, **changes)

    def end(self, attempt: Attempt, status: str) -> None:
        """Note how the run ended; take the entry back if it failed before it asked anything of the records."""
        asked_nothing = self.is_new and attempt.ledger.untouched and attempt.status != "ok"
        self.note(status=VOID if asked_nothing else status)


@dataclass(frozen=True)
class Counted:
    """A run that its caller has counted in an account: what it draws from, and the event of its plan, as text."""

    journal: Journal
    event: str

    def check(self, checked: CheckedPlan) -> None:
        if Entry.of(checked, 0).event != self.event:
            raise InvalidValueError(
                f"Method {checked.method.name} planned otherwise than when its run was counted. A plan follows from "
                "facts and budget alone; run its contract with dphpo-bench check."
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


def told_apart(identity: Identity, journal: Journal) -> Identity:
    """Return the identity, with a random number for a run without a seed, since all such runs are different.

    The number comes from the journal, so that a run that is interrupted after it was recorded does not count twice.
    """
    if identity.seed is not None:
        return identity
    number = journal.once("run", lambda: secrets.randbits(64))  # says nothing about the seed
    return identity.model_copy(update={"run": f"{number:016x}"})
