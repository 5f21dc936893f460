"""The values that boards are made of: estimates, ranks, contestants, findings."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dphpo_bench.records.measure import Measure


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and the ends of its 95 % interval, which a single seed does not have."""

    mean: float
    low: float | None = None
    high: float | None = None

    def through(self, form: Callable[[float], float]) -> "Estimate":
        if self.low is None or self.high is None:
            return Estimate(form(self.mean))
        return Estimate(form(self.mean), *sorted((form(self.low), form(self.high))))

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
    """A sentence or two that the data support, with a title, and the commands that recompute its figures."""

    title: str
    text: str
    commands: tuple[str, ...] = ()


def common_measure(measures: Iterable[Measure]) -> Measure | None:
    different = set(measures)
    return different.pop() if len(different) == 1 else None
