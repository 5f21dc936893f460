"""Tables of entries on one task at one ε: their rows, and how each figure of a row is computed."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from dphpo_bench.leaderboard.entries import FEW_SEEDS, Contest, Draws, Member, median, scores_of
from dphpo_bench.leaderboard.links import command_of
from dphpo_bench.leaderboard.means import Rate, ratio_interval
from dphpo_bench.leaderboard.replays import Replays
from dphpo_bench.leaderboard.statistics import middle_ranks
from dphpo_bench.leaderboard.subjects import Subject
from dphpo_bench.leaderboard.values import Entry, PathPoint, Ranks
from dphpo_bench.privacy.risk import CERTAIN, Risk, worst
from dphpo_bench.records.estimates import Estimate, mean_interval, metric_estimate, metric_mean, quantile
from dphpo_bench.records.measure import Measure
from dphpo_bench.sweep.extra_runs import Split


@dataclass(frozen=True, kw_only=True)
class Figures:
    """An entry's figures in the tables. An overall row sums up its rows in several tables.

    Attributes:
        gap_to_oracle: by how much the oracle is better, overall of the mean over the tables; None overall if metrics
            differ.
        collapses: how many of its runs in the tables collapsed; of a table, at all ε of its task–model pair.
        lacks_seeds: whether it has no run of a seed that the suite asks for, and so is not compared.
        tuning_share: share of ε spent on tuning, in [0, 1]. This and the next three are medians over runs, overall over
            tables.
    """

    entry: Entry
    seeds: int
    failed: int
    utility: Estimate | None
    ranks: Ranks | None
    gap_to_oracle: Estimate | None
    cross_entropy: Estimate | None
    collapses: Rate
    contradicted: bool
    lacks_seeds: bool
    tuning_share: float
    runs: float
    examples: float

    @property
    def few_seeds(self) -> bool:
        return self.seeds < FEW_SEEDS


@dataclass(frozen=True, kw_only=True)
class Row(Figures):
    """An entry on one task at one ε.

    Attributes:
        gap_closed: share of the distance from untuned to oracle; None if that distance may be zero.
        epsilon: the largest ε of the runs, failed ones included, as their ledgers confirm it; ∞ if it is not private;
            None if no run could say.
        risk: the largest proven bounds of what an attack on one record can achieve against a run, failed ones included;
            None if no run could say.
        lost_to_noise: of `gap_to_oracle`, what paying for the tuning cost; None without extra runs, as the next.
        collapsed: how many runs ended ten points, or half a nat, below the median of these runs, or of those at a
            smaller ε; those that failed count with the value that they have in ranks.
        untuned_runs: examples relative to untuned `auto_clipping`; None without it.
        values: the metric of each of `records`; None if the run failed.
        test_half: half of the 95 % interval that other test records of this number would add to the mean, by the
            binomial distribution; None unless each record is right or wrong, and their number is known.
        verdict: to the first in the table: "equivalent", "behind" or "uncertain"; empty without an anchor.
        shifted: the utility on shifted records; None unless all finished runs have it, on those that most runs in the
            table have.
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
    shifted: Estimate | None = None
    test_half: float | None = None
    verdict: str = ""
    records: tuple[tuple[int, str], ...] = ()
    values: tuple[float | None, ...] = ()
    command: str = ""
    collapsed: int = 0
    untuned_runs: float | None = None


@dataclass(frozen=True)
class Table:
    """All entries on one task at one target ε, best first; `task_model` is shared by tables at other ε.

    Attributes:
        stage: "development" if this project settled constants of its methods on this pair, else "test".
        counted: whether overall lists, claims and answers about several pairs rest on this table, too.
    """

    task: str
    model: str
    epsilon: float
    delta: float
    task_model: str
    measure: Measure
    rows: tuple[Row, ...]
    references: tuple[Row, ...]
    oracle: Entry | None = None
    model_kind: str = ""
    n_records: int = 0
    stage: str = "test"
    counted: bool = False

    @property
    def title(self) -> str:
        return f"{self.task_model}, ε = {self.epsilon:g}"

    @property
    def everyone(self) -> tuple[Row, ...]:
        return self.rows + self.references


def table_of(contest: Contest, subject: Subject, draws: Draws, replays: Replays) -> Table:
    """Return the table of a contest, which is one of its task–model pair's, the subject."""
    ranked = contest.ranked
    resampled = scores_of(ranked, draws, contest.task_model.measure).resampled_ranks(draws.weights) if ranked else None
    intervals = [] if resampled is None else middle_ranks(resampled)
    by_entry = {member.entry: interval for member, interval in zip(ranked, intervals, strict=True)}
    explained = replays.explain(key for member in contest.members for key in member.runs["key"])
    shift = _usual_shift(contest)
    rows = [
        _row(
            member,
            by_entry.get(member.entry),
            contest,
            subject,
            replays.splits(member, contest.oracle) if explained else [],
            shift,
        )
        for member in sorted(contest.members, key=_best_first)
    ]
    return Table(
        task=contest.task_model.task,
        model=contest.task_model.model,
        epsilon=contest.target,
        delta=contest.task_model.delta,
        task_model=contest.title,
        model_kind=contest.task_model.model_kind,
        n_records=contest.task_model.n_records,
        measure=contest.task_model.measure,
        oracle=contest.oracle.entry if contest.oracle else None,
        stage=contest.task_model.stage,
        rows=tuple(row for row in rows if not row.entry.reference),
        references=tuple(row for row in rows if row.entry.reference),
    )


