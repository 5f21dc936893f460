"""Standings over all tasks and budgets."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean

import numpy as np

from dphpo_bench.leaderboard.contestants import Contest, Draws, mean_over, median, scores_of
from dphpo_bench.leaderboard.rows import Row, Standing, Table
from dphpo_bench.leaderboard.standard import Standard
from dphpo_bench.leaderboard.statistics import draw, middle, middle_ranks, ranks
from dphpo_bench.leaderboard.submissions import Setting
from dphpo_bench.leaderboard.values import Contestant, Estimate, Ranks, common_measure
from dphpo_bench.records.measure import Measure


@dataclass(frozen=True, kw_only=True)
class OverallRow(Standing):
    """A contestant over several tables.

    Attributes:
        epsilon_ratio: the largest ε of its runs as a share of the target; ∞ if it is not private; None if no run could
            say.
        relative_cost: examples relative to untuned `auto_clipping` in the same table; median.
    """

    tables: int
    mean_rank: Estimate | None
    epsilon_ratio: float | None
    accountants: tuple[str, ...]
    relative_cost: float | None


@dataclass(frozen=True)
class Overall:
    """Contestants over several tables: `rows` are in all of them, `incomplete` are not."""

    epsilon: float | None
    tables: tuple[str, ...]
    measure: Measure | None
    rows: tuple[OverallRow, ...]
    incomplete: tuple[OverallRow, ...]
    references: tuple[OverallRow, ...]

    @property
    def title(self) -> str:
        return "All ε" if self.epsilon is None else f"ε = {self.epsilon:g}"

    @property
    def everyone(self) -> tuple[OverallRow, ...]:
        return self.rows + self.incomplete + self.references


def overalls_of(counted: Sequence[tuple[Contest, Table]], draws: Mapping[Setting, Draws]) -> tuple[Overall, ...]:
    targets = sorted({contest.target for contest, _ in counted})
    chosen: list[float | None] = [None, *targets] if len(targets) > 1 else list(targets)
    return tuple(
        _overall(target, [pair for pair in counted if target is None or pair[0].target == target], draws)
        for target in chosen
    )


def counted_tables(pairs: Sequence[tuple[Contest, Table]], standard: Standard) -> list[tuple[Contest, Table]]:
    """Return the tables that count: those of the standard in which at least half of its methods are ranked.

    Tables with the same task, model and ε may differ in data or δ; of these, the one with most of the methods counts.
    """
    methods = standard.methods or {entry.contestant.method for contest, _ in pairs for entry in contest.ranked}
    best: dict[tuple[str, str, float], tuple[int, tuple[Contest, Table]]] = {}
    for contest, table in pairs:
        present = len(methods & {entry.contestant.method for entry in contest.ranked})
        if not (present and 2 * present >= len(methods) and standard.may_count(contest.setting, contest.target)):
            continue
        key = contest.setting.task, contest.setting.model, contest.target
        if key not in best or present > best[key][0]:
            best[key] = present, (contest, table)
    return [pair for _, pair in best.values()]


def missing_tables(counted: Sequence[Contest], standard: Standard) -> tuple[str, ...]:
    present = {(contest.setting.task, contest.setting.model, contest.target) for contest in counted}
    missing = {
        (task, model): [
            f"{epsilon:g}" for epsilon in sorted(standard.epsilons or ()) if (task, model, epsilon) not in present
        ]
        for task, model in sorted(standard.tasks or ())
    }
    return tuple(f"{task} ({model}), ε = {', '.join(some)}" for (task, model), some in missing.items() if some)


def _overall(target: float | None, counted: Sequence[tuple[Contest, Table]], draws: Mapping[Setting, Draws]) -> Overall:
    chosen = [contest for contest, _ in counted]
    inside = Counter(entry.contestant for contest in chosen for entry in contest.ranked)
    complete = sorted((who for who, count in inside.items() if count == len(counted)), key=lambda who: who.label)
    mean_ranks, places = _overall_ranks(chosen, complete, draws)
    everyone: defaultdict[Contestant, list[tuple[Row, Contest]]] = defaultdict(list)
    for contest, table in counted:
        for row in table.everyone:
            everyone[row.contestant].append((row, contest))
    measure = common_measure(contest.setting.measure for contest in chosen)
    rows = [
        _overall_row(who, in_tables, chosen, measure, mean_ranks.get(who), places.get(who))
        for who, in_tables in everyone.items()
    ]
    rows.sort(key=lambda row: (0 if row.contestant.reference else -row.tables, row.contestant.label))
    ranked = [(round(row.mean_rank.mean, 9), row.contestant.label, row) for row in rows if row.mean_rank]
    references = tuple(row for row in rows if row.contestant.reference and row.tables == len(counted))
    return Overall(
        epsilon=target,
        tables=tuple(table.title for _, table in counted),
        measure=measure,
        rows=tuple(row for *_, row in sorted(ranked, key=itemgetter(0, 1))),
        incomplete=tuple(row for row in rows if row.mean_rank is None and row not in references),
        references=references,
    )


def _overall_ranks(
    contests: Sequence[Contest], complete: Sequence[Contestant], draws: Mapping[Setting, Draws]
) -> tuple[dict[Contestant, Estimate], dict[Contestant, Ranks]]:
    """Return each complete contestant's mean rank, and its place by mean rank when tasks and seeds are drawn."""
    if not complete:
        return {}, {}
    tasks = sorted({contest.setting.task for contest in contests})
    task_weights = draw(len(tasks), stream=0)
    observed: list[list[float]] = []
    drawn = np.zeros((len(task_weights), len(complete)))
    for contest in contests:
        among = [contest.by_contestant[who] for who in complete]
        scores = scores_of(among, draws[contest.setting], contest.setting.measure)
        observed.append(scores.ranks.tolist())
        # Ranks are halves, so sums are exact. Each drawing has as many tables for one contestant as for another.
        drawn += task_weights[:, [tasks.index(contest.setting.task)]] * scores.resampled_ranks(
            draws[contest.setting].weights
        )
    places = middle_ranks(ranks(-drawn))
    tables = Counter(contest.setting.task for contest in contests)
    drawn /= (task_weights @ np.array([[tables[task]] for task in tasks])).astype(np.float64)
    mean_ranks = [
        Estimate(fmean(of_one), low, high)
        for of_one, (low, high) in zip(zip(*observed, strict=True), middle(drawn), strict=True)
    ]
    return dict(zip(complete, mean_ranks, strict=True)), dict(zip(complete, places, strict=True))


