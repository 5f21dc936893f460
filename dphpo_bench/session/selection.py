"""Private selection: many trials, of which only the winner is released."""

import logging
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.checks import number
from dphpo_bench.base.errors import OverBudgetError
from dphpo_bench.base.progress import NullProgress
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.search_space import Candidate, Proposals
from dphpo_bench.privacy import event_trees, events
from dphpo_bench.privacy.ledger import LOCKED, Ledger
from dphpo_bench.privacy.run_counts import geometric
from dphpo_bench.session.access import Access, draw_uniform, is_of_recipes
from dphpo_bench.session.copies import can_be_written, copier, process_state
from dphpo_bench.session.interfaces import MAX_STACKED_TRIALS, Observer, TrialResult
from dphpo_bench.training.randomness import Streams, global_randomness

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dphpo_bench import Session
    from dphpo_bench.privacy.run_counts import RunCount

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

TrialFunction = Callable[["Session"], TrialResult]
"""One trial of a private selection."""


@dataclass(frozen=True)
class Tried:
    """One trial that is over."""

    index: int
    outcome: Any  # what is released if it wins
    score: float | None  # None if it failed
    observer: Observer | None  # saw its releases, if there is an observer

    def beats(self, other: "Tried | None") -> bool:
        """Return whether it wins. Of trials with equal scores the first wins, in whatever order they ran."""
        if self.score is None or other is None or other.score is None:
            return self.score is not None
        return (self.score, -self.index) > (other.score, -other.index)


@dataclass(frozen=True, eq=False, repr=False)
class Trials:
    """Trials of one selection. They run in this process, each on an account and a copy of the function of its own."""

    session: "Session"
    copy: Callable[[], TrialFunction]  # makes a copy of the trial's function
    base_event: "DpEvent"  # what one trial may be asked
    streams: Streams
    together: int  # how many trials may run at a time

    @property
    def access(self) -> Access:
        """Access of the session that selects."""
        return self.session._access

    @classmethod
    def open(
        cls,
        session: "Session",
        trial: TrialFunction,
        base_event: "DpEvent",
        event: "DpEvent",
        together: int = MAX_STACKED_TRIALS,
    ) -> "Trials":
        """Charge a new selection by its event, and return its trials; `together` holds where it saves time."""
        copy, access = copier(trial), session._access
        access.charge(event)
        # Full batches of linear models share a matrix product. A class of a method's own may call trials otherwise.
        # Secure noise cannot be drawn again, as a stack that raises needs.
        stacks = is_of_recipes(trial) and getattr(trial, "full_batches", False) and access.raw.has_closed_form
        stacks = stacks and not access.streams.secure
        streams = access.numbered("selection")
        return cls(session, copy, base_event, streams, together if stacks else 1)

    def independent(self, indices: Sequence[int], candidate: Candidate | None = None) -> Generator[Tried]:
        """Run independent trials in this order.

        Args:
            candidate: of all of them; None: each draws its own.
        """
        for start in range(0, len(indices), self.together):
            some = indices[start : start + self.together]
            before, counts = set(self.access.begun), self.access.counts.copy()
            results = self._run(some, candidate)
            if results is not None:
                yield from results
                continue
            # One that raises must not take the others with it, so each runs alone, on the same random numbers. The
            # charge covers that. A trial's outcome is what it is without a stack: the same function of the records and
            # of its own noise, asked the same questions. The first try leaves nothing, neither an answer (only code of
            # recipes stacks, and each try runs on a fresh copy) nor a choice. With fresh numbers there would be one:
            # that a trial raised, which may depend on the answers, would decide whether all of them are drawn again.
            # That is a selection among two draws, and nobody has charged it.
            for key in self.access.begun.keys() - before:
                del self.access.begun[key]
            self.access.counts.clear()
            self.access.counts.update(counts)
            for index in some:
                yield from self._run([index], candidate) or ()

    def adaptive(self, indices: Sequence[int], copy: Callable[[], Proposals]) -> Generator[Tried]:
        """Run trials one after the other; the scores of the earlier ones shape the density of each candidate."""
        proposals = copy()
        chosen: list[int] = []
        scores: list[float] = []
        for index in indices:
            with self._unseen([index]):
                try:
                    weights = search.promise(copy(), [*chosen], [*scores])
                except (Exception, SystemExit):
                    weights = [1.0] * len(proposals.prior)
                densities = search.bounded(weights, proposals.low, proposals.high)
                chosen.append(search.choose(densities, draw_uniform(self.streams.source("proposal", str(index)))))
                # Of a fresh copy: what a trial changes in its candidate, no other trial sees.
                candidate = copy().prior[chosen[-1]]
            (tried,) = self.independent([index], candidate)
            scores.append(math.nan if tried.score is None else tried.score)
            yield tried

    def _run(self, indices: Sequence[int], candidate: Candidate | None) -> list[Tried] | None:
        """Run trials at the same time, on one copy of the function; None if one of several raised."""
        opened = [
            replace(
                self.access,
                ledger=Ledger(self.base_event),  # its own: the session is charged for the selection as a whole
                streams=self.streams.within("trial", str(index)),
                scope=(),
                sibling=None,  # what it has answered would count the trials
                observer=self.access.observer and self.access.observer.trial(),
            )
            for index in indices
        ]
        sessions = [type(self.session)(access, candidate) for access in opened]
        root = self.access.ledger.root
        before = root.refused
        results: list[tuple[Any, float | None]]
        try:
            with self._unseen(indices):
                trial: Any = self.copy()
                scored = trial.run(sessions) if len(sessions) > 1 else [trial(sessions[0])]
                results = [(result.outcome, _score(result.score)) for result in scored]
        except (Exception, SystemExit):  # not logged: it may tell what must stay hidden
            ledgers = [access.ledger for access in opened]
            if len(opened) > 1 and root.refused == before and not any(book.refused or book.failed for book in ledgers):
                for book in ledgers:
                    book.close()
                return None
            results = [(None, None)] * len(opened)
        asked = root.refused if root.refused != before else None
        root.refused = before  # that text may tell what must stay hidden
        for access in opened:
            access.ledger.close()
            refused = asked or access.ledger.refused
            _end_if(self.access, refused and (NOT_ITS_OWN if LOCKED in refused else NOT_COVERED), access.ledger.failed)
        return [
            Tried(index, outcome, score, access.observer)
            for index, (outcome, score), access in zip(indices, results, opened, strict=True)
        ]

    @contextmanager
    def _unseen(self, indices: Sequence[int]) -> Iterator[None]:
        """Drop what code of a method prints and logs, and put back the state of the process: all would count trials."""
        seed = self.streams.derive("global randomness", str(indices[0]))
        with ExitStack() as unseen:
            unseen.callback(logging.disable, logging.root.manager.disable)
            logging.disable()
            unseen.enter_context(process_state())
            unseen.enter_context(redirect_stdout(StringIO()))
            if isinstance(self.access.progress, NullProgress):  # others write there, and show trials anyway
                unseen.enter_context(redirect_stderr(StringIO()))
            unseen.enter_context(global_randomness(seed, self.access.raw.device))
            yield


