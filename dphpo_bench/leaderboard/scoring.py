"""From verified runs to the board. The rule in words: docs/scoring.md."""

import math

from dphpo_bench.leaderboard.board import Board, Estimate, Ranks, Row, Table
from dphpo_bench.leaderboard.contestants import (
    _Cell,
    _cells,
    _Draws,
    _Entry,
    _median,
    _newest,
    _paired,
    _scores,
    _seed_draws,
)
from dphpo_bench.leaderboard.findings import findings
from dphpo_bench.leaderboard.overall import _counted, _missing, _overalls
from dphpo_bench.leaderboard.standard import Standard
from dphpo_bench.leaderboard.statistics import mean_interval, middle_ranks
from dphpo_bench.leaderboard.statistics import ratio_interval as ratio
from dphpo_bench.leaderboard.submissions import Submissions


def score(submissions: Submissions, standard: Standard | None = None) -> Board:
    """The board of these runs; a pure function of them and of the standard, by default `Standard.builtin()`."""
    standard = standard or Standard.builtin()
    current, superseded = _newest(submissions.runs)
    cells = _cells(current, standard)
    draws = _seed_draws(cells)
    tables = tuple(_table(cell, draws[cell.setting]) for cell in cells)
    counted = _counted(list(zip(cells, tables, strict=True)), standard)
    overalls = _overalls(counted, draws)
    return Board(
        findings=findings(
            [table for _, table in counted], overalls, standard.oracle, standard.untuned, standard.nonprivate
        ),
        overalls=overalls,
        tables=tables,
        missing=_missing([cell for cell, _ in counted], standard),
        rejected=submissions.rejected,
        failed=submissions.failed,
        superseded=superseded,
        records=len(submissions.runs) + len(submissions.rejected),
    )


def _table(cell: _Cell, draws: _Draws) -> Table:
    ranked = cell.ranked
    intervals = middle_ranks(_scores(ranked, draws).resampled_ranks(draws.weights)) if ranked else []
    by_contestant = {entry.contestant: interval for entry, interval in zip(ranked, intervals, strict=True)}
    rows = [_row(entry, by_contestant.get(entry.contestant), cell) for entry in cell.entries]
    rows.sort(key=_by_utility)
    return Table(
        task=cell.setting.task,
        model=cell.setting.model,
        epsilon=cell.target,
        delta=cell.setting.delta,
        setting=cell.title,
        rows=tuple(row for row in rows if not row.contestant.reference),
        references=tuple(row for row in rows if row.contestant.reference),
    )


def _by_utility(row: Row) -> tuple[bool, float, str]:
    """Best first. Failures count, as in the ranks."""
    finished = row.seeds / max(1, row.seeds + row.failed)
    return row.utility is None, -round(finished * row.utility.mean, 9) if row.utility else 0.0, row.contestant.label


def _row(entry: _Entry, interval: Ranks | None, cell: _Cell) -> Row:
    finished = entry.finished
    accuracies = [run.accuracy for run in finished if run.accuracy is not None]
    oracle, untuned = cell.oracle, cell.untuned
    told = [(run.epsilon, run.accountant) for run in entry.runs.values() if run.epsilon is not None]
    epsilon, accountant = max(told, default=(None, ""))
    first = min(finished, key=lambda run: run.seed, default=None)
    return Row(
        contestant=entry.contestant,
        method_version=next(iter(entry.runs.values())).method_version,
        task_version=next(iter(entry.runs.values())).task_version,
        seeds=len(finished),
        failed=len(entry.runs) - len(finished),
        utility=mean_interval(accuracies) if accuracies else None,
        ranks=interval,
        gap_to_oracle=_difference(oracle, entry),
        gap_to_untuned=_difference(entry, untuned),
        gap_closed=_gap_closed(entry, oracle, untuned),
        epsilon=epsilon if entry.contestant.end_to_end_private else math.inf,
        accountant=accountant if entry.contestant.end_to_end_private else "",
        audited=max((run.audited for run in finished if run.audited is not None), default=None),
        contradicted=any(run.audited > run.epsilon for run in finished if run.audited and run.epsilon is not None),
        tuning_share=_median(finished, lambda run: run.tuning_share) or 0.0,
        runs=_median(finished, lambda run: run.runs) or 0.0,
        examples=_median(finished, lambda run: run.examples) or 0.0,
        seconds=_median(finished, lambda run: run.seconds),
        path=first.released_path if first else (),
    )


def _difference(better: _Entry | None, worse: _Entry | None) -> Estimate | None:
    """Accuracy of one minus that of the other over the seeds of both; None if they are one or share no seed."""
    if better is None or worse is None or better is worse:
        return None
    differences = [a - b for a, b in _paired(better, worse)]
    return mean_interval(differences) if differences else None


def _gap_closed(entry: _Entry, oracle: _Entry | None, untuned: _Entry | None) -> Estimate | None:
    if oracle is None or untuned is None or entry is oracle or entry is untuned:
        return None
    triples = list(_paired(entry, untuned, oracle))
    return ratio([own - low for own, low, _ in triples], [high - low for _, low, high in triples])