def _overall_row(
    who: Contestant,
    in_tables: Sequence[tuple[Row, Contest]],
    contests: Sequence[Contest],
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
    entries = [contest.by_contestant[who] for _, contest in in_tables] if len(rows) == len(contests) else []
    oracles = [contest.oracle for contest in contests if contest.oracle and contest.oracle.contestant != who]
    utility = mean_over(entries, [], "utility") if measure and entries else None
    compared = measure and entries and not any(row.lacks_seeds for row in rows) and len(oracles) == len(entries)
    return OverallRow(
        contestant=who,
        tables=len(rows),
        seeds=min(row.seeds for row in rows),
        failed=sum(row.failed for row in rows),
        mean_rank=mean_rank,
        ranks=places,
        utility=utility.through(measure.value) if measure and utility else None,
        gap_to_oracle=mean_over(oracles, entries) if compared else None,
        cross_entropy=mean_over(entries, [], "cross_entropy") if entries else None,
        epsilon_ratio=max(
            (row.epsilon / contest.target for row, contest in in_tables if row.epsilon is not None), default=None
        ),
        accountants=tuple(sorted({row.accountant for row in rows if row.accountant})),
        lacks_seeds=any(row.lacks_seeds for row in rows),
        contradicted=any(row.contradicted for row in rows),
        tuning_share=median(row.tuning_share for row in rows) or 0.0,
        runs=median(row.runs for row in rows) or 0.0,
        examples=median(row.examples for row in rows) or 0.0,
        seconds=median(row.seconds for row in rows),
        relative_cost=median(relative),
    )
