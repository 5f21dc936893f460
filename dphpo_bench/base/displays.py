"""Objects as short tables: text of at most 40 lines of 120 columns, and HTML for a notebook."""

import html
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from dphpo_bench.base.text import one_line

WIDTH, LINES = 120, 40
_MAX_LABEL, _MAX_CELL = 30, 500

Display = tuple[str, list[tuple[str, str]]]
"""A title, and rows of a label and a text."""


def as_texts(rows: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return rows of labels and values as texts, without those that are None."""
    return [(label, str(value)) for label, value in rows.items() if value is not None]


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield rows of JSON values by dotted names, such as "trial.training.steps"; values that differ are listed."""
    if isinstance(value, Mapping):
        for inner, item in value.items():
            yield from flat(item, f"{name}.{inner}" if name else inner)
    elif isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
        several = [dict(flat(item, name)) for item in value]
        for inner in dict.fromkeys(chain.from_iterable(several)):
            texts = [item.get(inner, "none") for item in several]
            separator = "; " if any(", " in text for text in texts) else ", "
            yield inner, texts[0] if len(set(texts)) == 1 else separator.join(texts)
    elif isinstance(value, list | tuple):
        yield name, ", ".join(map(str, value))
    else:
        yield name, "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


class Displayed:
    """An object that a terminal and a notebook show as a table of labels and texts."""

    def display(self) -> Display:
        """Return a title, and rows of a label and a text."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Return the table as text."""
        title, rows = self.display()
        width = min(max((len(label) for label, _ in rows), default=0), _MAX_LABEL)
        lines = [one_line(title, WIDTH)]
        for label, text in rows:
            parts = textwrap.wrap(one_line(text, _MAX_CELL), WIDTH - width - 4) or [""]
            lines += [f"  {one_line(label if part is parts[0] else '', width):{width}}  {part}" for part in parts]
        if len(lines) > LINES:
            lines[LINES - 1 :] = [f"  … and {len(lines) - LINES + 1:,} more lines"]
        return "\n".join(map(str.rstrip, lines))

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        return html_table(*self.display())


def html_table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Return a table of HTML, in which texts are no markup; the first cell of each row is its label."""

    def line(cells: Sequence[str], labels: int) -> str:
        texts = [html.escape(one_line(cell, _MAX_CELL)) for cell in cells]
        return "".join(
            f'<{tag} style="text-align: left">{text}</{tag}>'
            for tag, text in zip(["th"] * labels + ["td"] * len(texts), texts, strict=False)
        )

    lines = [line(header, len(header))] if header else []
    lines += [line(row, 1) for row in rows[:LINES]]
    if len(rows) > LINES:
        lines.append(line([f"… and {len(rows) - LINES:,} more"], 1))
    body = "\n".join(f"<tr>{cells}</tr>" for cells in lines)
    return f"<table>\n<caption>{html.escape(one_line(title))}</caption>\n{body}\n</table>"
