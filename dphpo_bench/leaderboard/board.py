"""The board as values: tables, rows, estimates. `scoring` computes them.

Everything here is made from verified records. Names and labels are one line of printable characters, but they are still
strangers' texts: whoever writes Markdown or HTML escapes them.
"""

from dataclasses import dataclass

from dphpo_bench.base.text import duration_text
from dphpo_bench.leaderboard.answers import Answer, Claims
from dphpo_bench.leaderboard.tables import Overall, Table
from dphpo_bench.leaderboard.values import Finding, Refused, common_measure
from dphpo_bench.records.measure import Measure


@dataclass(frozen=True)
class Board:
    """The leaderboard.

    Attributes:
        missing: tasks, models and their ε of the core suite that do not count, because too few of its methods were run.
        superseded: number of records of older versions of a method or a task, or of seeds that no suite asks for.
        records: number of records that were read, good or bad.
    """

    findings: tuple[Finding, ...]
    overalls: tuple[Overall, ...]
    tables: tuple[Table, ...]
    missing: tuple[str, ...]
    rejected: tuple[Refused, ...]
    failed: tuple[Refused, ...]
    superseded: int
    records: int
    seconds: float = 0.0
    answers: tuple[Answer, ...] = ()
    claims: tuple[Claims, ...] = ()

    @property
    def measure(self) -> Measure | None:
        return common_measure(table.measure for table in self.tables)

    @property
    def duration(self) -> str:
        return duration_text(self.seconds)

    @property
    def explains(self) -> bool:
        return any(row.lost_to_noise for table in self.tables for row in table.everyone)

    @property
    def shifts(self) -> bool:
        return any(row.shifted for table in self.tables for row in table.everyone)
