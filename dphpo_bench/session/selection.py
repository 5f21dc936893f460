"""Private selection: many trials, of which only the winner is released."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cloudpickle

from dphpo_bench.recipes.dp_sgd import DpSgd
from dphpo_bench.recipes.trial import Trial
from dphpo_bench.session.observer import Observer

if TYPE_CHECKING:
    from dphpo_bench.session.session import Session


@dataclass(frozen=True)
class Scored:
    """What one trial of a private selection comes to.

    Attributes:
        outcome: what is released if the trial wins: the model, its hyperparameters.
        score: higher is better; a number that the trial released, never a raw one. NaN counts as the worst.
    """

    outcome: Any
    score: float


@dataclass(frozen=True)
class _Tried:
    """One trial that is over.

    Attributes:
        index: its number.
        score: None if it failed.
        unpack: gives its outcome and who looked on. Only the winner's is unpacked: code of a method may run then.
        known: the same as pickle has written it, if it has.
    """

    index: int
    score: float | None
    unpack: "Callable[[], tuple[Any, Observer | None]]"
    known: bytes = b""

    def packed(self) -> bytes:
        """What `unpack` gives, as pickle writes it."""
        return self.known or cloudpickle.dumps(self.unpack())

    def beats(self, other: "_Tried | None") -> bool:
        """Whether it wins. Of trials with equal scores the first wins, in whatever order they ran."""
        if self.score is None or other is None or other.score is None:
            return self.score is not None
        return (self.score, -self.index) > (other.score, -other.index)


TrialFunction = Callable[["Session"], Scored]


def _exact(trial: TrialFunction | Trial) -> TrialFunction | Trial:
    """A trial in which no code of a method runs, made anew from its numbers; a function of a method's own as it is."""
    if type(trial) is Trial and type(trial.training) is DpSgd:
        return replace(trial, training=replace(trial.training))
    return trial if not isinstance(trial, Trial) else trial.__call__


def _as_it_is(scored: Scored | None, observer: Observer | None) -> tuple[Any, Observer | None]:
    return scored and scored.outcome, observer


def _valid(scored: Scored) -> Scored | None:
    """A result whose score is a number; None if it is none."""
    score = float(scored.score)
    return None if math.isnan(score) else Scored(scored.outcome, score)
