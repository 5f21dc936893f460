"""Digests of private records under a folder's secret key, which show that they changed since earlier results.

Nothing that a run publishes holds a plain hash of private records: anybody could test guesses at a record with one.
"""

import contextlib
import hashlib
import hmac
import secrets
from pathlib import Path

import torch

from dphpo_bench.base.errors import DataError, RecordError
from dphpo_bench.base.files import read_whole, write_whole
from dphpo_bench.base.tensors import RECORD, Records
from dphpo_bench.base.text import compact_json
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.data.cache import locked
from dphpo_bench.data.source import DataSource
from dphpo_bench.records.record import Identity

KEY_BYTES = 32


def records_digest(key: bytes, *splits: Records) -> str:
    """Return a keyed hash of all records, 64 hexadecimal digits; testing guesses at a record takes the key."""
    digest = hmac.new(key, digestmod="sha256")
    for records in splits:
        for name, tensor in records.named().items():
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_declared(facts: TaskFacts, train: Records) -> None:
    """Refuse records whose number or unit is not as the facts declare it.

    Raises:
        DataError: if it is not.
    """
    train.check_unit(facts.unit)
    if train.n_units != facts.n_records:
        what = "records" if facts.unit == RECORD else f"units ({facts.unit})"
        raise DataError(
            f"Task {facts.task} declares N={facts.n_records} public training {what} but loads {train.n_units}. "
            "Set n_records of its facts to a number that is public, and make its data fit it."
        )


def keeps_digest(task: Task) -> bool:
    """Return True if a folder of results keeps a digest of the task's records, because no identity names them."""
    return not task.public or task.fingerprint_is_declared


def data_digest(root: Path, task: Task, train: Records, source: DataSource) -> str:
    """Return the digest of a task's records under the folder's key; test records count where they load for nothing."""
    splits = [train, task.load_test(source)] if task.fingerprint_is_declared else [train]
    return records_digest(folder_key(root), *splits)


def folder_key(root: Path) -> bytes:
    """Return the secret key of a folder of results; the first call draws it."""
    path = root / ".data" / "key"
    try:
        with contextlib.suppress(FileNotFoundError):
            return _valid_key(read_whole(path, KEY_BYTES), path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(path):  # another process may have drawn it meanwhile
            if not path.exists():
                write_whole(path, secrets.token_bytes(KEY_BYTES), mode=0o600)
            return _valid_key(read_whole(path, KEY_BYTES), path)
    except (OSError, DataError) as error:
        raise RecordError(f"Cannot keep the key {path}: {getattr(error, 'strerror', None) or error}.") from None


def _valid_key(key: bytes, path: Path) -> bytes:
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
        check_same_data(root, task, identity, data_digest(root, task, task.load_train(source), source))
