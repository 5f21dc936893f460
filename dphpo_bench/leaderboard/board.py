"""What the leaderboard shows, as values: tables, rows, estimates. `scoring` computes them.

Everything here is made from verified records. Names and labels are one line of printable characters, but they are still
strangers' texts: whoever writes Markdown or HTML escapes them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dphpo_bench.base.text import duration_text
from dphpo_bench.leaderboard.evidence import Claims as Claims
from dphpo_bench.leaderboard.evidence import Pair as Pair
from dphpo_bench.leaderboard.evidence import Variation as Variation
from dphpo_bench.leaderboard.values import Contestant as Contestant
from dphpo_bench.leaderboard.values import Estimate as Estimate
from dphpo_bench.leaderboard.values import PathPoint as PathPoint
from dphpo_bench.leaderboard.values import Ranks as Ranks
from dphpo_bench.privacy.risk import Risk
from dphpo_bench.records.measure import Measure

FEW_SEEDS = 3


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What the tables show of a contestant. An overall standing sums up its rows in several tables.

    Attributes:
        contestant: who.
        seeds: finished runs; overall, the fewest in any table.
        failed: failed runs. They count as the worst value in ranks and gaps, not in `utility`.
        utility: the metric on test data, overall its mean over the tables. None if no run finished; overall also if the
            contestant is not in all tables, or their metrics differ.
        ranks: overall, the places by mean rank. None for references and for contestants that are not ranked.
        gap_to_oracle: by how much the oracle is better, over the seeds that both have, overall of the mean over the
            tables; None overall if metrics differ.
        cross_entropy: on test data, overall its mean over the tables; None if one of them lacks it.
        contradicted: whether an attack on a run has shown more than that run's ε.
        lacks_seeds: whether it has no run of a seed that the suite asks for, and so is not compared.
        tuning_share: share of ε spent on tuning, in [0, 1]. This and the next three are medians over runs, overall over
            tables.
        runs: training runs, in expectation.
        examples: examples processed, in expectation.
        seconds: of all phases; None if no run tells.
    """

    contestant: Contestant
    seeds: int
    failed: int
    utility: Estimate | None
    ranks: Ranks | None
    gap_to_oracle: Estimate | None
    cross_entropy: Estimate | None
    contradicted: bool
    lacks_seeds: bool
    tuning_share: float
    runs: float
    examples: float
    seconds: float | None

    @property
    def few_seeds(self) -> bool:
        """Whether there are too few seeds to conclude much."""
        return self.seeds < FEW_SEEDS


@dataclass(frozen=True, kw_only=True)
class Row(Standing):
    """A contestant on one task at one ε.

    Attributes:
        worst: the metric on test data of the worst run that finished.
        gap_to_untuned: by how much this one is better than untuned `auto_clipping`.
        gap_closed: share of the distance from untuned to oracle; None if that distance may be zero.
        epsilon: the largest ε of the runs, failed ones included, as their ledgers confirm it; ∞ if it is not private;
            None if no run could say.
        accountant: whose bound it is.
        audited: the largest lower bound on ε that an attack has shown, if there was one.
        risk: the largest proven bounds of what an attack on one record can achieve against a run, failed ones included;
            None if no run could say.
        path: what the run of the smallest seed released while it trained, thinned out; often empty.
        lost_to_noise: of `gap_to_oracle`, what paying for the tuning cost; None without extra runs, as the next.
        lost_to_choice: what a worse choice of values cost.
        records: seeds and paths of the runs, failed ones included, by seed.
        command: what repeats the first of these runs.
    """

    method_version: int
    task_version: int
    worst: float | None
    gap_to_untuned: Estimate | None
    gap_closed: Estimate | None
    epsilon: float | None
    accountant: str
    audited: float | None
    risk: Risk | None = None
    path: tuple[PathPoint, ...] = ()
    lost_to_noise: Estimate | None = None
    lost_to_choice: Estimate | None = None
    records: tuple[tuple[int, str], ...] = ()
    command: str = ""


@dataclass(frozen=True)
class Table:
    """All contestants on one task at one target ε, best first, with the references apart.

    `setting` is the task, the model, and whatever else tells this setting from others. Tables at other ε share it.
    `kinds` are what the records are and what is trained, such as "pictures" and "networks"; empty if nobody told.
    `oracle` is who gaps are measured to; None if it has no runs here.
    """

    task: str
    model: str
    epsilon: float
    delta: float
    setting: str
    measure: Measure
    rows: tuple[Row, ...]
    references: tuple[Row, ...]
    kinds: tuple[str, ...] = ()
    oracle: Contestant | None = None

    @property
    def title(self) -> str:
        """Setting and ε."""
        return f"{self.setting}, ε = {self.epsilon:g}"

    @property
    def everyone(self) -> tuple[Row, ...]:
        """All rows, references included."""
        return self.rows + self.references


@dataclass(frozen=True, kw_only=True)
class OverallRow(Standing):
    """A contestant over several tables.

    Attributes:
        tables: how many of the counted tables it is in.
        mean_rank: mean of its ranks in the tables, with the middle 95 % of its resampled values; None if it is a
            reference, or not in all tables.
        epsilon_ratio: the largest ε of its runs as a share of the target; ∞ if it is not private; None if no run could
            say.
        accountants: whose bounds these are.
        relative_cost: examples relative to untuned `auto_clipping` in the same table; median.
    """

    tables: int
    mean_rank: Estimate | None
    epsilon_ratio: float | None
    accountants: tuple[str, ...]
    relative_cost: float | None


