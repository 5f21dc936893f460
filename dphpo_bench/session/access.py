"""The state behind a session: some of the private records, who pays for them, and the random streams.

A session made from another one holds the same value with some fields replaced.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import Any, TypeVar, cast

import torch
from dp_accounting.dp_event import DpEvent
from torch import Tensor, nn

from dphpo_bench.base.checks import inside, whole
from dphpo_bench.base.errors import InvalidValueError, ModelFailedError
from dphpo_bench.base.progress import Meter, NullProgress, Progress
from dphpo_bench.base.tensors import Records
from dphpo_bench.base.text import shown
from dphpo_bench.contract import search_space as search
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.events import OneOfDpEvent, non_private
from dphpo_bench.privacy.holdout import TRAINING, VALIDATION, holdout_name
from dphpo_bench.privacy.ledger import Ledger, Scope
from dphpo_bench.session.checkpoints import NO_STATE, Checkpoints, Position
from dphpo_bench.session.guard import Guard
from dphpo_bench.session.interfaces import Observer, Unique
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.session.releases import OTHER_QUESTION, Releases
from dphpo_bench.training.noise import AnyGenerator, add_gaussian_noise, poisson_sample, uniform
from dphpo_bench.training.randomness import Streams, global_randomness
from dphpo_bench.training.values import Query

T = TypeVar("T")

_TRUSTED = "dphpo_bench.recipes.", "dphpo_bench.training."


@dataclass(frozen=True, eq=False, repr=False)
class Access(Unique):
    """Access to some of the private records, under one account, with random streams of its own."""

    raw: RawRecords
    ledger: Ledger  # the account that pays for all releases
    streams: Streams
    model_streams: Streams  # streams of initial weights and of parts, which methods compared at one seed share
    expected_records: float  # expected number of this session's records, or units; public
    # Lets one query at a time see the records. All sessions of a run share it.
    guard: Guard = field(default_factory=Guard)
    # The streams in use, by what seeds them. Shared, too: a stream that starts again repeats its noise.
    begun: dict[bytes, AnyGenerator] = field(default_factory=dict)
    counts: Counter[bytes] = field(default_factory=Counter)  # number of selections and the like so far. Shared, too.
    progress: Progress = field(default_factory=NullProgress)
    meter: Meter = field(default_factory=Meter)  # counts what is computed, in example passes
    observer: Observer | None = None  # called with each release, if given
    # Number of trials of a selection → their indices in the order in which they run.
    order: Callable[[int], Sequence[int]] = range
    checkpoints: Checkpoints | None = None  # where the run resumes after a kill, if it has checkpoints
    releases: Releases | None = None  # notes what is released, if a restart would draw the same noise
    # Numbers of this session's records, or of its units where these hold several; None: all.
    rows: Tensor | None = None
    scope: Scope = ()  # the parts that pay for a release from this session
    within: Scope = ()  # all parts that hold this session's records, also those that an outer account pays for
    parts: dict[Scope, Tensor] = field(default_factory=dict)  # rows of the parts so far, which trials share
    # Access to the records of the task's public sibling, under an account of its own; None: there is none.
    sibling: "Access | None" = None

    def charge(self, event: DpEvent) -> None:
        """Write down a release. Call it before releasing.

        Raises:
            OverBudgetError: if the plan does not cover it.
        """
        self.account().charge(event, self.scope)

    def steps(self, total: int, state: Sequence[Any] | None) -> Iterator[int]:
        """Yield the steps of a training loop; see `Session.steps`."""
        if self.checkpoints is None or self.releases is None:
            return iter(range(total))
        position = Position(self.ledger, self.begun, self.counts, self.meter, self.progress, self.releases)
        return self.checkpoints.steps(position, total, state)

    def account(self) -> Ledger:
        """Return the ledger for a new release; reject another process, and releases before the loop of checkpoints."""
        self.guard.check()
        if self.checkpoints and not self.checkpoints.has_begun:
            raise InvalidValueError(NO_STATE)
        return self.ledger

    # ---------------------------------------------------------------------------------------------- randomness

    def generator(self, kind: str, purpose: str, device: torch.device | str = "cpu") -> AnyGenerator:
        """Return the random stream of this kind and purpose, at its present position."""
        self.guard.check()
        key = self.streams.name(kind, purpose)
        if key not in self.begun:
            self.begun[key] = self.streams.source(kind, purpose, device=device)
        return self.begun[key]

    def numbered(self, kind: str) -> Streams:
        """Return new streams for the next selection, choice or sample of this kind."""
        self.guard.check()
        key = self.streams.name(kind)
        self.counts[key] += 1
        return self.streams.within(kind, str(self.counts[key]))

    def with_noise(
        self, sums: Sequence[Tensor], noise_multiplier: float, sensitivity: float, purpose: str
    ) -> list[Tensor]:
        """Return sums with Gaussian noise of deviation noise_multiplier · sensitivity."""
        generator = self.generator("noise", purpose, self.raw.device)
        return as_before(self, add_gaussian_noise(sums, noise_multiplier, sensitivity, generator))

    # -------------------------------------------------------------------------------------- parts and samples

    def holdout(self, fraction: float) -> "tuple[Access, Access]":
        """Return access to two parts; see `Session.holdout`."""
        fraction = inside("fraction", fraction)
        with self.guard.alone():
            return (
                self.on_part(holdout_name(fraction), TRAINING, 0, 1 - fraction),
                self.on_part(holdout_name(fraction), VALIDATION, 1 - fraction, 1),
            )

    def on_part(self, partition: str, part: str, start: float, end: float) -> "Access":
        """Return access to the records or units whose coin of a partition, uniform in [0, 1), is in [start, end)."""
        if self.within:
            # A rule of its own, with coins of its own: those of the outer partition have been tossed already.
            partition += " of " + "/".join(name for pair in self.within for name in pair)
        within = (*self.within, (partition, part))
        if within not in self.parts:
            coins = uniform(self.raw.n_units, self.model_streams.source("partition", partition))
            members = (start <= coins) & (coins < end)
            rows = members.nonzero().squeeze(1) if self.rows is None else self.rows[members[self.rows]]
            self.parts[within] = rows
        return replace(
            self,
            streams=self.streams.within(partition, part),
            scope=(*self.scope, (partition, part)),
            within=within,
            rows=self.parts[within],
            expected_records=self.expected_records * (end - start),
        )

    def subsample(self, kind: DpEvent) -> "Access":
        """Return access to a Poisson sample; see `Session.subsample`."""
        inside("rate", event_trees.opened(kind)[0])
        rows, rate, account = self.opened_batch(kind, "subsample")
        return replace(
            self,
            ledger=account,
            scope=(),  # the batch as a whole is charged to it
            rows=rows,
            parts={},
            expected_records=self.expected_records * rate,
            streams=self.numbered("subsample"),
        )

    def one_of(self, choice: DpEvent, index: int | None) -> "tuple[int, Access]":
        """Return access under the account of one of several events; see `Session.one_of`."""
        choice = event_trees.frozen(choice)
        if not isinstance(choice, OneOfDpEvent):
            raise InvalidValueError(f"Expected one of several events, one_of(events), got {shown(choice)}.")
        streams = self.numbered("one of")
        if choice.weights is not None:
            if index is not None:
                raise InvalidValueError("Expected no index: a choice with weights is drawn by the session.")
            index = search.choose(choice.weights, draw_uniform(streams.source("choice")))
        index = whole("index", index, low=0, high=len(choice.events) - 1)
        account = self.account().open_one_of(choice, index, self.scope)
        return index, replace(self, ledger=account, streams=streams)

    def opened_batch(self, kind: DpEvent, purpose: str) -> tuple[Tensor | None, float, Ledger]:
        """Charge and draw a batch, and return its rows, its rate and its account; see `Session.sample`."""
        rate, contents = event_trees.opened(kind)
        with self.guard.alone():
            account = self.account().open_batch(rate, contents, self.scope)
            if rate == 1:
                return self.rows, rate, account
            of_all = self.raw.n_units if self.rows is None else len(self.rows)
            sample = poisson_sample(of_all, rate, self.generator("sample", purpose))
            return sample if self.rows is None else self.rows[sample], rate, account

    # ------------------------------------------------------------------------------------------------- queries

    def lend(self) -> Records:
        """Lend the raw records; see `Session.nonprivate`."""
        with self.guard.alone():
            self.charge(non_private())
            return self.raw.lend(self.rows)

    def total(self, engine_model: nn.Module, query: Query, rows: Tensor | None, passes: float) -> Tensor:
        """Return the sum of these records' values under one of the engine's own models; private."""
        self.meter.advance(passes)
        return self.compute(partial(self.raw.total, engine_model, query, rows))

    def compute(self, computation: Callable[[], T]) -> T:
        """Compute on private records. An exception is a release without noise, so the run ends with it.

        Raises:
            ModelFailedError: if there was one. It names the type and nothing else.
        """
        # Layers such as dropout draw from a secret stream: the global generator's state would count the records drawn.
        secret = int(draw_uniform(self.generator("noise", "layers")) * 2**53)
        try:
            with global_randomness(secret, self.raw.device), torch.autograd.set_detect_anomaly(False):
                result = computation()
                if self.raw.device.type == "cuda":  # errors there come late: after this they would be a release
                    torch.cuda.synchronize(self.raw.device)
            return result
        except Exception as error:  # not logged: its frames hold the records
            kind = type(error).__name__
        except BaseException:  # Ctrl-C: whoever catches it must not ask the same again
            self.ledger.fail("The run was interrupted while private records were in use.")
            raise
        # Not raised above: an error's context leads to the frames, and these to the records.
        raise self.failure(
            f"The model raised {kind} on private records; its text may quote them and is not shown. It worked on some "
            "that were made up: try it on others, of the sizes and the values that yours may have."
        )

    def failure(self, message: str) -> ModelFailedError:
        """End the run after a model has raised an exception on private records, and return the error to raise."""
        self.ledger.fail(message)
        return ModelFailedError(message)


def is_of_recipes(value: object) -> bool:
    """Return whether a value is a function of this package's recipes, or of a class there and not of one derived."""
    source = value if isinstance(value, FunctionType) else type(value)
    return source.__module__.startswith(_TRUSTED)


def draw_uniform(generator: AnyGenerator) -> float:
    """Return a uniform number in [0, 1)."""
    return uniform(1, generator).item()


def generator_of_variants(access: Access) -> torch.Generator:
    """Return the random stream of augmentations, at its present position.

    It is never a cryptographic generator: transforms take torch's only, and nothing that they draw is released. The
    run's secret fills its whole state.
    """
    key = access.streams.name("variants")
    if key not in access.begun:
        access.begun[key] = access.streams.generator("variants", device=access.raw.device)
    return cast(torch.Generator, access.begun[key])


def as_before(access: Access, release: list[Tensor]) -> list[Tensor]:
    """Return a release; end a run that started again after a kill if it released something else here before.

    A GPU rounds its sums otherwise each time, so its runs start again with a seed and public data only.
    """
    if access.releases and access.raw.device.type == "cpu" and not access.releases.is_as_before(release):
        access.ledger.fail(OTHER_QUESTION)
        raise InvalidValueError(OTHER_QUESTION)
    return release
