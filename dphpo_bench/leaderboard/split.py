"""A loss against the oracle in two parts: what of it is noise, and what is a worse choice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

REPLAY = "replay"
"""The method of the extra runs, whose parameters name the records they are about and the values they train with."""

T = TypeVar("T")


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
        """By how much the oracle is better; `noise` and `choice` add up to it."""
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
