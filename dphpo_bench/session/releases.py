"""Hashes of what an unfinished run has released, by which a restart shows whether it asks the same again.

A run that starts again after a kill draws the same noise. If its method asks something else than before, the difference
of the two answers has no noise. So each answer is compared with that of the earlier process before it is released.
"""

import errno
import hmac
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_NOTE_BYTES = 16

OTHER_QUESTION = (
    "The run started again, after a kill or by again=, and asked something else than before, or another processor "
    "rounded its sums otherwise; with the same noise, the difference would show the records, so nothing was released. "
    "Let no question depend on clocks or other randomness than the session's, with checkpoints name all that the "
    "training loop changes in its state, and go on where the run began. The next run without again= starts anew, which "
    "is a second release."
)


def releases_beside(path: Path) -> Path:
    """Return the file of the hashes of a run, beside its journal or its checkpoint."""
    return path.with_suffix(".releases")


class Releases:
    """The hashes of one run's releases, in their order, in a file that its owner only may read.

    Args:
        path: the file; it starts anew if it is of another secret.
        secret: names the run and keys the hashes, so that nobody without it can test guesses at a release.
        finished: whether the run has ended: then nothing more is noted, and what is not there is something else.
        resumed_from: the journal and the checkpoint, which go if a note cannot be written. Without them the run ends.
    """

    def __init__(
        self, path: Path, secret: bytes, finished: bool = False, resumed_from: Sequence[Path | None] = ()
    ) -> None:
        self._path, self._secret, self._finished = path, secret, finished
        self._resumed_from = [*filter(None, resumed_from)]
        self.count = 0

    def is_as_before(self, release: "Sequence[Tensor]") -> bool:
        """Note a hash of the next release; return False if an earlier process released something else at this place."""
        from dphpo_bench.training.structure import content

        note, run = self._hash(b"release", *map(content, release)), self._hash(b"run")
        self.count += 1
        if self._finished:
            with suppress(OSError):
                return self._path.read_bytes()[self.count * _NOTE_BYTES :][:_NOTE_BYTES] == note
            return False
        earlier = None
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                is_ours = os.pread(file, _NOTE_BYTES, 0) == run
                earlier = os.pread(file, _NOTE_BYTES, self.count * _NOTE_BYTES) if is_ours else b""
                if not is_ours:
                    os.ftruncate(file, 0)
                    _write(file, run, 0)
                if len(earlier) < _NOTE_BYTES:
                    _write(file, note, self.count * _NOTE_BYTES)
            finally:
                os.close(file)
        except OSError:  # as on a full disk: the run goes on, and another process starts anew, with other noise
            if not self._resumed_from or (earlier is None and self._path.exists()):
                raise  # this process may be another, whose notes cannot be read
            for each in self._resumed_from:
                each.unlink(missing_ok=True)
        return earlier is None or len(earlier) < _NOTE_BYTES or earlier == note

    def _hash(self, *parts: bytes) -> bytes:
        digest = hmac.new(self._secret, digestmod="sha256")
        for part in parts:
            digest.update(part)
        return digest.digest()[:_NOTE_BYTES]


def _write(file: int, note: bytes, place: int) -> None:
    if os.pwrite(file, note, place) < len(note):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
