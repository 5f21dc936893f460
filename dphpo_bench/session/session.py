"""The only door to private data: sampling, clipping, noise and accounting are one object.

Every query charges the ledger before it computes, in the call that adds the noise, so the four cannot drift
apart. What may be asked of a batch is fixed when it is opened, and sampled as a whole (docs/accounting.md).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from dphpo_bench.base.checks import inside, number, short_text, whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.meter import Meter
from dphpo_bench.base.progress import Progress, Relay, SilentProgress
from dphpo_bench.base.tensors import Records
from dphpo_bench.base.text import shown
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.search_space import Candidate, Proposals, Space
from dphpo_bench.contract.session import Session, TrialFunction
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.privacy import event_rules
from dphpo_bench.privacy.events import OneOfDpEvent, gaussian, non_private
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session import sealed, selection
from dphpo_bench.session.access import Access, one_uniform
from dphpo_bench.session.batch import ChargedBatch
from dphpo_bench.session.checkpoints import Checkpoints, Position
from dphpo_bench.session.guard import Guard
from dphpo_bench.session.observer import Observer
from dphpo_bench.session.own_code import OwnCode
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.session.unique import Unique
from dphpo_bench.training.noise import add_gaussian_noise
from dphpo_bench.training.randomness import Streams

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import nn

    from dphpo_bench.privacy.run_counts import RunCount
    from dphpo_bench.training.losses import Objective


def open_session(
    task: Task,
    train: Records,
    ledger: Ledger,
    streams: Streams,
    *,
    own_code: OwnCode,
    model_streams: Streams | None = None,
    device: "torch.device | str" = "cpu",
    progress: Progress | None = None,
    meter: Meter | None = None,
    observer: Observer | None = None,
    order: Callable[[int], Sequence[int]] = range,
    checkpoints: Checkpoints | None = None,
) -> "ChargedSession":
    """The session of a run, on all records.

    Args:
        task: where models come from.
        train: the private records.
        ledger: what is released is charged here.
        streams: random streams of this run.
        own_code: what the session may run itself.
        model_streams: streams of the initial weights and of the split into parts, which methods compared at one seed
            share; None: those of the run.
        device: where models and batches live.
        progress: where long work reports to.
        meter: counts what is computed; None: nobody asks.
        observer: is told what is released; None: nobody is.
        order: number of trials of a selection → their indices in the order in which they run, which changes nothing.
        checkpoints: from which the run goes on; None: it has none.
    """
    return ChargedSession(
        Access(
            raw=RawRecords(task, train, device),
            ledger=ledger,
            streams=streams,
            model_streams=model_streams or streams,
            guard=Guard(),
            begun={},
            counts=Counter(),
            own_code=own_code,
            expected_records=float(task.facts.n_records),
            progress=progress or SilentProgress(),
            meter=meter or Meter(),
            observer=observer,
            order=order,
            checkpoints=checkpoints,
            rows=None,
            scope=(),
            within=(),
            parts={},
        )
    )


class ChargedSession(Unique, Session):
    """A session whose releases are charged to a ledger.

    Args:
        access: what the session stands for.
        candidate: what an adaptive search proposes for this trial; None: it is drawn from the search space.
    """

    def __init__(self, access: Access, candidate: Candidate | None = None) -> None:
        self._access = access
        self._candidate = candidate

    @property
    def facts(self) -> TaskFacts:
        return copy(self._access.raw.facts)  # what is done to it must not reach the trials of a selection

    @property
    def objective(self) -> "Objective":
        if not self._access.raw.has_lent:
            raise InvalidValueError(
                "Expected losses and scores to be asked for after nonprivate(), which has no privacy."
            )
        return self._access.raw.objective

    @property
    def device(self) -> torch.device:
        return self._access.raw.device

    @property
    def progress(self) -> Progress:
        return Relay(self._access.progress)

    @property
    def expected_records(self) -> float:
        return self._access.expected_records

    def build_model(self) -> "nn.Module":
        facts, access = self.facts, self._access
        return access.raw.build_model(access.model_streams.derive("initial weights", facts.task, facts.model))

    def candidate(self, space: Space | None = None) -> Candidate:
        return self._candidate or search.draw(self.facts.searched(space), self._access.streams.derive("candidate"))

    def uniform(self, purpose: str) -> float:
        return one_uniform(self._access.generator("uniform", short_text("purpose", purpose)))

    def steps(self, total: int, state: Sequence[Any] | None = None) -> Iterator[int]:
        access = self._access
        if access.checkpoints is None:
            return iter(range(total))
        position = Position(access.ledger, access.begun, access.counts, access.meter, access.progress)
        return access.checkpoints.steps(position, total, state)

    def fork(self, name: str) -> "ChargedSession":
        name = short_text("name", name)
        return ChargedSession(replace(self._access, streams=self._access.streams.within("fork", name)))

    def holdout(self, fraction: float) -> "tuple[ChargedSession, ChargedSession]":
        with self._access.guard.alone():
            training, validation = self._access.holdout(fraction)
        return ChargedSession(training), ChargedSession(validation)

    def subsample(self, kind: "DpEvent") -> "ChargedSession":
        access = self._access
        rate, contents = event_rules.opened(kind)
        inside("rate", rate)
        with access.guard.alone():
            account = access.open_batch(rate, contents)
            rows = access.drawn(rate, "subsample")
        return ChargedSession(
            replace(
                access,
                ledger=account,
                scope=(),  # the batch as a whole is charged to it
                rows=rows,
                parts={},
                expected_records=access.expected_records * rate,
                streams=access.numbered("subsample"),
            )
        )

    def one_of(self, choice: "DpEvent", index: int | None = None) -> "tuple[int, ChargedSession]":
        access, choice = self._access, event_rules.frozen(choice)
        if not isinstance(choice, OneOfDpEvent):
            raise InvalidValueError(f"Expected one of several events, one_of(events), got {shown(choice)}.")
        streams = access.numbered("one of")
        if choice.weights is not None:
            if index is not None:
                raise InvalidValueError("Expected no index: a choice with weights is drawn by the session.")
            index = search.choose(choice.weights, one_uniform(streams.source("choice")))
        index = whole("index", index, low=0, high=len(choice.events) - 1)
        access.check_begun()
        account = access.ledger.open_one_of(choice, index, access.scope)
        return index, ChargedSession(replace(access, ledger=account, streams=streams), self._candidate)

    def sample(self, kind: "DpEvent", purpose: str = "training") -> ChargedBatch:
        access, purpose = self._access, short_text("purpose", purpose)
        rate, contents = event_rules.opened(kind)
        with access.guard.alone():
            account = access.open_batch(rate, contents)
            return ChargedBatch(access, access.drawn(rate, purpose), rate, account)

    def score(self, model: "nn.Module", noise_multiplier: float) -> float:
        access = self._access
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        with access.guard.alone():
            own = access.raw.own_model().scored(model)
            access.charge(gaussian(noise_multiplier))
            total = torch.tensor([access.total_score(own)], dtype=torch.float64)
            (noisy,) = add_gaussian_noise([total], noise_multiplier, 1.0, access.generator("noise", "score"))
            return noisy.item() / access.expected_records

    def nonprivate(self) -> Records:
        with self._access.guard.alone():
            self._access.charge(non_private())
            return self._access.raw.lend(self._access.rows)

    def close(self) -> None:
        """End the run: nothing is released any more, and raw records that were lent are taken back."""
        self._access.ledger.close()
        self._access.raw.take_back()

    def best_of(
        self,
        trial: TrialFunction,
        runs: "RunCount",
        base_event: "DpEvent",
        *,
        proposals: Proposals | None = None,
    ) -> Any:
        return selection.best_of(self._access, ChargedSession, trial, runs, base_event, proposals)

    def first_above(
        self,
        trial: TrialFunction,
        threshold: float,
        stop_probability: float,
        base_event: "DpEvent",
    ) -> Any:
        return selection.first_above(self._access, ChargedSession, trial, threshold, stop_probability, base_event)

    def sealed_utilities(self, runs: Sequence[Any], partitions: int, validation: float) -> sealed.HiddenUtilities:
        return sealed.hidden_utilities(self._access, ChargedSession, runs, partitions, validation)
