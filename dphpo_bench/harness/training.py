"""The stages `train` and `verify`: let a method run, and compute ε of what it released."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import DphpoBenchError, OverBudgetError, UnsupportedEventError
from dphpo_bench.base.progress import Meter, NullProgress, Progress
from dphpo_bench.contract.method import Outcome, refuse_shared, sibling_of
from dphpo_bench.contract.seals import sealed
from dphpo_bench.harness.loading import check_declared
from dphpo_bench.harness.plan import parameters_of
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.harness.state import Run, timed
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.ledger import Ledger

if TYPE_CHECKING:
    from dphpo_bench.session.session import Session
    from dphpo_bench.training.randomness import Streams

EPSILON_ROUNDING = 1e-9  # rounding of two evaluations of one event, far below the resolution of any accountant


def execute(run: Run) -> Run:
    """Train and verify, without a test or a record, as audits and contract tests do; return the run."""
    train(run)
    verify(run)
    return run


def train(run: Run) -> None:
    """Let the method run on the records, within what its plan allows."""
    run.ledger = Ledger(allowance=run.checked.plan.event)
    if run.hides_trials:
        run.progress.note("Searching. How many trials there are is a secret, so there is nothing to show.")
    with timed(run.seconds, "train"), run.progress.whole(Meter(run.checked.plan.cost.examples, "the test")) as meter:
        try:
            session = _open_session(run, run.meter or meter)
        except BaseException:
            run.take_back()
            raise
        _let_run(run, session)


def _let_run(run: Run, session: "Session") -> None:
    """Call the method; whatever it raises is a result, except a mistake in the call and an interrupt."""
    try:
        with sealed() as complaints:
            if check := getattr(run.checked.plan.parameters, "check", None):
                check(session)
            outcome = _isolated(run.checked.method.run(replace(run.checked.plan), session), run.unseeded)
            if isinstance(outcome, Outcome):
                run.outcome = outcome
            else:
                run.fail(outcome)
    except OverBudgetError as error:
        run.fail(error, status="over_budget")
    except DphpoBenchError as error:
        if run.ledger.untouched and not complaints:  # a mistake in the call, found before anything was released
            error.asked_nothing = True
            run.take_back()
            raise
        run.fail(error)
    except (Exception, SystemExit) as error:
        run.fail(error)
    except BaseException:
        if not run.ledger.untouched:
            run.journal.remember()
        raise
    finally:
        session.close()
        if complaints:
            run.ledger.refuse(complaints[0])


def _open_session(run: Run, meter: Meter) -> "Session":
    from dphpo_bench.session.raw import RawRecords
    from dphpo_bench.session.session import open_session

    method, facts, target, streams = run.checked.method, run.checked.facts, run.checked.plan.budget, run.streams()
    budget = PrivacyBudget(float(target.epsilon), float(target.delta))  # 3 and 3.0 are one run
    parameters = repr(sorted(parameters_of(method).items()))
    inner = streams.within(method.name, parameters, repr(budget), facts.task, facts.model)
    progress, meter = (NullProgress(), Meter()) if run.hides_trials else (run.progress, meter)
    return open_session(
        RawRecords(run.task, run.train, run.device),
        run.ledger,
        inner,
        model_streams=streams,
        progress=progress,
        meter=meter,
        observer=run.observer,
        order=run.order,
        checkpoints=run.checkpoints,
        releases=run.releases,
        sibling=_public_session(run, inner, progress, meter),
    )


def _public_session(run: Run, streams: "Streams", progress: Progress, meter: Meter) -> "Session | None":
    """Return a session on the task's public sibling; None if the method needs none.

    Its ledger is its own and has no bound: whatever it answers is a function of public records and of noise that
    nothing else uses.

    Raises:
        DataError: if the sibling's files are missing, or it shares records with the task.
    """
    from dphpo_bench.session.raw import RawRecords
    from dphpo_bench.session.session import open_session

    sibling = sibling_of(run.checked.method, run.task)
    if sibling is None:
        return None
    sibling.prepare(run.source)
    records = sibling.load_train(run.source)
    check_declared(sibling.facts, records)
    refuse_shared(run.task, run.train, sibling, records)
    inner = streams.within("sibling", sibling.name, sibling.model_name)
    return open_session(RawRecords(sibling, records, run.device), Ledger(), inner, progress=progress, meter=meter)


def _isolated(outcome: Any, hide: bool) -> Outcome | str:
    """Return a copy of the outcome with plain JSON values that the method does not hold, or why there is none."""
    import torch

    model = outcome.model if isinstance(outcome, Outcome) else None
    if not isinstance(model, torch.nn.Module):
        what = f"one with {type(model).__name__}" if isinstance(outcome, Outcome) else type(outcome).__name__
        return f"Expected an Outcome with a torch.nn.Module, got {what}."
    try:
        text = json.dumps(outcome.released, ensure_ascii=False)
        text.encode()
        released = dict(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        return f"Expected a dictionary of released values that JSON can hold: {reason_of(error, hide)}."
    if not all(torch.isfinite(parameter).all() for parameter in model.parameters()):
        return (
            "The trained model has weights that are not finite: training diverged. Scale inputs and targets to about 1 "
            "by public constants, or take a smaller learning rate."
        )
    return Outcome(model, released)


def verify(run: Run) -> None:
    """Compute ε again from the ledger; a run that released more than planned, or whose ε has no bound, has failed."""
    try:
        run.recomputed = run.checked.quoted(run.ledger.event)
    except UnsupportedEventError as refusal:
        run.fail(str(refusal), status="unverified")
        return
    planned, spent = run.checked.epsilon.epsilon, run.recomputed.epsilon
    if run.ledger.refused:
        run.fail(run.ledger.refused, status="over_budget")
    elif run.ledger.failed:  # the method may have gone on as if nothing had happened
        run.fail(run.ledger.failed)
    elif spent > planned + EPSILON_ROUNDING:
        reason = f"The releases cost epsilon={spent:.6g}, more than the planned epsilon={planned:.6g}."
        run.fail(reason, status="over_budget")
