"""Let a method run, and verify what it released."""

import json
import logging
import secrets
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import (
    DphpoBenchError,
    InvalidValueError,
    OverBudgetError,
    SealedDataError,
    UnsupportedEventError,
)
from dphpo_bench.base.progress import Progress, SilentProgress
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.method import Method, Outcome
from dphpo_bench.contract.task import Task, sealed
from dphpo_bench.harness.journal import Journal
from dphpo_bench.privacy.accountants.report import EpsilonReport
from dphpo_bench.privacy.event_kinds import has_selection
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.recipes.trial import OWN_CODE
from dphpo_bench.training.randomness import Streams

if TYPE_CHECKING:
    from dphpo_bench.records.record import Status
    from dphpo_bench.session.observer import Observer

from dphpo_bench.harness.plan import CheckedPlan, _quoted

logger = logging.getLogger(__name__)

# Rounding of two evaluations of one event, far below anything an accountant resolves.
EPSILON_ROUNDING = 1e-9

MAX_REASON = 2000

SECURE_NOISE = "secure noise"
"""In a journal: the run has drawn noise that no restart can draw again."""


@dataclass(frozen=True)
class Attempt:
    """What came of a method's run.

    Attributes:
        outcome: what it released; None if it failed.
        status: "ok", or why there is nothing.
        error: the reason in words.
        ledger: what was released.
        recomputed: ε of the ledger; None if it cannot be bounded.
    """

    outcome: Outcome | None
    status: "Status"
    error: str | None
    ledger: Ledger
    recomputed: EpsilonReport | None


def execute(
    checked: CheckedPlan,
    task: Task,
    train: Records,
    *,
    seed: int | None,
    journal: Journal | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    observer: "Observer | None" = None,
    secure_noise: bool = False,
    order: Callable[[int], Sequence[int]] = range,
) -> Attempt:
    """Let a method run on these records and verify what it released; no test data, no record.

    Args:
        checked: the plan, and the method that made it.
        task: where models come from.
        train: the private records. Their number may differ from the public one.
        seed: as in `run`.
        journal: where the seed of an unseeded run is kept until it is recorded; None: nowhere.
        device: a torch device.
        progress: where long work reports to.
        observer: is told what is released.
        secure_noise: as in `run`; without a seed.
        order: number of trials of a selection → their indices in the order in which they run, which changes nothing.

    Raises:
        DphpoBenchError: at a mistake in the call that shows before anything is released.
    """
    ledger = Ledger(allowance=checked.plan.event)
    outcome, status, error = _attempt(
        checked,
        task,
        train,
        ledger,
        journal or Journal(),
        seed,
        device,
        progress or SilentProgress(),
        observer,
        secure_noise,
        order,
    )
    recomputed, status, error = _verify(checked, ledger, status, error)
    return Attempt(outcome if status == "ok" else None, status, error, ledger, recomputed)


def _attempt(
    checked: CheckedPlan,
    task: Task,
    train: Records,
    ledger: Ledger,
    journal: Journal,
    seed: int | None,
    device: str,
    progress: Progress,
    observer: "Observer | None",
    secure_noise: bool,
    order: Callable[[int], Sequence[int]],
) -> "tuple[Outcome | None, Status, str | None]":
    """Let the method run; whatever it raises is a result, except what the user asked for."""
    from dphpo_bench.session.session import open_session

    budget = checked.plan.budget
    hide = seed is None
    if secure_noise:
        _check_secure_noise(seed)
        journal.once(SECURE_NOISE, lambda: 1)
    bits = 256 if secure_noise else 128
    streams = Streams(journal.once("seed", lambda: secrets.randbits(bits)) if seed is None else seed, (), secure_noise)
    if _is_secret(checked, seed):
        progress = SilentProgress()
    session = open_session(
        task,
        train,
        ledger,
        streams.within(
            checked.method.name,
            repr(sorted(_parameters(checked.method).items())),
            repr(budget),
            checked.facts.task,
            checked.facts.model,
        ),
        own_code=OWN_CODE,
        model_streams=streams,
        device=device,
        progress=progress,
        observer=observer,
        order=order,
    )
    try:
        with sealed() as complaints:
            outcome = checked.method.run(replace(checked.plan), session)
            unfit = _unfit(outcome, hide)
    except OverBudgetError as error:
        return None, "over_budget", reason_of(error, hide)
    except DphpoBenchError as error:
        if not ledger.entries and not complaints:  # a mistake in the call, found before anything was released
            raise
        return None, "failed", reason_of(error, hide)
    except (Exception, SystemExit) as error:
        return None, "failed", reason_of(error, hide)
    finally:
        session.close()
        if complaints:
            ledger.refuse(complaints[0])
    return (outcome, "ok", None) if unfit is None else (None, "failed", unfit)


