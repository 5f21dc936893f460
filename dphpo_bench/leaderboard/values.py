"""The values that boards are made of: estimates, ranks, entries, findings."""

from dataclasses import dataclass

EQUIVALENT, BEHIND, UNCERTAIN = "equivalent", "behind", "uncertain"
"""Verdicts on an entry beside the first: within a point of it, significantly worse, or neither can be said."""


@dataclass(frozen=True)
class Ranks:
    """The best and the worst of the middle 95 % of the ranks that resampling gives to an entry; 1 is best."""

    low: int
    high: int


@dataclass(frozen=True)
class PathPoint:
    """A release of a method that adapts while it trains, at one step, counted from 0."""

    step: int
    learning_rate: float


@dataclass(frozen=True)
class Entry:
    """A method with its parameters, as compact JSON; a reference is a line to compare with, not a method to choose."""

    method: str
    label: str
    parameters: str
    end_to_end_private: bool
    reference: bool

    @property
    def identity(self) -> tuple[str, str, bool]:
        return self.method, self.parameters, self.end_to_end_private


@dataclass(frozen=True)
class Refused:
    """A record that is not on the board: its path below the folder of records, and the reason in one line."""

    path: str
    reason: str


@dataclass(frozen=True)
class Finding:
    """A sentence or two that the data support.

    Attributes:
        objection: the strongest objection to them.
        figures: the words of both that the board's data hold, each with the command that recomputes it.
    """

    title: str
    text: str
    figures: tuple[tuple[str, str], ...] = ()
    objection: str = ""
