"""A tuner as loops know optimisers of torch."""

import os
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn, Self

from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.external.callers_optimizer import CallersOptimizer
from dphpo_bench.recipes.noise_law import Looked

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


class AsOptimizer(ABC):
    """The part of a tuner that reads as an optimiser of torch does.

    Attributes:
        planned: what the training releases, and when.
        steps_taken: number of steps so far.
    """

    planned: Looked
    steps_taken: int
    _optimizer: CallersOptimizer | None
    _weights: list[Tensor]

    @property
    @abstractmethod
    def learning_rate(self) -> float:
        """The learning rate of the latest step."""

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the gradients, for `make_private`."""
        return self.planned.noise_multiplier

    @property
    def event(self) -> "DpEvent":
        """The event of the whole training: gradients and looks."""
        return self.planned.event

    @property
    def steps(self) -> int:
        """T."""
        return self.planned.steps

    def __enter__(self) -> Self:
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002
        """Clear the gradients, as `step` does by itself. A noisy gradient of `backward` still counts for its step.

        Args:
            set_to_none: as in torch; gradients are None either way.
        """
        if self._optimizer and self._optimizer.is_private:
            self._optimizer.clear()
            return
        for weight in self._weights:
            weight.grad = None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimiser's groups with the learning rates of the latest step: copies, which set nothing."""
        groups: list[dict[str, Any]] = [{"params": [*self._weights], "lr": 1.0}]
        if self._optimizer:
            groups = self._optimizer.inner.param_groups
        unit = self.learning_rate / float(groups[0]["lr"])
        return [{**group, "lr": unit * float(group["lr"])} for group in groups]

    def state_dict(self) -> dict[str, Any]:
        """Return how far the training has come, for a log or beside weights in a file."""
        return {"steps_taken": self.steps_taken, "learning_rate": self.learning_rate}

    def load_state_dict(self, state_dict: Any) -> NoReturn:  # noqa: ARG002
        """Refuse: a training that was interrupted cannot go on.

        Raises:
            InvalidValueError: always.
        """
        raise InvalidValueError(
            "A training with a tuner cannot go on from a checkpoint: to train again is a second release. Make a new "
            "tuner, with a name and a budget of its own; model.load_state_dict restores weights."
        )


def say_unfinished(name: str, process: int) -> None:
    """Say on standard error that a training was left without an end, but not in a forked child."""
    if os.getpid() == process and sys.stderr:
        sys.stderr.write(
            f"The training {name} ended without tuner.finish(): no averaged weights, no record; it counts all the "
            "same. Call finish(), or train in a block: with Tuner(...) as tuner.\n"
        )
