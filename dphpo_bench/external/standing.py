"""The standing of a search: which trials are over, and the best so far; on disk where a journal is."""

import hashlib
import hmac
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dphpo_bench.base.errors import RecordError
from dphpo_bench.base.files import write_whole
from dphpo_bench.contract.search_space import Candidate
from dphpo_bench.external.declared import DeclaredRun

FINAL = "final"
"""Key of the final run."""

_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Best:
    """The best trial so far.

    Attributes:
        key: of the trial.
        score: with its noise.
        params: hyperparameters.
        model: the caller's, as `pickle` writes it.
        has_drawn: whether training drew from generators that its trial started.
    """

    key: str
    score: float
    params: Candidate
    model: bytes
    has_drawn: bool = True


@dataclass(frozen=True)
class _State:
    best: Best | None = None
    final: bytes | None = None  # the model of the final run


class Standing:
    """Trials that are over and the best of them. A process that takes over after a kill reads both.

    The file is written before the journal says that a trial is over. What it holds of losers is their number, so it is
    the owner's alone, and gone with the journal.

    Args:
        run: whose journal and state file are used.

    Raises:
        RecordError: if the state of an interrupted search is damaged.
    """

    def __init__(self, run: DeclaredRun) -> None:
        self._journal, self._path = run.journal, run.state_path
        self._secret = hashlib.sha256(run.streams.name("state")).digest()
        self._state = _State()
        if self._path is not None and "state" in self._journal.values:
            self._state = self._read(self._path)
        else:
            self._write()
            self._journal.once("state", lambda: 1)

    @property
    def best(self) -> Best | None:
        """The best trial so far; None: none has a score."""
        return self._state.best

    @property
    def final(self) -> bytes | None:
        """The model of the final run, as `pickle` writes it."""
        return self._state.final

    def begins(self, key: str, *, repeatable: bool) -> bool:
        """Return whether a trial is to run now; note that it begins.

        One that was under way when an earlier process died has lost, since another start would be another draw. A
        repeatable one starts again on the same draws.
        """
        if f"over {key}" in self._journal.values:
            return False
        was_kept = (self.best and self.best.key == key) or (key == FINAL and self.final is not None)
        if f"begun {key}" in self._journal.values and (not repeatable or was_kept):
            self.end(key)
            return False
        self._journal.once(f"begun {key}", lambda: 1)
        return True

    def end(self, key: str) -> None:
        """Note that a trial is over."""
        self._journal.once(f"over {key}", lambda: 1)

    def offer(self, candidate: Best) -> None:
        """Keep a trial if it is the best so far; of equal scores the first stays."""
        if self.best is None or candidate.score > self.best.score:
            self._state = replace(self._state, best=candidate)
            self._write()

    def keep_final(self, model: bytes) -> None:
        """Keep the model of the final run."""
        self._state = replace(self._state, final=model)
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        content = pickle.dumps(self._state)
        try:
            write_whole(self._path, self._digest(content) + content, mode=0o600)
        except OSError as error:
            raise RecordError(f"Cannot write {self._path}: {error.strerror}.") from None

    def _digest(self, content: bytes) -> bytes:
        return hmac.digest(self._secret, content, "sha256")

    def _read(self, path: Path) -> _State:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise RecordError(f"Cannot read {path}: {error.strerror}. {self._way_out(path)}") from None
        if not hmac.compare_digest(self._digest(data[_DIGEST:]), data[:_DIGEST]):
            raise RecordError(f"{path} is damaged or of another study. {self._way_out(path)}")
        state: Any = pickle.loads(data[_DIGEST:])  # the digest shows that this study wrote it
        if not isinstance(state, _State):
            raise RecordError(f"{path} was written by another version of this package. {self._way_out(path)}")
        return state

    def _way_out(self, path: Path) -> str:
        return (
            f"It holds the best model of an interrupted study. Restore it from a backup; or remove it and "
            f"{path.with_suffix('.jsonl')} to start anew, which is a second release."
        )