def _unfit(outcome: Any, hide: bool) -> str | None:
    """Why what a method returns cannot be released; None if it can, and its values are plain then."""
    import torch

    if not (isinstance(outcome, Outcome) and isinstance(outcome.model, torch.nn.Module)):
        return f"Expected an Outcome with a torch.nn.Module, got {type(outcome).__name__}."
    try:
        text = json.dumps(outcome.released, ensure_ascii=False)
        text.encode()
        outcome.released = dict(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        return f"Expected a dictionary of released values that JSON can hold: {reason_of(error, hide)}."
    if not all(torch.isfinite(parameter).all() for parameter in outcome.model.parameters()):
        return "The trained model has weights that are not finite."
    return None


def _check_secure_noise(seed: int | None) -> None:
    from dphpo_bench.training.secure_noise import require_opendp

    if seed is not None:
        raise InvalidValueError(
            f"Expected no seed with secure noise, got {seed}: whoever knows a seed can subtract the noise. "
            "Leave out one of the two."
        )
    require_opendp()


def reason_of(error: BaseException, hide: bool = False) -> str:
    """One line for a record; the traceback goes to the debug log.

    Args:
        error: what was raised.
        hide: whether the text may quote private records, as that of any exception can which the engine did not
            raise itself. The line then has the type of the exception and where it was raised.
    """
    logger.debug("A run failed.", exc_info=error)
    frames = traceback.extract_tb(error.__traceback__)
    raised_here = bool(frames) and Path(frames[-1].filename).parent.is_relative_to(Path(__file__).parents[1])
    if hide and not (isinstance(error, DphpoBenchError) and raised_here):
        where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        return f"{type(error).__name__}{where}; its text may quote private records and is in the debug log only."
    try:
        text = str(error) if isinstance(error, DphpoBenchError) else f"{type(error).__name__}: {error}"
    except Exception:  # a plug-in's error that cannot be printed
        text = type(error).__name__
    return " ".join(text.split())[:MAX_REASON].encode(errors="replace").decode()


def _is_secret(checked: CheckedPlan, seed: int | None) -> bool:
    """Whether the number of runs must not be known: then the time and the memory they took must not be, either.

    With a seed there is no secret to keep: whoever knows it can compute everything.
    """
    return seed is None and has_selection(checked.plan.event)


def _verify(
    checked: CheckedPlan, ledger: Ledger, status: "Status", error: str | None
) -> "tuple[EpsilonReport | None, Status, str | None]":
    """Recompute ε from what was released, and hold it against the plan."""
    budget = checked.plan.budget
    try:
        recomputed = _quoted(ledger.event, budget.delta, checked.plan.accountant)
    except UnsupportedEventError as refusal:
        return None, "unverified", str(refusal)
    if ledger.refused:
        return recomputed, "over_budget", ledger.refused
    if ledger.failed:  # the method may have gone on as if nothing had happened
        return recomputed, "failed", ledger.failed
    if recomputed.epsilon > checked.epsilon.epsilon + EPSILON_ROUNDING:
        return (
            recomputed,
            "over_budget",
            f"The releases cost epsilon={recomputed.epsilon:.6g}, more than the planned "
            f"epsilon={checked.epsilon.epsilon:.6g}.",
        )
    return recomputed, status, error


def _parameters(method: Method) -> dict[str, Any]:
    """The method's parameters, which it tells without looking at data.

    Raises:
        SealedDataError: if it looks.
    """
    with sealed() as complaints:
        told = method.parameters
    if complaints:
        raise SealedDataError(complaints[0])
    return told
