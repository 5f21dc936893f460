"""The board as values: tables of entries on one task and model at one ε, lists over all tasks and budgets, and all.

Everything here is made from verified records. Names and labels are one line of printable characters, but they are still
strangers' texts: whoever writes Markdown or HTML escapes them.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import fmean

import numpy as np

from dphpo_bench.base.text import duration_text
from dphpo_bench.harness.recording import Call, different
from dphpo_bench.leaderboard.answers import ALL_KINDS, OTHERS, TESTS, UNTOUCHED, Answer, Claims, Subject, by_stage
from dphpo_bench.leaderboard.entries import FEW_SEEDS, Contest, Draws, Entry, Member, Standard, median, scores_of
from dphpo_bench.leaderboard.means import POINT, Ranks, Rate, draw, middle, middle_ranks, ranks, ratio_interval
from dphpo_bench.leaderboard.reruns import Replays
from dphpo_bench.leaderboard.submissions import PathPoint, Refused, TaskModel, defaults_of
from dphpo_bench.leaderboard.written import Dispute, Finding
from dphpo_bench.privacy.risk import CERTAIN, Risk, worst
from dphpo_bench.records.measure import (
    SEVERAL,
    Estimate,
    Measure,
    mean_interval,
    metric_estimate,
    metric_mean,
    quantile,
)
from dphpo_bench.sweep.extra_runs import Split


@dataclass(frozen=True, kw_only=True)
class Figures:
    """An entry's figures in the tables. An overall row sums up its rows in several tables.

    Attributes:
        gap_to_oracle: by how much the oracle is better, overall of the mean over the tables; None overall if metrics
            differ.
        collapses: how many of its runs in the tables collapsed; of a table, at all ε of its task–model pair.
        lacks_seeds: whether it has no run of a seed that the suite asks for, and so is not compared.
        tuning_share: share of ε spent on tuning, in [0, 1]; the median over runs, overall over tables.
        rerr: share of the distance from `random_search` to the oracle that it closes, overall by means over its tables
            of shares; None if that distance may be zero.
        disputed: whether somebody objects to the row, overall to any of the entry's rows.
    """

    entry: Entry
    seeds: int
    failed: int
    utility: Estimate | None
    ranks: Ranks | None
    gap_to_oracle: Estimate | None
    collapses: Rate
    contradicted: bool
    lacks_seeds: bool
    tuning_share: float
    rerr: Estimate | None = None
    disputed: bool = False

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
            smaller ε; those that failed count with the value that they have in ranks. None where the metric knows no
            collapse.
        runs: median over the runs, as the next.
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
    cross_entropy: Estimate | None
    runs: float
    examples: float
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
    collapsed: int | None = 0
    untuned_runs: float | None = None


@dataclass(frozen=True)
class Table:
    """All entries on one task at one target ε, best first; `task_model` is shared by tables at other ε.

    Attributes:
        stage: "development" if this project settled constants of its methods on this pair, "untouched" if it came
            after them by a protocol, else "test".
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


def table_of(
    contest: Contest,
    subject: Subject,
    draws: Draws,
    replays: Replays,
    verdicts: Mapping[tuple[str, float | None, Entry], str],
    counted: bool,
) -> Table:
    """Return the table of a contest, which is one of its task–model pair's, the subject.

    Verdicts are those of the answers, by subject, ε and entry.
    """
    ranked = contest.ranked
    resampled = scores_of(ranked, draws, contest.task_model.measure).resampled_ranks(draws.weights) if ranked else None
    intervals = [] if resampled is None else middle_ranks(resampled)
    by_entry = {member.entry: interval for member, interval in zip(ranked, intervals, strict=True)}
    explained = replays.explain(key for member in contest.members for key in member.runs["key"])
    shifts = Counter(shift for member in contest.members for shift in member.finished["shift"] if shift)
    usual_shift = min(shifts, key=lambda shift: (-shifts[shift], shift), default="")
    rows = [
        _row(
            member,
            by_entry.get(member.entry),
            contest,
            subject,
            replays.splits(member, contest.explained_by) if explained else [],
            usual_shift,
            verdicts.get((contest.title, contest.target, member.entry), ""),
        )
        for member in sorted(
            contest.members, key=lambda each: (each.finished.empty, -round(each.mean, 9), each.entry.label)
        )
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
        oracle=contest.best_grid.entry if contest.best_grid else None,
        stage=contest.task_model.stage,
        counted=counted,
        rows=tuple(row for row in rows if not row.entry.reference),
        references=tuple(row for row in rows if row.entry.reference),
    )


