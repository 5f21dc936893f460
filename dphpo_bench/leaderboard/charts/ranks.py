"""The chart of rank intervals."""

from collections.abc import Iterator
from typing import Any

import altair as alt

from dphpo_bench.leaderboard.board import Overall
from dphpo_bench.leaderboard.charts.frame import Chart, best_note, inline_data, make_chart, scale_of, sorted_by
from dphpo_bench.leaderboard.charts.looks import Cast
from dphpo_bench.leaderboard.columns import mean_rank_text, measure_text, ranks_text


def rank_chart(overall: Overall, cast: Cast) -> Iterator[Chart]:
    """The chart, if anyone is ranked."""
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
            "value": measure_text(row.utility, overall.measure),
            "tables": row.tables,
        }
        for who, look in looks.items()
        if (row := rows[who]).mean_rank
    ]
    values.sort(key=lambda value: value["mean_rank"])
    base = alt.Chart(inline_data(values)).encode(
        y=alt.Y("contestant:N", title=None, sort=sorted_by("mean_rank")),
        color=alt.Color("contestant:N", scale=scale_of(looks, "color"), legend=None),
        tooltip=[
            alt.Tooltip("contestant:N", title="method"),
            alt.Tooltip("interval:N", title="mean rank"),
            alt.Tooltip("places:N", title="place"),
            *([alt.Tooltip("value:N", title=overall.measure.header)] if overall.measure else []),
            alt.Tooltip("tables:Q", title="tables"),
        ],
    )
    worst = max(max(value["high"], value["mean_rank"]) for value in values)
    axis = alt.Axis(tickMinStep=1, format="d", orient="top", domain=False)
    x = alt.X("low:Q", title="rank (1 is best)", axis=axis, scale=alt.Scale(domain=[0.75, worst + 0.25], nice=False))
    drawing = alt.layer(
        base.mark_rule(strokeWidth=3, strokeCap="round", opacity=0.65).encode(x=x, x2="high:Q"),
        base.mark_point(filled=True, size=90, opacity=1).encode(
            x="mean_rank:Q", shape=alt.Shape("contestant:N", scale=scale_of(looks, "shape"), legend=None)
        ),
    ).properties(width=480, height=alt.Step(24))
    where = "all ε" if overall.epsilon is None else overall.title
    note = best_note(looks, rows)
    listed = "; ".join(f"{value['contestant']} {value['interval']}" for value in values)
    yield make_chart(
        drawing,
        f"Dot: mean of the ranks in the tables. Line: the middle 95 % when tasks and seeds are resampled.{note}",
        name="ranks all" if overall.epsilon is None else f"ranks epsilon {overall.epsilon:g}",
        title=f"Ranks, {where}",
        description=f"Mean rank of each contestant with its interval ({where}; tables: {len(overall.tables)}), best "
        f"first: {listed}.{note}",
        kind="ranks",
        subject=overall.title,
    )