def _best_first(member: Member) -> tuple[bool, float, str]:
    return member.finished.empty, -round(fmean(member.by_seed().values()), 9), member.entry.label


def _usual_shift(contest: Contest) -> str:
    """Return the shifted records that most runs were measured on, or an empty text."""
    counts = Counter(shift for member in contest.members for shift in member.finished["shift"] if shift)
    return min(counts, key=lambda shift: (-counts[shift], shift), default="")


def _row(
    member: Member, interval: Ranks | None, contest: Contest, subject: Subject, splits: Sequence[Split], shift: str
) -> Row:
    runs, finished = member.runs, member.finished
    of_command = ["method", "parameters", "method_version", "task_version", "task_model", "target", "seed"]
    first = next(runs[of_command].itertuples())
    values = finished["value"].tolist()
    oracle, untuned = (None, None) if member.lacks else (contest.oracle, contest.untuned)
    who, measure, target = member.entry, contest.task_model.measure, contest.target
    utility = subject.mean(who, None, target, "utility") if values else None
    cross_entropy = subject.mean(who, None, target, "cross_entropy")
    private = who.end_to_end_private
    known = runs[runs["epsilon"].notna()]
    epsilon, accountant = max(zip(known["epsilon"].tolist(), known["accountant"], strict=True), default=(None, ""))
    audited = finished["audited"].max()
    is_shifted = bool(values) and bool(shift) and bool((finished["shift"] == shift).all())
    return Row(
        entry=who,
        method_version=first.method_version,  # the versions of the runs are the same
        task_version=first.task_version,
        seeds=len(finished),
        failed=len(runs) - len(finished),
        utility=metric_estimate(utility.estimate, measure) if utility else None,
        worst=(min if measure.higher_is_better else max)(values, default=None),
        cross_entropy=cross_entropy.estimate.inside(0.0, math.inf) if cross_entropy else None,
        collapses=subject.collapses(who),
        ranks=interval,
        gap_to_oracle=subject.lead(oracle.entry, who, target) if oracle else None,
        gap_to_untuned=subject.lead(who, untuned.entry, target) if untuned else None,
        gap_closed=_gap_closed(member, oracle, untuned),
        epsilon=epsilon if private else math.inf,
        accountant=accountant if private else "",
        audited=None if math.isnan(audited) else float(audited),
        risk=_risk(member),
        lacks_seeds=member.lacks,
        contradicted=bool((finished["refuted"].astype(bool) | (finished["audited"] > finished["epsilon"])).any()),
        tuning_share=median(finished["tuning_share"]) or 0.0,
        runs=median(finished["runs"]) or 0.0,
        examples=member.examples or 0.0,
        path=next(iter(finished["released_path"]), ()),
        lost_to_noise=mean_interval([split.noise for split in splits]) if splits else None,
        lost_to_choice=mean_interval([split.choice for split in splits]) if splits else None,
        shifted=metric_mean(finished["shifted"].tolist(), measure) if is_shifted else None,
        test_half=_test_half(utility.value, contest.task_model.test_records) if utility else None,
        records=tuple(zip(runs["seed"].tolist(), runs["path"], strict=True)),
        values=tuple(None if math.isnan(value) else value for value in runs["value"].tolist()),
        command=command_of(first),
        collapsed=len(sample.collapsed) if (sample := member.sample()) else 0,
        untuned_runs=_untuned_runs(member, contest.untuned),
    )


def _untuned_runs(member: Member, untuned: Member | None) -> float | None:
    return member.examples / untuned.examples if untuned and untuned.examples and member.examples else None


def _risk(member: Member) -> Risk | None:
    if not member.entry.end_to_end_private:
        return CERTAIN
    known = [risk for risk in member.runs["risk"] if risk]
    return worst(known) if known else None


def _test_half(share: float, records: int | None) -> float | None:
    return None if records is None else quantile(math.inf) * math.sqrt(share * (1 - share) / records)


def _gap_closed(member: Member, oracle: Member | None, untuned: Member | None) -> Estimate | None:
    if oracle is None or untuned is None or member is oracle or member is untuned:
        return None
    mine, start, end = (each.sample() for each in (member, untuned, oracle))
    return ratio_interval(mine, start, end) if mine and start and end else None
