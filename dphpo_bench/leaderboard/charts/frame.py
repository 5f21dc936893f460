"""A picture as a file: its size, its style, its words; and marks on an axis, in percents, so that they stretch."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from dphpo_bench.records.estimates import Estimate

FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
MOST_LETTERS = 26


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, whose places are percents from `start` to `end`."""

    low: float
    high: float
    form: Callable[[float], float] = float
    start: float = 0.0
    end: float = 100.0

    def at(self, value: float) -> float:
        """Return the place of a value in percent; what lies outside is at the edge."""
        low, high = self.form(self.low), self.form(self.high)
        share = (self.form(min(max(value, self.low), self.high)) - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1) + 0.0

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def estimates_axis(estimates: Iterable[Estimate], *marks: float, start: float = 2.0, end: float = 98.0) -> Axis:
    """Return an axis for all means and marks, and for all intervals but those that would dwarf the rest.

    Student's t interval of two seeds may be a hundred times as wide as the spread of the means. There is room for the
    spread of means and marks on both sides; what is longer is cut off, which whoever draws has to show.
    """
    known = list(estimates)
    inside = [*marks, *(estimate.mean for estimate in known)]
    room = (max(inside) - min(inside)) or abs(inside[0]) or 1.0
    ends = [end for estimate in known for end in (estimate.low, estimate.high) if end is not None]
    low = max(min(inside) - room, min([*inside, *ends]))
    high = min(max(inside) + room, max([*inside, *ends]))
    if low == high:
        low, high = low - room / 2, high + room / 2
    return Axis(low, high, start=start, end=end)


def log_axis(values: Sequence[float], start: float = 4.0, end: float = 96.0) -> Axis:
    low, high = min(values), max(values)
    return Axis(low, high if high > low else 2 * low, math.log, start, end)


def ticks(axis: Axis, most: int = 6) -> list[float]:
    exponent = math.floor(math.log10((axis.high - axis.low) / most))
    for step in (first * 10.0**at for at in (exponent, exponent + 1, exponent + 2) for first in (1, 2, 5)):
        places = range(math.ceil(axis.low / step), math.floor(axis.high / step) + 1)
        if len(places) <= most:
            break
    return [float(f"{at * step:.9g}") for at in places]


def log_ticks(axis: Axis, most: int = 6) -> list[float]:
    """Return powers of ten on a logarithmic axis, with steps in between if there is room; its ends without any."""
    decades = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        values = [step * 10.0**decade for decade in decades for step in steps if axis.holds(step * 10.0**decade)]
        if len(values) <= most:
            return values or [axis.low, axis.high]
    return values[:: math.ceil(len(values) / most)]


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
    """Return one line of text; of a long one its beginning and its end, in which labels of one method differ."""
    end = most // 2
    cut = words if len(words) <= most else f"{words[: most - 1 - end]}…{words[-end:]}"
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
