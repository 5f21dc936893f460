"""The chart of budget shares."""

from collections.abc import Iterator
from typing import Any

import altair as alt

from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.charts.frame import MOST_SPLITS, Chart, best_note, inline_data, make_chart, sorted_by
from dphpo_bench.leaderboard.charts.looks import PARTS, Cast


def budget_chart(board: Board, cast: Cast) -> Iterator[Chart]:
    """The chart, if anyone is on the board."""
    overalls = board.overalls[1:] if 2 < len(board.overalls) <= MOST_SPLITS + 1 else board.overalls[:1]
    rows = [(place, one, row) for place, one in enumerate(overalls) for row in (*one.rows, *one.incomplete)]
    present = [row.contestant for _, _, row in rows]
    looks = cast.looks(present)
    if not looks:
        return
    values: list[dict[str, Any]] = [
        {
            "contestant": looks[row.contestant].name,
            "panel": one.title,
            "part": part,
            "order": order,
            "share": share,
            "panel_order": place,
        }
        for place, one, row in rows
        if row.contestant in looks
        for order, (part, share) in enumerate((("tuning", row.tuning_share), ("training", 1 - row.tuning_share)))
    ]
    # One order for all panels: by the share in the first that a contestant is in.
    shares: dict[str, float] = {}
    for value in values:
        value["first"] = shares.setdefault(value["contestant"], value["share"])
    order = sorted(shares.items(), key=lambda item: item[1])
    drawing = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="share of ε", stack="zero", axis=alt.Axis(format="~%", values=[0, 0.5, 1]),
                    scale=alt.Scale(domain=[0, 1])),
            y=alt.Y("contestant:N", title=None, sort=sorted_by("first")),
            color=alt.Color("part:N", title="spent on", scale=alt.Scale(domain=[part for part, _ in PARTS],
                            range=[color for _, color in PARTS]), legend=alt.Legend(orient="right")),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("contestant:N", title="method"),
                alt.Tooltip("panel:N", title="over"),
                alt.Tooltip("part:N", title="spent on"),
                alt.Tooltip("share:Q", title="share of ε", format=".1%"),
            ],
        )
        .properties(width=150 if len(overalls) > 1 else 420, height=alt.Step(20))
        .facet(
            column=alt.Column("panel:N", title=None, sort=sorted_by("panel_order")),
            data=inline_data(values),
        )
    )  # fmt: skip
    note = best_note(looks, present)
    listed = "; ".join(f"{name} {100 * share:.0f} %" for name, share in order)
    yield make_chart(
        drawing,
        f"Share of ε that finding hyperparameters takes, median over the tables.{note}",
        name="budget split",
        title="Privacy budget: tuning and training",
        description=f"Share of ε spent on tuning, the rest on training, from the least to the most: {listed}.{note}",
        kind="budget",
    )
