"""From verified runs to the board. The rule in words: docs/scoring.md."""

import math
from collections.abc import Sequence
from statistics import fmean

from dphpo_bench.leaderboard.answers import answers_of, subjects_of
from dphpo_bench.leaderboard.board import Board, Estimate, Ranks, Row, Table
from dphpo_bench.leaderboard.claims import claims_of
from dphpo_bench.leaderboard.contestants import (
    Cell,
    Draws,
    Entry,
    asked_for,
    cells_of,
    frame_of,
    mean_over,
    median,
    newest,
    paired,
    scores_of,
    seed_draws,
)
from dphpo_bench.leaderboard.findings import findings
from dphpo_bench.leaderboard.links import command_of
from dphpo_bench.leaderboard.overall import counted_tables, missing_tables, overalls_of
from dphpo_bench.leaderboard.replays import Replays
from dphpo_bench.leaderboard.sensitivity import variations_of
from dphpo_bench.leaderboard.split import REPLAY, Split
from dphpo_bench.leaderboard.standard import Standard
from dphpo_bench.leaderboard.statistics import mean_interval, metric_mean, middle_ranks, ratio_interval
from dphpo_bench.leaderboard.submissions import Submissions
from dphpo_bench.privacy.risk import CERTAIN, Risk, worst


def score(submissions: Submissions, standard: Standard | None = None) -> Board:
    """The board of these runs, a pure function of them and the standard, which is `Standard.builtin()` by default."""
    standard = standard or Standard.builtin()
    replays = Replays.of(submissions.runs)
    runs = [run for run in submissions.runs if run.method != REPLAY]
    current = newest(asked_for(frame_of(runs), standard))  # in this order: what nobody asked for supersedes nothing
    cells = cells_of(current, standard)
    draws = seed_draws(cells)
    tables = tuple(_table(cell, draws[cell.setting], replays) for cell in cells)
    counted = counted_tables(list(zip(cells, tables, strict=True)), standard)
    overalls = overalls_of(counted, draws)
    counted_cells = [cell for cell, _ in counted]
    subjects = subjects_of(cells, counted_cells)
    claims = claims_of(subjects, counted_cells, standard)
    return Board(
        findings=findings(counted, overalls),
        overalls=overalls,
        tables=tables,
        answers=answers_of(subjects),
        claims=claims,
        variations=variations_of(claims, subjects, counted_cells),
        missing=missing_tables(counted_cells, standard),
        rejected=submissions.rejected,
        failed=submissions.failed,
        superseded=len(runs) - len(current),
        records=len(submissions.runs) + len(submissions.rejected),
        seconds=math.fsum(run.seconds or 0.0 for run in submissions.runs),
    )


def _table(cell: Cell, draws: Draws, replays: Replays) -> Table:
    ranked = cell.ranked
    resampled = scores_of(ranked, draws, cell.setting.measure).resampled_ranks(draws.weights) if ranked else None
    intervals = [] if resampled is None else middle_ranks(resampled)
    by_contestant = {entry.contestant: interval for entry, interval in zip(ranked, intervals, strict=True)}
    explained = replays.explain(key for entry in cell.entries for key in entry.runs["key"])
    rows = [
        _row(
            entry,
            by_contestant.get(entry.contestant),
            cell,
            replays.splits(entry, cell.oracle) if explained else [],
        )
        for entry in sorted(cell.entries, key=_best_first)
    ]
    return Table(
        task=cell.setting.task,
        model=cell.setting.model,
        epsilon=cell.target,
        delta=cell.setting.delta,
        setting=cell.title,
        measure=cell.setting.measure,
        kinds=cell.setting.kinds,
        oracle=cell.oracle.contestant if cell.oracle else None,
        rows=tuple(row for row in rows if not row.contestant.reference),
        references=tuple(row for row in rows if row.contestant.reference),
    )


def _best_first(entry: Entry) -> tuple[bool, float, str]:
    """Return a key to sort by. Failures count, as in ranks; entries without a finished run go last."""
    return entry.finished.empty, -round(fmean(entry.by_seed().values()), 9), entry.contestant.label


def _row(entry: Entry, interval: Ranks | None, cell: Cell, splits: Sequence[Split]) -> Row:
    runs, finished = entry.runs, entry.finished
    first = next(runs.itertuples())
    values = finished["value"].tolist()
    oracle, untuned = (None, None) if entry.lacks else (cell.oracle, cell.untuned)
    private = entry.contestant.end_to_end_private
    known = runs[runs["epsilon"].notna()]
    epsilon, accountant = max(zip(known["epsilon"].tolist(), known["accountant"], strict=True), default=(None, ""))
    audited = finished["audited"].max()
    return Row(
        contestant=entry.contestant,
        method_version=first.method_version,  # the versions of the runs are the same
        task_version=first.task_version,
        seeds=len(finished),
        failed=len(runs) - len(finished),
        utility=metric_mean(values, cell.setting.measure) if values else None,
        worst=(min if cell.setting.measure.higher_is_better else max)(values, default=None),
        cross_entropy=mean_over([entry], [], "cross_entropy"),
        ranks=interval,
        gap_to_oracle=_lead(oracle, entry),
        gap_to_untuned=_lead(entry, untuned),
        gap_closed=_gap_closed(entry, oracle, untuned),
        epsilon=epsilon if private else math.inf,
        accountant=accountant if private else "",
        audited=None if math.isnan(audited) else float(audited),
        risk=_risk(entry),
        lacks_seeds=entry.lacks,
        contradicted=bool((finished["refuted"].astype(bool) | (finished["audited"] > finished["epsilon"])).any()),
        tuning_share=median(finished["tuning_share"]) or 0.0,
        runs=median(finished["runs"]) or 0.0,
        examples=median(finished["examples"]) or 0.0,
        seconds=median(finished["seconds"]),
        path=next(iter(finished["released_path"]), ()),
        lost_to_noise=mean_interval([split.noise for split in splits]) if splits else None,
        lost_to_choice=mean_interval([split.choice for split in splits]) if splits else None,
        records=tuple(zip(runs["seed"].tolist(), runs["path"], strict=True)),
        command=command_of(first),
    )


def _risk(entry: Entry) -> Risk | None:
    if not entry.contestant.end_to_end_private:
        return CERTAIN
    known = [risk for risk in entry.runs["risk"] if risk]
    return worst(known) if known else None


def _lead(better: Entry | None, worse: Entry | None) -> Estimate | None:
    """Return by how much an entry is better over the seeds of both; None if they are the same or share no seed."""
    return None if better is None or worse is None or better is worse else mean_over([better], [worse])


def _gap_closed(entry: Entry, oracle: Entry | None, untuned: Entry | None) -> Estimate | None:
    if oracle is None or untuned is None or entry is oracle or entry is untuned:
        return None
    triples = paired(entry, untuned, oracle)
    return ratio_interval([own - low for own, low, _ in triples], [high - low for _, low, high in triples])
