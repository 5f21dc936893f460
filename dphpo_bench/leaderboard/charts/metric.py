"""The charts of the metric against ε and against cost."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import altair as alt

from dphpo_bench.leaderboard.board import Contestant, Table
from dphpo_bench.leaderboard.charts.frame import (
    Chart,
    best_note,
    inline_data,
    log_ticks,
    make_chart,
    scale_of,
    sorted_by,
)
from dphpo_bench.leaderboard.charts.looks import Cast, Look
from dphpo_bench.leaderboard.columns import count_text, epsilon_text, measure_text
from dphpo_bench.records.measure import Measure


def _measurements(tables: Sequence[Table], looks: dict[Contestant, Look]) -> list[dict[str, Any]]:
    """One value for each contestant and ε that has a finished run."""
    return [
        {
            "contestant": looks[row.contestant].name,
            "reference": row.contestant.reference,
            "panel": f"ε = {table.epsilon:g}",
            "epsilon": table.epsilon,
            "value": row.utility.mean,
            "low": row.utility.mean if row.utility.low is None else row.utility.low,
            "high": row.utility.mean if row.utility.high is None else row.utility.high,
            "interval": measure_text(row.utility, table.measure),
            "recomputed": epsilon_text(row.epsilon),
            "examples": row.examples,
            "cost": count_text(row.examples),
            "runs": count_text(row.runs),
            "seeds": row.seeds,
        }
        for table in tables
        for row in table.everyone
        if row.contestant in looks and row.utility is not None
    ]


def _axis(values: Sequence[dict[str, Any]], measure: Measure) -> tuple[Any, str]:
    """An axis for all means and for intervals that do not dwarf them. Longer ones are cut off in `values`.

    Returns:
        The axis, and a remark for readers if something is cut off.
    """
    means = [value["value"] for value in values]
    least, most = (0.0, 1.0) if measure.share else (-math.inf, math.inf)
    size = 1.0 if measure.share else max(map(abs, means)) or 1.0
    room = max(0.02 * size, 0.5 * (max(means) - min(means)))
    low = max(min(means) - room, min(value["low"] for value in values))
    high = min(max(means) + room, max(value["high"] for value in values))
    margin = 0.04 * (high - low) or 0.01 * size
    low, high = max(least, low - margin), min(most, high + margin)
    outside = any(value["low"] < low or value["high"] > high for value in values if not value["reference"])
    cut = ", cut off at the frame" if outside else ""
    for value in values:
        # A clipping mask would have a number in an SVG that depends on what was drawn before.
        value["low"], value["high"] = max(low, value["low"]), min(high, value["high"])
    axis = alt.Y(
        "value:Q",
        title=f"test {measure.title}",
        axis=alt.Axis(format="~%" if measure.share else "~g", tickCount=6),
        scale=alt.Scale(domain=[low, high], zero=False, nice=False),
    )
    return axis, cut


class _Shared:
    """What both charts of a setting share: the looks of contestants, a legend that fades the others, a tooltip."""

    def __init__(self, tables: Sequence[Table], cast: Cast) -> None:
        present = [row.contestant for table in tables for row in table.everyone if row.utility is not None]
        self.looks = cast.looks(present)
        self.note = best_note(self.looks, present)
        self.values = _measurements(tables, self.looks)
        self.measure = tables[0].measure
        self.title = f"{self.measure.title[:1].upper()}{self.measure.title[1:]}"
        legend = alt.Legend(title=None, orient="right")
        self.color = alt.Color("contestant:N", scale=scale_of(self.looks, "color"), legend=legend)
        self.shape = alt.Shape("contestant:N", scale=scale_of(self.looks, "shape"), legend=legend)
        self.dash = alt.StrokeDash("contestant:N", scale=scale_of(self.looks, "dash"), legend=legend)
        self.pick = alt.selection_point(name="pick", fields=["contestant"], bind="legend")
        tooltip = [
            alt.Tooltip("contestant:N", title="method"),
            alt.Tooltip("epsilon:Q", title="ε target"),
            alt.Tooltip("recomputed:N", title="ε recomputed"),
            alt.Tooltip("interval:N", title=self.measure.header),
            alt.Tooltip("cost:N", title="examples"),
            alt.Tooltip("runs:N", title="runs"),
            alt.Tooltip("seeds:Q", title="seeds"),
        ]
        faint = alt.when(self.pick).then(alt.value(1)).otherwise(alt.value(0.12))
        self.base = alt.Chart().encode(color=self.color, opacity=faint, tooltip=tooltip)


def metric_chart(setting: str, tables: Sequence[Table], cast: Cast) -> Iterator[Chart]:
    """The metric against ε, if a run has finished."""
    shared = _Shared(tables, cast)
    values, measure = shared.values, shared.measure
    if not values:
        return
    epsilons = sorted({table.epsilon for table in tables})
    # Side by side, within two fifths of the distance to the next ε, so that intervals do not hide one another.
    ratio = min((b / a for a, b in pairwise(epsilons)), default=2.0)
    places = [look.name for who, look in shared.looks.items() if not who.reference]
    for value in values:
        offset = 0.0 if value["reference"] else places.index(value["contestant"]) / max(1, len(places) - 1) - 0.5
        value["x"] = value["epsilon"] * ratio ** (0.4 * offset)
    y, cut = _axis(values, measure)
    x = alt.X(
        "x:Q",
        title="target ε (log scale)",
        axis=alt.Axis(values=epsilons, format="~g", grid=False),
        scale=alt.Scale(type="log", domain=[epsilons[0] * ratio**-0.35, epsilons[-1] * ratio**0.35], nice=False),
    )
    base = shared.base.properties(data=inline_data(values)).encode(x=x, y=y)
    drawing = alt.layer(
        # The selection belongs to the first layer, because Vega-Lite merges all legends into that layer's.
        base.mark_line(strokeWidth=1.5).encode(strokeDash=shared.dash).add_params(shared.pick).properties(name="lines"),
        base.transform_filter("!datum.reference").mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q"), y2="high:Q"),
        # A reference that has only one ε has no line.
        base.transform_filter("datum.reference").mark_point(size=160, strokeWidth=1.5).encode(shape=shared.shape),
        base.transform_filter("!datum.reference").mark_point(filled=True, size=70).encode(shape=shared.shape),
    ).properties(width=520, height=320)
    yield make_chart(
        drawing,
        f"Mean over seeds with 95 % interval{cut}. Dashed: references.{shared.note}",
        name=f"{measure.name} {setting}",
        title=f"{shared.title} against ε, {setting}",
        description=f"Test {measure.title} of {len(shared.looks)} contestants and references on {setting} "
        f"at ε = {', '.join(f'{epsilon:g}' for epsilon in epsilons)}, with 95 % intervals over seeds.{shared.note}",
        kind="metric",
        subject=setting,
    )


def cost_chart(setting: str, tables: Sequence[Table], cast: Cast) -> Iterator[Chart]:
    """The metric against the examples processed, if a run has finished."""
    shared = _Shared(tables, cast)
    metric, note = shared.measure.title, shared.note
    values = [value for value in shared.values if value["examples"] > 0]
    if not values:
        return
    y, cut = _axis(values, shared.measure)
    x = alt.X(
        "examples:Q",
        title="examples processed (log scale)",
        axis=alt.Axis(format=".2~s", values=log_ticks(value["examples"] for value in values)),
        scale=alt.Scale(type="log", nice=False, padding=14),
    )
    contestants = shared.base.transform_filter("!datum.reference")
    drawing = (
        alt.layer(
            shared.base.transform_filter("datum.reference")
            .mark_rule(strokeWidth=1.5)
            .encode(y=y, strokeDash=shared.dash)
            .add_params(shared.pick)
            .properties(name="lines"),
            contestants.mark_rule(strokeWidth=1.5).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
            contestants.mark_point(filled=True, size=70).encode(x=x, y=y, shape=shared.shape),
        )
        .properties(width=210, height=240)
        .facet(
            facet=alt.Facet("panel:N", title=None, sort=sorted_by("epsilon")),
            columns=3,
            data=inline_data(values),
        )
    )
    yield make_chart(
        drawing,
        f"Mean over seeds with 95 % interval{cut}; cost in expectation. Dashed: {metric} of references.{note}",
        name=f"cost {setting}",
        title=f"{shared.title} against cost, {setting}",
        description=f"Test {metric} against the number of examples processed on {setting}, one panel for each "
        f"ε. References are horizontal lines.{note}",
        kind="cost",
        subject=setting,
    )
