"""Small types that sessions, plug-ins and audits share; nothing slow is imported here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from dphpo_bench.base.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import Tensor, nn


class Unique:
    """An object that releases values: a copy would repeat its noise and charge nobody."""

    __slots__ = ()

    def __copy__(self) -> NoReturn:
        raise InvalidValueError(
            f"Expected one {type(self).__name__} and no copy of it: its noise would repeat, and its releases would "
            "be charged to nobody. Use Session.fork for other random streams."
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()


class Observer(Protocol):
    """Receives all releases; audits attack with it."""

    def gradient(self, model: "nn.Module", released: "Sequence[Tensor]", share: float) -> None:
        """Receive a noisy mean gradient.

        Args:
            model: at the weights that it was computed at.
            released: one tensor for each trainable parameter.
            share: the largest L2 norm that one record can have added.
        """

    def trial(self) -> "Observer":
        """Return an observer for one trial of a selection, whose releases stay secret unless it wins."""

    def won(self, trial: "Observer") -> None:
        """Receive the observer of the trial that won: all of its releases are public."""


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