@dataclass(frozen=True)
class Overall:
    """Contestants over several tables.

    Attributes:
        epsilon: of the tables; None for all tables at any ε.
        tables: titles of the tables that count.
        measure: the metric of all of them; None if they differ.
        rows: who is in all of them, best mean rank first.
        incomplete: who is not, the most complete first.
        references: by label.
    """

    epsilon: float | None
    tables: tuple[str, ...]
    measure: Measure | None
    rows: tuple[OverallRow, ...]
    incomplete: tuple[OverallRow, ...]
    references: tuple[OverallRow, ...]

    @property
    def title(self) -> str:
        """Which tables it is over."""
        return "All ε" if self.epsilon is None else f"ε = {self.epsilon:g}"

    @property
    def everyone(self) -> tuple[OverallRow, ...]:
        """All rows, references included."""
        return self.rows + self.incomplete + self.references


@dataclass(frozen=True)
class Part:
    """One of the values that a mean is over, such as that of one seed or of one table, and its name."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Place:
    """A contestant's line in an answer.

    Attributes:
        contestant: who.
        lead: by how much it is better than the anchor; usually below zero.
        parts: what `lead` is over, the best first: seeds if it is about a single table, else tables.
        untuned: 1 if it is better than untuned `auto_clipping` with 95 % confidence, −1 if worse, else 0.
        tied: whether it cannot be told from the first with 95 % confidence.
        cross_entropy: on test data, the mean over the tables; None if one of them lacks it.
        calibration: by how much its cross entropy is better, hence smaller, than the anchor's.
        cost: examples processed, relative to untuned `auto_clipping`; median over the tables.
        tuning_share: share of ε spent on tuning; median over the tables.
    """

    contestant: Contestant
    lead: Estimate
    parts: tuple[Part, ...]
    untuned: int
    tied: bool
    cross_entropy: Estimate | None
    calibration: Estimate | None
    cost: float | None
    tuning_share: float


@dataclass(frozen=True)
class Absent:
    """Who is not in all tables of an answer, and can't be compared with all others.

    Attributes:
        contestant: who.
        tables: how many of them it is in.
        lead: by how much it is better than the anchor there; None if that can't be told.
        first: by how much the answer's first is better than the anchor in the same tables.
    """

    contestant: Contestant
    tables: int
    lead: Estimate | None
    first: Estimate | None


@dataclass(frozen=True)
class Answer:
    """Which method is best on some tables of one metric, by its distance to an anchor.

    Attributes:
        subject: the setting or the kind of task, such as "digits (linear)" or "all pictures".
        epsilon: of the tables; None for all.
        measure: of the tables.
        anchor: "the oracle", or "untuned auto_clipping" where there is no oracle.
        settings: of the tables.
        tables: how many there are.
        places: who is in all of them, the best first.
        references: the same of references, apart from the anchor.
        absent: who is in some of them, the most complete first.
    """

    subject: str
    epsilon: float | None
    measure: Measure
    anchor: str
    settings: tuple[str, ...]
    tables: int
    places: tuple[Place, ...]
    references: tuple[Place, ...]
    absent: tuple[Absent, ...]

    @property
    def nearly(self) -> tuple[Absent, ...]:
        """Who is in half of the tables or more, but not in all."""
        return tuple(one for one in self.absent if 2 * one.tables >= self.tables)

    @property
    def title(self) -> str:
        """Subject and ε."""
        return f"{self.subject}, {'all ε' if self.epsilon is None else f'ε = {self.epsilon:g}'}"

    @property
    def everyone(self) -> tuple[Place, ...]:
        """All lines, references included."""
        return self.places + self.references


@dataclass(frozen=True)
class Refused:
    """A record that is not on the board: its path below the folder of records, and the reason in one line."""

    path: str
    reason: str


@dataclass(frozen=True)
class Finding:
    """A sentence or two that the data support, as plain text, with a title of a few words.

    `commands` recompute the figures of one that a person wrote.
    """

    title: str
    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Board:
    """The leaderboard.

    Attributes:
        findings: what a reader should know first.
        overalls: over all tables, then for each ε.
        tables: by task, then ε.
        answers: by subject, those of several tables first, then by ε; all ε last.
        missing: tasks, models and their ε of the core suite that do not count, because too few of its methods were run.
        rejected: records that did not pass.
        failed: records of failed runs, with their errors.
        superseded: number of records of older versions of a method or a task, or of seeds that no suite asks for.
        records: number of records that were read, good or bad.
        seconds: that the good ones took, all phases and extra runs included.
        claims: who beats whom, for each subject and ε that the claims are about.
        variations: what would become of the order if the board were made in other ways, for each ε.
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
    variations: tuple[Variation, ...] = ()

    @property
    def measure(self) -> Measure | None:
        """The metric of all tables; None if they differ."""
        return common_measure(table.measure for table in self.tables)

    @property
    def duration(self) -> str:
        """How long all runs took, such as "9 h 40 min"."""
        return duration_text(self.seconds)

    @property
    def explains(self) -> bool:
        """Whether extra runs tell why somebody lost."""
        return any(row.lost_to_noise for table in self.tables for row in table.everyone)


def common_measure(measures: Iterable[Measure]) -> Measure | None:
    """The metric that all have; None if they differ."""
    found = set(measures)
    return found.pop() if len(found) == 1 else None