def _score(score: float) -> float | None:
    return None if math.isnan(score := float(score)) else score


def best_of(
    session: "Session", trial: TrialFunction, runs: "RunCount", base_event: "DpEvent", proposals: Proposals | None
) -> Any:
    """See `Session.best_of`."""
    base_event = event_trees.frozen(base_event)
    bounds = (1.0, 1.0) if proposals is None else (proposals.low, proposals.high)
    event = events.best_of(base_event, runs, *bounds)
    copy = None if proposals is None else copier(proposals)
    trials = Trials.open(session, trial, base_event, event)
    count = event.runs.sample(draw_uniform(trials.streams.source("number of runs")))
    if copy is None:
        return _winner(trials, trials.independent(session._access.order(count)), count)
    return _winner(trials, trials.adaptive(range(count), copy), count)


def threshold_search(
    session: "Session", trial: TrialFunction, threshold: float, stop_probability: float, base_event: "DpEvent"
) -> Any:
    """See `Session.threshold_search`."""
    base_event, threshold = event_trees.frozen(base_event), float(threshold)
    stop_probability = number("stop_probability", stop_probability, low=1e-9, high=1)
    event = events.threshold_search(base_event, stop_probability)
    trials = Trials.open(session, trial, base_event, event, together=1)
    longest = 1
    if stop_probability < 1:  # the coins are tossed in advance
        longest = geometric(1 / stop_probability).sample(draw_uniform(trials.streams.source("number of runs")))
    return _winner(trials, trials.independent(range(longest)), longest, threshold)


def _winner(trials: Trials, tries: Generator[Tried], count: int, threshold: float | None = None) -> Any:
    """Run the trials, on locked accounts, and return the winner's outcome; None if there is no winner.

    Args:
        count: the most that there are.
        threshold: the first trial whose score reaches it wins; None: the best of all.
    """
    access, best = trials.access, None
    with ExitStack() as stack:
        stack.enter_context(access.ledger.locked())
        if access.sibling:
            stack.enter_context(access.sibling.ledger.locked())
        stack.enter_context(closing(tries))
        advance = stack.enter_context(access.progress.track("Trials", count))
        for tried in tries:
            advance()
            if threshold is None:
                best = tried if tried.beats(best) else best
            elif tried.score is not None and tried.score >= threshold:
                best = tried
                break
    if best is None or best.score is None:
        return None
    if not can_be_written(best.outcome):
        _end_if(access, NOT_PICKLED, None)
    if access.observer and best.observer:
        access.observer.won(best.observer)
    return best.outcome


def _end_if(access: Access, refused: str | None, failed: str | None) -> None:
    """End the run if a trial has left the message of a refused release or of a model that failed."""
    if refused:
        access.ledger.refuse(refused)
        raise OverBudgetError(refused)
    if failed:
        raise access.failure(failed)
