"""Draw charts as SVG: specifications in Vega, rendered by `vl-convert` without a browser.

Places are fixed and texts stay texts, so that no font is measured: the same values give the same bytes on every
machine. Colours are variables of a style sheet, so that dark and forced colours of the reader apply.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from dphpo_bench.records.measure import Estimate

FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
STYLE = """:root {
  --ink: #1b1f24; --quiet: #59636e; --line: #d5dae0; --grid: #e6e9ed; --paper: #ffffff;
  --good: #00695c; --bad: #b3400f; --mark: #0a58a8;
  --shade1: #8a4fd6; --shade2: #b0457f; --shade3: #c2452f; --shade4: #96690a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e3e6e9; --quiet: #9ba5af; --line: #363d45; --grid: #262c33; --paper: #14171a;
    --good: #4cc2a5; --bad: #f08a5d; --mark: #7db7f0;
    --shade1: #b794f6; --shade2: #ef7fb0; --shade3: #f58a76; --shade4: #d9b44a;
  }
}
@media (forced-colors: active) {
  :root {
    --ink: CanvasText; --quiet: CanvasText; --line: CanvasText; --grid: GrayText; --paper: Canvas;
    --good: CanvasText; --bad: CanvasText; --mark: CanvasText;
    --shade1: CanvasText; --shade2: CanvasText; --shade3: CanvasText; --shade4: CanvasText;
  }
}
"""
WIDTH, NAMES, GAP, ROW, TOP = 960, 190, 20, 20, 84
MOST_LETTERS = 26
INK, QUIET, GRID, PAPER, MARK = "var(--ink)", "var(--quiet)", "var(--grid)", "var(--paper)", "var(--mark)"
COLOURS = {"better": "var(--good)", "worse": "var(--bad)", "reference": QUIET}
DASHED = (3, 2)

Spec = dict[str, Any]
_TAG = re.compile("<[^>]+>")
_EMPTY = re.compile('<path d="[^"]*"(?: display="none")?/>|<g></g>')
_NOISE = re.compile(
    r' (?:font-family|opacity|pointer-events|role|aria-\w+|class|stroke-miterlimit|xmlns:xlink|version)="[^"]*"'
)
_DECIMALS = re.compile(r"\d+\.\d{3,}(?:e-\d+)?")


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`; `values` has a mark each, if given."""

    low: float
    high: float
    log: bool = False
    values: Sequence[float] = ()

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def inside(self, value: float) -> float:
        return min(max(value, self.low), self.high)


def estimates_axis(estimates: Iterable[Estimate], *marks: float) -> Axis:
    """Return an axis for all means and marks, and for all intervals but those that would dwarf the rest.

    Student's t interval of two seeds may be a hundred times as wide as the spread of the means. There is room for the
    spread of means and marks on both sides; a chart marks what is longer by an arrow.
    """
    known = list(estimates)
    inside = [*marks, *(estimate.mean for estimate in known)]
    room = (max(inside) - min(inside)) or abs(inside[0]) or 1.0
    ends = [end for estimate in known for end in (estimate.low, estimate.high) if end is not None]
    low = max(min(inside) - room, min([*inside, *ends]))
    high = min(max(inside) + room, max([*inside, *ends]))
    if low == high:
        low, high = low - room / 2, high + room / 2
    margin = (high - low) / 40
    return Axis(low - margin, high + margin)


def log_axis(values: Sequence[float], marks: Sequence[float] = ()) -> Axis:
    low, high = min(values), max(values)
    high = high if high > low else 2 * low
    margin = (high / low) ** 0.04
    axis = Axis(low / margin, high * margin, log=True)
    return replace(axis, values=marks or _round_values(axis))


def _round_values(axis: Axis, most: int = 6) -> list[float]:
    """Return powers of ten on a logarithmic axis, with steps in between if there is room; its ends without any."""
    decades = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        values = [float(f"{step}e{decade}") for decade in decades for step in steps]
        values = [value for value in values if axis.holds(value)]
        if len(values) <= most:
            break
    return values[:: math.ceil(len(values) / most) or 1] or [float(f"{end:.3g}") for end in (axis.low, axis.high)]


