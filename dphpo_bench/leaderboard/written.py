"""Findings that a person wrote: sentences whose figures are held against the board's CSV; and disputes about rows.

[[finding]]
title = "Who is first"
text = "On digits at ε = 3, hyfreedp is 0.5 points behind the oracle."
objection = "Its constants were settled on digits."
[finding.figures]
"0.5 points" = "SELECT 100 * gap_to_oracle FROM board WHERE label = 'hyfreedp' AND task = 'digits' AND ..."

[[dispute]]
method = "hyfreedp"
task = "digits"  # without it, all rows of the method
reason = "The rate's limits are not those of the paper."
link = "https://..."
"""

import csv
import io
import re
import shlex
import sqlite3
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import one_line, shown

FILE = "findings.toml"
MAX_ROWS = 1000

_NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.(?P<decimals>\d+))?")
_VALUES = {"": None, "True": 1, "False": 0}
_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION})


@dataclass(frozen=True)
class Finding:
    """A sentence or two that the data support.

    Attributes:
        objection: the strongest objection to them.
        figures: the words of both that the board's data hold, each with the command that recomputes it.
    """

    title: str
    text: str
    figures: tuple[tuple[str, str], ...] = ()
    objection: str = ""


class Written(BaseModel, frozen=True, extra="forbid", strict=True):
    """A finding: `figures` are words of its text, or of its objection, with the query that gives them."""

    title: str
    text: str
    objection: str = ""
    figures: Annotated[dict[str, str], Field(min_length=1)]

    @property
    def finding(self) -> Finding:
        figures = tuple((words, _command(query)) for words, query in self.figures.items())
        return Finding(self.title, self.text, figures, self.objection)


def _command(query: str) -> str:
    quoted = shlex.quote(query) if set(query) & set('"$`\\!') else f'"{query}"'
    return f"dphpo-bench leaderboard query {quoted}"


class Dispute(BaseModel, frozen=True, extra="forbid", strict=True):
    """Somebody's objection to rows of the board, until it is settled."""

    method: str
    task: str = ""
    reason: str
    link: str = ""


class Writings(BaseModel, frozen=True, extra="forbid", strict=True):
    """Contents of a file of findings and disputes."""

    finding: list[Written] = []
    dispute: list[Dispute] = []


def read_written(path: Path) -> Writings:
    """Return the findings and disputes of a file; none without that file.

    Raises:
        InvalidValueError: if it cannot be read, is not TOML, or has other fields.
    """
    try:
        return Writings.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except FileNotFoundError:
        return Writings()
    except OSError as error:
        raise InvalidValueError(f"Cannot read {path}: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidValueError(f"{path}, {shown(place, 200)}: {shown(first['msg'], 300)}.") from None
    except ValueError as error:
        raise InvalidValueError(f"{path} is not TOML: {shown(error, 300)}.") from None


def wrong_figure(written: Written, table: str) -> str:
    """Return what the first wrong figure says and what the board gives instead; empty if all are right."""
    for words, query in written.figures.items():
        if words not in written.text and words not in written.objection:
            return f"{shown(words, form=repr)} is neither in its text nor in its objection"
        try:
            _, rows = ask(table, query)
        except InvalidValueError as error:
            return f"{shown(words, form=repr)}: {error}"
        if len(rows) != 1 or len(rows[0]) != 1 or rows[0][0] is None:
            return f"{shown(words, form=repr)}: its query gives {len(rows)} rows rather than one value: {query}"
        said, expected = _said(words, rows[0][0])
        if said != expected:
            return f"it says {shown(words, form=repr)}, the board gives {shown(expected)}: {query}"
    return ""


def ask(table: str, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return names of columns, and at most `MAX_ROWS` rows, of a query in SQL to the table `board`.

    Other queries than those that only read are refused. What is empty in the CSV is NULL, True is 1 and False is 0.
    """
    board, header = _database(table)
    try:
        answer = board.execute(query)
        names = [column[0] for column in answer.description or ()]
        return names, answer.fetchmany(MAX_ROWS)
    except sqlite3.Error as error:
        columns = f" Its columns: {', '.join(header)}." if "no such column" in str(error) else ""
        raise InvalidValueError(
            f"Expected a query that reads the table board, got {query}: {error}.{columns}"
        ) from None


@lru_cache(maxsize=1)
def _database(table: str) -> tuple[sqlite3.Connection, list[str]]:
    """Return a database that can only be read, for all queries to one table."""
    header, *rows = csv.reader(io.StringIO(table))
    board = sqlite3.connect(":memory:")
    board.execute(f"CREATE TABLE board ({', '.join(f'{name} NUMERIC' for name in header)})")
    values = ([_VALUES.get(cell, cell) for cell in row] for row in rows)
    board.executemany(f"INSERT INTO board VALUES ({', '.join('?' * len(header))})", values)
    board.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY)
    return board, header


def _said(words: str, value: Any) -> tuple[str, str]:
    """Return what the words say and what they should say: numbers with as many decimals as the words have."""
    number = _NUMBER.search(words)
    if number is None or isinstance(value, str):
        return words, str(value)
    said = number[0].replace("−", "-").replace(",", "").removeprefix("+")
    expected = f"{float(value):.{len(number['decimals'] or '')}f}"
    return said, expected


def held(written: Sequence[Written], table: str, path: Path) -> tuple[list[Finding], list[str]]:
    wrong = [wrong_figure(finding, table) for finding in written]
    lines = [one_line(f"{path}, finding {at}: {reason}") for at, reason in enumerate(wrong, 1) if reason]
    return [finding.finding for finding, reason in zip(written, wrong, strict=True) if not reason], lines
