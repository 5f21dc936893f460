"""Let a method run, and verify what it released."""

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import DphpoBenchError, OverBudgetError, UnsupportedEventError
from dphpo_bench.base.meter import Meter
from dphpo_bench.base.progress import NullProgress
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.method import Outcome
from dphpo_bench.contract.seals import sealed
from dphpo_bench.contract.task import Task
from dphpo_bench.harness.plan import CheckedPlan, parameters_of
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.harness.setup import Setup
from dphpo_bench.harness.siblings import public_session
from dphpo_bench.privacy.accountants.report import EpsilonReport
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.ledger import Ledger

if TYPE_CHECKING:
    from dphpo_bench.records.record import Status

EPSILON_ROUNDING = 1e-9  # rounding of two evaluations of one event, far below the resolution of any accountant


@dataclass(frozen=True)
class Attempt:
    """The verified run of a method."""

    outcome: Outcome | None  # what the method returned; None if the run failed, but for its test
    status: "Status"  # "ok", or how it failed
    error: str | None  # why it failed
    ledger: Ledger  # what was released
    recomputed: EpsilonReport | None  # ε of the ledger; None if it cannot be bounded

    def failed(self, reason: str) -> "Attempt":
        return replace(self, outcome=None, status="failed", error=reason)


def execute(checked: CheckedPlan, task: Task, train: Records, setup: Setup) -> Attempt:
    """Let a method run on private records, and verify its releases; raise a mistake that shows before any release."""
    ledger = Ledger(allowance=checked.plan.event)
    outcome, status, error = _let_run(checked, task, train, ledger, setup)
    recomputed, status, error = verify(checked, ledger, status, error)
    return Attempt(outcome if status == "ok" else None, status, error, ledger, recomputed)


def _let_run(
    checked: CheckedPlan, task: Task, train: Records, ledger: Ledger, setup: Setup
) -> "tuple[Outcome | None, Status, str | None]":
    """Let the method run; whatever it raises is a result, except a mistake in the call and an interrupt."""
    from dphpo_bench.session.raw import RawRecords
    from dphpo_bench.session.session import open_session

    method, facts = checked.method, checked.facts
    streams = setup.streams(task.public)
    target = checked.plan.budget
    budget = PrivacyBudget(float(target.epsilon), float(target.delta))  # 3 and 3.0 are one run
    parameters = repr(sorted(parameters_of(method).items()))
    axes = (method.name, parameters, repr(budget), facts.task, facts.model)
    inner = streams.within(*axes)
    hidden = setup.hides_trials(checked.plan.event)
    shown = replace(setup, progress=NullProgress(), meter=Meter()) if hidden else setup
    sibling = public_session(method, task, train, shown, inner)
    session = open_session(
        RawRecords(task, train, setup.device),
        ledger,
        inner,
        model_streams=streams,
        progress=shown.progress,
        meter=shown.meter,
        observer=setup.observer,
        order=setup.order,
        checkpoints=setup.checkpoints,
        releases=setup.releases,
        sibling=sibling,
    )
    try:
        with sealed() as complaints:
            if check := getattr(checked.plan.parameters, "check", None):
                check(session)
            outcome = _isolated(method.run(replace(checked.plan), session), setup.unseeded)
    except OverBudgetError as error:
        return None, "over_budget", reason_of(error, setup.unseeded)
    except DphpoBenchError as error:
        if ledger.untouched and not complaints:  # a mistake in the call, found before anything was released
            error.asked_nothing = True
            raise
        return None, "failed", reason_of(error, setup.unseeded)
    except (Exception, SystemExit) as error:
        return None, "failed", reason_of(error, setup.unseeded)
    except BaseException:
        if not ledger.untouched:
            setup.journal.remember()
        raise
    finally:
        session.close()
        if complaints:
            ledger.refuse(complaints[0])
    return (outcome, "ok", None) if isinstance(outcome, Outcome) else (None, "failed", outcome)


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


def verify(
    checked: CheckedPlan, ledger: Ledger, status: "Status", error: str | None
) -> "tuple[EpsilonReport | None, Status, str | None]":
    """Recompute ε from the ledger, None if it cannot be bounded, and correct a run's status and error by it."""
    try:
        recomputed = checked.quoted(ledger.event)
    except UnsupportedEventError as refusal:
        return None, "unverified", str(refusal)
    if ledger.refused:
        return recomputed, "over_budget", ledger.refused
    if ledger.failed:  # the method may have gone on as if nothing had happened
        return recomputed, "failed", ledger.failed
    planned = checked.epsilon.epsilon
    if recomputed.epsilon > planned + EPSILON_ROUNDING:
        reason = f"The releases cost epsilon={recomputed.epsilon:.6g}, more than the planned epsilon={planned:.6g}."
        return recomputed, "over_budget", reason
    return recomputed, status, error
