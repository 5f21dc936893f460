"""The stages `count` and `load`: identity, journal and the entry in an account; records, digest and checkpoint.

Nothing that a run publishes holds a plain hash of private records: anybody could test guesses at a record with one.
Digests are taken under the secret key of the folder of results.
"""

import contextlib
import hashlib
import hmac
import json
import math
import secrets
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from pathlib import Path

import torch

from dphpo_bench.base.checks import whole
from dphpo_bench.base.errors import DataError, InvalidValueError, RecordError
from dphpo_bench.base.files import read_whole, write_whole
from dphpo_bench.base.tensors import RECORD, Records
from dphpo_bench.base.text import compact_json, shown
from dphpo_bench.contract.method import Method, sibling_of
from dphpo_bench.contract.seals import run_lock
from dphpo_bench.contract.task import MAX_STEPS, Task, TaskFacts
from dphpo_bench.data.source import DataSource, locked
from dphpo_bench.harness.account import DEFAULT, Account, Entry, refuse_if_closed
from dphpo_bench.harness.journal import NONCE, Journal
from dphpo_bench.harness.plan import CheckedPlan
from dphpo_bench.harness.recording import identity_of, numbered, task_identity
from dphpo_bench.harness.state import CONDITIONS, SECURE_NOISE, Run, timed
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.event_trees import has_selection
from dphpo_bench.records.record import Identity
from dphpo_bench.records.store import RecordStore
from dphpo_bench.session.checkpoints import Checkpoints
from dphpo_bench.session.releases import Releases, releases_beside