def _row(
    member: Member,
    interval: Ranks | None,
    contest: Contest,
    subject: Subject,
    splits: Sequence[Split],
    shift: str,
    verdict: str,
) -> Row:
    runs, finished = member.runs, member.finished
    of_command = ["method", "parameters", "method_version", "task_version", "task_model", "target", "seed"]
    first = next(runs[of_command].itertuples())
    # The command that repeats the first run, without a known method's default parameters.
    changed = different(json.loads(first.parameters), defaults_of(first.method) or {})
    pair = first.task_model
    command = str(Call(first.method, pair.task, pair.model, first.target, pair.delta, first.seed, changed))
    values = finished["value"].tolist()
    untuned = None if member.lacks else contest.untuned
    oracle = None if member.lacks or member is contest.best_grid else contest.oracle
    who, measure, target = member.entry, contest.task_model.measure, contest.target
    utility = subject.mean(who, None, target, "utility") if values else None
    private = who.end_to_end_private
    known = runs[runs["epsilon"].notna()]
    epsilon, accountant = max(zip(known["epsilon"].tolist(), known["accountant"], strict=True), default=(None, ""))
    audited = finished["audited"].max()
    risks = [risk for risk in runs["risk"] if risk] if private else [CERTAIN]
    test_half = None
    if utility and (records := contest.task_model.test_records):
        test_half = quantile(math.inf) * math.sqrt(utility.value * (1 - utility.value) / records)
    is_shifted = bool(values) and bool(shift) and bool((finished["shift"] == shift).all())
    return Row(
        entry=who,
        method_version=first.method_version,  # the versions of the runs are the same
        task_version=first.task_version,
        seeds=len(finished),
        failed=len(runs) - len(finished),
        utility=metric_estimate(utility.estimate, measure) if utility else None,
        worst=(min if measure.higher_is_better else max)(values, default=None),
        cross_entropy=subject.cross_entropy(who, target),
        collapses=subject.collapses(who),
        ranks=interval,
        gap_to_oracle=subject.lead(oracle.entry, who, target) if oracle else None,
        gap_to_untuned=subject.lead(who, untuned.entry, target) if untuned else None,
        gap_closed=_gap_closed(who, [contest], [contest.untuned]),
        rerr=_gap_closed(who, [contest], [contest.random]),
        epsilon=epsilon if private else math.inf,
        accountant=accountant if private else "",
        audited=None if math.isnan(audited) else float(audited),
        risk=worst(risks) if risks else None,
        lacks_seeds=member.lacks,
        contradicted=bool((finished["refuted"].astype(bool) | (finished["audited"] > finished["epsilon"])).any()),
        tuning_share=median(finished["tuning_share"]) or 0.0,
        runs=median(finished["runs"]) or 0.0,
        examples=member.examples or 0.0,
        path=next(iter(finished["released_path"]), ()),
        lost_to_noise=mean_interval([split.noise for split in splits]) if splits else None,
        lost_to_choice=mean_interval([split.choice for split in splits]) if splits else None,
        shifted=metric_mean(finished["shifted"].tolist(), measure) if is_shifted else None,
        test_half=test_half,
        verdict=verdict,
        records=tuple(zip(runs["seed"].tolist(), runs["path"], strict=True)),
        values=tuple(None if math.isnan(value) else value for value in runs["value"].tolist()),
        command=command if command.isprintable() else "",
        collapsed=len(sample.collapsed) if (sample := member.sample()) and sample.falls.limit < math.inf else None,
        untuned_runs=contest.cost(member),
    )


def _gap_closed(who: Entry, contests: Sequence[Contest], starts: Sequence[Member | None]) -> Estimate | None:
    """Return the share of the way from a start to the oracle that an entry goes, by means over tables."""
    samples = []
    for contest, start in zip(contests, starts, strict=True):
        mine, end = contest.by_entry[who], contest.oracle
        if start is None or end is None or mine in (start, contest.best_grid):
            return None
        if any(each.lacks for each in (mine, start, end)):
            return None
        samples.append((mine.sample(), start.sample(), end.sample()))
    known = [(mine, start, end) for mine, start, end in samples if mine and start and end]
    return ratio_interval(*zip(*known, strict=True)) if 0 < len(known) == len(contests) else None


def common_measure(measures: Iterable[Measure]) -> Measure | None:
    different = set(measures)
    return different.pop() if len(different) == 1 else None


PROFILE = (0.0, 0.01, 0.02, 0.05, 0.1)
"""Distances behind the oracle, in scores, at which the performance profile is read."""

LEAST, MOST = -1.0, 2.0
"""Bounds of a table's part in the normalised mean, so that no table decides it."""


