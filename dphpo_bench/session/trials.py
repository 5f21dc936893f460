"""The trials of one private selection: in this process, in copies of it, or one after the other."""

import logging
import math
import pickle
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch

from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.search_space import Candidate, Proposals
from dphpo_bench.contract.session import TOGETHER, Scored, Session, TrialFunction
from dphpo_bench.privacy.ledger import LOCKED, Ledger
from dphpo_bench.session.access import Access, one_uniform
from dphpo_bench.session.apart import call_apart
from dphpo_bench.session.observer import Observer
from dphpo_bench.session.own_code import OwnTrial
from dphpo_bench.training.randomness import Streams

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

logger = logging.getLogger(__name__)

# Fixed texts: whatever else is said of a trial that does not win, may hold what must stay hidden.
NOT_COVERED = (
    "A trial asked for a release that the base event of its selection does not cover. What it asked for stays hidden; "
    "call the trial's function on a session of its own, outside of a selection, to see it."
)
NOT_ITS_OWN = (
    "A trial asked an account that is locked: while a selection runs, each of its trials asks its own session. Ask "
    "before the selection, or after it."
)
NOT_PICKLED = "Expected a trial's outcome that pickle can write; what it returned stays hidden."


MakeSession = Callable[[Access, Candidate | None], Session]
"""Makes a session; the candidate, if there is one, is what an adaptive search proposes for a trial."""


@dataclass(frozen=True)
class Tried:
    """One trial that is over.

    Attributes:
        index: its number.
        score: None if it failed.
        unpack: gives its outcome and its observer. Only the winner's is called: it may run code of a method.
        known: the same, pickled, if the trial ran in a copy of the process; else empty.
    """

    index: int
    score: float | None
    unpack: Callable[[], tuple[Any, Observer | None]]
    known: bytes = b""

    def packed(self) -> bytes:
        """What `unpack` gives, pickled."""
        return self.known or cloudpickle.dumps(self.unpack())

    def beats(self, other: "Tried | None") -> bool:
        """Whether it wins. Of trials with equal scores the first wins, in whatever order they ran."""
        if self.score is None or other is None or other.score is None:
            return self.score is not None
        return (self.score, -self.index) > (other.score, -other.index)