@dataclass(frozen=True)
class Counted:
    """A run that its caller has counted in an account."""

    values: Mapping[str, int]  # of the run's journal, from which its noise is drawn
    event: str  # of its plan, as text
    releases: str = ""  # path of the hashes of what the run released before a kill; empty where it cannot start again

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
        if run.journal.values:
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
    """
    known = next((entry for entry in account.read()[1] if entry.number == number), None)
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
    """Reject a run that an earlier process began unless it can repeat its questions and its noise."""
    journal, begun = run.journal, "An earlier run of this was interrupted"
    anew = f"remove {journal.path} to start anew, which is a second release: count ε and δ of both runs"
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


KEY_BYTES = 32

_OPTION = "Leave out --checkpoint-every (checkpoint_every)."


def prepare(method: Method, task: Task, source: DataSource) -> None:
    """Download and cache what the task needs, and its public sibling, if the method tunes on one."""
    task.prepare(source)
    if sibling := sibling_of(method, task):
        sibling.prepare(source)


def read(run: Run) -> None:
    """Prepare the data, and load the training records."""
    with timed(run.seconds, "data"), run.progress.track("Preparing the data", 0):
        prepare(run.checked.method, run.task, run.source)
        run.train = run.task.load_train(run.source)


def load(run: Run) -> None:
    """Read the records, check that they are as declared and as before, and find where an earlier process stopped."""
    if not run.task.public:
        read(run)
    check_declared(run.checked.facts, run.train)
    if run.store and (not run.task.public or run.task.fingerprint_is_declared):  # no identity names these records
        digest = data_digest(run.store.root, run.task, run.source, run.train)
        check_same_data(run.store.root, run.task, run.identity, digest)
        run.note(digest=digest)
    if run.journal.releases and not run.task.public and not run.secure_noise:  # a restart draws the same noise
        secret = run.streams().name("releases")
        resumed_from = run.journal.path, run.checkpoint_path
        run.releases = Releases(run.journal.releases, secret, run.again is not None, resumed_from)
    if run.checkpoint_path and run.checkpoint_every is not None:
        _continue(run, run.checkpoint_path, run.checkpoint_every)


def records_digest(key: bytes, *splits: Records) -> str:
    """Return a keyed hash of all records, 64 hexadecimal digits; testing guesses at a record takes the key."""
    digest = hmac.new(key, digestmod="sha256")
    for records in splits:
        for name, tensor in records.named().items():
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_declared(facts: TaskFacts, train: Records) -> None:
    """Refuse records whose number or unit is not as the facts declare it."""
    train.check_unit(facts.unit)
    if train.n_units != facts.n_records:
        what = "records" if facts.unit == RECORD else f"units ({facts.unit})"
        raise DataError(
            f"Task {facts.task} declares N={facts.n_records} public training {what} but loads {train.n_units}. "
            "Set n_records of its facts to a number that is public, and make its data fit it."
        )


def data_digest(root: Path, task: Task, source: DataSource, train: Records | None = None) -> str:
    """Return the digest of a task's records under the folder's key; test records count where they load for nothing."""
    with run_lock:  # loading would end the run of another thread
        splits = [task.load_train(source) if train is None else train]
        if task.fingerprint_is_declared:
            splits.append(task.load_test(source))
    return records_digest(folder_key(root), *splits)


def folder_key(root: Path) -> bytes:
    """Return the secret key of a folder of results; the first call draws it."""
    path = root / ".data" / "key"
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(path):  # another process may have drawn it meanwhile
                if not path.exists():
                    write_whole(path, secrets.token_bytes(KEY_BYTES), mode=0o600)
        key = read_whole(path, KEY_BYTES)
    except (OSError, DataError) as error:
        raise RecordError(f"Cannot keep the key {path}: {getattr(error, 'strerror', None) or error}.") from None
    if len(key) != KEY_BYTES:
        raise RecordError(f"{path} is not the key of a folder of results. Restore it, or name another folder.")
    return key


def check_same_data(root: Path, task: Task, identity: Identity, digest: str) -> None:
    """Reject private records that changed, while their version did not, since results were put into a folder.

    Earlier digests, from `data_digest`, are in the folder's `.data`, which must not be published.
    """
    of_task = [getattr(identity, name) for name in ("task", "task_version", "facts", "data_fingerprint")]
    path = root / ".data" / f"{hashlib.sha256(compact_json(of_task).encode()).hexdigest()[:16]}.digest"
    try:
        known = read_whole(path, len(digest)).decode()
    except (OSError, ValueError):
        known = ""
    if len(known) != len(digest):  # there is none yet, or it is damaged
        with contextlib.suppress(OSError):  # a help, not a result
            write_whole(path, digest, mode=0o600)
    elif known != digest:
        raise DataError(
            f"The records of task {task.name} are others than those that results in {root} are of, and its version is "
            "the same. Give the task another version, or name another folder of results."
        )


def check_declared_data(root: Path, task: Task, identity: Identity, source: DataSource) -> None:
    """Reject records in memory, as an `ArrayTask` has them, that changed since results were put into a folder."""
    if task.fingerprint_is_declared:
        check_same_data(root, task, identity, data_digest(root, task, source))


def check_continuable(run: Run) -> None:
    """Reject checkpoints, before any data are read, of a run that could not go on from one."""
    whole("checkpoint_every", run.checkpoint_every, low=1, high=MAX_STEPS)
    method, plan = run.checked.method, run.checked.plan
    if run.store is None:
        raise InvalidValueError("Expected results_dir with checkpoint_every: a checkpoint is a file in that folder.")
    if run.secure_noise:
        raise InvalidValueError(f"Secure noise cannot be drawn twice, so its run cannot go on. {_OPTION}")
    if run.device.startswith("cuda") and (run.unseeded or not run.task.public):
        raise InvalidValueError(
            "A GPU rounds its sums otherwise each time, so that the same noise on them would show the records: without "
            f"a seed on public data such a run cannot go on. {_OPTION} Or take --device cpu."
        )
    if plan.cost.runs != 1 or has_selection(plan.event):
        raise InvalidValueError(
            f"Method {method.name} does more than one training run, and only a single one can go on from a "
            f"checkpoint. {_OPTION}"
        )


def _continue(run: Run, path: Path, every: int) -> None:
    """Give the run checkpoints, and let it go on from the last one if there is any."""
    streams = run.streams()
    changeable = {
        "seed": streams.derive("checkpoint"),
        "data set": records_digest(streams.name("records"), run.train),
        "plan": event_trees.to_json(run.checked.plan.event),
        "method or task": [run.identity.key, run.code],
        "version of a package": sorted((package.name, package.version) for package in distributions()),
        "device": [run.device, torch.backends.cpu.get_cpu_capability()],
        "number of threads": torch.get_num_threads(),
    }
    texts = {name: json.dumps(value, sort_keys=True) for name, value in changeable.items()}
    conditions = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    anew = "remove it to start from the first step"
    if journal := run.journal.path:
        anew = f"remove it and {journal} to start anew, which is a second release: count ε and δ of both runs"
    run.checkpoints = Checkpoints(path, every, conditions, anew)
    if run.checkpoints.step:
        run.progress.note(f"Going on after step {run.checkpoints.step}, from the checkpoint of an earlier process.")
    # A seed alone would take the releases of an edited method for those of the present one.
    secret = json.dumps(conditions, sort_keys=True).encode()
    run.releases = run.releases or Releases(releases_beside(path), secret, resumed_from=(path, run.journal.path))
