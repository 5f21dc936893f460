"""From verified runs to the board. The rule in words: docs/scoring.md."""

import math
from dataclasses import replace

from dphpo_bench.leaderboard.answers import answers_of, claims_of, groups_of, task_models_of
from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.entries import asked_for, contests_of, frame_of, newest, seed_draws
from dphpo_bench.leaderboard.reruns import Replays
from dphpo_bench.leaderboard.sentences import findings
from dphpo_bench.leaderboard.standard import Standard
from dphpo_bench.leaderboard.submissions import Submissions
from dphpo_bench.leaderboard.tables import counted_contests, missing_tables, overalls_of, table_of
from dphpo_bench.sweep.extra_runs import REPLAY


def score(submissions: Submissions, standard: Standard | None = None) -> Board:
    """Return the board of these runs, a pure function of them and the standard, by default `Standard.builtin()`."""
    standard = standard or Standard.builtin()
    replays = Replays.of(submissions.runs)
    runs = [run for run in submissions.runs if run.method != REPLAY]
    current = newest(asked_for(frame_of(runs), standard))  # in this order: what nobody asked for supersedes nothing
    contests = contests_of(current, standard)
    draws = seed_draws(contests)
    task_models = task_models_of(contests)
    by_title = {subject.name: subject for subject in task_models}
    tables = [table_of(contest, by_title[contest.title], draws[contest.task_model], replays) for contest in contests]
    counted = counted_contests(contests, standard)
    pairs = [(contest, table) for contest, table in zip(contests, tables, strict=True) if contest in counted]
    overalls = overalls_of(pairs, draws)
    subjects = (*groups_of(counted), *task_models)
    claims = claims_of(subjects, counted, standard)
    answers = answers_of(subjects, claims)
    verdicts = {(each.subject, each.epsilon, place.entry): place.verdict for each in answers for place in each.places}
    return Board(
        findings=findings(pairs, overalls),
        overalls=overalls,
        tables=tuple(
            replace(
                table,
                counted=contest in counted,
                rows=tuple(
                    replace(row, verdict=verdicts.get((table.task_model, table.epsilon, row.entry), ""))
                    for row in table.rows
                ),
            )
            for contest, table in zip(contests, tables, strict=True)
        ),
        answers=answers,
        claims=claims,
        missing=missing_tables(counted, standard),
        rejected=submissions.rejected,
        failed=submissions.failed,
        superseded=len(runs) - len(current),
        records=len(submissions.runs) + len(submissions.rejected),
        seconds=math.fsum(run.seconds or 0.0 for run in submissions.runs),
    )