@dataclass(frozen=True, kw_only=True)
class OverallRow(Figures):
    """An entry over several tables.

    Attributes:
        relative_cost: examples relative to untuned `auto_clipping` in the same table; median.
        profile: for each distance of `PROFILE`, the share of its tables with an oracle in which its mean is at most so
            far behind; empty without such a table.
        normalised: the mean over tables of (own − untuned) / (oracle − untuned), each between −1 and 2; of tables where
            the oracle is at least a point better than untuned; None without any.
    """

    tables: int
    mean_rank: Estimate | None
    relative_cost: float | None
    profile: tuple[float, ...] = ()
    normalised: float | None = None

    @property
    def within_point(self) -> float | None:
        return self.profile[PROFILE.index(POINT)] if self.profile else None


@dataclass(frozen=True)
class Overall:
    """Entries over several tables: `rows` are in all of them, `incomplete` are not.

    Attributes:
        stage: which tables count, a name in `by_stage`.
    """

    epsilon: float | None
    tables: tuple[str, ...]
    measure: Measure | None
    rows: tuple[OverallRow, ...]
    incomplete: tuple[OverallRow, ...]
    references: tuple[OverallRow, ...]
    stage: str = ALL_KINDS

    @property
    def title(self) -> str:
        at = "All ε" if self.epsilon is None else f"ε = {self.epsilon:g}"
        return f"{at}, {self.stage}" if self.stage in (TESTS, UNTOUCHED) else at

    @property
    def everyone(self) -> tuple[OverallRow, ...]:
        return self.rows + self.incomplete + self.references


def overalls_of(counted: Sequence[tuple[Contest, Table]], draws: Mapping[TaskModel, Draws]) -> tuple[Overall, ...]:
    """Return the lists over all ε, then over each, by stage; over tests alone only if there are others, too."""
    stages = by_stage([contest for contest, _ in counted])
    if stages.get(TESTS) in (stages.get(ALL_KINDS), stages.get(OTHERS)):
        stages.pop(TESTS, None)
    overalls: list[Overall] = []
    for stage, contests in stages.items():
        measure = common_measure(contest.task_model.measure for contest in contests) or SEVERAL
        subject = Subject(stage, measure, tuple(contests))
        for target in (None, *subject.targets) if len(subject.targets) > 1 else subject.targets:
            at = [pair for pair in counted if pair[0] in contests and target in (None, pair[0].target)]
            overalls.append(replace(_overall(target, at, subject, draws), stage=stage))
    return tuple(sorted(overalls, key=lambda overall: overall.epsilon or 0.0))


def counted_contests(contests: Sequence[Contest], standard: Standard) -> list[Contest]:
    """Return the tables that count: those of the standard in which at least half of their suite's methods are ranked.

    Tables with the same task, model and ε may differ in data or δ; of these, the one with most of the methods counts.
    """
    everyone = {member.entry.method for contest in contests for member in contest.ranked}
    best: dict[tuple[str, str, float], tuple[int, Contest]] = {}
    for contest in contests:
        asked = standard.asked(contest.task_model, contest.target)
        methods = asked.methods if asked else everyone
        present = len(methods & {member.entry.method for member in contest.ranked})
        if not (present and 2 * present >= len(methods) and standard.may_count(contest.task_model, contest.target)):
            continue
        key = contest.task_model.task, contest.task_model.model, contest.target
        if key not in best or present > best[key][0]:
            best[key] = present, contest
    return [contest for _, contest in best.values()]


def missing_tables(counted: Sequence[Contest], standard: Standard) -> tuple[str, ...]:
    present = {(contest.task_model.task, contest.task_model.model, contest.target) for contest in counted}
    missing = {
        (task, model): [f"{epsilon:g}" for epsilon in sorted(asked.epsilons) if (task, model, epsilon) not in present]
        for (task, model), asked in sorted((standard.tasks or {}).items(), key=itemgetter(0))
    }
    return tuple(f"{task} ({model}), ε = {', '.join(some)}" for (task, model), some in missing.items() if some)


