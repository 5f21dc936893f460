"""The chart of rank intervals."""

from collections.abc import Iterator
from typing import Any

import altair as alt

from dphpo_bench.leaderboard.board import Overall
from dphpo_bench.leaderboard.charts.frame import Chart, _best, _by, _chart, _data, _scale
from dphpo_bench.leaderboard.charts.looks import _Cast
from dphpo_bench.leaderboard.columns import (
    estimate_text,
    mean_rank_text,
    ranks_text,
)


def _rank_intervals(overall: Overall, cast: _Cast) -> Iterator[Chart]:
    rows = {row.contestant: row for row in overall.rows if row.mean_rank is not None}
    looks = cast.looks(rows)
    if not looks:
        return
    values: list[dict[str, Any]] = [
        {
            "contestant": look.name,
            "mean_rank": row.mean_rank.mean,
            "low": row.mean_rank.low,
            "high": row.mean_rank.high,
            "interval": mean_rank_text(row.mean_rank),
            "places": ranks_text(row.ranks),
            "accuracy": estimate_text(row.utility),
            "tables": row.tables,
        }
        for who, look in looks.items()
        if (row := rows[who]).mean_rank
    ]
    values.sort(key=lambda value: value["mean_rank"])
    base = alt.Chart(_data(values)).encode(
        y=alt.Y("contestant:N", title=None, sort=_by("mean_rank")),
        color=alt.Color("contestant:N", scale=_scale(looks, "color"), legend=None),
        tooltip=[
            alt.Tooltip("contestant:N", title="method"),
            alt.Tooltip("interval:N", title="mean rank"),
            alt.Tooltip("places:N", title="place"),
            alt.Tooltip("accuracy:N", title="accuracy, %"),
            alt.Tooltip("tables:Q", title="tables"),
        ],
    )
    worst = max(max(value["high"], value["mean_rank"]) for value in values)
    axis = alt.Axis(tickMinStep=1, format="d", orient="top", domain=False)
    x = alt.X("low:Q", title="rank (1 is best)", axis=axis, scale=alt.Scale(domain=[0.75, worst + 0.25], nice=False))
    drawing = alt.layer(
        base.mark_rule(strokeWidth=3, strokeCap="round", opacity=0.65).encode(x=x, x2="high:Q"),
        base.mark_point(filled=True, size=90, opacity=1).encode(
            x="mean_rank:Q", shape=alt.Shape("contestant:N", scale=_scale(looks, "shape"), legend=None)
        ),
    ).properties(width=480, height=alt.Step(24))
    where = "all ε" if overall.epsilon is None else overall.title
    note = _best(looks, rows)
    yield _chart(
        "ranks all" if overall.epsilon is None else f"ranks epsilon {overall.epsilon:g}",
        f"Ranks, {where}",
        "Dot: mean of the ranks in the tables. Line: 95 % of what it is when tasks and seeds are resampled." + note,
        f"Mean rank of each contestant with its interval ({where}; tables: {len(overall.tables)}), best first: "
        + "; ".join(f"{value['contestant']} {value['interval']}" for value in values)
        + f".{note}",
        drawing,
    )
