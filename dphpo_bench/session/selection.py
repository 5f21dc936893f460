"""Private selection: many trials, of which only the winner is released."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.checks import number
from dphpo_bench.base.errors import InvalidValueError, ModelFailedError, OverBudgetError
from dphpo_bench.base.progress import Advance, SilentProgress
from dphpo_bench.contract.search_space import Proposals
from dphpo_bench.contract.session import TrialFunction
from dphpo_bench.privacy import event_rules, events
from dphpo_bench.privacy.run_counts import geometric
from dphpo_bench.session.access import Access, one_uniform
from dphpo_bench.session.apart import call_apart
from dphpo_bench.session.observer import Observer
from dphpo_bench.session.trials import MakeSession, Trials, Tried

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dphpo_bench.privacy.run_counts import RunCount


def best_of(
    access: Access,
    make_session: MakeSession,
    trial: TrialFunction,
    runs: "RunCount",
    base_event: "DpEvent",
    proposals: Proposals | None,
) -> Any:
    """See `Session.best_of`."""
    base_event = event_rules.frozen(base_event)
    if proposals is not None:  # a new one, without what may have been attached to the other
        proposals = Proposals(proposals.prior, proposals.weights, proposals.low, proposals.high)
    bounds = (1.0, 1.0) if proposals is None else (proposals.low, proposals.high)
    event = events.best_of(base_event, runs, *bounds)
    access.charge(event)
    trials = Trials.of(access, make_session, trial, base_event)
    count = event.runs.sample(one_uniform(trials.streams.source("number of runs")))
    indices = access.order(count) if proposals is None else range(count)

    def select(trials: Trials) -> Tried | None:
        found = trials.independent(indices) if proposals is None else trials.adaptive(indices, proposals)
        best: Tried | None = None
        with closing(found), _counted(trials, count, event.runs.expected) as advance:
            for tried in found:
                best = tried if tried.beats(best) else best
                advance()
        return best

    return _released(select, trials, apart=trials.own is None or (proposals is not None and _can_copy(access)))


def first_above(
    access: Access,
    make_session: MakeSession,
    trial: TrialFunction,
    threshold: float,
    stop_probability: float,
    base_event: "DpEvent",
) -> Any:
    """See `Session.first_above`."""
    base_event, threshold = event_rules.frozen(base_event), float(threshold)
    stop_probability = number("stop_probability", stop_probability, low=1e-9, high=1)
    access.charge(events.first_above(base_event, stop_probability))
    trials = Trials.of(access, make_session, trial, base_event)
    longest = 1
    if stop_probability < 1:  # the coins are tossed in advance
        longest = geometric(1 / stop_probability).sample(one_uniform(trials.streams.source("number of runs")))

    def select(trials: Trials) -> Tried | None:
        found = trials.independent(range(longest), at_once=1)
        with closing(found), _counted(trials, longest, 1 / stop_probability) as advance:
            for tried in found:
                advance()
                if tried.score is not None and tried.score >= threshold:
                    return tried
        return None

    return _released(select, trials, apart=trials.own is None)


@contextmanager
def _counted(trials: Trials, count: int, expected: float) -> Iterator[Advance]:
    """A display of `count` trials. The plan expected `expected`, so the total is corrected as they advance."""
    meter, over = trials.access.meter, 0
    planned, before = meter.total, meter.done

    def correct(trials: int) -> None:
        if over and planned:
            meter.total = planned + (trials - expected) * (meter.done - before) / over

    with trials.access.progress.track("Trials", count) as shown:

        def advance(amount: int = 1) -> None:
            nonlocal over
            over += amount
            correct(count)
            shown(amount)

        yield advance
    correct(over)  # some selections end with the first trial that is good enough


def _released(select: Callable[[Trials], Tried | None], trials: Trials, *, apart: bool) -> Any:
    """Run a selection while all other accounts are locked, and release the outcome of the trial that it returns.

    If trials run code of a method, the whole selection runs in a copy of this process. How many copies that one makes
    of itself, and how they end, cannot be seen from outside.
    """
    access = trials.access
    with access.ledger.locked():
        found = _select_apart(select, trials) if apart else _unpacked(select(trials))
    if found is None:
        return None
    outcome, observer = found
    if access.observer and observer:
        access.observer.won(observer)
    return outcome


def _unpacked(best: Tried | None) -> tuple[Any, Observer | None] | None:
    return best.unpack() if best is not None and best.score is not None else None


def _select_apart(select: Callable[[Trials], Tried | None], trials: Trials) -> tuple[Any, Observer | None] | None:
    access = trials.access
    if not _can_copy(access):
        raise InvalidValueError(
            f"Expected trials of type Trial on {access.raw.device}: a function of your own runs in a copy of this "
            "process, which cannot use that device. Use --device cpu."
        )
    import optuna  # noqa: F401  (once, not in each copy)

    def run() -> tuple[str | None, str | None, bytes]:
        access.guard.adopt()
        try:
            best = select(replace(trials, access=replace(access, progress=SilentProgress())))
        except OverBudgetError as error:
            return str(error), None, b""
        except ModelFailedError as error:
            return None, str(error), b""
        return None, None, best.packed() if best is not None and best.score is not None else b""

    with access.progress.track("Selection", 1) as advance:
        (answer,) = call_apart([run])
        access.meter.lose()
        advance()
    refused, failed, packed = answer or (None, "The process of a selection ended without an answer.", b"")
    access.end_if(refused, failed)
    return pickle.loads(packed) if packed else None


def _can_copy(access: Access) -> bool:
    """Whether a copy of this process can compute: it cannot use a GPU."""
    return access.raw.device.type == "cpu"
