"""Random values that are drawn only once, even if the process dies.

If a killed run were started again with a fresh draw, long runs would be redrawn more often than short ones, and the
secret number of trials would depend on the data. So the seed of an unfinished run is kept until the run is recorded.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from dphpo_bench.base.errors import RecordError
from dphpo_bench.base.files import read_whole
from dphpo_bench.session.releases import releases_beside

MAX_JOURNAL_BYTES = 2**20

_remembered: set[Path] = set()
"""Journals of runs that were interrupted in this process, which may remember what they had released."""


class Journal:
    """Values that are drawn once each, in memory or in a file that only its owner can read.

    Nothing in it may be published, since the noise can be subtracted by the seed.

    Attributes:
        values: what has been drawn, by name.
        releases: the file of hashes of what the run has released; see `session.releases`. None: there is none.

    Raises:
        RecordError: if the file exists and is not a journal.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.releases = None if path is None else releases_beside(path)
        self.values: dict[str, int] = {} if path is None else _read(path)

    @classmethod
    def holding(cls, values: Mapping[str, int], releases: Path | None = None) -> "Journal":
        """Return a journal in memory with these values and this file of releases, from whoever keeps the files."""
        journal = cls()
        journal.values.update(values)
        journal.releases = releases
        return journal

    def once(self, name: str, draw: Callable[[], int]) -> int:
        """Return the value with this name, drawn and written to disk if there is none yet."""
        if name not in self.values:
            value = draw()
            self._append(json.dumps([name, value]) + "\n")
            self.values[name] = value
        return self.values[name]

    def _append(self, line: str) -> None:
        if self._path is None:
            return
        try:
            append(self._path, line)
        except OSError as error:
            raise RecordError(f"Cannot write the journal {self._path}: {error.strerror}.") from None

    def remember(self) -> None:
        """Note that the run is interrupted after a release, which this process may remember."""
        if self._path is not None:
            _remembered.add(self._path.absolute())

    @property
    def is_remembered(self) -> bool:
        """True if the run was interrupted in this process after a release, and its journal is still there."""
        return bool(self.values) and self._path is not None and self._path.absolute() in _remembered

    def discard(self) -> None:
        """Forget everything; the run has been recorded."""
        self.values = {}
        if self._path is not None:
            _remembered.discard(self._path.absolute())
            self._path.unlink(missing_ok=True)
            releases_beside(self._path).unlink(missing_ok=True)


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


def _read(path: Path) -> dict[str, int]:
    try:
        text = read_whole(path, MAX_JOURNAL_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RecordError(f"Cannot read the journal {path}: {error.strerror}.") from None
    values: dict[str, int] = {}
    try:
        if len(text) > MAX_JOURNAL_BYTES:
            raise ValueError
        # A last line without an end: the process died while it wrote it, so nothing was done with that value.
        for line in text.split(b"\n")[:-1]:
            name, value = json.loads(line)
            if type(name) is not str or type(value) is not int or value < 0:
                raise ValueError
            values[name] = value
    except (ValueError, TypeError, RecursionError):
        raise RecordError(f"{path} is not a journal of an unfinished run. Remove it.") from None
    return values