def _overall(
    target: float | None, counted: Sequence[tuple[Contest, Table]], subject: Subject, draws: Mapping[TaskModel, Draws]
) -> Overall:
    chosen = [contest for contest, _ in counted]
    inside = Counter(member.entry for contest in chosen for member in contest.ranked)
    complete = sorted((who for who, count in inside.items() if count == len(counted)), key=lambda who: who.label)
    mean_ranks, places = _overall_ranks(chosen, complete, draws)
    everyone: defaultdict[Entry, list[tuple[Row, Contest]]] = defaultdict(list)
    for contest, table in counted:
        for row in table.everyone:
            everyone[row.entry].append((row, contest))
    measure = common_measure(contest.task_model.measure for contest in chosen)
    rows = [
        _overall_row(who, in_tables, subject, target, measure, mean_ranks.get(who), places.get(who))
        for who, in_tables in everyone.items()
    ]
    rows.sort(key=lambda row: (0 if row.entry.reference else -row.tables, row.entry.label))
    ranked = [(round(row.mean_rank.mean, 9), row.entry.label, row) for row in rows if row.mean_rank]
    references = tuple(row for row in rows if row.entry.reference and row.tables == len(counted))
    return Overall(
        epsilon=target,
        tables=tuple(table.title for _, table in counted),
        measure=measure,
        rows=tuple(row for *_, row in sorted(ranked, key=itemgetter(0, 1))),
        incomplete=tuple(row for row in rows if row.mean_rank is None and row not in references),
        references=references,
    )


def _overall_ranks(
    contests: Sequence[Contest], complete: Sequence[Entry], draws: Mapping[TaskModel, Draws]
) -> tuple[dict[Entry, Estimate], dict[Entry, Ranks]]:
    """Return each complete entry's mean rank, and its place by mean rank when tasks and seeds are drawn."""
    if not complete:
        return {}, {}
    tasks = sorted({contest.task_model.task for contest in contests})
    task_weights = draw(len(tasks), stream=0)
    observed: list[list[float]] = []
    drawn = np.zeros((len(task_weights), len(complete)))
    for contest in contests:
        among = [contest.by_entry[who] for who in complete]
        scores = scores_of(among, draws[contest.task_model], contest.task_model.measure)
        observed.append(scores.ranks.tolist())
        # Ranks are halves, so sums are exact. Each drawing has as many tables for one entry as for another.
        drawn += task_weights[:, [tasks.index(contest.task_model.task)]] * scores.resampled_ranks(
            draws[contest.task_model].weights
        )
    places = middle_ranks(ranks(-drawn))
    tables = Counter(contest.task_model.task for contest in contests)
    drawn /= (task_weights @ np.array([[tables[task]] for task in tasks])).astype(np.float64)
    mean_ranks = [
        Estimate(fmean(of_one), low, high)
        for of_one, (low, high) in zip(zip(*observed, strict=True), middle(drawn), strict=True)
    ]
    return dict(zip(complete, mean_ranks, strict=True)), dict(zip(complete, places, strict=True))


def _overall_row(
    who: Entry,
    in_tables: Sequence[tuple[Row, Contest]],
    subject: Subject,
    target: float | None,
    measure: Measure | None,
    mean_rank: Estimate | None,
    places: Ranks | None,
) -> OverallRow:
    rows = [row for row, _ in in_tables]
    lacks = any(row.lacks_seeds for row in rows)
    utility = subject.mean(who, None, target, "utility") if measure else None
    oracle = next((contest.oracle.entry for _, contest in in_tables if contest.oracle), None)
    gaps = [row.gap_to_oracle.mean for row in rows if row.gap_to_oracle]
    of_shares = [contest for _, contest in in_tables if contest.task_model.measure.share]
    shares = [share for row, contest in in_tables if (share := _share_of_way(row, contest)) is not None]
    return OverallRow(
        entry=who,
        tables=len(rows),
        seeds=min(row.seeds for row in rows),
        failed=sum(row.failed for row in rows),
        mean_rank=mean_rank,
        ranks=places,
        utility=metric_estimate(utility.estimate, measure) if measure and utility else None,
        gap_to_oracle=subject.lead(oracle, who, target) if measure and not lacks else None,
        rerr=_gap_closed(who, of_shares, [contest.random for contest in of_shares]),
        collapses=subject.collapses(who),
        lacks_seeds=lacks,
        contradicted=any(row.contradicted for row in rows),
        tuning_share=median(row.tuning_share for row in rows) or 0.0,
        relative_cost=median(row.untuned_runs for row in rows),
        profile=tuple(fmean(gap <= behind + 1e-9 for gap in gaps) for behind in PROFILE) if gaps else (),
        normalised=fmean(shares) if shares else None,
    )


def _share_of_way(row: Row, contest: Contest) -> float | None:
    """Return the share of the way from untuned to the oracle; None where that is shorter than a point."""
    if contest.untuned is None or contest.oracle is None or row.lacks_seeds:
        return None
    start = contest.untuned.mean
    way = contest.oracle.mean - start
    if way < POINT:
        return None
    return min(MOST, max(LEAST, (contest.by_entry[row.entry].mean - start) / way))


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
    disputes: tuple[Dispute, ...] = ()

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