@dataclass(frozen=True, eq=False, repr=False)
class Trials:
    """How to run the trials of one selection.

    Attributes:
        access: of the session that selects.
        make_session: makes the session of a trial.
        trial: as the method gave it.
        own: the trial, made anew, if it is this package's own; else None.
        base_event: what one trial may be asked.
        streams: of the selection.
        copies: how many copies of this process run at a time.
    """

    access: Access
    make_session: MakeSession
    trial: TrialFunction
    own: OwnTrial | None
    base_event: "DpEvent"
    streams: Streams
    copies: int

    @classmethod
    def of(cls, access: Access, make_session: MakeSession, trial: TrialFunction, base_event: "DpEvent") -> "Trials":
        """Trials of a new selection."""
        own, streams = access.own_code.trial(trial), access.numbered("selection")
        return cls(access, make_session, trial, own, base_event, streams, torch.get_num_threads())

    def independent(
        self, indices: Sequence[int], *, candidate: Candidate | None = None, at_once: int | None = None
    ) -> Generator[Tried]:
        """Independent trials, in this order.

        Args:
            indices: their numbers.
            candidate: of all of them; None: each draws its own.
            at_once: how many run at a time at most; None: as many as save time.
        """
        own = self.own
        if own is None:
            yield from self._apart(indices, candidate, at_once or self.copies)
            return
        # Full batches of linear models share a matrix product.
        stacks = own.full_batches and self.access.raw.has_closed_form
        together = min(at_once or TOGETHER, TOGETHER) if stacks else 1
        for start in range(0, len(indices), together):
            some = indices[start : start + together]
            found = self._together(own, some, candidate)
            if found is not None:
                yield from found
                continue
            # One that raises must not take the others with it, so each runs alone. It gets fresh random numbers: with
            # the same ones, the difference of two queries would have no noise.
            again = replace(self, streams=self.streams.within("alone"))
            for index in some:
                yield from again._together(own, [index], candidate) or ()

    def adaptive(self, indices: Sequence[int], proposals: Proposals) -> Generator[Tried]:
        """Trials one after the other; the scores of the earlier ones shape the density of each candidate."""
        tried: list[int] = []
        scores: list[float] = []
        for index in indices:
            (found,) = call_apart([partial(search.promise, proposals, tried, scores)])  # a method's code, too
            weights = found or [1.0] * len(proposals.prior)  # it failed: the prior
            densities = search.bounded(weights, proposals.low, proposals.high)
            tried.append(search.choose(densities, one_uniform(self.streams.source("proposal", str(index)))))
            (one,) = self.independent([index], candidate=proposals.prior[tried[-1]])
            scores.append(math.nan if one.score is None else one.score)
            yield one

    def _opened(self, index: int) -> Access:
        """Access for one trial, on an account of its own: the session is charged for the selection as a whole."""
        return replace(
            self.access,
            ledger=Ledger(self.base_event),
            streams=self.streams.within("trial", str(index)),
            scope=(),
            observer=self.access.observer and self.access.observer.trial(),
        )

    def _together(self, trial: OwnTrial, indices: Sequence[int], candidate: Candidate | None) -> list[Tried] | None:
        """Trials of this package's own kind, in which no code of a method runs; None if one of several raised."""
        opened = [self._opened(index) for index in indices]
        sessions = [self.make_session(one, candidate) for one in opened]
        results: list[Scored | None]
        try:
            results = [_valid(scored) for scored in trial.run(sessions)]
        except (Exception, SystemExit):  # not logged here, where a method could listen
            if len(opened) > 1 and not any(one.ledger.refused or one.ledger.failed for one in opened):
                return None
            results = [None] * len(opened)
        tried = []
        for index, one, scored in zip(indices, opened, results, strict=True):
            one.ledger.close()
            self.access.end_if(one.ledger.refused and NOT_COVERED, one.ledger.failed)
            score = None if scored is None else scored.score
            tried.append(Tried(index, score, partial(_as_it_is, scored, one.observer)))
        return tried

    def _apart(self, indices: Sequence[int], candidate: Candidate | None, at_once: int) -> Generator[Tried]:
        """Trials that a method runs, each in a copy of the process."""
        outer = self.access.ledger.root
        before = outer.refused

        def run(index: int) -> tuple[float | None, str | None, str | None, bytes]:
            self.access.guard.adopt()
            opened = self._opened(index)
            try:
                scored = _valid(self.trial(self.make_session(opened, candidate)))
            except (Exception, SystemExit):
                logger.debug("A trial failed.", exc_info=True)
                scored = None
            refused = opened.ledger.refused or (outer.refused if outer.refused != before else None)
            if refused:
                refused = NOT_ITS_OWN if LOCKED in refused else NOT_COVERED
            if scored is None or opened.ledger.failed or refused:
                return None, refused, opened.ledger.failed, b""
            try:
                return scored.score, None, None, cloudpickle.dumps((scored.outcome, opened.observer))
            except Exception:
                return None, NOT_PICKLED, None, b""

        with closing(call_apart([partial(run, index) for index in indices], at_once)) as answers:
            for index, answer in zip(indices, answers, strict=True):
                score, refused, failed, packed = answer or (None, None, None, b"")
                self.access.end_if(refused, failed)
                yield Tried(index, score, partial(pickle.loads, packed), packed)


def _valid(scored: Scored) -> Scored | None:
    """A result whose score is a number; None if it is none."""
    score = float(scored.score)
    return None if math.isnan(score) else Scored(scored.outcome, score)


def _as_it_is(scored: Scored | None, observer: Observer | None) -> tuple[Any, Observer | None]:
    return scored and scored.outcome, observer
