"""The leaderboard for readers: one HTML file that uses no network, and Markdown, a short page and files with the rest.

Texts in records come from strangers. In HTML, Jinja escapes them; in Markdown, `code` and `prose` do.
"""

import html
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import count
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dphpo_bench.base.text import one_line
from dphpo_bench.contract.registry import methods
from dphpo_bench.leaderboard import advice
from dphpo_bench.leaderboard import sentences as texts
from dphpo_bench.leaderboard.answers import OTHERS
from dphpo_bench.leaderboard.charts import Chart, file_stems, task_models_of
from dphpo_bench.leaderboard.columns import MARKS, Column, overall_columns, rounded_number, row_columns, to_csv, varying
from dphpo_bench.leaderboard.entries import Entry
from dphpo_bench.leaderboard.sentences import Paths, about, record_links
from dphpo_bench.leaderboard.tables import Board, OverallRow, Row, Table
from dphpo_bench.records.charts import STYLE
from dphpo_bench.records.measure import NOTHING, change_text, interval_text

MAX_LISTED = 50
"""Largest number of refused records, or of failed runs, that a page lists."""

MAX_TEXT = 2000
MOST_FINDINGS = 8
MOST_NAMED = 15
TABLES = "tables"
OVERALL = "overall"
NO_BREAK = "\u00a0"


