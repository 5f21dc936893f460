"""Draws every figure of the documents: `python docs/figures/draw.py`.

Charts show what leaderboard/leaderboard.csv says, which `dphpo-bench leaderboard build` makes from the records. The
same table gives the same bytes on every machine; tests/docs/test_figures.py draws them again and compares.
"""

from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from dphpo_bench.leaderboard.charts.frame import make_chart, to_svg

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "leaderboard/leaderboard.csv"
SETTING = "digits (linear)"
EPSILONS = (1, 3, 8)
ONE, SEVERAL = "#0072B2", "#D55E00"


def board() -> pd.DataFrame:
    """The rows of one setting with its default contestants, numbers as on the board."""
    table = pd.read_csv(TABLE)
    table = table[(table.setting == SETTING) & (table.label == table.method)]
    return table.assign(panel=[f"ε = {epsilon:g}" for epsilon in table.epsilon_target])


def _forest(rows: pd.DataFrame, order: list[str], title: str, limits: tuple[float, float]) -> Any:
    """A point and its interval for each method, in a panel for each `panel`; intervals end at the limits."""
    low, high = limits
    rows = rows.assign(low=rows.low.clip(low, high), high=rows.high.clip(low, high), several=rows.runs > 1)
    fields = ["method", "panel", "several", "value", "low", "high"]
    data = alt.InlineData(values=rows[fields].to_dict("records"), name="board")
    color = alt.Color("several:N", scale=alt.Scale(domain=[False, True], range=[ONE, SEVERAL]), legend=None)
    shape = alt.Shape("several:N", scale=alt.Scale(domain=[False, True], range=["circle", "square"]), legend=None)
    x = alt.X("value:Q", title=title, scale=alt.Scale(domain=limits, nice=False), axis=alt.Axis(tickCount=6))
    base = alt.Chart().encode(y=alt.Y("method:N", sort=order, title=None, axis=alt.Axis(grid=True)), color=color)
    zero = alt.Chart().mark_rule(color="#59636e").encode(x=alt.datum(0))
    lines = base.mark_rule(strokeWidth=1.5).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    points = base.mark_point(filled=True, size=45, opacity=1).encode(x=x, shape=shape)
    panels = list(dict.fromkeys(rows.panel))
    return alt.layer(zero, lines, points).properties(width=200, height=16 * len(order)).facet(
        column=alt.Column("panel:N", title=None, sort=panels), data=data
    )  # fmt: skip


def distance() -> str:
    """How far below the oracle each private method ends."""
    rows = board()
    rows = rows[rows.end_to_end_private & ~rows.reference]
    rows = rows.assign(value=100 * rows.gap_to_oracle, low=100 * rows.gap_to_oracle_low,
                       high=100 * rows.gap_to_oracle_high)  # fmt: skip
    order = list(rows.groupby("method").value.mean().sort_values(kind="stable").index)
    chart = make_chart(
        _forest(rows, order, "points of accuracy below the oracle", (-3, 15)),
        "Digits, linear model, mean of five seeds, 95 % intervals. Circles: one training run. Squares: several.",
        name="distance",
        title="What private tuning loses",
        description="",
    )
    return to_svg(chart)


def losses() -> str:
    """What of the distance is noise, and what the choice, for methods that spend ε on tuning."""
    rows = board()
    rows = rows[(rows.epsilon_target == 1) & (rows.tuning_share > 0) & rows.lost_to_noise.notna()]
    parts = [
        rows.assign(panel=f"lost to {part}", value=100 * rows[f"lost_to_{part}"],
                    low=100 * rows[f"lost_to_{part}_low"], high=100 * rows[f"lost_to_{part}_high"])
        for part in ("noise", "choice")
    ]  # fmt: skip
    order = list(rows.sort_values(["gap_to_oracle", "method"]).method)
    chart = make_chart(
        _forest(pd.concat(parts), order, "points of accuracy", (-8, 12)),
        "Digits, linear model, ε = 1, mean of five seeds, 95 % intervals. Best method first.",
        name="losses",
        title="Why methods that pay for tuning lose",
        description="",
    )
    return to_svg(chart)


def audits() -> str:
    """The ε that attacks have shown, beside the ε that is claimed."""
    rows = board()
    rows = rows[rows.audited.notna() & rows.end_to_end_private]
    fields = ["method", "panel", "audited", "epsilon_target"]
    data = alt.InlineData(values=rows[fields].to_dict("records"), name="board")
    scale = alt.Scale(type="log", domain=[0.2, 10], nice=False)
    axis = alt.Axis(values=[0.25, 0.5, 1, 3, 8], format="~g")
    x = alt.X("audited:Q", title="ε (log scale)", scale=scale, axis=axis)
    panels = [f"ε = {epsilon}" for epsilon in EPSILONS]
    colors = alt.Scale(domain=panels, range=["#8A4FD6", "#DB4F4F", "#A98500"])
    shapes = alt.Scale(domain=panels, range=["circle", "square", "diamond"])
    base = alt.Chart().encode(
        y=alt.Y("method:N", title=None, axis=alt.Axis(grid=True)),
        color=alt.Color("panel:N", scale=colors, title="claim"),
    )
    drawing = alt.layer(
        base.mark_rule(strokeDash=[4, 3]).encode(
            x=alt.X("epsilon_target:Q", scale=scale), y=alt.value(0), y2=alt.value(190)
        ),
        base.mark_point(filled=True, size=60, opacity=1).encode(
            x=x, shape=alt.Shape("panel:N", scale=shapes, title="claim")
        ),
        data=data,
    ).properties(width=520, height=190)  # fmt: skip
    chart = make_chart(
        drawing,
        "Digits, linear model. Points: the lower bound that attacks on ten runs show. Dashed: the claim.",
        name="audits",
        title="What attacks show of the ε that is claimed",
        description="",
    )
    return to_svg(chart)


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
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 380" font-family="Liberation Sans, Arial, Helvetica, '
        'sans-serif" font-size="14">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#59636e"/></marker></defs>',
        '<rect width="920" height="380" fill="#fff"/>',
    ]
    for x, y, width, height, title, color in FRAMES:
        parts += [
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{color}" fill-opacity=".07" '
            f'stroke="{color}" stroke-dasharray="5 4"/>',
            f'<text x="{x + 10}" y="{y + 20}" font-size="12" fill="{color}">{title}</text>',
        ]
    for x, y, to_x, to_y in ARROWS:
        parts.append(f'<path d="M{x} {y}L{to_x} {to_y}" stroke="#59636e" stroke-width="1.5" marker-end="url(#head)"/>')
    for x, y, width, title, *more in BOXES:
        parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="44" rx="5" fill="#fff" stroke="#59636e"/>')
        for number, line in enumerate((title, *more)):
            middle = y + (27 if not more else 19 + 17 * number)
            looks = 'font-weight="600" fill="#1b1f24"' if not number else 'font-size="12" fill="#59636e"'
            parts.append(f'<text x="{x + width / 2:g}" y="{middle}" text-anchor="middle" {looks}>{line}</text>')
    for x, y, anchor, text in WORDS:
        parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="12" fill="#59636e">{text}</text>')
    return "\n".join([*parts, "</svg>"])


FIGURES = {"flow": flow, "distance": distance, "losses": losses, "audits": audits}

if __name__ == "__main__":
    for name, draw in FIGURES.items():
        (HERE / f"{name}.svg").write_text(draw() + "\n", encoding="utf-8")
