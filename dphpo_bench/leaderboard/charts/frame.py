"""A picture as a file: its size, its style, its words."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from markupsafe import Markup

FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
MOST_LETTERS = 26


@dataclass(frozen=True)
class Chart:
    """A picture.

    Attributes:
        name: file stem of [a-z0-9_-], not used twice.
        title: a few words.
        description: what it shows, as alternative text.
        svg: the file.
        kind: "answer", "metric" or "paths".
        subject: the subject of the answer, or the setting, that it is about.
    """

    name: str
    title: str
    description: str
    svg: str = ""
    kind: str = ""
    subject: str = ""


@cache
def style() -> str:
    """Return the colours, lines and letters of all pictures."""
    return files("dphpo_bench.leaderboard").joinpath("templates/marks.css").read_text(encoding="utf-8")


def document(width: int, height: int, title: str, note: str, description: str, parts: Iterable[Markup]) -> str:
    """Return a file with a title, and a note that says how to read it; the parts begin at y = 56."""
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" '
        'aria-label="{description}" font-family="{font}">\n<style>{style}</style>\n'
        '<rect class="paper" width="{w}" height="{h}"/>\n'
        '<text class="title" x="12" y="24">{title}</text>\n<text class="note" x="12" y="42">{note}</text>\n'
        "{body}\n</svg>\n"
    ).format(
        w=width, h=height, description=description, font=FONT, style=Markup(style()), title=title, note=note,
        body=Markup("\n").join(parts),
    )  # fmt: skip


def place(x: float, y: float, width: float, height: float, body: Markup) -> Markup:
    """Return a part of a file with places of its own."""
    return Markup('<svg x="{}" y="{}" width="{}" height="{}">{}</svg>').format(x, y, width, height, body)


def text(x: float, y: float, words: str, kind: str = "", most: int = MOST_LETTERS) -> Markup:
    """Return words in a file, cut if they are long."""
    cut = words if len(words) <= most else f"{words[: most - 1]}…"
    return Markup('<text x="{}" y="{}" class="{}">{}</text>').format(x, y, kind, cut)
