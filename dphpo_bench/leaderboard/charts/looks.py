"""Colours, shapes and fonts of the charts."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dphpo_bench.leaderboard.board import Board, Contestant, Overall, Table

MOST = 12
# vl-convert contains this font, so that the width of a text does not depend on the machine.
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"

# Letters that the font lacks, which would be drawn in whatever font a machine has.
_FOREIGN = re.compile("[^\u0020-\u052f\u2010-\u2027\u2212\u2264\u2265\u221e]")

COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#C2669B", "#B07D00", "#7B61C9",
    "#3A97D3", "#C2293C", "#7A8B1A", "#95603A", "#2A8C96", "#A8409F",
)  # fmt: skip
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "triangle-right",
    "M0,-1L0.29,-0.4L0.95,-0.31L0.48,0.15L0.59,0.81L0,0.5L-0.59,0.81L-0.48,0.15L-0.95,-0.31L-0.29,-0.4Z",
    "triangle-left",
    "M-1,-1L-0.5,-1L0,-0.5L0.5,-1L1,-1L1,-0.5L0.5,0L1,0.5L1,1L0.5,1L0,0.5L-0.5,1L-1,1L-1,0.5L-0.5,0L-1,-0.5Z",
    "M-1,-0.5L1,-0.5L1,0.5L-1,0.5Z",
    "M-0.5,-0.9L0.5,-0.9L1,0L0.5,0.9L-0.5,0.9L-1,0Z",
)
REFERENCE_COLORS = ("#767676", "#8A8A8A", "#6B7785", "#857B6F")
REFERENCE_DASHES = ([6, 3], [2, 2], [9, 3, 2, 3], [4, 1])
# From small ε to large.
RAMP = ("#8A4FD6", "#C2479B", "#DB4F4F", "#D26A1C", "#A98500")
PARTS = (("tuning", "#D55E00"), ("training", "#8494A3"))


def config(ink: str, quiet: str, grid: str, background: str, font: str = FONT) -> dict[str, Any]:
    """The looks of text, axes and background, the same for all charts of a theme."""
    return {
        "background": background,
        "font": font,
        "view": {"stroke": None},
        "title": {
            "anchor": "start", "color": ink, "fontSize": 14, "fontWeight": 600, "limit": 760, "offset": 14,
            "subtitleColor": quiet, "subtitleFontSize": 11, "subtitlePadding": 5,
        },
        "axis": {
            "domainColor": quiet, "gridColor": grid, "labelColor": ink, "labelFontSize": 11, "labelLimit": 260,
            "tickColor": quiet, "titleColor": ink, "titleFontSize": 11, "titleFontWeight": "normal", "titlePadding": 8,
        },
        "header": {"labelColor": ink, "labelFontSize": 12, "labelFontWeight": 600, "titleColor": ink},
        "legend": {
            "labelColor": ink, "labelFontSize": 11, "labelLimit": 230, "symbolSize": 80, "titleColor": ink,
            "titleFontSize": 11, "titleFontWeight": "normal",
        },
    }  # fmt: skip


LIGHT = config(ink="#1b1f24", quiet="#59636e", grid="#e6e9ed", background="#ffffff")


@dataclass(frozen=True)
class Look:
    """The name, colour, shape and dashes of a contestant in all charts."""

    name: str
    color: str
    shape: str
    dash: list[int]


@dataclass(frozen=True)
class Cast:
    """Everyone on the board, best first, by a name that nobody else has."""

    names: dict[Contestant, str]

    def looks(self, present: Iterable[Contestant], most: int = MOST) -> dict[Contestant, Look]:
        """The looks of the best `most` who are present. The best of all have fixed colours; others take free ones."""
        present = set(present)
        ranked = [who for who in self.names if not who.reference]
        own = {who: number for number, who in enumerate(ranked[:MOST])}
        shown = [who for who in ranked if who in present][:most]
        free = (number for number in range(MOST) if number not in {own.get(who) for who in shown})
        numbers = {who: own[who] if who in own else next(free) for who in shown}
        looks = {who: Look(self.names[who], COLORS[at], SHAPES[at], [1, 0]) for who, at in numbers.items()}
        references = [who for who in self.names if who.reference]
        for number, who in enumerate(references[: len(REFERENCE_DASHES)]):
            if who in present:
                looks[who] = Look(self.names[who], REFERENCE_COLORS[number], "stroke", REFERENCE_DASHES[number])
        return looks


def cast_of(board: Board) -> Cast:
    """Everyone on the board. Letters that the font lacks are escaped, and names that look alike are numbered."""
    shown: tuple[Overall | Table, ...] = (*board.overalls, *board.tables)
    everyone = dict.fromkeys(row.contestant for one in shown for row in one.everyone)
    seen: Counter[str] = Counter()
    names = {}
    for who in everyone:
        name = _FOREIGN.sub(lambda found: ascii(found[0])[1:-1], who.label)
        seen[name] += 1
        names[who] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return Cast(names)


def ramp(count: int) -> list[str]:
    """`count` colours from small ε to large."""
    return [RAMP[round(at * (len(RAMP) - 1) / max(1, count - 1))] for at in range(count)]
