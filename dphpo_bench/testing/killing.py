"""Runs with checkpoints that end in the middle, as if their process had been killed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dphpo_bench.session.checkpoints import NO_STATE as NO_STATE
from dphpo_bench.session.checkpoints import Checkpoints, Position
from dphpo_bench.session.releases import Releases, releases_beside
from dphpo_bench.testing.runs import Bench

EVERY = 2


class _Killed(BaseException):
    """The end of a process, which no method may catch."""


class _Deadly(Checkpoints):
    """Checkpoints of a run that ends a step after the one in its middle."""

    def steps(self, position: Position, total: int, state: Sequence[Any] | None) -> Iterator[int]:
        """Yield the steps until the run ends."""
        for step in super().steps(position, total, state):
            if step == total // (2 * EVERY) * EVERY + 1:
                raise _Killed
            yield step


def checkpoints_in(folder: Path, kind: type[Checkpoints] = Checkpoints) -> dict[str, Any]:
    """Return the settings of a run whose checkpoints lie in this folder."""
    path = folder / "run.checkpoint"
    return {"checkpoints": kind(path, EVERY, {}, "remove it"), "releases": Releases(releases_beside(path), b"")}


def killed(bench: Bench, folder: Path) -> bool:
    """Run until the middle of the training loop, and leave a checkpoint; False if the run ended before.

    Raises:
        InvalidValueError: if the method has no checkpoints; the message is `NO_STATE`.
    """
    try:
        bench.run(**checkpoints_in(folder, _Deadly))
    except _Killed:
        return True
    return False
