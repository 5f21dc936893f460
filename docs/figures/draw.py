"""Draws every figure of the documents: `python docs/figures/draw.py`.

Charts show what leaderboard/leaderboard.csv says, which `dphpo-bench leaderboard build` makes from the records. The
same table gives the same bytes on every machine; tests/docs/test_figures.py draws them again and compares.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import pandas as pd

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "leaderboard/leaderboard.csv"
SETTING = "digits (linear)"
INK, QUIET, GRID, ONE, SEVERAL = "#1b1f24", "#59636e", "#e6e9ed", "#0072B2", "#D55E00"
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
NAMES, ROW, HEAD = 140, 17, 74  # pixels: for names, a row, all above the first row


@dataclass(frozen=True)
class Mark:
    """A point, and a line through it.

    Attributes:
        row: the name on its left.
        value: where the point is.
        low: where the line begins; with `high`, the point alone if they are the same.
        high: where it ends.
        color: of both.
        shape: "circle", "square" or "diamond".
    """

    row: str
    value: float
    low: float
    high: float
    color: str
    shape: str = "circle"


@dataclass(frozen=True)
class Panel:
    """A part of a chart with an axis of its own.

    Attributes:
        title: above it.
        marks: what it shows.
        rules: vertical lines: where, and their colour; dashed unless it is ink.
    """

    title: str
    marks: Sequence[Mark]
    rules: Sequence[tuple[float, str]] = field(default=((0, INK),))


def text(
    x: float, y: float, words: str, anchor: str = "start", size: int = 11, color: str = INK, weight: int = 400
) -> str:
    """A line of text."""
    looks = f'font-size="{size}" fill="{color}"' + f' font-weight="{weight}"' * (weight != 400)
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {looks}>{words}</text>'


def line(x: float, y: float, to_x: float, to_y: float, color: str, more: str = "") -> str:
    """A straight line."""
    return f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" stroke="{color}"{more}/>'


def point(x: float, y: float, shape: str, color: str) -> str:
    """A circle, or a square of the same size, upright or on its tip."""
    if shape == "circle":
        return f'<circle cx="{x:g}" cy="{y:g}" r="3.6" fill="{color}"/>'
    turned = f' transform="rotate(45 {x:g} {y:g})"' if shape == "diamond" else ""
    return f'<rect x="{x - 3.3:g}" y="{y - 3.3:g}" width="6.6" height="6.6" fill="{color}"{turned}/>'


def svg(width: float, height: float, parts: Iterable[str]) -> str:
    """A drawing on white."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}">'
    return "\n".join([head, f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>', *parts, "</svg>"]) + "\n"


def chart(
    title: str,
    subtitle: str,
    rows: Sequence[str],
    panels: Sequence[Panel],
    axis: str,
    ticks: Sequence[float],
    limits: tuple[float, float],
    width: float = 200,
    scale: Callable[[float], float] = float,
) -> str:
    """Points and intervals, a row for each name; what lies beyond the limits is cut off."""
    low, high = map(scale, limits)
    bottom = HEAD + ROW * len(rows)
    parts = [text(8, 20, title, size=14, weight=600), text(8, 38, subtitle, color=QUIET)]
    parts += [text(NAMES - 8, HEAD + ROW * (at + 0.5) + 4, name, "end") for at, name in enumerate(rows)]
    for number, panel in enumerate(panels):
        left = NAMES + number * (width + 24)

        def place(value: float, left: float = left) -> float:
            share = (scale(min(max(value, limits[0]), limits[1])) - low) / (high - low)
            return round(left + width * share, 1)

        middle = left + width / 2
        parts.append(text(middle, HEAD - 12, panel.title, "middle", 12, weight=600))
        for at in range(len(rows)):
            parts.append(line(left, HEAD + ROW * (at + 0.5), left + width, HEAD + ROW * (at + 0.5), GRID))
        for value, color in panel.rules:
            dashes = "" if color == INK else ' stroke-dasharray="4 3"'
            parts.append(line(place(value), HEAD, place(value), bottom, color, dashes))
        parts.append(line(left, bottom, left + width, bottom, QUIET))
        for tick in ticks:
            parts += [
                line(place(tick), bottom, place(tick), bottom + 4, QUIET),
                text(place(tick), bottom + 16, f"{tick:g}".replace("-", "−"), "middle"),
            ]
        parts.append(text(middle, bottom + 36, axis, "middle"))
        for mark in panel.marks:
            y = HEAD + ROW * (rows.index(mark.row) + 0.5)
            if mark.low < mark.high:
                parts.append(line(place(mark.low), y, place(mark.high), y, mark.color, ' stroke-width="1.6"'))
            parts.append(point(place(mark.value), y, mark.shape, mark.color))
    return svg(NAMES + len(panels) * (width + 24), bottom + 46, parts)


def board() -> pd.DataFrame:
    """The rows of one setting, methods at their defaults."""
    table = pd.read_csv(TABLE)
    return table[(table.setting == SETTING) & (table.label == table.method)]


def marks(rows: pd.DataFrame, column: str) -> list[Mark]:
    """A column of shares with its interval, in points; searches of several runs in another colour and shape."""
    numbers = 100 * rows[[column, f"{column}_low", f"{column}_high"]]
    looks = [(SEVERAL, "square") if runs > 1 else (ONE, "circle") for runs in rows.runs]
    return [
        Mark(name, *values, *look) for name, values, look in zip(rows.method, numbers.to_numpy(), looks, strict=True)
    ]


def distance() -> str:
    """How far below the oracle each private method ends."""
    rows = board()
    rows = rows[rows.end_to_end_private & ~rows.reference]
    at = {epsilon: marks(part, "gap_to_oracle") for epsilon, part in rows.groupby("epsilon_target")}
    means = {name: fmean(m.value for each in at.values() for m in each if m.row == name) for name in rows.method}
    return chart(
        "What private tuning loses",
        "Digits, linear model, mean of five seeds, 95 % intervals. "
        "Circles: one training run. Squares: a search of several runs.",
        sorted(means, key=lambda name: (means[name], name)),
        [Panel(f"ε = {epsilon:g}", each) for epsilon, each in at.items()],
        axis="points of accuracy below the oracle",
        ticks=range(0, 15, 2),
        limits=(-3, 15),
    )


def losses() -> str:
    """What of the distance is noise, and what the choice, for methods that spend ε on tuning."""
    rows = board()
    rows = rows[(rows.epsilon_target == 1) & (rows.tuning_share > 0) & rows.lost_to_noise.notna()]
    return chart(
        "Why methods that pay for tuning lose",
        "Digits, linear model, ε = 1, mean of five seeds, 95 % intervals. Best method first.",
        list(rows.sort_values(["gap_to_oracle", "method"]).method),
        [Panel(f"lost to {part}", marks(rows, f"lost_to_{part}")) for part in ("noise", "choice")],
        axis="points of accuracy",
        ticks=range(-5, 11, 5),
        limits=(-8, 12),
    )


def audits() -> str:
    """The ε that attacks have shown, beside the ε that is claimed."""
    rows = board()
    rows = rows[rows.audited.notna() & rows.end_to_end_private]
    looks = {1.0: ("#8A4FD6", "circle"), 3.0: ("#DB4F4F", "square"), 8.0: ("#A98500", "diamond")}
    found = [
        Mark(name, bound, bound, bound, *looks[epsilon])
        for name, bound, epsilon in zip(rows.method, rows.audited, rows.epsilon_target, strict=True)
    ]
    return chart(
        "What attacks show of the ε that is claimed",
        "Digits, linear model. Dashed: claims of 1, 3 and 8. Circles, squares, diamonds: "
        "the lower bound that attacks on ten such runs show.",
        sorted(set(rows.method)),
        [Panel("", found, [(epsilon, color) for epsilon, (color, _) in looks.items()])],
        axis="ε (log scale)",
        ticks=(0.25, 0.5, 1, 3, 8),
        limits=(0.2, 10),
        width=560,
        scale=math.log,
    )


# x, y, width and the lines of each box; those of one row are 44 high.
BOXES = (
    (30, 56, 130, "Task", "public facts"),
    (30, 116, 130, "budget", "(ε, δ)"),
    (215, 86, 120, "Method.plan"),
    (405, 86, 170, "Plan", "event of the whole"),
    (430, 216, 120, "Method.run"),
    (330, 216, 70, "model"),
    (160, 216, 130, "metrics", "on test data"),
    (655, 216, 120, "Session", "clips, adds noise"),
    (815, 216, 75, "private", "records"),
    (655, 316, 120, "Ledger", "what was released"),
    (405, 316, 170, "ε, computed again", "by the harness"),
    (160, 316, 130, "RunRecord"),
    (30, 316, 90, "leaderboard"),
)
# From x, y to x, y.
ARROWS = (
    (160, 78, 215, 100), (160, 138, 215, 116), (335, 108, 405, 108), (490, 130, 490, 216), (550, 231, 655, 231),
    (655, 247, 550, 247), (430, 238, 400, 238), (330, 238, 290, 238), (815, 238, 775, 238), (715, 260, 715, 316),
    (655, 338, 575, 338), (405, 338, 290, 338), (225, 260, 225, 316), (160, 338, 120, 338),
)  # fmt: skip
FRAMES = (
    (14, 24, 577, 150, "looks at no data", "#0072B2"),
    (640, 184, 266, 90, "the only door to private data", "#D55E00"),
)
WORDS = (
    (500, 191, "start", "ε ≤ budget,"), (500, 207, "start", "or nothing is read"),
    (595, 225, "middle", "asks"), (595, 264, "middle", "noisy answers"),
)  # fmt: skip


def flow() -> str:
    """What happens in a run, from public facts to the leaderboard."""
    tip = f'<path d="M0 0L8 4L0 8z" fill="{QUIET}"/>'
    parts = [
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f"{tip}</marker></defs>"
    ]
    for x, y, width, height, title, color in FRAMES:
        frame = f'rx="8" fill="{color}" fill-opacity=".07" stroke="{color}" stroke-dasharray="5 4"'
        parts += [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {frame}/>',
                  text(x + 10, y + 20, title, size=12, color=color)]  # fmt: skip
    parts += [line(*ends, QUIET, ' stroke-width="1.5" marker-end="url(#head)"') for ends in ARROWS]
    for x, y, width, title, *more in BOXES:
        parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="44" rx="5" fill="#fff" stroke="{QUIET}"/>')
        parts.append(text(x + width / 2, y + (19 if more else 27), title, "middle", 14, weight=600))
        parts += [text(x + width / 2, y + 36, words, "middle", 12, QUIET) for words in more]
    parts += [text(x, y, words, anchor, 12, QUIET) for x, y, anchor, words in WORDS]
    return svg(920, 380, parts)


FIGURES = {"flow": flow, "distance": distance, "losses": losses, "audits": audits}

if __name__ == "__main__":
    for name, draw in FIGURES.items():
        (HERE / f"{name}.svg").write_text(draw(), encoding="utf-8")
