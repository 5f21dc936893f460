"""Whether the records of an `ArrayTask` are still those that earlier results are of.

A hash of private records is in no record of a run, so nothing there shows that they changed. A folder of results keeps
a hash with a key that is drawn at random and kept beside it, in a hidden folder that only the user can read.
"""

import contextlib
import hashlib
import json
import secrets
from pathlib import Path

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.files import read_whole, write_whole
from dphpo_bench.base.text import compact_json
from dphpo_bench.contract.task import Task
from dphpo_bench.recipes.array_task import ArrayTask
from dphpo_bench.records.record import Identity

MAX_BYTES = 1000


def check_same_data(root: Path, task: Task, identity: Identity) -> None:
    """Refuse an `ArrayTask` whose records changed, while its version did not, since results were put into a folder.

    Args:
        root: the folder of results; hashes are in its folder `.data`, which must not be published.
        task: the task; any but an `ArrayTask` tells its data by its fingerprint.
        identity: of any run on it.

    Raises:
        DataError: if they changed.
    """
    if not isinstance(task, ArrayTask):
        return
    of_task = [getattr(identity, name) for name in ("task", "facts", "data_fingerprint")]
    path = root / ".data" / f"{hashlib.sha256(compact_json(of_task).encode()).hexdigest()[:16]}.json"
    try:
        key, digest = json.loads(read_whole(path, MAX_BYTES))
        changed = digest != task.digest(bytes.fromhex(key))
    except (OSError, ValueError, TypeError):  # there is none yet, or it is damaged
        drawn = secrets.token_bytes(32)
        with contextlib.suppress(OSError):  # a help, not a result
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, json.dumps([drawn.hex(), task.digest(drawn)]))
        return
    if changed:
        raise DataError(
            f"The records of task {task.name} are others than those that results in {root} are of, and its version is "
            "the same. Give the task another version=, or name another folder of results."
        )
