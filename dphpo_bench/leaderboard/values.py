"""The values that boards are made of: estimates, ranks, contestants, findings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from dphpo_bench.records.measure import Measure

REPLAY = "replay"
"""The method of the extra runs, whose parameters name the records they are about and the values they train with."""

EQUIVALENT, BEHIND, UNCERTAIN = "equivalent", "behind", "uncertain"
"""Standings of a contestant to the first: within a point of it, significantly worse, or neither can be said."""

T = TypeVar("T")


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and the ends of its 95 % interval, which a single seed does not have.

    That of a logarithmic metric is geometric, with an interval that is longer above the mean than below.
    """

    mean: float
    low: float | None = None
    high: float | None = None

    def through(self, form: Callable[[float], float]) -> "Estimate":
        if self.low is None or self.high is None:
            return Estimate(form(self.mean))
        return Estimate(form(self.mean), *sorted((form(self.low), form(self.high))))

    def inside(self, low: float, high: float) -> "Estimate":
        """Return the estimate with the part of its interval that lies in a range; a mean outside of it stays within."""
        if self.low is None or self.high is None:
            return self
        return Estimate(self.mean, min(max(self.low, low), self.mean), max(min(self.high, high), self.mean))

    @property
    def sign(self) -> int:
        """1 if it is above zero with 95 % confidence, −1 if below, else 0."""
        return 0 if self.low is None or self.high is None else (self.low > 0) - (self.high < 0)


@dataclass(frozen=True)
class Ranks:
    """The best and the worst of the middle 95 % of the ranks that resampling gives to a contestant; 1 is best."""

    low: int
    high: int


@dataclass(frozen=True)
class PathPoint:
    """A release of a method that adapts while it trains, at one step, counted from 0."""

    step: int
    learning_rate: float
    loss_bound: float | None


@dataclass(frozen=True)
class Contestant:
    """A method with its parameters, as compact JSON; a reference is a line to compare with, not a method to choose."""

    method: str
    label: str
    parameters: str
    end_to_end_private: bool
    reference: bool


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

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(command for _, command in self.figures)


def common_measure(measures: Iterable[Measure]) -> Measure | None:
    different = set(measures)
    return different.pop() if len(different) == 1 else None


@dataclass(frozen=True)
class Split:
    """Four runs, by whose values they train with and how much ε their training has; larger results are better.

    Attributes:
        run: the run's values, what was left of ε: the run itself.
        oracle: the oracle's values, all of ε: the oracle's last training.
        at_full: the run's values, all of ε; None if there are none to train with.
        at_left: the oracle's values, what was left of ε.
    """

    run: float
    oracle: float
    at_full: float | None
    at_left: float

    @classmethod
    def of_free_tuning(cls, run: float, oracle: float) -> "Split":
        return cls(run, oracle, run, oracle)

    @property
    def loss(self) -> float:
        """Distance by which the oracle is better; `noise` and `choice` add up to it."""
        return self.oracle - self.run

    @property
    def noise(self) -> float:
        """Cost of paying for the tuning: the mean over both choices of values, or at the oracle's alone."""
        at_oracles = self.oracle - self.at_left
        return at_oracles if self.at_full is None else (at_oracles + self.at_full - self.run) / 2

    @property
    def choice(self) -> float:
        """Cost of the other values: the mean over both amounts of ε, or at what was left alone."""
        at_what_was_left = self.at_left - self.run
        return at_what_was_left if self.at_full is None else (at_what_was_left + self.oracle - self.at_full) / 2


def counterpart(by_seed: Mapping[int, T], seed: int | None) -> T | None:
    """Return the item of this seed, else of the smallest one; None if there is none."""
    return (None if seed is None else by_seed.get(seed)) or (by_seed[min(by_seed)] if by_seed else None)
