"""The number of steps that a training may have taken, which outlives a kill."""

import json

from dphpo_bench.base.errors import InvalidValueError, RecordError
from dphpo_bench.base.files import read_whole, write_whole
from dphpo_bench.external.declared import DeclaredRun

_WRITES = 1000  # at most, in a training


class ReservedSteps:
    """Steps written down beside the journal of a training before they are taken.

    Attributes:
        steps: how many may have been taken, those of earlier processes among them.
    """

    def __init__(self, run: DeclaredRun, restored: int, done: int) -> None:
        """Begin a training, or go on with it after a kill.

        Args:
            run: of the training, in the account.
            restored: steps of it in the accountant's history.
            done: steps of it in its checkpoint.

        Raises:
            InvalidValueError: if the checkpoint has steps that nobody counted.
            RecordError: if nobody knows what earlier processes took, or the file cannot be written.
        """
        self._path = run.state_path
        if run.resumed:
            self.steps = max(self._read(run), restored, done)
            return
        if done > restored:
            raise InvalidValueError(
                f"The training goes on after step {done} of a checkpoint, of which the accountant knows {restored:,}, "
                f"and no unfinished training {run.declaration.name} is in the folder of results. Load the accountant's "
                "state first, or go on under the name and in the folder with which it began."
            )
        self._write(restored)

    def cover(self, taken: int, planned: int) -> None:
        """Write down that one more step than `taken` may be taken; a thousandth of all at once.

        Raises:
            RecordError: if the file cannot be written.
        """
        if taken >= self.steps:
            self._write(min(planned, taken + max(1, planned // _WRITES)))

    def _write(self, steps: int) -> None:
        if self._path is not None:
            try:
                write_whole(self._path, json.dumps(steps), 0o600)
            except OSError as error:
                raise RecordError(
                    f"Cannot write {self._path}: {error.strerror}. No step was taken without it: a restart would not "
                    "know of it. Free some space, and go on from a checkpoint under the same name."
                ) from None
        self.steps = steps

    def _read(self, run: DeclaredRun) -> int:
        try:
            if self._path is None:
                raise ValueError
            steps = json.loads(read_whole(self._path, 100))
            if type(steps) is not int or steps < 0:
                raise ValueError
        except (OSError, ValueError):
            raise RecordError(
                f"How many steps the interrupted training {run.declaration.name} took is not known: {self._path} is "
                "missing or damaged. It stays counted whole; train under another name, which is a second release."
            ) from None
        return int(steps)
