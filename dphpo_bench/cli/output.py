"""Output of commands: tables, lines or JSON on standard output, lines for people on standard error."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.text import finite_json, one_line

if TYPE_CHECKING:
    from rich.table import Table

MAX_COMPLAINT = 4000
UNLIMITED_WIDTH = 1000


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    plain: bool = False,
    failed: Iterable[bool] = (),
    **style: Any,
) -> "Table":
    """Return a table of texts, none of which is markup; a header that starts with `>` is of a column of numbers.

    On a narrow terminal, names are broken; nothing is cut.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if plain:
        style = {"box": SIMPLE_HEAD, "pad_edge": False, "show_edge": False, "padding": 0, **style}
    lines = Table(**style)
    for header in headers:
        if header.startswith(">"):
            lines.add_column(Text(header.removeprefix(">")), justify="right", no_wrap=plain)
        else:
            lines.add_column(Text(header), overflow="fold")
    for row, is_failed in zip_longest(rows, failed):
        lines.add_row(*map(Text, row), style="red" if is_failed else "")
    return lines


def facts(rows: Iterable[tuple[str, str]], **style: Any) -> "Table":
    lines = table(("", ""), rows, show_header=False, **style)
    lines.title_justify = lines.caption_justify = "left"
    lines.columns[0].no_wrap, lines.columns[0].style = True, "bold"
    return lines


def show_facts(title: str, rows: Iterable[tuple[str, str]], caption: str | None = None) -> None:
    """Print a title and a table of labels and texts, as a `Display` has them."""
    show(facts(rows, title=one_line(title, MAX_COMPLAINT), caption=caption))


def show(*renderables: Any) -> None:
    from rich.console import Console

    # A file or a pipe has no width, unless somebody says so: nothing is cut there, nor broken over lines.
    limited = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(markup=False, emoji=False, highlight=False, width=None if limited else UNLIMITED_WIDTH)
    for renderable in renderables:
        console.print(renderable)


def show_json(value: Any) -> None:
    say(json.dumps(finite_json(value), indent=1, default=repr))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def complain(message: str) -> None:
    """Print a line on standard error, if it takes any."""
    with suppress(OSError):
        sys.stderr.write(one_line(message, MAX_COMPLAINT) + "\n")