class Group:
    """A part of a chart at a place of its own, with its scales, axes and marks."""

    def __init__(self, x: float = 0, y: float = 0, width: float = WIDTH, height: float = 0) -> None:
        self.x, self.y, self.width, self.height = x, y, width, height
        self._parts: dict[str, list[Spec]] = {"data": [], "scales": [], "axes": [], "marks": []}

    def axis(self, name: str, axis: Axis, orient: str, count: int = 5) -> None:
        """Add a scale as long as the group, and its axis."""
        span = [0, self.width] if orient in ("top", "bottom") else [self.height, 0]
        self._parts["scales"].append(
            {"name": name, "type": "log" if axis.log else "linear", "domain": [axis.low, axis.high], "range": span,
             "zero": False}
        )  # fmt: skip
        text = {"signal": "format(datum.value, '~g')"}
        self._parts["axes"].append(
            {"scale": name, "orient": orient, "grid": True, "gridColor": GRID, "domain": False, "ticks": False,
             "labelColor": QUIET, "labelFontSize": 11, "labelLimit": 0, "labelFlush": False, "labelOverlap": False,
             "tickCount": count, "encode": {"labels": {"update": {"text": text}}},
             **({"values": [*axis.values]} if axis.values else {})}
        )  # fmt: skip

    def add(self, kind: str, rows: Sequence[Spec], **encode: object) -> None:
        """Add marks, one a row. What is encoded as "name" is a field, as "scale.name" a field on a scale."""
        if rows:
            name = f"rows{len(self._parts['data'])}"
            self._parts["data"].append({"name": name, "values": [*rows]})
            enter = {channel: _encoded(value) for channel, value in encode.items()}
            self._parts["marks"].append({"type": kind, "from": {"data": name}, "encode": {"enter": enter}})

    def text(self, x: float, y: float, words: str, style: str = "") -> None:
        quiet = style in ("quiet", "reference")
        self.add(
            "text", [{"words": words}], x=x, y=y, text="words", fontSize=11 if quiet else 12,
            fill={"value": QUIET if quiet else style if style.startswith("var") else INK},
            **({"fontWeight": 600} if style == "bold" else {}),
        )  # fmt: skip

    def stroke(
        self, kind: str, rows: Sequence[Spec], colour: str, width: float = 1, dash: Sequence[int] = (), **encode: object
    ) -> None:
        """Add rules, lines or symbols with a stroke of this colour."""
        dashes = {"strokeDash": {"value": [*dash]}} if dash else {}
        self.add(kind, rows, stroke={"value": colour}, strokeWidth=width, **dashes, **encode)

    def put(self, group: "Group") -> None:
        self._parts["marks"].append(group.spec)

    @property
    def spec(self) -> Spec:
        place = {"x": self.x, "y": self.y, "width": self.width, "height": self.height}
        # Lines of a grid are as long as the signals say.
        signals = [{"name": name, "value": place[name]} for name in ("width", "height")]
        encode = {"enter": {name: {"value": value} for name, value in place.items()}}
        return {"type": "group", "encode": encode, "signals": signals, **self._parts}


def _encoded(value: object) -> object:
    if not isinstance(value, str):
        return value if isinstance(value, dict) else {"value": value}
    scale, _, name = value.rpartition(".")
    return {"field": name, **({"scale": scale} if scale else {})}


