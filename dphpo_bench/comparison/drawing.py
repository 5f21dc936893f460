"""The drawing of a comparison: a panel for each ε, a row for each method, its mean and its interval. SVG, by hand."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.leaderboard.board import Estimate
from dphpo_bench.records import export
from dphpo_bench.records.measure import Measure

PANEL, ROW, TOP, BOTTOM, GAP = 240, 26, 56, 46, 24
LETTER = 7.2
"""The width of a letter of size 13, about."""

STYLE = """
text { font: 13px system-ui, 'Segoe UI', 'Liberation Sans', Arial, sans-serif; fill: #1c2733 }
.title { font-weight: 600; font-size: 14px } .tick { font-size: 11px; fill: #556270 }
line { stroke: #d5dbe1 } .private { stroke: #0072B2; fill: #0072B2 } .reference { stroke: #7a828a; fill: #7a828a }
.interval { stroke-width: 2 } .name { text-anchor: end } .middle { text-anchor: middle }
@media (prefers-color-scheme: dark) {
  .paper { fill: #14181d } text { fill: #e4e8ec } .tick { fill: #9aa5b1 } line { stroke: #38424d }
  .private { stroke: #56b4e9; fill: #56b4e9 } .reference { stroke: #a5adb5; fill: #a5adb5 }
}
"""


@dataclass(frozen=True)
class Row:
    """A method in the drawing: its name, whether it is private, and its estimate at each ε."""

    name: str
    private: bool
    estimates: tuple[Estimate | None, ...]


@dataclass(frozen=True)
class Drawing:
    """An SVG, which notebooks show."""

    svg: str

    def _repr_svg_(self) -> str:
        """What notebooks ask for."""
        return self.svg

    def save(self, path: Path | str) -> Path:
        """Write it to a file.

        Raises:
            InvalidValueError: if the name does not end in .svg, or the file cannot be written.
        """
        if Path(path).suffix.lower() != ".svg":
            raise InvalidValueError(f"Expected a file whose name ends in .svg, got {path}.")
        export.write(Path(path), self.svg)
        return Path(path)


def draw(title: str, rows: Sequence[Row], panels: Sequence[str], measure: Measure) -> Drawing:
    """Draw the rows, one panel beside the other, all on one axis.

    Args:
        title: of the whole.
        rows: from top to bottom, at least one of them with an estimate.
        panels: their titles, as many as each row has estimates.
        measure: the metric.
    """
    low, high = _axis([one for row in rows for one in row.estimates if one], measure)
    names = max(LETTER * len(row.name) for row in rows) + 20
    width = round(names + len(panels) * (PANEL + GAP))
    height = TOP + ROW * len(rows) + BOTTOM
    parts = [f'<text class="title" x="12" y="22">{escape(title)}</text>']
    for index, row in enumerate(rows):
        y = TOP + ROW * (index + 0.5) + 4.5
        parts.append(f'<text class="name" x="{names - 10:.0f}" y="{y:.1f}">{escape(row.name)}</text>')
    for column, panel in enumerate(panels):
        x = names + column * (PANEL + GAP)
        inside = "\n".join(_panel([(row, row.estimates[column]) for row in rows], panel, low, high, measure))
        parts.append(f'<svg x="{x:.0f}" y="0" width="{PANEL}" height="{height}" overflow="visible">{inside}</svg>')
    return Drawing(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _panel(
    rows: Sequence[tuple[Row, Estimate | None]], title: str, low: float, high: float, measure: Measure
) -> Iterator[str]:
    bottom = TOP + ROW * len(rows)
    about = f"test {measure.title}{'' if measure.higher_is_better else ', lower is better'}"

    def at(value: float) -> float:
        return 12 + (PANEL - 24) * (min(max(value, low), high) - low) / (high - low)

    yield f'<text class="middle" x="{PANEL / 2}" y="44">{escape(title)}</text>'
    for value in _ticks(low, high):
        text = f"{100 * value:g}%" if measure.share else f"{value:g}"
        yield f'<line x1="{at(value):.1f}" x2="{at(value):.1f}" y1="{TOP}" y2="{bottom}"/>'
        yield f'<text class="tick middle" x="{at(value):.1f}" y="{bottom + 16}">{text}</text>'
    yield f'<text class="tick middle" x="{PANEL / 2}" y="{bottom + 34}">{escape(about)}</text>'
    for index, (row, one) in enumerate(rows):
        if one is None:
            continue
        kind, y = "private" if row.private else "reference", TOP + ROW * (index + 0.5)
        if one.low is not None and one.high is not None:
            ends = f'x1="{at(one.low):.1f}" x2="{at(one.high):.1f}"'
            yield f'<line class="interval {kind}" {ends} y1="{y:.1f}" y2="{y:.1f}"/>'
        told = escape(f"{row.name}: {measure.text(one.mean)}")
        yield f'<circle class="{kind}" cx="{at(one.mean):.1f}" cy="{y:.1f}" r="5"><title>{told}</title></circle>'


def _axis(estimates: Sequence[Estimate], measure: Measure) -> tuple[float, float]:
    """Room for all means, and for intervals that do not dwarf them."""
    means = [one.mean for one in estimates]
    room = max(max(means) - min(means), 0.02 * max(map(abs, means))) or 1.0
    ends = [end for one in estimates for end in (one.low, one.high) if end is not None]
    low = max(min(means) - room, min([*means, *ends]))
    high = min(max(means) + room, max([*means, *ends]))
    if low == high:
        low, high = low - room / 2, high + room / 2
    return (max(low, 0.0), min(high, 1.0)) if measure.share else (low, high)


def _ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values between the ends, at most so many."""
    exponent = math.floor(math.log10((high - low) / most))
    for step in (size * 10.0**at for at in (exponent, exponent + 1) for size in (1, 2, 5)):
        found = range(math.ceil(low / step), math.floor(high / step) + 1)
        if len(found) <= most:
            break
    return [float(f"{at * step:.9g}") for at in found]
