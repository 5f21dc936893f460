"""The leaderboard as one HTML file that opens from disk and uses no network: the answer, tables, methods, records.

Jinja and `Markup.format` escape everything that comes from a record. Pictures are SVG in the page; the script shows and
hides what was made here, and sorts tables.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dphpo_bench.leaderboard import advice_texts
from dphpo_bench.leaderboard import sentences as texts
from dphpo_bench.leaderboard.advice_texts import grid
from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.brief import middle_answer
from dphpo_bench.leaderboard.charts import Chart, task_models_of
from dphpo_bench.leaderboard.columns import MARKS, overall_columns, rounded_number, row_columns, to_csv, varying
from dphpo_bench.leaderboard.links import Paths, about, record_links
from dphpo_bench.leaderboard.measured import measured_rows
from dphpo_bench.leaderboard.rows import Row, Table
from dphpo_bench.leaderboard.values import Entry
from dphpo_bench.records.charts import STYLE
from dphpo_bench.records.estimates import change_text, interval_text

TEMPLATES: dict[str, Any] = {
    "loader": PackageLoader("dphpo_bench.leaderboard", "templates"),
    "undefined": StrictUndefined,
    "trim_blocks": True,
    "lstrip_blocks": True,
}
"""Loader and parser of templates."""

MOST_REFUSED = 100


def context(board: Board, paths: Paths | None) -> dict[str, Any]:
    return {
        "board": board,
        "guide": grid(measured_rows(to_csv(board))),
        "advice_texts": advice_texts,
        "texts": texts,
        "task_models": task_models_of(board),
        "paths": paths or Paths(),
        "varying": varying,
        "row_columns": partial(row_columns, explains=board.explains, shifts=board.shifts),
        "overall_columns": overall_columns,
        "marks": MARKS,
    }


@dataclass(frozen=True)
class Card:
    entry: Entry
    rows: tuple[tuple[Table, Row], ...]

    @property
    def extremes(self) -> dict[Row, str]:
        measure = self.rows[0][0].measure
        known = [row for table, row in self.rows if row.gap_to_oracle and table.measure == measure]
        known.sort(key=lambda row: row.gap_to_oracle.mean if row.gap_to_oracle else 0.0)
        return {known[0]: "best", known[-1]: "worst"} if len(known) > 1 else {}

    @property
    def commands(self) -> dict[str, str]:
        commands: dict[str, str] = {}
        for table, row in self.rows:
            if row.command:
                commands.setdefault(table.task_model, row.command)
        return commands


def to_html(board: Board, charts: Sequence[Chart], paths: Paths | None = None) -> str:
    environment = Environment(**TEMPLATES, autoescape=True, keep_trailing_newline=True)
    environment.filters["sort_value"] = sort_value
    environment.filters["run_value"] = run_value
    cards = list(cards_of(board))
    shared = context(board, paths)
    return environment.get_template("page.html").render(
        **shared,
        subjects=_subjects(board),
        default=middle_answer(board),
        epsilons=sorted({answer.epsilon for answer in board.answers if answer.epsilon is not None}),
        task_model_numbers={task_model: number for number, (task_model, _) in enumerate(shared["task_models"])},
        answered={task_model for answer in board.answers for task_model in answer.task_models},
        pictures=_pictures(charts),
        interval_text=interval_text,
        change_text=change_text,
        cards=cards,
        card_ids={card.entry: f"m{number}" for number, card in enumerate(cards, 1)},
        style=Markup(STYLE),
        about=about,
        record_links=record_links,
        measure=board.measure,
        most_refused=MOST_REFUSED,
    )


def cards_of(board: Board) -> Iterator[Card]:
    rows: defaultdict[Entry, list[tuple[Table, Row]]] = defaultdict(list)
    for table in board.tables:
        for row in table.everyone:
            rows[row.entry].append((table, row))
    for who in sorted(rows, key=lambda who: (who.reference, who.label)):
        yield Card(who, tuple(rows[who]))


def sort_value(value: float | str | None) -> str | None:
    """Return the attribute that JavaScript sorts a cell by."""
    if value is None or isinstance(value, str):
        return value
    if math.isnan(value):
        return None
    return "Infinity" if value == math.inf else repr(rounded_number(float(value)))


def run_value(value: float | None) -> str:
    """Return the metric of a run as its line in an exported file has it; nothing for a failed run."""
    return "" if value is None else f"{value:.6g}"


def _pictures(charts: Sequence[Chart]) -> Mapping[str, list[Markup]]:
    """Return the pictures by title of an answer, else by task and model; their style is the page's."""
    pictures: defaultdict[str, list[Markup]] = defaultdict(list)
    for chart in charts:
        svg = chart.svg.replace(f"<style>{STYLE}</style>\n", "")
        pictures[chart.title if chart.kind == "answer" else chart.subject].append(Markup(svg))
    return pictures


def _subjects(board: Board) -> dict[str, list[str]]:
    several = dict.fromkeys(answer.subject for answer in board.answers if len(answer.task_models) > 1)
    single = dict.fromkeys(answer.subject for answer in board.answers if len(answer.task_models) == 1)
    return {name: [*group] for name, group in (("Several tasks", several), ("One task", single)) if group}
