"""Code of this package that a session runs itself: trials in the process of the run, training without noise.

Whoever opens a session hands it in, so that no plug-in can add to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dphpo_bench.contract.session import Scored, Session

if TYPE_CHECKING:
    from torch import nn


class OwnTrial(Protocol):
    """A trial in which no code of a method runs."""

    @property
    def full_batches(self) -> bool:
        """Whether every step takes every record; linear models then share a matrix product."""
        ...

    def run(self, sessions: list[Session]) -> Sequence[Scored]:
        """Run one trial on each session."""
        ...


@dataclass(frozen=True)
class OwnCode:
    """How to recognise this package's own trials and runs: by their exact type.

    Both functions return new objects, made from the fields of what they were given. So nothing is ever called that a
    plug-in attached to an instance or defined in a subclass.

    Attributes:
        trial: gets what a method gave as a trial; None if it is another function, which runs in a copy of the process.
        training: gets the candidates of `Session.sealed_utilities`, and returns how they are all trained without noise,
            one on each session; None if one is of another type.
    """

    trial: Callable[[Any], OwnTrial | None]
    training: "Callable[[Sequence[Any]], Callable[[list[Session]], list[nn.Module]] | None]"
