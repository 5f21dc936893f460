"""The result of a trial."""

from dataclasses import dataclass
from typing import Any

MAX_STACKED_TRIALS = 16
"""Number of models that are trained at once where that saves time; more would save little and need more memory."""


@dataclass(frozen=True)
class TrialResult:
    """The result of one trial of a private selection.

    Attributes:
        outcome: what is released if the trial wins: the model, its hyperparameters.
        score: higher is better; a number that the trial released, never a raw one. NaN counts as the worst.
    """

    outcome: Any
    score: float
