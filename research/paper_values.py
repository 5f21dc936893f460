"""Put the board's values into the pages below: `python research/paper_values.py` after a build of the board.

A value stands between two comments, `<!--name-->1.5<!---->`, and a table below `<!--table name-->`, up to `<!---->`.
Their queries are in research/paper.toml, and ask the table that those of leaderboard/findings.toml ask.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dphpo_bench.leaderboard.written import ask

HERE = Path(__file__).parent
PAPER = HERE / "paper.md"
PAGES = (PAPER, HERE.parent / "README.md", HERE.parent / "docs/tasks.md")
QUERIES = HERE / "paper.toml"
TABLE = HERE.parent / "leaderboard/leaderboard.csv"
VALUE = re.compile(r"<!--(?P<name>[a-z0-9_]+)-->[^<]*<!---->")
PLACE = re.compile(r"\{[^}]*\}")
ROWS = re.compile(r"<!--table (?P<name>[a-z0-9_]+)-->\n[^<]*<!---->")


def value(query: str, form: str, board: str) -> str:
    """Return the one value that a query gives, in its form; zero has no sign.

    Raises:
        ValueError: if the query gives no value, for example because a label has changed.
    """
    answers = ask(board, query)[1]
    if len(answers) != 1 or answers[0] == (None,):
        raise ValueError(f"Expected one value, the board gives {answers}: {query}")
    return filled(form, *answers[0])


def filled(form: str, number: Any) -> str:
    text = form.format(number).replace("-", "−") if isinstance(number, int | float) else form.format(number)
    return text if re.search("[1-9]", text) else text.replace("−", "")


def rows(spec: Mapping[str, Any], board: str) -> str:
    """Return a table in Markdown: its header, and a line for each row that its query gives."""
    lines = [spec["header"], ["---", *("---:" for _ in spec["header"][1:])]]
    lines += [cells(spec["forms"], iter(row)) for row in ask(board, spec["query"])[1]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(forms: Sequence[str], values: Iterator[Any]) -> list[str]:
    """Return the forms, filled: each takes as many values as it has places."""
    return [PLACE.sub(lambda place: filled(place[0], next(values)), form) for form in forms]


def refreshed(texts: Sequence[str], queries: Mapping[str, Any], board: str) -> list[str]:
    """Return the texts with the values of today.

    Raises:
        ValueError: if a value has no query, or a query no place in a text.
    """
    values = {name: value(query, form, board) for name, (query, form) in queries["values"].items()}
    tables = {name: rows(spec, board) for name, spec in queries["tables"].items()}
    named = {match["name"] for pattern in (VALUE, ROWS) for text in texts for match in pattern.finditer(text)}
    if named != {*values, *tables}:
        raise ValueError(f"In the texts or in the queries only: {', '.join(sorted(named ^ {*values, *tables}))}.")

    def with_values(text: str) -> str:
        text = VALUE.sub(lambda match: f"<!--{match['name']}-->{values[match['name']]}<!---->", text)
        return ROWS.sub(lambda match: f"<!--table {match['name']}-->\n\n{tables[match['name']]}\n\n<!---->", text)

    return [*map(with_values, texts)]


def of_today() -> dict[Path, str]:
    """Return the pages with the values of the board beside them."""
    texts = [path.read_text(encoding="utf-8") for path in PAGES]
    queries = tomllib.loads(QUERIES.read_text(encoding="utf-8"))
    return dict(zip(PAGES, refreshed(texts, queries, TABLE.read_text(encoding="utf-8")), strict=True))


if __name__ == "__main__":
    for path, text in of_today().items():
        path.write_text(text, encoding="utf-8")
