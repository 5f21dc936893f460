"""The leaderboard as Markdown, for people who read it where the code is.

Texts in records come from strangers. They get into the page, whose template is `templates/README.md`, only through
`code` and `prose`.
"""

import html
import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count, groupby

from jinja2 import Environment

from dphpo_bench.base.text import one_line
from dphpo_bench.leaderboard.board import Board, OverallRow, Row, Table
from dphpo_bench.leaderboard.charts.frame import Chart
from dphpo_bench.leaderboard.columns import MARKS, NOT_AUDITED, NOTHING, Column, overall_columns, row_columns
from dphpo_bench.leaderboard.page import TEMPLATES

MAX_LISTED = 50
MAX_TEXT = 2000
NO_BREAK = "\u00a0"

TEXT_COLUMNS = ("method", "accountant", "private")
"""Keys of the columns that are aligned to the left."""

_WORD = re.compile(r"(?P<before>[(\[]*)(?P<core>.*?)(?P<after>[)\].,;:!?]*)")
# Letters and digits, joined by apostrophes and hyphens; or a number; or a sign by itself.
_PLAIN = re.compile(
    r"(?:[a-z0-9]|[^\x00-\x7f])+(?:['-](?:[a-z]|[^\x00-\x7f])+)*|[-+−]?\d+(?:,\d{3})*(?:\.\d+)?%?|[=/%]|", re.IGNORECASE
)
_COMMIT = re.compile(r"[0-9a-f]{7,}", re.IGNORECASE)


def to_markdown(board: Board, charts: Sequence[Chart]) -> str:
    """The content of `leaderboard/README.md`, in GitHub-flavoured Markdown.

    Each chart is a drawing at `plots/<name>.svg`. Charts of ranks, metrics and costs stand in the sections of what they
    are about, the others in a section of their own.
    """
    environment = Environment(**TEMPLATES)  # nothing is escaped as HTML: `code` and `prose` know Markdown's own rules
    environment.filters |= {
        "code": code,
        "prose": prose,
        "line": _line,
        "cell": _cell,
        "image": _image,
        "alignment": lambda column: ":--" if column.key in TEXT_COLUMNS else "--:",
        "by_setting": _by_setting,
    }
    of_rows = partial(row_columns, explains=board.explains)
    row_keys = _filled((of_rows(one.measure), one.everyone) for one in board.tables)
    overall_keys = _filled((overall_columns(one.measure), one.everyone) for one in board.overalls)
    row_terms = _terms(of_rows(board.measure), row_keys)
    overall_terms = _terms(overall_columns(board.measure), overall_keys)
    sections = {("ranks", one.title) for one in (board.overalls if len(board.overalls) > 2 else board.overalls[:1])}
    sections |= {(kind, one.setting) for one in board.tables for kind in ("metric", "cost")}
    page = environment.get_template("README.md").render(
        board=board,
        charts=charts,
        more_charts=[chart for chart in charts if (chart.kind, chart.subject) not in sections],
        row_columns=of_rows,
        overall_columns=overall_columns,
        row_keys=row_keys,
        overall_keys=overall_keys,
        marks=MARKS,
        row_terms=row_terms,
        overall_terms=[term for term in overall_terms if term not in row_terms],
        max_listed=MAX_LISTED,
    )
    return re.sub(r"\n{3,}", "\n\n", page).strip("\n") + "\n"


def code(text: str) -> str:
    """A stranger's text as one code span: at most one line, for use anywhere but at the start of a line.

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
    """A stranger's text as part of a sentence: at most one line, for use anywhere but at the start of a line.

    Plain words, numbers and their punctuation stay as they are. Any other word becomes a code span: `auto_clipping`,
    @name, #1, GH-1, :smile:, www.example.org, $x$, and possible hashes of commits. The rest is not markup in CommonMark
    or in GitHub's extensions, wherever it stands. Extensions that look for ordinary words would still find them.
    """
    return " ".join(_word(word) for word in one_line(text, MAX_TEXT).split(" "))


def _word(word: str) -> str:
    parts = _WORD.fullmatch(word)
    assert parts is not None
    core = parts["core"]
    plain = _PLAIN.fullmatch(core) and not _COMMIT.fullmatch(core)
    before, after = (re.sub(r"([\[\]])", r"\\\1", parts[name]) for name in ("before", "after"))
    return f"{before}{core if plain else code(core)}{after}"


def _by_setting(tables: Sequence[Table]) -> list[tuple[str, list[Table]]]:
    """The tables, grouped by setting."""
    return [(setting, list(group)) for setting, group in groupby(tables, key=lambda table: table.setting)]


def _filled(tables: Iterable[tuple[Sequence[Column], Sequence[Row | OverallRow]]]) -> set[str]:
    """Keys of the columns that are not empty in all tables."""
    return {
        column.key
        for columns, rows in tables
        for column in columns
        if any(column.text(row) not in (NOTHING, NOT_AUDITED) for row in rows)
    }


def _terms(columns: Iterable[Column], keys: set[str]) -> list[tuple[str, str]]:
    return [(column.header, column.explanation) for column in columns if column.key in keys]


def _cell(column: Column, row: Row | OverallRow, kind: str) -> str:
    text = column.text(row)
    if column.key in TEXT_COLUMNS[1:]:
        return prose(text)
    if column.key != "method":
        return prose(text).replace(" ", NO_BREAK)
    label = row.contestant.label
    marks = prose(text.removeprefix(label))
    return f"{f'*{kind}:* ' if kind else ''}{code(label)}{NO_BREAK + marks if marks else ''}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _image(chart: Chart) -> str:
    # As HTML, since a description in Markdown would be Markdown itself.
    description = html.escape(one_line(chart.description, MAX_TEXT))
    return f'<p><img src="plots/{html.escape(chart.name)}.svg" alt="{description}"></p>'
