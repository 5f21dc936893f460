"""The leaderboard as Markdown, for people who read it where the code is.

Texts of records come from strangers. `code` and `prose` are the only ways by which one gets into the page.
"""

import html
import re
from collections.abc import Iterable, Sequence
from itertools import count, groupby
from typing import TYPE_CHECKING

from dphpo_bench.base.text import one_line
from dphpo_bench.leaderboard.board import Board, Overall, OverallRow, Refused, Row, Table
from dphpo_bench.leaderboard.columns import MARKS, NOT_AUDITED, NOTHING, OVERALL_COLUMNS, ROW_COLUMNS, AnyRow, Column

if TYPE_CHECKING:
    from dphpo_bench.leaderboard.charts.frame import Chart

MAX_LISTED = 50
MAX_TEXT = 2000
NO_BREAK = "\u00a0"

TEXT_COLUMNS = ("method", "accountant", "private")
"""Keys of the columns that are aligned to the left."""

HEAD = """\
<!-- Generated from leaderboard/results by `dphpo-bench leaderboard build`. Edits are lost. -->
# Leaderboard

Hyperparameter tuning under differential privacy, one budget (ε, δ) for tuning and training together.
**The ε on this board is recomputed from the ledger of what each run released, never taken from the method.**

[The same, interactive](index.html) (a file to download and open) · [as data](leaderboard.csv) ·
[how it is scored](../docs/scoring.md)

To add a row, run a suite with `dphpo-bench sweep SUITE --results-dir leaderboard/results`, check the new records with
`dphpo-bench leaderboard validate`, rebuild this page with `dphpo-bench leaderboard build`, and open a pull request:
[how to contribute](../CONTRIBUTING.md).
"""

_WORD = re.compile(r"(?P<before>[(\[]*)(?P<core>.*?)(?P<after>[)\].,;:!?]*)")
# Letters and digits, joined by apostrophes and hyphens; or a number; or a sign by itself.
_PLAIN = re.compile(
    r"(?:[a-z0-9]|[^\x00-\x7f])+(?:['-](?:[a-z]|[^\x00-\x7f])+)*|[-+−]?\d+(?:,\d{3})*(?:\.\d+)?%?|[=/%]|", re.IGNORECASE
)
_COMMIT = re.compile(r"[0-9a-f]{7,}", re.IGNORECASE)


def to_markdown(board: Board, charts: Sequence["Chart"]) -> str:
    """The content of `leaderboard/README.md`, in GitHub-flavoured Markdown.

    Args:
        board: what to show.
        charts: the drawings, each at `plots/<name>.svg`. Those whose title ends in what a section is about stand in
            that section, the others in one of their own.
    """
    waiting = list(charts)
    blocks = [HEAD]
    if not board.tables:
        blocks.append(f"{'None of the records counts' if board.records else 'There are no records'} yet.")
    if board.findings:
        blocks.append("\n".join(f"- **{prose(finding.title)}.** {prose(finding.text)}" for finding in board.findings))
    blocks += _overall_blocks(board.overalls, waiting)
    if board.missing:
        blocks.append(f"Of the core suite, these do not count yet: {prose('; '.join(board.missing))}.")
    blocks += _table_blocks(board.tables, waiting)
    if waiting:
        blocks += ["## More charts", *(_image(chart) for chart in waiting)]
    blocks += _record_blocks(board)
    if board.tables:
        blocks += _legend_blocks(board)
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"


def code(text: str) -> str:
    """A stranger's text as one code span: at most one line, for use anywhere but at the start of a line.

    Within a code span nothing is Markdown, HTML, a link, an emoji or mathematics, and code hosts leave mentions and
    references alone there. In a table the `|` is still to be escaped, which `_line` does.
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

    Plain words, numbers and their punctuation stay as they are. Any other word becomes a code span, such as
    `auto_clipping`, @name, #1, GH-1, :smile:, www.example.org, $x$, or what may be a commit's hash. What remains
    outside is no markup by itself or with what is around it, in CommonMark and in GitHub's extensions. It is not
    protected against extensions that look for ordinary words.
    """
    return " ".join(_word(word) for word in one_line(text, MAX_TEXT).split(" "))


def _word(word: str) -> str:
    parts = _WORD.fullmatch(word)
    assert parts is not None
    core = parts["core"]
    plain = _PLAIN.fullmatch(core) and not _COMMIT.fullmatch(core)
    before, after = (re.sub(r"([\[\]])", r"\\\1", parts[name]) for name in ("before", "after"))
    return f"{before}{core if plain else code(core)}{after}"


