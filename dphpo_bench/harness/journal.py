"""What is drawn once and must not be drawn again, though the process may die in between.

The number of runs of a private selection is secret and independent of the data. Were a killed run started anew
with a fresh draw, long ones would be redrawn more often than short ones, and the number of runs would depend on
how long the data take. So the harness keeps the seed of an unfinished run in a private file, removed when the
run is recorded.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from dphpo_bench.base.errors import RecordError
from dphpo_bench.base.files import read_whole

MAX_JOURNAL_BYTES = 2**20


class Journal:
    """Values that are drawn once each.

    Nothing in it may be published: whoever knows the seed can subtract the noise.

    Args:
        path: the file that outlives the process, readable by its owner only; None keeps values in memory.

    Raises:
        RecordError: if the file is there and is not a journal.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.values: dict[str, int] = {}
        if path is not None:
            self.values = _read(path)

    def once(self, name: str, draw: Callable[[], int]) -> int:
        """The value of this name, drawn and written to disk if there is none yet.

        Raises:
            RecordError: if it cannot be written.
        """
        if name not in self.values:
            value = draw()
            self._append(json.dumps([name, value]) + "\n")
            self.values[name] = value
        return self.values[name]

    def _append(self, line: str) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "rb+") as file:
                end = file.read().rfind(b"\n") + 1  # after the last whole line
                file.truncate(end)
                file.seek(end)
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecordError(f"Cannot write the journal {self._path}: {error.strerror}.") from None

    def discard(self) -> None:
        """Forget everything; the run has been recorded."""
        self.values = {}
        if self._path is not None:
            self._path.unlink(missing_ok=True)


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
        # A last line without its end was being written when the process died: nothing was done with it.
        for line in text.split(b"\n")[:-1]:
            name, value = json.loads(line)
            if type(name) is not str or type(value) is not int or value < 0:
                raise ValueError
            values[name] = value
    except (ValueError, TypeError, RecursionError):
        raise RecordError(f"{path} is not a journal of an unfinished run. Remove it.") from None
    return values
