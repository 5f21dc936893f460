"""The leaderboard as Markdown, for people who read it where the code is: a short page, and files with the rest.

Texts in records come from strangers. They get into the pages, whose templates are `templates/*.md`, only through `code`
and `prose`.
"""

import html
import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import count
from typing import Any

from jinja2 import Environment

from dphpo_bench.base.text import one_line
from dphpo_bench.contract.registry import methods
from dphpo_bench.leaderboard import brief
from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.charts import Chart, file_stems
from dphpo_bench.leaderboard.columns import Column
from dphpo_bench.leaderboard.links import Paths
from dphpo_bench.leaderboard.overall import OverallRow
from dphpo_bench.leaderboard.page import TEMPLATES, context
from dphpo_bench.leaderboard.rows import Row
from dphpo_bench.records.estimates import NOTHING

MAX_LISTED = 50
MAX_TEXT = 2000
MOST_FINDINGS = 8
MOST_NAMED = 30
TABLES = "tables"
OVERALL = "overall"
NO_BREAK = "\u00a0"

TEXT_COLUMNS = ("method", "accountant")
"""Keys of the columns that are aligned to the left."""

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
    environment = Environment(**TEMPLATES)  # nothing is escaped as HTML: `code` and `prose` know Markdown's own rules
    environment.filters |= {
        "code": code,
        "prose": prose,
        "line": _line,
        "cell": _cell,
        "image": _image,
        "alignment": lambda column: ":--" if column.key in TEXT_COLUMNS else "--:",
        "short_cell": _short_cell,
        "short_alignment": lambda column: "--:" if column.kind == "number" else ":--",
    }
    shared = {**context(board, paths), "charts": charts, "terms": _terms, "max_listed": MAX_LISTED}
    task_models = shared["task_models"]
    stems = list(file_stems([OVERALL, *(task_model for task_model, _ in task_models)]))[1:]
    files = {task_model: f"{TABLES}/{stem}.md" for (task_model, _), stem in zip(task_models, stems, strict=True)}
    written = [finding for finding in board.findings if finding.figures]
    shared |= {"files": files, "findings": written}

    def page(template: str, **values: Any) -> str:
        text = environment.get_template(template).render(shared | values)
        return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"

    pages = {"README.md": page("README.md", **_short(board, charts))}
    if board.tables or board.records:
        pages[f"{TABLES}/{OVERALL}.md"] = page("overall.md")
    if board.claims:
        pages["claims.md"] = page("claims.md")
    if written:
        pages["queries.md"] = page("queries.md")
    return pages | {
        files[task_model]: page("table.md", task_model=task_model, tables=tables) for task_model, tables in task_models
    }


def _short(board: Board, charts: Sequence[Chart]) -> dict[str, Any]:
    """Return what the short page shows beyond what all pages know."""
    methods = brief.method_lines(board)
    middle = brief.middle_answer(board)
    written = [finding for finding in board.findings if finding.figures]
    return {
        "brief": brief,
        "answers": brief.single_answers(board)[: brief.MOST_LINES],
        "middle": middle,
        "uneven": brief.uneven(board),
        "methods": methods,
        "variants": any(" (" in line.entry.label for line in methods),
        "method_columns": brief.method_columns(board),
        "pictures": [chart for chart in charts if middle and chart.kind == "answer" and chart.title == middle.title],
        "task_model_lines": brief.task_model_lines(board),
        "listed_task_models": brief.listed_task_models(board),
        "task_model_columns": brief.task_model_columns(board),
        "about_methods": brief.described(methods, board),
        "others": brief.others(methods, board),
        "scope": brief.scope_of(board) if board.tables else None,
        "several_metrics": len({table.measure for table in board.tables}) > 1,
        "findings": (written or board.findings)[:MOST_FINDINGS],
        "queries": bool(written),
        "further": len(written) < len(board.findings),
        "most_lines": brief.MOST_LINES,
        "most_named": MOST_NAMED,
    }


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


def _terms(columns: Iterable[Column]) -> list[tuple[str, str]]:
    return [(column.header, column.explanation) for column in columns]


def _cell(column: Column, row: Row | OverallRow, kind: str) -> str:
    text = column.text(row)
    if column.key == "accountant":
        return prose(text)
    if column.key != "method":
        return prose(text).replace(" ", NO_BREAK)
    label = row.entry.label
    marks = prose(text.removeprefix(label))
    return f"{f'*{kind}:* ' if kind else ''}{code(label)}{NO_BREAK + marks if marks else ''}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _short_cell(column: brief.Column, line: object) -> str:
    text = column.text(line)
    return code(text) if column.kind == "label" and text != NOTHING else prose(text)


def _image(chart: Chart, folder: str) -> str:
    # As HTML, since a description in Markdown would be Markdown itself.
    description = html.escape(one_line(chart.description, MAX_TEXT))
    return f'<p><img src="{folder}/{html.escape(chart.name)}.svg" alt="{description}"></p>'
