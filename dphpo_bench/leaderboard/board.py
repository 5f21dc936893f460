"""What the leaderboard shows, as values: tables, rows, estimates. `scoring` computes them.

Everything here is made from verified records alone. Names and labels are one line of printable characters, but
still strangers' texts: whoever writes Markdown or HTML escapes them.
"""

from dataclasses import dataclass

from dphpo_bench.records.measure import Measure

FEW_SEEDS = 3


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval.

    Attributes:
        mean: the mean.
        low: lower end of the interval; None, like
        high: the upper end, where one seed says nothing about the others.
    """

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Ranks:
    """The ranks that resampling gives to a contestant, 1 is best.

    Attributes:
        low: the best of the middle 95 %.
        high: the worst of them.
    """

    low: int
    high: int


@dataclass(frozen=True)
class PathPoint:
    """What a method that adapts while it trains released at one step.

    Attributes:
        step: of the training, from 0.
        learning_rate: η.
        loss_bound: clipping threshold of the privatised losses, if it released one.
    """

    step: int
    learning_rate: float
    loss_bound: float | None


@dataclass(frozen=True)
class Contestant:
    """A method with its parameters: what is ranked.

    Attributes:
        method: its name.
        label: the name, and the parameters in which contestants of this method differ.
        parameters: all parameters, as compact JSON.
        end_to_end_private: whether its ε covers tuning.
        reference: whether it stands apart, as a line to compare with rather than a method to choose.
    """

    method: str
    label: str
    parameters: str
    end_to_end_private: bool
    reference: bool


@dataclass(frozen=True)
class Row:
    """A contestant on one task at one ε.

    Attributes:
        contestant: who.
        method_version: of the method.
        task_version: of the task.
        seeds: finished runs.
        failed: runs that failed; they count as the worst value in ranks and gaps, not in `utility`.
        utility: the table's metric on test data; None if no run finished.
        ranks: None for references.
        gap_to_oracle: by how much the oracle is better, over the seeds both have.
        gap_to_untuned: by how much this one is better than untuned `auto_clipping`.
        gap_closed: share of the distance from untuned to oracle; None where that distance may be zero.
        epsilon: the largest ε of the runs, those that failed included, as borne out by their ledgers; ∞ for what is
            not private; None if no run could say.
        accountant: whose bound it is.
        audited: the largest lower bound on ε that an attack has shown, if there was one.
        contradicted: whether an attack on a run has shown more than that run's ε.
        tuning_share: share of ε spent on tuning, in [0, 1]; median.
        runs: training runs in expectation; median.
        examples: examples processed in expectation; median.
        seconds: of all phases, median of the runs that tell; None if none does.
        path: what the run of the smallest seed released on its way, thinned out; often empty.
    """

    contestant: Contestant
    method_version: int
    task_version: int
    seeds: int
    failed: int
    utility: Estimate | None
    ranks: Ranks | None
    gap_to_oracle: Estimate | None
    gap_to_untuned: Estimate | None
    gap_closed: Estimate | None
    epsilon: float | None
    accountant: str
    audited: float | None
    contradicted: bool
    tuning_share: float
    runs: float
    examples: float
    seconds: float | None
    path: tuple[PathPoint, ...] = ()

    @property
    def few_seeds(self) -> bool:
        """Whether there are too few seeds to conclude much."""
        return self.seeds < FEW_SEEDS


@dataclass(frozen=True)
class Table:
    """All contestants on one task at one ε.

    Attributes:
        task: name.
        model: name.
        epsilon: the target ε.
        delta: δ.
        setting: task and model, and what else tells this setting from others; shared by its tables at other ε.
        measure: the metric that its rows are compared by.
        rows: who is ranked, best first.
        references: who stands apart, best first.
    """

    task: str
    model: str
    epsilon: float
    delta: float
    setting: str
    measure: Measure
    rows: tuple[Row, ...]
    references: tuple[Row, ...]

    @property
    def title(self) -> str:
        """Setting and ε."""
        return f"{self.setting}, ε = {self.epsilon:g}"


@dataclass(frozen=True)
class OverallRow:
    """A contestant over several tables.

    Attributes:
        contestant: who.
        tables: in how many of the counted tables it is.
        seeds: the fewest finished runs in any of them.
        failed: failed runs in all of them.
        mean_rank: mean of its ranks in the tables, with the middle 95 % of what resampling makes of it; None if it
            is not in all of them, or a reference.
        ranks: its places by mean rank in the resamplings; None likewise.
        utility: mean of the tables' metric; None if it is not in all of them, or their metrics differ.
        gap_closed: share of the distance from untuned to oracle, both summed over the tables that have them; None
            where that distance may be zero, or metrics differ.
        epsilon_ratio: the largest ε of its runs as a share of the target's; ∞ for what is not private; None if no
            run could say.
        accountants: whose bounds these are.
        contradicted: whether an attack has shown more than the ε of one of its rows.
        tuning_share: median over tables.
        runs: median over tables.
        examples: median over tables.
        seconds: median over tables.
        relative_cost: examples relative to untuned `auto_clipping` in the same table; median.
    """

    contestant: Contestant
    tables: int
    seeds: int
    failed: int
    mean_rank: Estimate | None
    ranks: Ranks | None
    utility: Estimate | None
    gap_closed: Estimate | None
    epsilon_ratio: float | None
    accountants: tuple[str, ...]
    contradicted: bool
    tuning_share: float
    runs: float
    examples: float
    seconds: float | None
    relative_cost: float | None

    @property
    def few_seeds(self) -> bool:
        """Whether there are too few seeds to conclude much."""
        return self.seeds < FEW_SEEDS


@dataclass(frozen=True)
class Overall:
    """Contestants over several tables.

    Attributes:
        epsilon: of the tables; None for all tables at any ε.
        tables: titles of the tables that count.
        measure: the metric of all of them; None if they differ.
        rows: who is in all of them, best mean rank first.
        incomplete: who is not, the most complete first.
        references: who stands apart.
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


@dataclass(frozen=True)
class Refused:
    """A record that is not on the board.

    Attributes:
        path: relative to the folder of records.
        reason: one line.
    """

    path: str
    reason: str


@dataclass(frozen=True)
class Finding:
    """A sentence or two that the data support.

    Attributes:
        title: a few words.
        text: plain text.
    """

    title: str
    text: str


@dataclass(frozen=True)
class Board:
    """The leaderboard.

    Attributes:
        findings: what a reader should know first.
        overalls: over all tables, then for each ε.
        tables: by task, then ε.
        missing: settings and ε of the core suite which do not count, because too few of its methods were run.
        rejected: records that did not pass, with the reason.
        failed: records of runs that failed, with their error.
        superseded: number of records of older versions of a method or a task, where a newer one has run.
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

    @property
    def measure(self) -> Measure | None:
        """The metric of all tables; None if they differ."""
        measures = {table.measure for table in self.tables}
        return measures.pop() if len(measures) == 1 else None
