"""The leaderboard for readers: one HTML file that uses no network, and Markdown, a short page and files with the rest.

Texts in records come from strangers. In HTML, Jinja escapes them; in Markdown, `code` and `prose` do.
"""

import html
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dphpo_bench.base.text import one_line
from dphpo_bench.contract.registry import methods
from dphpo_bench.leaderboard import advice, brief
from dphpo_bench.leaderboard import sentences as texts
from dphpo_bench.leaderboard.advice import grid, measured_rows
from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.brief import Paths, about, middle_answer, record_links
from dphpo_bench.leaderboard.charts import Chart, file_stems, task_models_of
from dphpo_bench.leaderboard.columns import MARKS, Column, overall_columns, rounded_number, row_columns, to_csv, varying
from dphpo_bench.leaderboard.tables import OverallRow, Row, Table
from dphpo_bench.leaderboard.values import Entry
from dphpo_bench.records.charts import STYLE
from dphpo_bench.records.measure import NOTHING, change_text, interval_text

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
        "advice_texts": advice,
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
    several = dict.fromkeys(answer.subject for answer in board.answers if len(answer.task_models) > 1)
    single = dict.fromkeys(answer.subject for answer in board.answers if len(answer.task_models) == 1)
    return environment.get_template("page.html").render(
        **shared,
        subjects={name: [*group] for name, group in (("Several tasks", several), ("One task", single)) if group},
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
    shared = {
        **context(board, paths),
        "charts": charts,
        "terms": lambda columns: [(column.header, column.explanation) for column in columns],
        "max_listed": MAX_LISTED,
    }
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
