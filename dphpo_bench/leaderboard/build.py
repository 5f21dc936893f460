"""From verified runs to the board, and to all of its files. The rule in words: docs/scoring.md."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.files import write_whole
from dphpo_bench.leaderboard.advice import TABLE, shipped_file, shipped_table
from dphpo_bench.leaderboard.answers import answers_of, claims_of, groups_of, task_models_of
from dphpo_bench.leaderboard.charts import charts
from dphpo_bench.leaderboard.columns import overall_csv, to_csv
from dphpo_bench.leaderboard.entries import Standard, compared, contests_of, seed_draws
from dphpo_bench.leaderboard.pages import TABLES, to_html, to_markdown
from dphpo_bench.leaderboard.reruns import Replays
from dphpo_bench.leaderboard.sentences import Paths, findings
from dphpo_bench.leaderboard.submissions import Submissions
from dphpo_bench.leaderboard.tables import Board, counted_contests, missing_tables, overalls_of, table_of
from dphpo_bench.leaderboard.written import FILE, Dispute, held, read_written
from dphpo_bench.sweep.extra_runs import REPLAY


def score(submissions: Submissions, standard: Standard | None = None) -> Board:
    """Return the board of these runs, a pure function of them and the standard, by default `Standard.builtin()`."""
    standard = standard or Standard.builtin()
    replays = Replays.of(submissions.runs)
    current = compared(submissions.runs, standard)
    contests = contests_of(current, standard)
    draws = seed_draws(contests)
    counted = counted_contests(contests, standard)
    task_models = task_models_of(contests)
    subjects = (*groups_of(counted), *task_models)
    claims = claims_of(subjects, counted, standard)
    answers = answers_of(subjects, claims)
    verdicts = {(each.subject, each.epsilon, place.entry): place.verdict for each in answers for place in each.places}
    by_title = {subject.name: subject for subject in task_models}
    tables = [
        table_of(contest, by_title[contest.title], draws[contest.task_model], replays, verdicts, contest in counted)
        for contest in contests
    ]
    pairs = [(contest, table) for contest, table in zip(contests, tables, strict=True) if table.counted]
    overalls = overalls_of(pairs, draws)
    return Board(
        findings=findings(pairs, overalls),
        overalls=overalls,
        tables=tuple(tables),
        answers=answers,
        claims=claims,
        missing=missing_tables(counted, standard),
        rejected=submissions.rejected,
        failed=submissions.failed,
        superseded=sum(run.method != REPLAY for run in submissions.runs) - len(current),
        records=len(submissions.runs) + len(submissions.rejected),
        seconds=math.fsum(run.seconds or 0.0 for run in submissions.runs),
    )


PLOTS = "plots"
GENERATED = b"<!-- Generated "
"""Beginning of a page that `build` made: others that lie beside them stay."""


def with_written(board: Board, folder: Path) -> tuple[Board, list[str]]:
    """Return the board with its written findings and disputes, and a line for each finding that is wrong."""
    path = folder / FILE
    written = read_written(path)
    findings, wrong = held(written.finding, to_csv(board), path)
    board = replace(board, findings=(*findings, *board.findings))
    return (_disputed(board, written.dispute) if written.dispute else board), wrong


def _disputed(board: Board, disputes: Sequence[Dispute]) -> Board:
    def marked(row: Any, task: str | None) -> Any:
        tasks = {each.task for each in disputes if each.method == row.entry.method}
        return replace(row, disputed=bool(tasks if task is None else tasks & {"", task}))

    tables = [replace(table, rows=tuple(marked(row, table.task) for row in table.rows)) for table in board.tables]
    overalls = [replace(each, rows=tuple(marked(row, None) for row in each.rows)) for each in board.overalls]
    return replace(board, tables=tuple(tables), overalls=tuple(overalls), disputes=tuple(disputes))


def render(board: Board, folder: Path) -> dict[str, str]:
    drawn = charts(board)
    in_files = [chart for chart in drawn if chart.in_file]
    paths = Paths.beside(folder)
    table = to_csv(board)
    files = {
        **to_markdown(board, in_files, paths),
        TABLE: table,
        "overall.csv": overall_csv(board),
        "index.html": to_html(board, drawn, paths),
    }
    if shipped := shipped_file(folder):
        files[shipped] = shipped_table(table)
    return files | {f"{PLOTS}/{chart.name}.svg": chart.svg for chart in in_files}


def stale(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Return names of files that are missing, differ, or should not be there; in order."""
    different = [name for name, content in files.items()
                 if not (folder / name).is_file() or (folder / name).read_bytes() != content.encode()]  # fmt: skip
    pages = [path for place in (folder, folder / TABLES) for path in place.glob("*.md")]
    generated = [path for path in pages if path.is_file() and path.read_bytes().startswith(GENERATED)]
    names = (path.relative_to(folder).as_posix() for path in (*generated, *(folder / PLOTS).glob("*.svg")))
    return sorted([*different, *(name for name in names if name not in files)])


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write the files that changed, remove plots and pages that are no longer made, and return their names."""
    changed = stale(folder, files)
    for name in changed:
        try:
            if name in files:
                write_whole(folder / name, files[name])
            else:
                (folder / name).unlink()
        except OSError as error:
            raise InvalidValueError(f"Cannot write {folder / name}: {error.strerror}.") from None
    return changed
