"""Settings of a run beside its plan: seed, device, journal, progress."""

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.meter import Meter
from dphpo_bench.base.progress import NullProgress, Progress
from dphpo_bench.harness.journal import Journal
from dphpo_bench.privacy.event_kinds import has_selection, hides_time
from dphpo_bench.training.randomness import Streams

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dphpo_bench.data.source import DataSource
    from dphpo_bench.privacy.ledger import Ledger
    from dphpo_bench.session.checkpoints import Checkpoints
    from dphpo_bench.session.observer import Observer
    from dphpo_bench.session.releases import Releases

SECURE_NOISE = "secure noise"  # an entry of a journal: the run has drawn noise that no restart can repeat

CONDITIONS = "conditions"
"""An entry of a journal: under which a restart repeats what has been asked; see `Setup.conditions`."""


def conditions_of(device: str, threads: int, code: str) -> int:
    """Return a hash of what decides what is asked and how sums are rounded.

    These are a hash of the code, the device, the number of threads, torch's version, and the kind of processor, as far
    as torch tells.
    """
    import torch

    text = json.dumps([code, device, threads, torch.__version__, torch.backends.cpu.get_cpu_capability()])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@dataclass(frozen=True)
class Setup:
    """Settings of a run beside its plan.

    Attributes:
        seed: makes a run on public records repeatable, noise included; None takes the noise from the operating
            system's entropy.
        secure_noise: draw exact noise, and all else that privacy rests on from cryptographic generators.
        code: a hash of the code of a run that may go on after a kill, where that must not change; see `code_of`.
        journal: where the seed of an unseeded run is kept until it is recorded; default: in memory.
        observer: called with each release.
        checkpoints: from which the run goes on; None: it has none.
        releases: notes what is released, where a restart would draw the same noise; None: nothing is noted.
        order: number of trials of a selection → their indices in the order in which they run, which changes nothing.
        source: where the data of a public sibling are found; None: where the environment says.
    """

    seed: int | None = None
    secure_noise: bool = False
    device: str = "cpu"
    code: str = ""
    journal: Journal = field(default_factory=Journal)
    progress: Progress = field(default_factory=NullProgress)
    meter: Meter = field(default_factory=Meter)
    observer: "Observer | None" = None
    checkpoints: "Checkpoints | None" = None
    releases: "Releases | None" = None
    order: Callable[[int], Sequence[int]] = range
    source: "DataSource | None" = None

    def __post_init__(self) -> None:
        if not self.secure_noise:
            return
        from dphpo_bench.training.secure_noise import require_opendp

        if self.seed is not None:
            raise InvalidValueError(
                f"Expected no seed with secure noise, got {self.seed}: whoever knows a seed can subtract the noise. "
                "Leave out one of the two."
            )
        require_opendp()

    @property
    def unseeded(self) -> bool:
        """True if anything can stay hidden: a seed lets anybody compute everything."""
        return self.seed is None

    def hides_trials(self, event: "DpEvent") -> bool:
        """Return True if the number of trials is secret."""
        return self.unseeded and has_selection(event)

    def hides_time(self, event: "DpEvent", ledger: "Ledger") -> bool:
        """Return True if the time and the memory of training are secret."""
        return self.unseeded and (ledger.hides_time or hides_time(event))

    def conditions(self) -> int:
        import torch

        return conditions_of(self.device, torch.get_num_threads(), self.code)

    def streams(self, public: bool) -> Streams:
        """Return the run's random streams; the journal keeps the seed of an unseeded run, which is drawn once.

        On records that are not public, no two runs share noise, even at one seed: the streams' names hold a number that
        each run draws when it is counted.
        """
        if self.secure_noise:
            self.journal.once(SECURE_NOISE, lambda: 1)
        if self.unseeded or not public:
            self.journal.once(CONDITIONS, self.conditions)
        bits = 256 if self.secure_noise else 128
        seed = self.journal.once("seed", lambda: secrets.randbits(bits)) if self.seed is None else self.seed
        return Streams(seed, () if public else (f"run {self.journal.nonce():016x}",), self.secure_noise)
