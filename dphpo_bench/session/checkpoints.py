"""Checkpoints of a run's training loop, from which the run goes on after its process died.

A checkpoint holds the loop's own objects, the positions of all random streams, and what was charged. A run that goes on
therefore draws the noise of each later step once more for the same question, and gets the same answer; `releases`
notices another one, which that noise would not hide.
"""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dphpo_bench.base.errors import InvalidValueError, RecordError
from dphpo_bench.base.files import TORN, write_whole
from dphpo_bench.base.progress import Meter, Progress
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.releases import Releases, releases_beside
from dphpo_bench.training.noise import AnyGenerator
from dphpo_bench.training.snapshots import restore, snapshot

_DIGEST_BYTES = 32

NO_STATE = (
    "This method cannot go on from a checkpoint: it asks for releases outside of a training loop that names its state "
    "(training_steps(state=...)). Leave out --checkpoint-every (checkpoint_every)."
)


@dataclass(frozen=True)
class Position:
    """The progress of a run, but for the state of its method; the fields are those of `Access`."""

    ledger: Ledger
    begun: dict[bytes, AnyGenerator]
    counts: Counter[bytes]
    meter: Meter
    progress: Progress
    releases: Releases


class Checkpoints:
    """The checkpoint of one run, and when it is written.

    Nothing in the file may be published: it holds weights, the state of the optimiser and the positions of the random
    streams, and whoever has these can subtract the noise.

    Args:
        path: the file, readable by its owner only.
        every: steps between two checkpoints.
        conditions: what has to be the same for a run to go on, by name.
        anew: how to start such a run anew where it is not, for a message.
    """

    def __init__(self, path: Path, every: int, conditions: Mapping[str, str], anew: str) -> None:
        self._path, self._every, self._conditions, self._anew = path, every, dict(conditions), anew
        self.has_begun = self._is_running = False
        self._saved = self._read()

    @property
    def step(self) -> int:
        """The number of steps that the checkpoint holds; 0 without one."""
        return 0 if self._saved is None else int(self._saved["step"])

    def steps(self, position: Position, total: int, state: Sequence[Any] | None) -> Iterator[int]:
        """Yield the steps of a training loop from the checkpoint on; see `Session.steps`.

        The first loop of a run has checkpoints. A later one is repeated from the last checkpoint of the first.
        """
        if self._is_running:
            raise InvalidValueError("Expected one training loop at a time in a run with checkpoints.")
        if self.has_begun:
            yield from range(total)
            return
        if state is None or position.ledger.root is not position.ledger:
            raise InvalidValueError(NO_STATE)
        first = self.step
        if self._saved is None:
            snapshot(state)  # what cannot be saved is refused before anything is released
        else:
            self._go_on(position, state)
        self.has_begun = self._is_running = True
        try:
            for step in range(first, total):
                yield step
                if (step + 1) % self._every == 0:
                    self._write(position, step + 1, state)
        finally:
            self._is_running = False

    def _go_on(self, position: Position, state: Sequence[Any]) -> None:
        saved, self._saved = self._saved, None
        assert saved is not None
        restore(state, saved["state"])
        for name, device, reached in saved["streams"]:
            key = name.encode()
            generator = position.begun.setdefault(key, torch.Generator(device))
            generator.set_state(reached)  # type: ignore[union-attr]
        position.counts.clear()
        position.counts.update({name.encode(): number for name, number in saved["counts"]})
        position.meter.done = saved["done"]
        position.releases.count = saved["released"]
        position.ledger.go_on(Ledger.from_json(json.loads(saved["ledger"])))

    def _write(self, position: Position, step: int, state: Sequence[Any]) -> None:
        """Write a checkpoint; where that fails, say so and go on: the last one is still there."""
        content = {
            "conditions": self._conditions,
            "step": step,
            "state": snapshot(state),
            "streams": [
                [key.decode(), str(generator.device), generator.get_state()]  # type: ignore[union-attr]
                for key, generator in position.begun.items()
            ],
            "counts": [[key.decode(), number] for key, number in position.counts.items()],
            "done": position.meter.done,
            "released": position.releases.count,
            "ledger": json.dumps(position.ledger.to_json()),
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        digest = hashlib.sha256(buffer.getbuffer()).digest()
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._path, [digest, buffer.getbuffer()], mode=0o600)
        except OSError as error:
            position.progress.note(f"Cannot write the checkpoint {self._path}: {error.strerror}. The run goes on.")

    def _read(self) -> dict[str, Any] | None:
        for torn in self._path.parent.glob(f".{self._path.name}.*{TORN}"):  # of a process killed while it wrote
            torn.unlink(missing_ok=True)
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RecordError(f"Cannot read the checkpoint {self._path}: {error.strerror}.") from None
        if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            raise RecordError(
                f"The checkpoint {self._path} is damaged: remove it, and the run starts from its first step."
            )
        saved: dict[str, Any] = torch.load(io.BytesIO(data[_DIGEST_BYTES:]), weights_only=True)
        before = saved["conditions"]
        changed = [name for name in self._conditions | before if self._conditions.get(name) != before.get(name)]
        if changed:
            raise RecordError(
                f"The checkpoint {self._path} is of a run with another {' and another '.join(changed)}, and does not "
                f"serve this one: the same noise would answer other questions. Go on as there; or {self._anew}."
            )
        return saved


def discard(path: Path) -> None:
    """Remove the checkpoint of a run that is over, and the hashes of its releases."""
    path.unlink(missing_ok=True)
    releases_beside(path).unlink(missing_ok=True)