def _overall_blocks(overalls: Sequence[Overall], waiting: list["Chart"]) -> list[str]:
    if not overalls:
        return []
    columns = _filled(OVERALL_COLUMNS, (row for overall in overalls for row in _everyone(overall)))
    first, *others = overalls
    blocks = [
        "## Overall",
        f"Tables that count, each of one task at one ε: {len(first.tables)}. [Columns and marks](#legend) are below.",
        _overall_table(first, columns),
        *_take(waiting, first.title, "ranks"),
    ]
    for overall in others if len(others) > 1 else []:  # a single ε would only repeat the first table
        blocks += [
            f"<details><summary>{overall.title}: overall</summary>",
            _overall_table(overall, columns),
            *_take(waiting, overall.title, "ranks"),
            "</details>",
        ]
    return blocks


def _everyone(overall: Overall) -> tuple[OverallRow, ...]:
    return (*overall.rows, *overall.incomplete, *overall.references)


def _overall_table(overall: Overall, columns: Sequence[Column[OverallRow]]) -> str:
    groups = (("", overall.rows), ("incomplete", overall.incomplete), ("reference", overall.references))
    return _table(columns, groups)


def _table_blocks(tables: Sequence[Table], waiting: list["Chart"]) -> list[str]:
    columns = _filled(ROW_COLUMNS, (row for table in tables for row in (*table.rows, *table.references)))
    blocks = []
    for setting, group in groupby(tables, key=lambda table: table.setting):
        blocks.append(f"## {prose(setting)}")
        for table in group:
            blocks.append(f"### ε = {table.epsilon:g}, δ = {table.delta:.3g}")
            blocks.append(_table(columns, (("", table.rows), ("reference", table.references))))
        blocks += _take(waiting, setting, "accuracy", "cost")
    return blocks


def _filled(columns: Iterable[Column[AnyRow]], rows: Iterable[AnyRow]) -> list[Column[AnyRow]]:
    """The columns that say something about at least one row."""
    rows = list(rows)
    return [column for column in columns if any(column.text(row) not in (NOTHING, NOT_AUDITED) for row in rows)]


def _table(columns: Sequence[Column[AnyRow]], groups: Iterable[tuple[str, Sequence[AnyRow]]]) -> str:
    lines = [
        _line(column.header for column in columns),
        _line(":--" if column.key in TEXT_COLUMNS else "--:" for column in columns),
    ]
    for kind, rows in groups:
        lines += [_line(_cell(column, row, kind) for column in columns) for row in rows]
    return "\n".join(lines)


def _cell(column: Column[AnyRow], row: AnyRow, kind: str) -> str:
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


def _take(waiting: list["Chart"], subject: str, *kinds: str) -> list[str]:
    """The images of waiting charts of these kinds about this subject, which then wait no more."""
    taken = [
        chart
        for kind in kinds
        for chart in waiting
        if chart.name.startswith(f"{kind}-") and chart.title.partition(", ")[2].lower() == subject.lower()
    ]
    waiting[:] = [chart for chart in waiting if chart not in taken]
    return [_image(chart) for chart in taken]


def _image(chart: "Chart") -> str:
    # As HTML, since a description in Markdown would be Markdown itself.
    description = html.escape(one_line(chart.description, MAX_TEXT))
    return f'<p><img src="plots/{html.escape(chart.name)}.svg" alt="{description}"></p>'


def _record_blocks(board: Board) -> list[str]:
    if not board.records:
        return []
    blocks = ["## Records", f"{board.records:,} were read; {board.superseded:,} of older versions are superseded."]
    blocks += _refused_blocks("rejected", board.rejected, "`dphpo-bench leaderboard validate` lists all")
    blocks += _refused_blocks("of runs that failed", board.failed, "`dphpo-bench results --format csv` has all errors")
    return blocks


def _refused_blocks(what: str, refused: Sequence[Refused], rest: str) -> list[str]:
    if not refused:
        return []
    lines = [f"- {code(one.path)}: {prose(one.reason)}" for one in refused[:MAX_LISTED]]
    if len(refused) > MAX_LISTED:
        lines.append(f"- and {len(refused) - MAX_LISTED:,} more: {rest}.")
    return [f"<details><summary>{len(refused):,} {what}</summary>", "\n".join(lines), "</details>"]


def _legend_blocks(board: Board) -> list[str]:
    overall_rows = (row for overall in board.overalls for row in _everyone(overall))
    rows: Iterable[Row] = (row for table in board.tables for row in (*table.rows, *table.references))
    explained = [(column.header, column.explanation) for column in _filled(ROW_COLUMNS, rows)]
    overall = [(column.header, column.explanation) for column in _filled(OVERALL_COLUMNS, overall_rows)]
    return [
        "## Legend",
        _definitions(MARKS),
        "Columns of the tables of one task at one ε:",
        _definitions(explained),
        "Columns of the overall tables, where they differ:",
        _definitions(one for one in overall if one not in explained),
    ]


def _definitions(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- **{term}**: {prose(meaning)}" for term, meaning in pairs)
