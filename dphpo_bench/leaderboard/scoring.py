"""From verified runs to the board. The rule in words: docs/scoring.md."""

import math
from collections.abc import Sequence
from dataclasses import replace

from dphpo_bench.leaderboard.answers import Answer, answers_of, claims_of, groups_of, task_models_of
from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.entries import asked_for, contests_of, frame_of, newest, seed_draws
from dphpo_bench.leaderboard.reruns import Replays
from dphpo_bench.leaderboard.sentences import findings
from dphpo_bench.leaderboard.standard import Standard
from dphpo_bench.leaderboard.submissions import Submissions
from dphpo_bench.leaderboard.tables import Row, Table, counted_contests, missing_tables, overalls_of, table_of
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
    return Board(
        findings=findings(pairs, overalls),
        overalls=overalls,
        tables=_with_verdicts(tables, answers, {table.title for _, table in pairs}),
        answers=answers,
        claims=claims,
        missing=missing_tables(counted, standard),
        rejected=submissions.rejected,
        failed=submissions.failed,
        superseded=len(runs) - len(current),
        records=len(submissions.runs) + len(submissions.rejected),
        seconds=math.fsum(run.seconds or 0.0 for run in submissions.runs),
    )


def _with_verdicts(tables: Sequence[Table], answers: Sequence[Answer], counted: set[str]) -> tuple[Table, ...]:
    """Return the tables with each row's verdict, as the answer about the table has it, and marked if they
    are among the titles of those that count.
    """
    verdicts = {(answer.subject, answer.epsilon): {place.entry: place.verdict for place in answer.places}
                 for answer in answers}  # fmt: skip

    def row_of(row: Row, table: Table) -> Row:
        return replace(row, verdict=verdicts.get((table.task_model, table.epsilon), {}).get(row.entry, ""))

    return tuple(
        replace(table, rows=tuple(row_of(row, table) for row in table.rows), counted=table.title in counted)
        for table in tables
    )
