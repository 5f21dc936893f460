"""Rows over all tasks and budgets."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import fmean

import numpy as np

from dphpo_bench.leaderboard.entries import Contest, Draws, median, scores_of
from dphpo_bench.leaderboard.means import POINT
from dphpo_bench.leaderboard.rows import Figures, Row, Table
from dphpo_bench.leaderboard.standard import Standard
from dphpo_bench.leaderboard.statistics import draw, middle, middle_ranks, ranks
from dphpo_bench.leaderboard.subjects import ALL_KINDS, TESTS, Subject
from dphpo_bench.leaderboard.submissions import TaskModel
from dphpo_bench.leaderboard.values import Entry, Ranks, common_measure
from dphpo_bench.records.estimates import Estimate, metric_estimate
from dphpo_bench.records.measure import SEVERAL, Measure

PROFILE = (0.0, 0.01, 0.02, 0.05, 0.1)
"""Distances behind the oracle, in scores, at which the performance profile is read."""

LEAST, MOST = -1.0, 2.0
"""Bounds of a table's part in the normalised mean, so that no table decides it."""


@dataclass(frozen=True, kw_only=True)
class OverallRow(Figures):
    """An entry over several tables.

    Attributes:
        epsilon_ratio: the largest ε of its runs as a share of the target; ∞ if it is not private; None if no run could
            say.
        relative_cost: examples relative to untuned `auto_clipping` in the same table; median.
        profile: for each distance of `PROFILE`, the share of its tables with an oracle in which its mean is at most so
            far behind; empty without such a table.
        normalised: the mean over tables of (own − untuned) / (oracle − untuned), each between −1 and 2; of tables where
            the oracle is at least a point better than untuned; None without any.
    """

    tables: int
    mean_rank: Estimate | None
    epsilon_ratio: float | None
    accountants: tuple[str, ...]
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
        tests: True if only tables count on which this project settled no constant.
    """

    epsilon: float | None
    tables: tuple[str, ...]
    measure: Measure | None
    rows: tuple[OverallRow, ...]
    incomplete: tuple[OverallRow, ...]
    references: tuple[OverallRow, ...]
    tests: bool = False

    @property
    def title(self) -> str:
        at = "All ε" if self.epsilon is None else f"ε = {self.epsilon:g}"
        return f"{at}, {TESTS}" if self.tests else at

    @property
    def everyone(self) -> tuple[OverallRow, ...]:
        return self.rows + self.incomplete + self.references


def overalls_of(counted: Sequence[tuple[Contest, Table]], draws: Mapping[TaskModel, Draws]) -> tuple[Overall, ...]:
    """Return the lists over all tables that count, each followed by that over tests alone, if there are others, too."""
    targets = sorted({contest.target for contest, _ in counted})
    chosen: list[float | None] = [None, *targets] if len(targets) > 1 else list(targets)
    tests = [pair for pair in counted if not pair[0].task_model.development]
    groups = [(False, counted)] + ([(True, tests)] if 0 < len(tests) < len(counted) else [])
    overalls = []
    for of_tests, pairs in groups:
        measure = common_measure(contest.task_model.measure for contest, _ in pairs) or SEVERAL
        subject = Subject(TESTS if of_tests else ALL_KINDS, measure, tuple(contest for contest, _ in pairs))
        for target in chosen:
            at = [pair for pair in pairs if target in (None, pair[0].target)]
            if at:
                overalls.append(replace(_overall(target, at, subject, draws), tests=of_tests))
    return tuple(sorted(overalls, key=lambda overall: (overall.epsilon or 0.0, overall.tests)))


def counted_contests(contests: Sequence[Contest], standard: Standard) -> list[Contest]:
    """Return the tables that count: those of the standard in which at least half of its methods are ranked.

    Tables with the same task, model and ε may differ in data or δ; of these, the one with most of the methods counts.
    """
    methods = standard.methods or {member.entry.method for contest in contests for member in contest.ranked}
    best: dict[tuple[str, str, float], tuple[int, Contest]] = {}
    for contest in contests:
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
        (task, model): [
            f"{epsilon:g}" for epsilon in sorted(standard.epsilons or ()) if (task, model, epsilon) not in present
        ]
        for task, model in sorted(standard.tasks or ())
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
    relative = [
        row.examples / contest.untuned.examples
        for row, contest in in_tables
        if contest.untuned and contest.untuned.examples
    ]
    lacks = any(row.lacks_seeds for row in rows)
    utility = subject.mean(who, None, target, "utility") if measure else None
    oracle = next((contest.oracle.entry for _, contest in in_tables if contest.oracle), None)
    cross_entropy = subject.mean(who, None, target, "cross_entropy")
    gaps = [row.gap_to_oracle.mean for row in rows if row.gap_to_oracle]
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
        cross_entropy=cross_entropy.estimate.inside(0.0, math.inf) if cross_entropy else None,
        collapses=subject.collapses(who),
        epsilon_ratio=max(
            (row.epsilon / contest.target for row, contest in in_tables if row.epsilon is not None), default=None
        ),
        accountants=tuple(sorted({row.accountant for row in rows if row.accountant})),
        lacks_seeds=lacks,
        contradicted=any(row.contradicted for row in rows),
        tuning_share=median(row.tuning_share for row in rows) or 0.0,
        runs=median(row.runs for row in rows) or 0.0,
        examples=median(row.examples for row in rows) or 0.0,
        relative_cost=median(relative),
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
