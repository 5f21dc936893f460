"""The state of one run: what its caller asked for, and what each stage has added."""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from dphpo_bench.base.errors import AccountError, InvalidValueError
from dphpo_bench.base.progress import Meter, NullProgress, Progress
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.method import Outcome
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.account import VOID, Account, Entry
from dphpo_bench.harness.journal import Journal
from dphpo_bench.harness.plan import CheckedPlan
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.privacy.accountants.report import EpsilonReport
from dphpo_bench.privacy.event_trees import has_selection, hides_time
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.records.record import ConstantGuess, FurtherMetrics, Identity, OutputNoise, RunRecord, Status
from dphpo_bench.records.store import RecordStore
from dphpo_bench.session.checkpoints import Checkpoints
from dphpo_bench.session.interfaces import Observer
from dphpo_bench.session.releases import Releases
from dphpo_bench.training.randomness import Streams

SECURE_NOISE = "secure noise"
"""Key of a journal: the run has drawn noise that no restart can repeat."""

CONDITIONS = "conditions"
"""Key of a journal: a hash of the conditions under which a restart repeats what has been asked."""


def conditions_of(code: str, device: str, threads: int) -> int:
    """Return a hash of the conditions under which a restart repeats what has been asked.

    These are the code, the device, the number of threads, torch's version, and the kind of processor, as far as torch
    tells.
    """
    text = json.dumps([code, device, threads, torch.__version__, torch.backends.cpu.get_cpu_capability()])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@dataclass(kw_only=True)
class Run:
    """One run. Each stage reads what earlier ones have added; stages set `identity`, `train` and `record`."""

    # The call.
    checked: CheckedPlan
    task: Task
    seed: int | None = None  # repeats a run on public records; None takes the noise from the system's entropy
    secure_noise: bool = False  # draw exact noise, and all that privacy rests on from cryptographic generators
    device: str = "cpu"
    code: str = ""  # a hash of the code of a run that may go on after a kill; see `code_of`
    progress: Progress = field(default_factory=NullProgress)
    source: DataSource = field(default_factory=DataSource.resolve)
    store: RecordStore | None = None  # the folder of results; None: nothing is written
    account: Account | None = None  # counts the run; None: nobody does, or its caller has
    counted: bool = False  # by the caller, as a sweep does
    again: str | None = None  # the number of the earlier run that this one repeats; see `check_again`
    checkpoint_every: int | None = None  # steps
    observer: Observer | None = None  # called with each release
    order: Callable[[int], Sequence[int]] = range  # number of trials → the order in which they run

    # Count and load.
    identity: Identity = field(init=False)
    journal: Journal = field(default_factory=Journal)  # keeps the seed of an unseeded run until it is recorded
    is_first: bool = False  # no other process has begun this run or joined it, so its entry can be taken back
    entry: Entry | None = None  # the run's line in the account
    train: Records = field(default=None)  # type: ignore[assignment]
    checkpoints: Checkpoints | None = None
    releases: Releases | None = None  # notes what is released, where a restart would draw the same noise

    # Train and verify.
    ledger: Ledger = field(default_factory=Ledger)  # what was released
    meter: Meter | None = None  # counts what is computed; None: the stage `train` starts one
    outcome: Outcome | None = None  # what the method returned; None if the run failed, but for its test
    status: Status = "ok"
    error: str | None = None  # why the run failed
    recomputed: EpsilonReport | None = None  # ε of the ledger; None if it cannot be bounded

    # Measure and record.
    metrics: Mapping[str, float] = field(default_factory=dict)
    guess: ConstantGuess | None = None  # the best constant guess, if the model is no better
    output_noise: OutputNoise | None = None
    further: Mapping[str, FurtherMetrics] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    record: RunRecord = field(init=False)
    path: Path | None = None  # of the record; None: it was not written

    def __post_init__(self) -> None:
        if not self.secure_noise:
            return
        from dphpo_bench.training.noise import require_opendp

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

    @property
    def hides_trials(self) -> bool:
        """True if the number of trials is secret."""
        return self.unseeded and has_selection(self.checked.plan.event)

    @property
    def hides_time(self) -> bool:
        """True if the time and the memory of training are secret."""
        return self.unseeded and (self.ledger.hides_time or hides_time(self.checked.plan.event))

    @property
    def model(self) -> nn.Module | None:
        """The trained model; None of a run that failed, unless only its test did."""
        return None if self.outcome is None else self.outcome.model

    def conditions(self) -> int:
        """Return a hash of the conditions under which a restart repeats what has been asked."""
        return conditions_of(self.code, self.device, torch.get_num_threads())

    def streams(self) -> Streams:
        """Return the run's random streams; the journal keeps the seed of an unseeded run, which is drawn once.

        On records that are not public, no two runs share noise, even at one seed: the streams' names hold a number that
        each run draws when it is counted.
        """
        if self.secure_noise:
            self.journal.once(SECURE_NOISE, lambda: 1)
        if self.unseeded or not self.task.public:
            self.journal.once(CONDITIONS, self.conditions)
        bits = 256 if self.secure_noise else 128
        seed = self.journal.once("seed", lambda: secrets.randbits(bits)) if self.seed is None else self.seed
        axes = () if self.task.public else (f"run {self.journal.nonce():016x}",)
        return Streams(seed, axes, self.secure_noise)

    @property
    def checkpoint_path(self) -> Path | None:
        """The file of the run's checkpoint, beside its journal if it has one; None without a folder of results."""
        journal = self.journal.path or (self.store and self.store.journal_of(self.identity))
        return journal.with_suffix(".checkpoint") if journal else None

    def note(self, **changes: Any) -> None:
        """Note more of the run in its account. The entry counts also where that fails, as on a full disk."""
        if self.account and self.entry:
            with suppress(AccountError):
                self.account.note(self.entry.number, **changes)

    def take_back(self) -> None:
        """Take the entry back and forget the journal, unless another process may have asked the records something."""
        if self.is_first:
            self.note(status=VOID)
            self.journal.discard()

    def fail(self, why: str | BaseException, *, status: Status = "failed", keep_model: bool = False) -> None:
        """Make it a failed run, without metrics; the model, which has been paid for, stays if only the test failed."""
        self.status, self.error = status, why if isinstance(why, str) else reason_of(why, self.unseeded)
        self.metrics, self.guess, self.output_noise, self.further = {}, None, None, {}
        if not keep_model:
            self.outcome = None


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Put the time of a stage into `seconds`."""
    start = perf_counter()
    try:
        yield
    finally:
        seconds[stage] = perf_counter() - start
