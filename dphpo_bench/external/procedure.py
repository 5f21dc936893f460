"""Plan a private selection among trials that the caller trains: noise of training and scores, and the event of all."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy
import torch
from dp_accounting.dp_event import DpEvent
from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract.method import Method
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.calibration import calibrate, calibrate_parts
from dphpo_bench.privacy.events import compose, gaussian
from dphpo_bench.privacy.holdout import held_out as of_two_parts
from dphpo_bench.privacy.holdout import holdout_name
from dphpo_bench.recipes.search_method import RandomStopping, Selection, Whole
from dphpo_bench.training.noise import add_gaussian_noise

_FORMS = (
    "the scores of the held-out records, a list or a 1-D array of numbers from 0 to 1; or their mean as a float; or "
    "None if the trial failed"
)


@dataclass(frozen=True)
class ScoreRule:
    """Rule that turns what the caller reports into a noisy score.

    Scores of records are held to [0, 1], NaN being 0, so their sum has sensitivity 1 whatever the caller computed. A
    mean is held to [0, 1]; under add or remove its sensitivity is 1 / (the larger number of records), at most
    1 / `n_scored`. A message about a value out of range would be a release that nothing covers, so there is none.
    """

    noise: float  # standard deviation of the noise / sensitivity
    n_scored: int  # public number that scores of records are divided by; a mean is of at least so many records

    def noisy(self, score: Any, generator: torch.Generator) -> float | None:
        """Return a score with its noise; None if the trial cannot win."""
        values = self._values(score)
        if not values.ndim and not values.isfinite():
            return None
        held = values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(0, 1)
        total = held.sum() if values.ndim else held * self.n_scored
        (noisy,) = add_gaussian_noise([total.reshape(1)], self.noise, 1.0, generator)
        return noisy.item() / self.n_scored

    def check_range(self, score: Any) -> None:
        """Reject a score out of range. For made-up records only: on private ones such a message is a release."""
        values = self._values(score)
        if values.shape == (1,):  # a mean in a list would count as one record's score
            raise InvalidValueError(f"Expected {_FORMS}; got a list of one.")
        outside = values[~((values >= 0) & (values <= 1))]
        if len(outside):
            raise InvalidValueError(
                f"Expected scores from 0 to 1, got {outside.flatten()[0].item():g}. Divide percentages by 100; map "
                "losses to this range by public bounds."
            )

    def _values(self, score: Any) -> Tensor:
        """Return a score in float64, on the CPU, apart from the caller's: shape (records,), or () for a number."""
        try:
            if isinstance(score, str | bool):
                raise TypeError
            raw = score if isinstance(score, torch.Tensor) else numpy.array(score, dtype=numpy.float64)
            values = torch.as_tensor(raw).detach().to("cpu", torch.float64, copy=True)
        except Exception:  # whose text may quote a score
            raise InvalidValueError(f"Expected {_FORMS}; got a {type(score).__name__}.") from None
        if values.ndim > 1:
            raise InvalidValueError(f"Expected {_FORMS}; got an array of {values.ndim} dimensions.")
        return values


EventOf = Callable[[float], DpEvent]
"""Event of one training, as a function of its noise multiplier."""

WEAKER_SCORE = 3.0
"""Scores on trained records have so many times the noise that scores alone would need: about a ninth of μ²."""

_TRIED = (0.5, 1.0, 2.0, 4.0, 100.0, 1e5)  # noise multipliers at which ε of the caller's event must fall


@dataclass(frozen=True)
class Procedure:
    """A private selection among the caller's trials, calibrated to its budget."""

    method: RandomStopping[Any]
    selection: Selection
    noise_multiplier: float  # of a trial's training
    score_noise: float  # standard deviation of the noise on a score / sensitivity of the score
    final_noise: float | None  # noise multiplier of the final run; None: there is none
    event: DpEvent
    training_event: DpEvent  # of the training that is released

    @classmethod
    def calibrated(cls, method: Method, event: EventOf, budget: PrivacyBudget, held_out: float | None) -> "Procedure":
        """Return the procedure with the least noise that keeps it within its budget, as the method plans it.

        Args:
            method: a private selection of independent trials.
            event: of the caller's training, as a function of its noise multiplier.
            budget: the (ε, δ) of trials, scores and final run together.
            held_out: expected share of the records that scores are computed on, each record being in one of the two
                parts; None: the records that score may be trained ones.

        Raises:
            BudgetTooSmallError: if no noise within reach meets the budget.
        """
        selection = method.selection(budget) if isinstance(method, RandomStopping) and method.independent else None
        if not isinstance(method, RandomStopping) or selection is None or selection.sample_rate < 1:
            raise InvalidValueError(
                "Expected a private selection of independent trials on all records, such as papernot_steinke, got "
                f"{method.name}, which selects otherwise or not at all."
            )
        training = _checked(event, budget, held_out)
        final_noise: float | None = None
        whole: Whole = selection.search
        if selection.final_share:
            share = selection.final_budget(budget)
            final_noise = calibrate(training, share, accountant=selection.final_accountant)
            whole = selection.with_final(training(final_noise))
        accountant = method.accountant
        if held_out is None:
            score_noise = WEAKER_SCORE * calibrate(lambda noise: whole(gaussian(noise)), budget, accountant=accountant)
            scored = gaussian(score_noise)
            noise = calibrate(lambda noise: whole(compose(training(noise), scored)), budget, accountant=accountant)
            trial = compose(training(noise), scored)
        else:
            noise, score_noise = calibrate_parts(whole, training, budget, accountant)
            trial = of_two_parts(training(noise), gaussian(score_noise), held_out)
        released = training(noise if final_noise is None else final_noise)
        event_ = event_trees.frozen(whole(trial))
        return cls(method, selection, noise, score_noise, final_noise, event_, released)


def _checked(event: EventOf, budget: PrivacyBudget, held_out: float | None) -> EventOf:
    """Return the function, its events frozen; reject one whose noise does not lower ε."""

    def event_of(noise: float) -> DpEvent:
        tree: Any = event(noise)
        if not isinstance(tree, DpEvent):
            raise InvalidValueError(
                "Expected event(noise) to return a privacy event, such as bench.recipes.dp_sgd_event(sample_rate, "
                f"steps, noise), got {shown(tree, form=repr)}."
            )
        if held_out is not None and holdout_name(held_out) in event_trees.partitions(tree):
            raise InvalidValueError(
                "Expected event(noise) to be of a trial's training alone; the study adds the score on held-out records."
            )
        return event_trees.frozen(tree)

    costs = [epsilon(event_of(noise), budget.delta, coarseness=8.0).epsilon for noise in _TRIED]
    falls = all(less >= more * (1 - 1e-3) for less, more in pairwise(costs))
    if not (falls and costs[0] > costs[-1]):
        listed = ", ".join(f"{cost:.4g} at {noise:g}" for noise, cost in zip(_TRIED, costs, strict=True))
        raise InvalidValueError(
            f"Expected event(noise) of an ε that falls as the noise multiplier grows, got ε = {listed}. Hand the "
            "argument on, as in lambda noise: bench.recipes.dp_sgd_event(sample_rate, steps, noise)."
        )
    return event_of