@cache
def _environment(form: str) -> Environment:
    environment = Environment(
        loader=PackageLoader("dphpo_bench.leaderboard", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=form == "html",  # in Markdown, `code` and `prose` know its own rules
        keep_trailing_newline=form == "html",
    )
    environment.filters |= FILTERS[form]
    return environment


def _context(form: str, board: Board, paths: Paths) -> dict[str, Any]:
    """Return what the sections show in either form, "md" or "html"."""
    listed_methods, leading = texts.methods_of(board), texts.leading(board)
    listed, more = texts.task_models_by_count(board)
    rows = advice.measured_rows(to_csv(board))
    versus = [texts.versus(claims) for claims in board.claims]
    guide, asked = advice.grid(rows), advice.for_page(rows)
    written = [finding for finding in board.findings if finding.figures]
    return {
        "form": form,
        "board": board,
        "paths": paths,
        "texts": texts,
        "asked": asked,
        "usual_records": max((each.question.records for each in guide if each.choice), default=advice.RECORDS[-1]),
        "versus_labels": list(dict.fromkeys(label for each in versus for label in each["labels"])),
        "versus_json": _json(versus),
        "asked_json": _json(asked),
        "advices": guide,
        "guide_grid": texts.guide_grid(guide),
        "task_models": task_models_of(board),
        "middle": texts.middle_answer(board),
        "leading": leading,
        "methods_grid": texts.methods_grid(board),
        "more_grids": [(group[0], texts.methods_grid(board, group[0].subject)) for group in leading[1:]],
        "core_grid": texts.methods_grid(board, OTHERS),
        "about_methods": texts.described(listed_methods, board),
        "others": texts.others(listed_methods, board),
        "limit_pairs": [("", *limit) for limit in texts.limits(board, listed_methods)] if board.tables else [],
        "runs_grid": texts.runs_grid(board),
        "tasks_grid": texts.tasks_grid(board, listed),
        "more_task_models": more,
        "written": written,
        "shown_findings": (written or board.findings)[:MOST_FINDINGS],
        "varying": varying,
        "row_columns": partial(row_columns, explains=board.explains, shifts=board.shifts),
        "overall_columns": overall_columns,
        "marks": [("", *mark) for mark in MARKS],
        "terms": lambda columns: [(column.key, column.header, column.explanation) for column in columns],
        "most_lines": texts.MOST_LINES,
        "most_named": MOST_NAMED,
        "most_refused": MAX_LISTED,
    }


def _json(value: Any) -> Markup:
    """Return JSON for an element of a page, which no text in it can end."""
    return Markup(json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"))


def to_html(board: Board, charts: Sequence[Chart], paths: Paths | None = None) -> str:
    cards = cards_of(board)
    several = dict.fromkeys(answer.subject for answer in board.answers if len(answer.task_models) > 1)
    single = dict.fromkeys(answer.subject for answer in board.answers if len(answer.task_models) == 1)
    numbers = {table.task_model: f"setting-{at}" for at, (name, (table, *_)) in enumerate(task_models_of(board))}
    return (
        _environment("html")
        .get_template("page.html")
        .render(
            _context("html", board, paths or Paths()),
            subjects={name: [*group] for name, group in (("Several tasks", several), ("One task", single)) if group},
            epsilons=sorted({answer.epsilon for answer in board.answers if answer.epsilon is not None}),
            files=numbers,
            answered={task_model for answer in board.answers for task_model in answer.task_models},
            pictures=_pictures(charts),
            interval_text=interval_text,
            change_text=change_text,
            cards=cards,
            card_ids={who: f"m{number}" for number, (who, _) in enumerate(cards, 1)},
            style=Markup(STYLE),
            about=about,
            record_links=record_links,
            measure=board.measure,
        )
    )


def cards_of(board: Board) -> list[tuple[Entry, list[tuple[Table, Row]]]]:
    """Return each entry's rows in all tables, references last."""
    rows: defaultdict[Entry, list[tuple[Table, Row]]] = defaultdict(list)
    for table in board.tables:
        for row in table.everyone:
            rows[row.entry].append((table, row))
    return sorted(rows.items(), key=lambda card: (card[0].reference, card[0].label))


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


_WORD = re.compile(r"(?P<before>[(\[]*)(?P<core>.*?)(?P<after>[)\].,;:!?]*)")
# Letters and digits, joined by apostrophes and hyphens (but GH-1 is a reference); or a number; or a sign by itself.
_PLAIN = re.compile(
    r"(?!gh-\d)(?:[a-z0-9]|[^\x00-\x7f])+(?:['-](?:[a-z]|[^\x00-\x7f])+|-\d{1,3})*"
    r"|[-+−]?\d+(?:,\d{3})*(?:\.\d+)?%?|[=/%]|",
    re.IGNORECASE,
)
_COMMIT = re.compile(r"[0-9a-f]{7,}", re.IGNORECASE)


def to_markdown(board: Board, charts: Sequence[Chart], paths: Paths | None = None) -> dict[str, str]:
    """Return the pages by their names in the leaderboard's folder: README.md, and those that it links to."""
    context = _context("md", board, paths or Paths())
    task_models = task_models_of(board)
    stems = list(file_stems([OVERALL, *(task_model for task_model, _ in task_models)]))[1:]
    files = {task_model: f"{TABLES}/{stem}.md" for (task_model, _), stem in zip(task_models, stems, strict=True)}

    def page(template: str, up: str = "", **values: Any) -> str:
        values |= {"up": up, "files": files, "charts": charts}
        text = _environment("md").get_template(template).render(context, **values)
        return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"

    pages = {"README.md": page("README.md", uneven=texts.uneven(texts.single_answers(board)))}
    if board.tables or board.records:
        pages[f"{TABLES}/{OVERALL}.md"] = page("overall.md", "../")
    if board.claims:
        pages["claims.md"] = page("claims.md")
    if any(finding.figures for finding in board.findings):
        pages["queries.md"] = page("queries.md")
    for task_model, tables in task_models:
        pages[files[task_model]] = page("table.md", "../", task_model=task_model, tables=tables)
    return pages


def code(text: str) -> str:
    """Return a stranger's text as one code span: at most one line, not for the start of a line.

    Within a code span nothing is Markdown, HTML, a link, an emoji or mathematics, and code hosts ignore mentions and
    references. In a table, `|` must still be escaped, which `_line` does.
    """
    text = one_line(text, MAX_TEXT)
    if not text:
        return ""
    # Not one longer than the longest: GitHub's parser gives up above 80, which a stranger can provoke. The shortest
    # that does not occur in n characters is at most √(2n) + 1.
    lengths = {len(run) for run in re.findall("`+", text)}
    fence = "`" * next(length for length in count(1) if length not in lengths)
    pad = " " if "`" in (text[0], text[-1]) else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def prose(text: str) -> str:
    """Return a stranger's text as part of a sentence: at most one line, not for the start of a line.

    Plain words, numbers and their punctuation stay as they are. Any other word becomes a code span, as do the names of
    methods: `auto_clipping`, @name, #1, GH-1, :smile:, www.example.org, $x$, and possible hashes of commits. The rest
    is not markup in CommonMark or in GitHub's extensions, anywhere. Extensions that look for ordinary words
    would still find them.
    """
    return " ".join(_word(word) for word in one_line(text, MAX_TEXT).split(" "))


def _word(word: str) -> str:
    parts = _WORD.fullmatch(word)
    assert parts is not None
    core = parts["core"]
    before, after = (re.sub(r"([\[\]])", r"\\\1", parts[name]) for name in ("before", "after"))
    method = core.removesuffix("'s")
    if method in _names():
        return f"{before}{code(method)}{core.removeprefix(method)}{after}"
    plain = _PLAIN.fullmatch(core) and not any(map(_COMMIT.fullmatch, re.split("['-]", core)))
    return f"{before}{core if plain else code(core)}{after}"


@cache
def _names() -> frozenset[str]:
    return frozenset(methods())  # to ask for each word would take longer than all else


def _value_cell(column: Column, row: Row | OverallRow, kind: str) -> str:
    text = column.text(row)
    if column.key == "accountant":
        return prose(text)
    if column.key != "method":
        return prose(text).replace(" ", NO_BREAK)
    label = row.entry.label
    marks = prose(text.removeprefix(label))
    return f"{f'*{kind}:* ' if kind else ''}{code(label)}{NO_BREAK + marks if marks else ''}"


def _cells(row: Sequence[str], heads: Sequence[texts.Head], files: Mapping[str, str]) -> list[str]:
    """Return the cells of a short table; a task–model pair links to its page."""
    cells = []
    for head, text in zip(heads, row, strict=True):
        cell = code(text) if head.kind in ("label", "pair") and text != NOTHING else prose(text)
        cells.append(f"[{cell}]({files[text]})" if head.kind == "pair" else cell)
    return cells


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _image(chart: Chart, folder: str) -> str:
    # As HTML, since a description in Markdown would be Markdown itself.
    description = html.escape(one_line(chart.description, MAX_TEXT))
    return f'<p><img src="{folder}/{html.escape(chart.name)}.svg" alt="{description}"></p>'


FILTERS: Mapping[str, Mapping[str, Any]] = {
    "html": {"sort_value": sort_value, "run_value": run_value, "t": str},
    "md": {
        "code": code,
        "t": prose,
        "line": _line,
        "cells": _cells,
        "value_cell": _value_cell,
        "alignment": lambda column: "--:" if column.kind == "number" else ":--",
        "image": _image,
    },
}
"""The filters of templates, for each form of page."""
