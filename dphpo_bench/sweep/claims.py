"""Lock cells, so that several sweeps can share a folder of results."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Self

from dphpo_bench.base.errors import RecordError

_HELD = {errno.EACCES, errno.EAGAIN}


class Claims:
    """Locks on single bytes of one file in the folder of results, a byte for each cell.

    The operating system releases the locks of a process that dies. If a file system has no locks, every claim
    succeeds: two sweeps then run the same cells, and the last record stays.
    """

    def __init__(self, root: Path) -> None:
        path = root / ".claims"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RecordError(f"Cannot open {path}: {error.strerror}. Name a writable folder.") from None

    def take(self, key: str) -> bool:
        """Claim a cell; False if another process has it."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _offset(key))
        except OSError as error:
            return error.errno not in _HELD
        return True

    def give_back(self, key: str) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _offset(key))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def _offset(key: str) -> int:
    """Return a byte, which the file need not have; two of 10⁵ cells share a byte with probability below 1e-7."""
    return int(key[:15], 16)
