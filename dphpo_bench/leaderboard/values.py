"""The values that boards are made of: estimates, ranks, contestants, findings."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dphpo_bench.records.measure import Measure


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and the ends of its 95 % interval, which a single seed does not have.

    That of a logarithmic metric is geometric, with an interval that is longer above the mean than below.
    """

    mean: float
    low: float | None = None
    high: float | None = None

    def through(self, form: Callable[[float], float]) -> "Estimate":
        """Return the mean and the ends as another form of the value, monotonic, such as its negative."""
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
    """A method with its parameters: what is ranked.

    Attributes:
        label: the name, and the parameters in which contestants of this method differ.
        parameters: all parameters, as compact JSON.
        reference: whether it is a line to compare with rather than a method to choose.
    """

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
    """Return the metric that all have; None if they differ."""
    different = set(measures)
    return different.pop() if len(different) == 1 else None
