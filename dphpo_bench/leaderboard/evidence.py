"""What a board claims of who beats whom, with the chance that any of it is wrong, and what would change it."""

from dataclasses import dataclass

from dphpo_bench.leaderboard.values import Contestant, Estimate
from dphpo_bench.records.measure import Measure

FAMILY_ERROR = 0.05
"""The chance that any of all claims of a board is wrong, as far as Student's t-test holds."""


@dataclass(frozen=True)
class Pair:
    """Two contestants on the same tables, seed by seed.

    Attributes:
        better: who is ahead, if only by luck.
        worse: the other one.
        lead: by how much, with its own 95 % interval.
        chance: the adjusted p-value; up to `FAMILY_ERROR` it is a claim.
        ahead: in how many of the tables it is ahead.
        tables: how many both are in.
    """

    better: Contestant
    worse: Contestant
    lead: Estimate
    chance: float
    ahead: int
    tables: int

    @property
    def told_apart(self) -> bool:
        """Whether the board claims that one beats the other."""
        return self.chance <= FAMILY_ERROR


@dataclass(frozen=True)
class Power:
    """What it takes to tell more pairs apart, if their spreads and leads are what was measured.

    Attributes:
        seeds: the fewest that any of the compared have in any table.
        smallest: the lead that is told apart in four of five boards like this one, for the pair of median error.
        times_for_point: how many times the data show a lead of 0.01 for this pair; None for more than are tried.
        by_times: how many of the undecided pairs so many times the data would settle.
    """

    seeds: int
    smallest: float
    times_for_point: float | None
    by_times: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Claims:
    """All pairs of contestants on some tables at one ε.

    Attributes:
        subject: as in an answer.
        epsilon: of the tables.
        measure: of the tables.
        tasks: how many settings there are.
        order: the contestants that are in all of the tables, the best mean first.
        others: those that are compared on most of them, by label.
        pairs: each two, on the tables that both are in, if these are most.
        power: what it takes to tell more apart; None if no spread is known.
    """

    subject: str
    epsilon: float
    measure: Measure
    tasks: int
    order: tuple[Contestant, ...]
    others: tuple[Contestant, ...]
    pairs: tuple[Pair, ...]
    power: Power | None

    @property
    def title(self) -> str:
        """Subject and ε."""
        return f"{self.subject}, ε = {self.epsilon:g}"

    @property
    def told_apart(self) -> tuple[Pair, ...]:
        """The pairs of which the board claims that one beats the other."""
        return tuple(pair for pair in self.pairs if pair.told_apart)

    @property
    def complete(self) -> tuple[Pair, ...]:
        """The pairs of which both are in all of the tables."""
        return tuple(pair for pair in self.pairs if pair.better in self.order and pair.worse in self.order)

    def beaten(self, who: Contestant) -> list[Pair]:
        """The pairs in which it beats the other one."""
        return [pair for pair in self.told_apart if pair.better == who]


@dataclass(frozen=True)
class Variation:
    """What becomes of an order if the board is made in other ways.

    Attributes:
        epsilon: of the tables.
        title: what is changed, such as "without one task".
        firsts: who is first, and in how many of the ways; the most frequent one first.
        pairs: how many pairs there are of contestants that are in all tables; the next two count among these.
        swapped: how many of them change places, in the way that changes most.
        reversed: how many of those that are told apart change places, in the way that changes most of these.
        worst: the name of the way in which most change places.
    """

    epsilon: float
    title: str
    firsts: tuple[tuple[Contestant, int], ...]
    pairs: int
    swapped: int
    reversed: int
    worst: str
