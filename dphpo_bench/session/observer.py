"""A view of all that a session releases, as an attacker has it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn


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
