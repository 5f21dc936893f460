"""From verified runs to the board. The rule in words: docs/scoring.md."""

import math

from dphpo_bench.leaderboard.answers import answers_of, subjects_of
from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.claims import claims_of
from dphpo_bench.leaderboard.contestants import asked_for, cells_of, frame_of, newest, seed_draws
from dphpo_bench.leaderboard.overall import counted_tables, missing_tables, overalls_of
from dphpo_bench.leaderboard.replays import Replays
from dphpo_bench.leaderboard.rows import table_of
from dphpo_bench.leaderboard.sensitivity import variations_of
from dphpo_bench.leaderboard.sentences import findings
from dphpo_bench.leaderboard.split import REPLAY
from dphpo_bench.leaderboard.standard import Standard
from dphpo_bench.leaderboard.submissions import Submissions


def score(submissions: Submissions, standard: Standard | None = None) -> Board:
    """Return the board of these runs, a pure function of them and the standard, by default `Standard.builtin()`."""
    standard = standard or Standard.builtin()
    replays = Replays.of(submissions.runs)
    runs = [run for run in submissions.runs if run.method != REPLAY]
    current = newest(asked_for(frame_of(runs), standard))  # in this order: what nobody asked for supersedes nothing
    cells = cells_of(current, standard)
    draws = seed_draws(cells)
    tables = tuple(table_of(cell, draws[cell.setting], replays) for cell in cells)
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
