"""The leaderboard as Markdown, for people who read it where the code is.

Texts in records come from strangers. They get into the page, whose template is `templates/README.md`, only through
`code` and `prose`.
"""

import html
import re
from collections.abc import Iterable, Sequence
from itertools import count

from jinja2 import Environment

from dphpo_bench.base.text import one_line
from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.charts.frame import Chart
from dphpo_bench.leaderboard.columns import Column, overall_columns, row_columns
from dphpo_bench.leaderboard.links import Paths
from dphpo_bench.leaderboard.overall import OverallRow
from dphpo_bench.leaderboard.page import TEMPLATES, context
from dphpo_bench.leaderboard.rows import Row

MAX_LISTED = 50
MAX_TEXT = 2000
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


def to_markdown(board: Board, charts: Sequence[Chart], paths: Paths | None = None) -> str:
    environment = Environment(**TEMPLATES)  # nothing is escaped as HTML: `code` and `prose` know Markdown's own rules
    environment.filters |= {
        "code": code,
        "prose": prose,
        "line": _line,
        "cell": _cell,
        "image": _image,
        "alignment": lambda column: ":--" if column.key in TEXT_COLUMNS else "--:",
    }
    row_terms = _terms(row_columns(board.measure, board.explains, board.shifts))
    page = environment.get_template("README.md").render(
        **context(board, paths),
        charts=charts,
        row_terms=row_terms,
        overall_terms=[term for term in _terms(overall_columns(board.measure)) if term not in row_terms],
        max_listed=MAX_LISTED,
    )
    return re.sub(r"\n{3,}", "\n\n", page).strip("\n") + "\n"


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

    Plain words, numbers and their punctuation stay as they are. Any other word becomes a code span: `auto_clipping`,
    @name, #1, GH-1, :smile:, www.example.org, $x$, and possible hashes of commits. The rest is not markup in CommonMark
    or in GitHub's extensions, wherever it stands. Extensions that look for ordinary words would still find them.
    """
    return " ".join(_word(word) for word in one_line(text, MAX_TEXT).split(" "))


def _word(word: str) -> str:
    parts = _WORD.fullmatch(word)
    assert parts is not None
    core = parts["core"]
    plain = _PLAIN.fullmatch(core) and not any(map(_COMMIT.fullmatch, re.split("['-]", core)))
    before, after = (re.sub(r"([\[\]])", r"\\\1", parts[name]) for name in ("before", "after"))
    return f"{before}{core if plain else code(core)}{after}"


def _terms(columns: Iterable[Column]) -> list[tuple[str, str]]:
    return [(column.header, column.explanation) for column in columns]


def _cell(column: Column, row: Row | OverallRow, kind: str) -> str:
    text = column.text(row)
    if column.key == "accountant":
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
