"""From verified runs to the board. The rule in words: docs/scoring.md."""

import math

from dphpo_bench.leaderboard.answers import answers_of, subjects_of
from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.claims import claims_of
from dphpo_bench.leaderboard.contestants import asked_for, contests_of, frame_of, newest, seed_draws
from dphpo_bench.leaderboard.overall import counted_tables, missing_tables, overalls_of
from dphpo_bench.leaderboard.replays import Replays
from dphpo_bench.leaderboard.rows import table_of
from dphpo_bench.leaderboard.sensitivity import variations_of
from dphpo_bench.leaderboard.sentences import findings
from dphpo_bench.leaderboard.standard import Standard
from dphpo_bench.leaderboard.submissions import Submissions
from dphpo_bench.leaderboard.values import REPLAY


def score(submissions: Submissions, standard: Standard | None = None) -> Board:
    """Return the board of these runs, a pure function of them and the standard, by default `Standard.builtin()`."""
    standard = standard or Standard.builtin()
    replays = Replays.of(submissions.runs)
    runs = [run for run in submissions.runs if run.method != REPLAY]
    current = newest(asked_for(frame_of(runs), standard))  # in this order: what nobody asked for supersedes nothing
    contests = contests_of(current, standard)
    draws = seed_draws(contests)
    tables = tuple(table_of(contest, draws[contest.setting], replays) for contest in contests)
    counted = counted_tables(list(zip(contests, tables, strict=True)), standard)
    overalls = overalls_of(counted, draws)
    counted_contests = [contest for contest, _ in counted]
    subjects = subjects_of(contests, counted_contests)
    claims = claims_of(subjects, counted_contests, standard)
    return Board(
        findings=findings(counted, overalls),
        overalls=overalls,
        tables=tables,
        answers=answers_of(subjects),
        claims=claims,
        variations=variations_of(claims, subjects, counted_contests),
        missing=missing_tables(counted_contests, standard),
        rejected=submissions.rejected,
        failed=submissions.failed,
        superseded=len(runs) - len(current),
        records=len(submissions.runs) + len(submissions.rejected),
        seconds=math.fsum(run.seconds or 0.0 for run in submissions.runs),
    )
