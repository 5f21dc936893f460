"""What a session stands for: some of the private records, who pays for them, and the random streams.

A session made from another one holds the same value with some fields replaced.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

from dphpo_bench.base.checks import inside
from dphpo_bench.base.errors import ModelFailedError, OverBudgetError
from dphpo_bench.base.meter import Meter
from dphpo_bench.base.progress import Progress, SilentProgress
from dphpo_bench.privacy.holdout import TRAINING, VALIDATION, holdout_name
from dphpo_bench.privacy.ledger import Ledger, Scope
from dphpo_bench.session.checkpoints import Checkpoints
from dphpo_bench.session.guard import Guard
from dphpo_bench.session.observer import Observer
from dphpo_bench.session.own_code import OwnCode
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.session.unique import Unique
from dphpo_bench.training.model_checks import refuse_watchers
from dphpo_bench.training.randomness import Streams, global_randomness
from dphpo_bench.training.sampling import poisson_sample, uniform

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn

    from dphpo_bench.training.secure_noise import AnyGenerator

T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Access(Unique):
    """Access to some of the private records, under one account, with random streams of its own.

    Attributes:
        raw: the records.
        ledger: what is released is charged here.
        streams: random streams of this session.
        model_streams: those of initial weights and of parts, which methods compared at one seed share.
        guard: lets one query at a time see the records. All sessions of a run share it.
        begun: the streams in use, by what they are seeded by. Shared, too: to start a stream a second time would repeat
            its noise.
        counts: how many selections and the like there were, likewise. Shared, too.
        own_code: what a session may run itself.
        expected_records: expected number of this session's records, or units; public.
        progress: of long work.
        meter: counts what is computed, in example passes.
        observer: is told what is released; None: nobody is.
        order: number of trials of a selection → their indices in the order in which they run.
        checkpoints: from which the run goes on; None: it has none.
        rows: numbers of this session's records, or of its units where these hold several; None: all.
        scope: the parts that a release from this session is charged to.
        within: all parts that this session's records are in, also those that an outer account is charged for.
        parts: rows of the parts made so far, which trials share.
    """

    raw: RawRecords
    ledger: Ledger
    streams: Streams
    model_streams: Streams
    guard: Guard
    begun: "dict[bytes, AnyGenerator]"
    counts: Counter[bytes]
    own_code: OwnCode
    expected_records: float
    progress: Progress
    meter: Meter
    observer: Observer | None
    order: Callable[[int], Sequence[int]]
    checkpoints: Checkpoints | None
    rows: "Tensor | None"
    scope: Scope
    within: Scope
    parts: "dict[Scope, Tensor]"

    @property
    def n_rows(self) -> int:
        """The number of records, or units; private."""
        return self.raw.n_units if self.rows is None else len(self.rows)

    def charge(self, event: "DpEvent") -> None:
        """Write down a release. Call it before releasing.

        Raises:
            OverBudgetError: if the plan does not cover it.
        """
        self.guard.check()
        self.check_begun()
        self.ledger.charge(event, self.scope)

    def open_batch(self, rate: float, contents: "DpEvent") -> Ledger:
        """Charge a whole batch, and return its account; see `Ledger.open_batch`."""
        self.check_begun()
        return self.ledger.open_batch(rate, contents, self.scope)

    def check_begun(self) -> None:
        """Reject a release which a run with checkpoints could not repeat; see `Checkpoints.check_begun`."""
        if self.checkpoints:
            self.checkpoints.check_begun()

    def generator(self, kind: str, purpose: str, device: "torch.device | str" = "cpu") -> "AnyGenerator":
        """The random stream of this kind and purpose, at its present position."""
        self.guard.check()
        key = self.streams.name(kind, purpose)
        if key not in self.begun:
            self.begun[key] = self.streams.source(kind, purpose, device=device)
        return self.begun[key]

    def numbered(self, kind: str) -> Streams:
        """New streams for the next selection, choice or sample of this kind."""
        self.guard.check()
        key = self.streams.name(kind)
        self.counts[key] += 1
        return self.streams.within(kind, str(self.counts[key]))

    def drawn(self, rate: float, purpose: str) -> "Tensor | None":
        """Numbers of a Poisson sample of these records or units; at rate 1 all of them."""
        if rate == 1:
            return self.rows
        found = poisson_sample(self.n_rows, rate, self.generator("sample", purpose))
        return found if self.rows is None else self.rows[found]

    def holdout(self, fraction: float) -> "tuple[Access, Access]":
        """See `Session.holdout`."""
        fraction = inside("fraction", fraction)
        return (
            self.on_part(holdout_name(fraction), TRAINING, 0, 1 - fraction),
            self.on_part(holdout_name(fraction), VALIDATION, 1 - fraction, 1),
        )

    def on_part(self, partition: str, part: str, start: float, end: float) -> "Access":
        """The records or units whose coin, uniform in [0, 1), falls into [start, end).

        Args:
            partition: names the coins.
            part: names the interval.
            start: of the interval.
            end: of the interval.
        """
        if self.within:
            # A rule of its own, with coins of its own: those of the outer partition have been tossed already.
            partition += " of " + "/".join(name for pair in self.within for name in pair)
        within = (*self.within, (partition, part))
        if within not in self.parts:
            coins = uniform(self.raw.n_units, self.model_streams.source("partition", partition))
            inside = (start <= coins) & (coins < end)
            rows = inside.nonzero().squeeze(1) if self.rows is None else self.rows[inside[self.rows]]
            self.parts[within] = rows
        return replace(
            self,
            streams=self.streams.within(partition, part),
            scope=(*self.scope, (partition, part)),
            within=within,
            rows=self.parts[within],
            expected_records=self.expected_records * (end - start),
        )

    def unseen(self) -> "Access":
        """The same access, without progress or observer."""
        return replace(self, progress=SilentProgress(), observer=None)

    def total_score(self, own: "nn.Module") -> float:
        """The sum of the scores of these records under one of our own models; private."""
        self.meter.advance(self.expected_records)
        return self.compute(partial(self.raw.total_score, own, self.rows))

    def compute(self, computation: Callable[[], T]) -> T:
        """Compute on private records. An exception is a release without noise, so the run ends with it.

        Raises:
            ModelFailedError: if there was one. It names the type and nothing else.
        """
        refuse_watchers()  # again: a method's model may have started one when it was asked for its weights
        # Masks of dropout and the like are drawn from a stream of the session: the global generator is no secret, and
        # its state would tell how many records were drawn.
        secret = int(one_uniform(self.generator("noise", "layers")) * 2**53)
        try:
            with global_randomness(secret, self.raw.device), torch.autograd.set_detect_anomaly(False):
                found = computation()
                if self.raw.device.type == "cuda":  # errors there are told late: after this they would be a release
                    torch.cuda.synchronize(self.raw.device)
            refuse_watchers()  # what began to watch meanwhile has seen something: the run ends as below
            return found
        except Exception as error:  # not logged: a method could listen, and its frames hold the records
            kind = type(error).__name__
        except BaseException:  # Ctrl-C: whoever catches it must not ask the same again
            self.ledger.fail("The run was interrupted while private records were in use.")
            raise
        # Not raised above: an error's context leads to the frames, and these to the records.
        raise self.failure(f"The model raised {kind} on private records; its text may quote them and is not shown.")

    def failure(self, message: str) -> ModelFailedError:
        """What to raise after a model has raised an exception on private records. Nothing is released any more."""
        self.ledger.fail(message)
        return ModelFailedError(message)

    def end_if(self, refused: str | None, failed: str | None) -> None:
        """End the run if a trial has left one of these messages.

        Args:
            refused: why a release was refused: a mistake in the method, not in the data.
            failed: see `failure`.

        Raises:
            OverBudgetError: if something was refused.
            ModelFailedError: if a model failed.
        """
        if refused:
            self.ledger.refuse(refused)
            raise OverBudgetError(refused)
        if failed:
            raise self.failure(failed)


def one_uniform(generator: "AnyGenerator") -> float:
    """A uniform number in [0, 1)."""
    return uniform(1, generator).item()
