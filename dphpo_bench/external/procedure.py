"""Plan a private selection among trials that the caller trains: noise, and the event of the whole procedure."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract import registry
from dphpo_bench.contract.method import Method
from dphpo_bench.privacy import event_rules
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.calibration import calibrate, calibrate_parts
from dphpo_bench.privacy.events import compose, gaussian
from dphpo_bench.privacy.holdout import held_out as of_two_parts
from dphpo_bench.privacy.holdout import holdout_name
from dphpo_bench.recipes.search_method import RandomStopping, Selection
from dphpo_bench.recipes.trial import Whole

EventOf = Callable[[float], DpEvent]
"""Event of one training, as a function of its noise multiplier."""

WEAKER_SCORE = 3.0
"""Scores on trained records have so many times the noise that scores alone would need: about a ninth of μ²."""

_TRIED = (0.5, 1.0, 2.0, 4.0, 100.0, 1e5)  # noise multipliers at which ε of the caller's event must fall


@dataclass(frozen=True)
class Procedure:
    """A private selection among the caller's trials, calibrated to its budget.

    Attributes:
        method: whose selection it is.
        selection: its rule.
        budget: the (ε, δ) of the whole procedure.
        noise_multiplier: of a trial's training.
        score_noise: standard deviation of the noise on a score / sensitivity of the score.
        final_noise: noise multiplier of the final run; None: there is none.
        event: of the whole procedure.
        training_event: of the training that is released.
    """

    method: RandomStopping[Any]
    selection: Selection
    budget: PrivacyBudget
    noise_multiplier: float
    score_noise: float
    final_noise: float | None
    event: DpEvent
    training_event: DpEvent

    @classmethod
    def calibrated(
        cls, method: str | Method, event: EventOf, budget: PrivacyBudget, held_out: float | None
    ) -> "Procedure":
        """Return the procedure with the least noise that keeps it within its budget, as the method plans it.

        Args:
            method: a private selection of independent trials, or its name.
            event: of the caller's training, as a function of its noise multiplier.
            budget: the (ε, δ) of the whole procedure.
            held_out: expected share of the records that scores are computed on, each record being in one of the two
                parts; None: the records that score may be trained ones.

        Raises:
            InvalidValueError: if the method is no such selection, or `event` is no such function.
            BudgetTooSmallError: if no noise within reach meets the budget.
        """
        searcher = _selecting(method)
        training = _checked(event, budget, held_out)
        selection = searcher.selection(budget)
        final_noise: float | None = None
        whole: Whole = selection.search
        if selection.final_share:
            share = selection.final_budget(budget)
            final_noise = calibrate(training, share, accountant=selection.final_accountant)
            whole = selection.with_final(training(final_noise))
        accountant = searcher.accountant
        if held_out is None:
            score_noise = WEAKER_SCORE * calibrate(lambda noise: whole(gaussian(noise)), budget, accountant=accountant)
            scored = gaussian(score_noise)
            noise = calibrate(lambda noise: whole(compose(training(noise), scored)), budget, accountant=accountant)
            trial = compose(training(noise), scored)
        else:
            noise, score_noise = calibrate_parts(whole, training, budget, accountant)
            trial = of_two_parts(training(noise), gaussian(score_noise), held_out)
        released = training(noise if final_noise is None else final_noise)
        event_ = event_rules.frozen(whole(trial))
        return cls(searcher, selection, budget, noise, score_noise, final_noise, event_, released)


def _selecting(method: str | Method) -> RandomStopping[Any]:
    method = registry.method_of(method)
    if isinstance(method, RandomStopping) and method.independent:
        return method
    serving = [
        name
        for name, entry in registry.methods().loaded().items()
        if issubclass(entry.cls, RandomStopping) and entry.cls.independent
    ]
    raise InvalidValueError(
        f"Expected a private selection of independent trials ({', '.join(serving)}), got {method.name}, which selects "
        "otherwise or not at all."
    )


def _checked(event: EventOf, budget: PrivacyBudget, held_out: float | None) -> EventOf:
    """Return the function, its events frozen; reject one whose noise does not lower ε."""

    def event_of(noise: float) -> DpEvent:
        try:
            tree: Any = event(noise)
        except DphpoBenchError:
            raise
        except Exception as error:
            raise InvalidValueError(f"event({noise:g}) raised {type(error).__name__}: {shown(error, 200)}.") from None
        if not isinstance(tree, DpEvent):
            raise InvalidValueError(
                "Expected event(noise) to return a privacy event, such as bench.recipes.dp_sgd_event(sample_rate, "
                f"steps, noise), got {shown(tree, form=repr)}."
            )
        if held_out is not None and holdout_name(held_out) in event_rules.partitions(tree):
            raise InvalidValueError(
                "Expected event(noise) to be of a trial's training alone; the study adds the score on held-out records."
            )
        return event_rules.frozen(tree)

    costs = [epsilon(event_of(noise), budget.delta, coarseness=8.0).epsilon for noise in _TRIED]
    falls = all(less >= more * (1 - 1e-3) for less, more in pairwise(costs))
    if not (falls and costs[0] > costs[-1]):
        listed = ", ".join(f"{cost:.4g} at {noise:g}" for noise, cost in zip(_TRIED, costs, strict=True))
        raise InvalidValueError(
            f"Expected event(noise) of an ε that falls as the noise multiplier grows, got ε = {listed}. Hand the "
            "argument on, as in lambda noise: bench.recipes.dp_sgd_event(sample_rate, steps, noise)."
        )
    return event_of
