"""Is shown what a session releases: all that an attacker may see."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn


class Observer(Protocol):
    """Is shown what is released; audits attack with it."""

    def gradient(self, model: "nn.Module", released: "Sequence[Tensor]", share: float, noise: float) -> None:
        """A noisy mean gradient was released.

        Args:
            model: at the weights that it was computed at.
            released: one tensor for each trainable parameter.
            share: the largest L2 norm that one record can have added.
            noise: standard deviation of the noise on each coordinate.
        """

    def trial(self) -> "Observer":
        """An observer for one trial of a selection, whose releases stay secret unless it wins."""

    def won(self, trial: "Observer") -> None:
        """This trial won, so all of its releases are public."""
