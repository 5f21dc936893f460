"""Random values that are drawn only once, even if the process dies.

If a killed run were started again with a fresh draw, long runs would be redrawn more often than short ones, and the
secret number of trials would depend on the data. So the seed of an unfinished run is kept until the run is recorded.
"""

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from dphpo_bench.base.errors import RecordError
from dphpo_bench.base.files import read_whole
from dphpo_bench.session.releases import releases_beside

MAX_JOURNAL_BYTES = 2**24
NONCE = "entry"
"""Key of the number of a run's entry in an account. On private records, the name of all noise holds this number."""

FILE = "file"
"""Key of the number that the file system has for the journal's file; that of a copy differs."""

_remembered: set[Path] = set()
"""Journals of runs that were interrupted in this process, which may remember what they had released."""


class Journal:
    """Values that are drawn once each, in memory or in a file that only its owner can read.

    Nothing in it may be published, since the noise can be subtracted by the seed.

    Attributes:
        path: of the file; None: there is none.
        values: what has been drawn, by name.
        releases: the file of hashes of what the run has released; see `session.releases`. None: there is none.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._lock: int | None = None
        self.releases = None if path is None else releases_beside(path)
        self.values: dict[str, int] = {} if path is None else _read(path)
        if path is not None and self.values and self.values.pop(FILE, None) != path.stat().st_ino:
            raise RecordError(
                f"{path}, of an unfinished run, is a copy. Where both go on, the same noise on two questions would "
                "show the records. Go on in the folder where it began; or remove the file to start anew, which is a "
                "second release: count ε and δ of both runs."
            )

    @classmethod
    def holding(cls, values: Mapping[str, int], releases: Path | None = None) -> "Journal":
        """Return a journal in memory with these values and this file of releases, from whoever keeps the files."""
        journal = cls()
        journal.values.update(values)
        journal.releases = releases
        return journal

    @classmethod
    def claimed(cls, beside: Path) -> "Journal":
        """Return the journal of a killed run, or a new one, which no other process has until `close`.

        The journal itself is locked. The operating system releases the locks of a process that dies.

        Args:
            beside: a path in the folder of the journals of all runs of one identity, whose names begin with its stem.
        """
        folder, name = beside.parent, f"{beside.stem}-{{}}.jsonl"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = folder / name.format(secrets.token_hex(8))
            for path in (*sorted(folder.glob(name.format("*"))), new):
                if (lock := _locked(path, os.O_CREAT if path == new else 0)) is not None:
                    try:
                        journal = cls(path)
                    except RecordError:
                        os.close(lock)
                        raise
                    journal._lock = lock
                    return journal
            return cls.claimed(beside)  # another process took the new one for that of a killed run
        except OSError as error:
            raise RecordError(f"Cannot write a journal into {folder}: {error.strerror}.") from None

    def nonce(self) -> int:
        """Return the number of the run's entry, drawn once."""
        return self.once(NONCE, lambda: secrets.randbits(64))

    def once(self, name: str, draw: Callable[[], int]) -> int:
        """Return the value with this name, drawn and written to disk if there is none yet."""
        if name not in self.values:
            value = draw()
            self._append(json.dumps([name, value]) + "\n")
            self.values[name] = value
        return self.values[name]

    def _append(self, line: str) -> None:
        if self.path is None:
            return
        try:
            if not self.values:
                append(self.path, "")
                line = json.dumps([FILE, self.path.stat().st_ino]) + "\n" + line
            append(self.path, line)
        except OSError as error:
            raise RecordError(f"Cannot write the journal {self.path}: {error.strerror}.") from None

    def remember(self) -> None:
        """Note that the run is interrupted after a release, which this process may remember."""
        if self.path is not None:
            _remembered.add(self.path.absolute())

    @property
    def is_remembered(self) -> bool:
        """True if the run was interrupted in this process after a release, and its journal is still there."""
        return bool(self.values) and self.path is not None and self.path.absolute() in _remembered

    def discard(self) -> None:
        """Forget everything; the run has been recorded."""
        self.values = {}
        if self.path is not None:
            _remembered.discard(self.path.absolute())
            self.path.unlink(missing_ok=True)
            releases_beside(self.path).unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let another process continue the run, if anything was drawn."""
        if self._lock is None or self.path is None:
            return
        if not self.values:
            self.path.unlink(missing_ok=True)
        lock, self._lock = self._lock, None
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)  # a copy of the process may have the file, too
        os.close(lock)


def append(path: Path, lines: str) -> None:
    """Append whole lines to a private file, in place of a torn last line, and flush them to disk; makes the folder."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = lines.encode()
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb+", buffering=0) as file:
        end = file.readall().rfind(b"\n") + 1
        file.truncate(end)
        file.seek(end)
        while data:
            data = data[file.write(data) :]
        os.fsync(file.fileno())


def _locked(path: Path, create: int) -> int | None:
    """Return a file that holds the lock of this path; None if another process has it, or has ended the run."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | create, 0o600)
    except FileNotFoundError:
        return None
    is_free = True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        is_free = error.errno not in (errno.EWOULDBLOCK, errno.EACCES)  # else the file system has no locks
    if is_free and os.fstat(file).st_nlink:
        return file
    os.close(file)
    return None


def _read(path: Path) -> dict[str, int]:
    try:
        if len(data := read_whole(path, MAX_JOURNAL_BYTES)) > MAX_JOURNAL_BYTES:  # its end would be drawn anew
            raise ValueError
        # A last line without an end: the process died while it wrote it, so nothing was done with that value.
        values = dict(json.loads(line) for line in data.split(b"\n")[:-1])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RecordError(f"Cannot read the journal {path}: {error.strerror}.") from None
    except (ValueError, TypeError, RecursionError):
        values = {"": None}
    if not all(type(name) is str and type(value) is int and value >= 0 for name, value in values.items()):
        raise RecordError(f"{path} is not a journal of an unfinished run. Remove it.")
    return values
