"""All pictures of a board as files, for the Markdown."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from dphpo_bench.leaderboard.answers import Answer
from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.charts import curves, forest
from dphpo_bench.leaderboard.charts.frame import Chart
from dphpo_bench.leaderboard.rows import Table
from dphpo_bench.leaderboard.sentences import first_answers, sentences


def charts(board: Board) -> list[Chart]:
    drawn = [_answer(answer) for answer in first_answers(board)]
    for setting, tables in settings_of(board):
        drawn += _of_setting(setting, tables)
    return list(_with_unique_names(drawn))


def settings_of(board: Board) -> list[tuple[str, list[Table]]]:
    return [(setting, list(tables)) for setting, tables in groupby(board.tables, key=lambda table: table.setting)]


def _answer(answer: Answer) -> Chart:
    at = "all" if answer.epsilon is None else f"epsilon {answer.epsilon:g}"
    description = f"Forest plot of distances to {answer.anchor}. {' '.join(sentences(answer))}"
    return Chart(f"answer {at}", answer.title, description, forest.to_svg(answer), "answer", answer.subject)


def _of_setting(setting: str, tables: Sequence[Table]) -> Iterator[Chart]:
    measure = tables[0].measure
    panels = curves.metric_panels(tables)
    if panels:
        title = f"{measure.title[:1].upper()}{measure.title[1:]} against ε: {setting}"
        scale = ", logarithmic" if measure.logarithmic else ""
        oracle = "dashed: the oracle; " if any(table.oracle for table in tables) else ""
        marks = f"mean over seeds and 95 % interval, best mean first; {oracle}ε below."
        note = f"{measure.header}{scale}; {marks}"
        description = f"A small picture for each of {len(panels)} contestants: {note}"
        svg = curves.to_svg(panels, 5, 132, title, note, description)
        yield Chart(f"{measure.name} {setting}", title, description, svg, "metric", setting)
    panels = curves.path_panels(tables)
    if panels:
        title = f"Learning rate while training: {setting}"
        note = "What one run at each ε released; logarithmic, over steps on a square root scale."
        description = f"A small picture for each of {len(panels)} contestants: {note}"
        svg = curves.to_svg(panels, 3, 180, title, note, description)
        yield Chart(f"paths {setting}", title, description, svg, "paths", setting)


def _with_unique_names(drawn: Iterable[Chart]) -> Iterator[Chart]:
    drawn = list(drawn)
    for chart, name in zip(drawn, file_stems(chart.name for chart in drawn), strict=True):
        yield replace(chart, name=name)


def file_stems(names: Iterable[str]) -> Iterator[str]:
    """Yield a stem of a file name for each name: plain, short, and different from all before."""
    taken: set[str] = set()
    for name in names:
        stem = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:60].strip("-") or "unnamed"
        new = next(new for number in range(1, len(taken) + 2) if (new := f"{stem}-{number}" if number > 1 else stem)
                   not in taken)  # fmt: skip
        taken.add(new)
        yield new
