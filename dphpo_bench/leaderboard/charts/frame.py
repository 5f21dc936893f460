"""A picture as a file: its size, its style, its words; and marks on an axis, in percents, so that they stretch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from dphpo_bench.leaderboard.charts.scales import Axis
from dphpo_bench.leaderboard.values import Estimate

FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
MOST_LETTERS = 26


@dataclass(frozen=True)
class Chart:
    """A picture: `name` is its file's stem, `kind` is "answer", "metric" or "paths", `subject` an answer's or a
    setting.
    """

    name: str
    title: str
    description: str
    svg: str = ""
    kind: str = ""
    subject: str = ""


@cache
def style() -> str:
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
    return Markup('<svg x="{}" y="{}" width="{}" height="{}">{}</svg>').format(x, y, width, height, body)


def text(x: float, y: float, words: str, kind: str = "", most: int = MOST_LETTERS) -> Markup:
    cut = words if len(words) <= most else f"{words[: most - 1]}…"
    return Markup('<text x="{}" y="{}" class="{}">{}</text>').format(x, y, kind, cut)


def tick(axis: Axis, value: float, name: str) -> Markup:
    at = axis.at(value)
    anchor = "start" if at < 3 else "end" if at > 97 else "middle"
    return Markup('<text x="{}%" y="30" text-anchor="{}" class="tick">{}</text>').format(at, anchor, name)


def upright(at: float, kind: str) -> Markup:
    return Markup('<line class="{}" x1="{}%" x2="{}%" y2="100%"/>').format(kind, at, at)


def strokes(places: Sequence[float], kind: str) -> Markup:
    """Return short upright lines: one mark, since a page has thousands. It is stretched, its lines are not."""
    if not places:
        return Markup("")
    drawing = "".join(f"M{at} 1v2" for at in places)
    return Markup('<svg viewBox="0 0 100 4" preserveAspectRatio="none"><path class="{}" d="{}"/></svg>').format(
        kind, drawing
    )


def interval(axis: Axis, estimate: Estimate, kind: str) -> Markup:
    """Return the interval as a line, with an arrow where the axis cuts it off, and the mean as a dot or a square."""
    marks = []
    if estimate.low is not None and estimate.high is not None:
        ends = axis.at(estimate.low), axis.at(estimate.high)
        marks.append(Markup('<line class="interval {}" x1="{}%" x2="{}%" y1="50%" y2="50%"/>').format(kind, *ends))
        for end, at, arrow in zip((estimate.low, estimate.high), ends, "‹›", strict=True):
            if not axis.holds(end):
                marks.append(
                    Markup('<text class="cut" x="{}%" y="50%" dy="0.35em" text-anchor="middle">{}</text>').format(
                        at, arrow
                    )
                )
    at = axis.at(estimate.mean)
    if kind == "worse":
        dot = Markup('<rect class="dot {}" x="{}%" y="50%" width="8" height="8" transform="translate(-4 -4)"/>')
    else:
        dot = Markup('<circle class="dot {}" cx="{}%" cy="50%" r="4"/>')
    return Markup("").join([*marks, dot.format(kind, at)])