@dataclass(frozen=True)
class Panel:
    """Estimates on one axis, by the names of their rows."""

    title: str
    estimates: Mapping[str, Estimate]
    axis: Axis
    line: float | None = None  # a value with a dashed line, if given
    # Small marks beside the estimates, such as single runs.
    strokes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)  # what stands to the right of the panel
    space: int = 0  # the width of these texts
    colour: str = ""  # of all marks, in place of each row's
    share: float = 1.0  # its width, relative to the other panels

    def draw(self, group: Group, kinds: Mapping[str, str]) -> None:
        axis, places = self.axis, {name: ROW * (at + 0.5) for at, name in enumerate(kinds)}
        group.axis("x", axis, "top", max(2, min(6, round(group.width / 55))))
        lines: list[tuple[float, str, tuple[int, ...]]] = [(0.0, INK, ())] if axis.low < 0 < axis.high else []
        lines += [] if self.line is None else [(self.line, QUIET, DASHED)]
        for value, colour, dash in lines:
            group.stroke("rule", [{"at": value}], colour, 1, dash, x="x.at", y=0, y2=group.height)
        strokes = [{"at": value, "y": places[name] - 5, "y2": places[name] + 5}
                   for name, values in self.strokes.items() for value in values]  # fmt: skip
        group.stroke("rule", strokes, QUIET, x="x.at", y="y", y2="y2")
        for kind in dict.fromkeys(kinds.values()):
            known = [(places[name], self.estimates[name]) for name in self.estimates if kinds[name] == kind]
            self._estimates(group, kind, known)
        for name, words in self.texts.items():
            group.text(group.width + 10, places[name] + 4, words)

    def _estimates(self, group: Group, kind: str, known: Sequence[tuple[float, Estimate]]) -> None:
        axis, colour = self.axis, self.colour or COLOURS.get(kind, INK)
        ends = [(y, each.low, each.high) for y, each in known if each.low is not None and each.high is not None]
        lines = [{"at": axis.inside(low), "to": axis.inside(high), "y": y} for y, low, high in ends]
        group.stroke("rule", lines, colour, 2, x="x.at", x2="x.to", y="y")
        cut = [{"at": axis.inside(end), "y": y + 5, "arrow": "‹" if end < axis.low else "›"}
               for y, low, high in ends for end in (low, high) if not axis.holds(end)]  # fmt: skip
        group.add(
            "text", cut, x="x.at", y="y", text="arrow", fontSize=16, align={"value": "center"}, fill={"value": INK}
        )
        dots = [{"at": axis.inside(each.mean), "y": y} for y, each in known]
        fill = PAPER if kind == "undecided" and not self.colour else colour
        shape = "square" if kind == "worse" and not self.colour else "circle"
        group.stroke("symbol", dots, colour, 1.5, x="x.at", y="y", size=50,
                     fill={"value": fill}, shape={"value": shape})  # fmt: skip


def forest(
    panels: Sequence[Panel],
    kinds: Mapping[str, str],
    *,
    title: str,
    note: str,
    description: str = "",
    styles: Mapping[str, str] | None = None,
    below: Sequence[str] = (),
    width: float = WIDTH,
) -> str:
    """Draw panels side by side, with a row for each name.

    Args:
        kinds: by name: "better" (green), "worse" (orange, a square), "undecided" (hollow), "reference" (grey), or "".
        note: how to read it, below the title.
        description: for who cannot see the chart; by default title, panels and note.
        styles: of the names: "bold" or "quiet".
        below: lines of text under the chart.
    """
    height = ROW * len(kinds)
    free = width - NAMES - sum(panel.space + GAP for panel in panels)
    whole = Group()
    for at, (name, kind) in enumerate(kinds.items()):
        whole.text(12, TOP + ROW * at + 14, shortened(name), (styles or {}).get(name, kind))
    x = float(NAMES)
    for panel in panels:
        part = Group(x, TOP, round(free * panel.share / sum(each.share for each in panels), 1), height)
        panel.draw(part, kinds)
        whole.text(x, 62, panel.title)
        whole.put(part)
        x += part.width + panel.space + GAP
    for at, line in enumerate(below):
        whole.text(12, TOP + height + 18 + 16 * at, line, "quiet")
    description = description or f"{title}. {len(panels)} panels: {', '.join(each.title for each in panels)}. {note}"
    whole.width = width
    return drawn(whole, TOP + height + 12 + 16 * len(below), title, note, description)


def shortened(words: str, most: int = MOST_LETTERS) -> str:
    """Return a text; of a long one its beginning, the name of a method if there is one, and its end, a value."""
    name, parameters, _ = words.partition(" (")
    end = max(most // 3, most - len(name) - 3) if parameters else most // 2
    return words if len(words) <= most else f"{words[: most - 1 - end]}…{words[-end:]}"


def drawn(group: Group, height: float, title: str, note: str, description: str) -> str:
    """Return a file with a title and a note above the group's parts, which begin at y = 56."""
    import vl_convert

    group.text(12, 24, title, "bold")
    group.text(12, 42, note, "quiet")
    spec = {
        "$schema": "https://vega.github.io/schema/vega/v5.json", "width": group.width, "height": height, "padding": 0,
        "autosize": "none", "background": PAPER, "config": {"aria": False}, "marks": [group.spec],
    }  # fmt: skip
    svg = _EMPTY.sub("", _TAG.sub(_plain, str(vl_convert.vega_to_svg(spec))))
    start = f'<svg role="img" aria-label="{escape(description)}" font-family="{escape(FONT)}"'
    return svg.replace("<svg", start, 1).replace(">", f">\n<style>{STYLE}</style>\n", 1) + "\n"


def _plain(tag: re.Match[str]) -> str:
    """Return a tag without what says nothing, and with two decimals."""
    return _DECIMALS.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), _NOISE.sub("", tag[0]))
