"""The charts of the leaderboard: Vega-Lite specifications, the same for static drawings and for the page.

A contestant looks the same in every chart. Colours differ for the colour-blind, as far as twelve can, and stand out
on white and on black alike; a shape of its own is the second channel. Names come from strangers: they are data in a
specification, never part of an expression.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import altair as alt
import vl_convert
from altair.utils.schemapi import debug_mode

from dphpo_bench.leaderboard.board import Board, Contestant, Overall, Row, Table
from dphpo_bench.leaderboard.columns import (
    count_text,
    epsilon_text,
    estimate_text,
    mean_rank_text,
    ranks_text,
    rounded_number,
)

# As vl-convert names the version that Altair writes.
VEGA_LITE_VERSION = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
MOST = 12
MOST_PATHS = 3
MOST_SPLITS = 4
# A font that vl-convert brings along, so that the width of a text does not depend on the machine.
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"

# Letters that the font lacks would be measured, and drawn, by whatever font a machine has.
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


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        name: file stem of [a-z0-9_-], not used twice.
        title: a few words.
        description: what it shows, as alternative text.
        spec: Vega-Lite specification, without colours of text, axes and background; its subtitle says how to read it.
    """

    name: str
    title: str
    description: str
    spec: dict[str, Any]


def charts(board: Board) -> list[Chart]:
    """All charts that `board` has the data for."""
    with debug_mode(False):  # it validates each part of a chart when it is made
        return _charts(board)


def _charts(board: Board) -> list[Chart]:
    cast = _cast(board)
    settings: dict[str, list[Table]] = {}
    for table in board.tables:
        settings.setdefault(table.setting, []).append(table)
    drawn = [
        *(chart for overall in _distinct(board.overalls) for chart in _rank_intervals(overall, cast)),
        *(chart for setting, tables in settings.items() for chart in _accuracy(setting, tables, cast)),
        *(chart for setting, tables in settings.items() for chart in _cost(setting, tables, cast)),
        *_budget_split(board, cast),
        *(chart for setting, tables in settings.items() for chart in _paths(setting, tables, cast)),
    ]
    return list(_with_unique_names(drawn))


def config(ink: str, quiet: str, grid: str, background: str, font: str = FONT) -> dict[str, Any]:
    """How text, axes and background look: the part of a theme that is the same for all charts."""
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


def to_svg(chart: Chart) -> str:
    """The chart as SVG on white; the same bytes for the same chart.

    Raises:
        ValueError: the specification does not compile.
    """
    # No address is allowed: a chart brings its data along.
    svg: str = vl_convert.vegalite_to_svg(chart.spec, vl_version=VEGA_LITE_VERSION, config=LIGHT, allowed_base_urls=[])
    return svg


@dataclass(frozen=True)
class _Look:
    name: str
    color: str
    shape: str
    dash: list[int]


@dataclass(frozen=True)
class _Cast:
    """Everyone on the board, best first, by a name that nobody else has."""

    names: dict[Contestant, str]

    def looks(self, present: Iterable[Contestant], most: int = MOST) -> dict[Contestant, _Look]:
        """The best `most` of those present. The best of all keep their colours; the others take what is free."""
        present = set(present)
        ranked = [who for who in self.names if not who.reference]
        own = {who: number for number, who in enumerate(ranked[:MOST])}
        shown = [who for who in ranked if who in present][:most]
        free = (number for number in range(MOST) if number not in {own.get(who) for who in shown})
        numbers = {who: own[who] if who in own else next(free) for who in shown}
        looks = {who: _Look(self.names[who], COLORS[at], SHAPES[at], [1, 0]) for who, at in numbers.items()}
        references = [who for who in self.names if who.reference]
        for number, who in enumerate(references[: len(REFERENCE_DASHES)]):
            if who in present:
                looks[who] = _Look(self.names[who], REFERENCE_COLORS[number], "stroke", REFERENCE_DASHES[number])
        return looks


def _cast(board: Board) -> _Cast:
    groups: list[Iterable[Any]] = [(*one.rows, *one.incomplete, *one.references) for one in board.overalls]
    groups += [(*table.rows, *table.references) for table in board.tables]
    everyone = dict.fromkeys(row.contestant for group in groups for row in group)
    seen: Counter[str] = Counter()
    names = {}
    for who in everyone:
        name = _FOREIGN.sub(lambda found: ascii(found[0])[1:-1], who.label)
        seen[name] += 1
        names[who] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return _Cast(names)


def _with_unique_names(drawn: Iterable[Chart]) -> Iterator[Chart]:
    taken: set[str] = set()
    for chart in drawn:
        stem = re.sub("[^a-z0-9]+", "-", chart.name.lower()).strip("-")[:60].strip("-")
        name = next(name for number in range(1, len(taken) + 2) if (name := f"{stem}-{number}" if number > 1 else stem)
                    not in taken)  # fmt: skip
        taken.add(name)
        yield replace(chart, name=name)


def _distinct(overalls: Sequence[Overall]) -> Sequence[Overall]:
    """Without those that repeat the first, because there is one ε only."""
    return overalls[:1] if len(overalls) == 2 else overalls


def _chart(name: str, title: str, subtitle: str, description: str, drawing: Any) -> Chart:
    drawing = drawing.properties(title=alt.TitleParams(title, subtitle=subtitle), description=description)
    spec = drawing.to_dict(validate=False)  # tests do; it takes longer than all the rest
    del spec["config"]  # Altair's theme; ours is given when it is drawn
    return Chart(name, title, description, _rounded(spec))


def _rounded(node: Any) -> Any:
    """The specification without the last bits of its numbers, which differ between machines."""
    if isinstance(node, dict):
        return {key: _rounded(child) for key, child in node.items()}
    return [_rounded(child) for child in node] if isinstance(node, list) else rounded_number(node)


def _data(values: Sequence[dict[str, Any]]) -> Any:
    # Named, since Altair would give it a name of its own.
    return alt.InlineData(values=list(values), name="results")


def _by(field: str) -> Any:
    """Sorting by a field: a list of names would go into an expression."""
    return alt.EncodingSortField(field=field, op="min")


def _best(looks: dict[Contestant, _Look], present: Iterable[Contestant]) -> str:
    """That not all are shown, if so."""
    ranked = sum(not who.reference for who in set(present))
    shown = sum(not who.reference for who in looks)
    return "" if shown == ranked else f" The best {shown} of {ranked} contestants are shown."


def _scale(looks: dict[Contestant, _Look], channel: str) -> Any:
    return alt.Scale(
        domain=[look.name for look in looks.values()], range=[getattr(look, channel) for look in looks.values()]
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


def _everyone(tables: Sequence[Table]) -> list[Row]:
    return [row for table in tables for row in (*table.rows, *table.references)]


def _measurements(tables: Sequence[Table], looks: dict[Contestant, _Look]) -> list[dict[str, Any]]:
    """One value for each contestant and ε that has an accuracy."""
    return [
        {
            "contestant": looks[row.contestant].name,
            "reference": row.contestant.reference,
            "panel": f"ε = {table.epsilon:g}",
            "epsilon": table.epsilon,
            "accuracy": row.utility.mean,
            "low": row.utility.mean if row.utility.low is None else row.utility.low,
            "high": row.utility.mean if row.utility.high is None else row.utility.high,
            "interval": estimate_text(row.utility),
            "recomputed": epsilon_text(row.epsilon),
            "examples": row.examples,
            "cost": count_text(row.examples),
            "runs": count_text(row.runs),
            "seeds": row.seeds,
        }
        for table in tables
        for row in (*table.rows, *table.references)
        if row.contestant in looks and row.utility is not None
    ]


_MEASUREMENT_TOOLTIP = (
    alt.Tooltip("contestant:N", title="method"),
    alt.Tooltip("epsilon:Q", title="ε target"),
    alt.Tooltip("recomputed:N", title="ε recomputed"),
    alt.Tooltip("interval:N", title="accuracy, %"),
    alt.Tooltip("cost:N", title="examples"),
    alt.Tooltip("runs:N", title="runs"),
    alt.Tooltip("seeds:Q", title="seeds"),
)


def _accuracy_axis(values: Sequence[dict[str, Any]]) -> tuple[Any, str]:
    """An axis for all means, and of intervals as much as does not dwarf them; what is beyond is cut off in `values`.

    Returns:
        the axis, and a remark for readers if something is cut off.
    """
    means = [value["accuracy"] for value in values]
    room = max(0.02, 0.5 * (max(means) - min(means)))
    low = max(min(means) - room, min(value["low"] for value in values))
    high = min(max(means) + room, max(value["high"] for value in values))
    margin = 0.04 * (high - low) or 0.01
    low, high = max(0.0, low - margin), min(1.0, high + margin)
    outside = any(value["low"] < low or value["high"] > high for value in values if not value["reference"])
    cut = ", cut off at the frame" if outside else ""
    for value in values:
        # Not left to a clipping mask, whose number in an SVG depends on what was drawn before.
        value["low"], value["high"] = max(low, value["low"]), min(high, value["high"])
    axis = alt.Y(
        "accuracy:Q",
        title="test accuracy",
        axis=alt.Axis(format="~%", tickCount=6),
        scale=alt.Scale(domain=[low, high], zero=False, nice=False),
    )
    return axis, cut


def _log_ticks(values: Iterable[float], most: int = 4) -> list[float]:
    """Powers of ten within the values, with steps in between if there is room."""
    values = list(values)
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(ticks) <= most:
            return ticks or sorted({low, high})
    return ticks[:: math.ceil(len(ticks) / most)]


def _legend_selection() -> tuple[Any, Any]:
    """What a click in the legend selects, and the opacity by which the others step back."""
    pick = alt.selection_point(name="pick", fields=["contestant"], bind="legend")
    return pick, alt.when(pick).then(alt.value(1)).otherwise(alt.value(0.12))


def _identity(looks: dict[Contestant, _Look]) -> dict[str, Any]:
    """Colour, shape and dashes, which share one legend."""
    legend = alt.Legend(title=None, orient="right")
    return {
        "color": alt.Color("contestant:N", scale=_scale(looks, "color"), legend=legend),
        "shape": alt.Shape("contestant:N", scale=_scale(looks, "shape"), legend=legend),
        "strokeDash": alt.StrokeDash("contestant:N", scale=_scale(looks, "dash"), legend=legend),
    }


def _accuracy(setting: str, tables: Sequence[Table], cast: _Cast) -> Iterator[Chart]:
    present = [row.contestant for row in _everyone(tables) if row.utility is not None]
    looks = cast.looks(present)
    values = _measurements(tables, looks)
    if not values:
        return
    epsilons = sorted({table.epsilon for table in tables})
    # Side by side within two fifths of the way to the next ε, so that intervals do not hide one another.
    ratio = min((b / a for a, b in pairwise(epsilons)), default=2.0)
    places = [look.name for who, look in looks.items() if not who.reference]
    for value in values:
        offset = 0.0 if value["reference"] else places.index(value["contestant"]) / max(1, len(places) - 1) - 0.5
        value["x"] = value["epsilon"] * ratio ** (0.4 * offset)
    pick, faint = _legend_selection()
    identity = _identity(looks)
    y, cut = _accuracy_axis(values)
    x = alt.X(
        "x:Q",
        title="target ε (log scale)",
        axis=alt.Axis(values=epsilons, format="~g", grid=False),
        scale=alt.Scale(type="log", domain=[epsilons[0] * ratio**-0.35, epsilons[-1] * ratio**0.35], nice=False),
    )
    base = alt.Chart(_data(values)).encode(
        x=x, y=y, color=identity["color"], opacity=faint, tooltip=list(_MEASUREMENT_TOOLTIP)
    )
    drawing = alt.layer(
        # The selection is the first layer's, because Vega-Lite merges legends into that of the first.
        base.mark_line(strokeWidth=1.5)
        .encode(strokeDash=identity["strokeDash"])
        .add_params(pick)
        .properties(name="lines"),
        base.transform_filter("!datum.reference").mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q"), y2="high:Q"),
        # Where a reference has one ε only, there is no line to see.
        base.transform_filter("datum.reference").mark_point(size=160, strokeWidth=1.5).encode(shape=identity["shape"]),
        base.transform_filter("!datum.reference").mark_point(filled=True, size=70).encode(shape=identity["shape"]),
    ).properties(width=520, height=320)
    note = _best(looks, present)
    yield _chart(
        f"accuracy {setting}",
        f"Accuracy against ε, {setting}",
        f"Mean over seeds with 95 % interval{cut}. Dashed: references.{note}",
        f"Test accuracy of {len(looks)} contestants and references on {setting} "
        f"at ε = {', '.join(f'{epsilon:g}' for epsilon in epsilons)}, with 95 % intervals over seeds.{note}",
        drawing,
    )


def _cost(setting: str, tables: Sequence[Table], cast: _Cast) -> Iterator[Chart]:
    present = [row.contestant for row in _everyone(tables) if row.utility is not None]
    looks = cast.looks(present)
    values = [value for value in _measurements(tables, looks) if value["examples"] > 0]
    if not values:
        return
    pick, faint = _legend_selection()
    identity = _identity(looks)
    y, cut = _accuracy_axis(values)
    x = alt.X(
        "examples:Q",
        title="examples processed (log scale)",
        axis=alt.Axis(format=".2~s", values=_log_ticks(value["examples"] for value in values)),
        scale=alt.Scale(type="log", nice=False, padding=14),
    )
    base = alt.Chart().encode(color=identity["color"], opacity=faint, tooltip=list(_MEASUREMENT_TOOLTIP))
    contestants = base.transform_filter("!datum.reference")
    drawing = (
        alt.layer(
            base.transform_filter("datum.reference")
            .mark_rule(strokeWidth=1.5)
            .encode(y=y, strokeDash=identity["strokeDash"])
            .add_params(pick)
            .properties(name="lines"),
            contestants.mark_rule(strokeWidth=1.5).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
            contestants.mark_point(filled=True, size=70).encode(x=x, y=y, shape=identity["shape"]),
        )
        .properties(width=210, height=240)
        .facet(
            facet=alt.Facet("panel:N", title=None, sort=_by("epsilon")),
            columns=3,
            data=_data(values),
        )
    )
    note = _best(looks, present)
    yield _chart(
        f"cost {setting}",
        f"Accuracy against cost, {setting}",
        f"Mean over seeds with 95 % interval{cut}; cost in expectation. Dashed: accuracy of references.{note}",
        f"Test accuracy against the number of examples processed on {setting}, one panel for each ε. "
        f"References are horizontal lines.{note}",
        drawing,
    )


def _budget_split(board: Board, cast: _Cast) -> Iterator[Chart]:
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
            y=alt.Y("contestant:N", title=None, sort=_by("first")),
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
            column=alt.Column("panel:N", title=None, sort=_by("panel_order")),
            data=_data(values),
        )
    )  # fmt: skip
    note = _best(looks, present)
    yield _chart(
        "budget split",
        "Privacy budget: tuning and training",
        "Share of ε that finding hyperparameters takes, median over the tables." + note,
        "Share of ε spent on tuning, the rest on training, from the least to the most: "
        + "; ".join(f"{name} {100 * share:.0f} %" for name, share in order)
        + f".{note}",
        drawing,
    )


def _paths(setting: str, tables: Sequence[Table], cast: _Cast) -> Iterator[Chart]:
    present = [row.contestant for table in tables for row in table.rows if row.path]
    looks = cast.looks(present, MOST_PATHS)
    values: list[dict[str, Any]] = [
        {
            "contestant": looks[row.contestant].name,
            "epsilon": table.epsilon,
            "step": point.step,
            "learning_rate": point.learning_rate,
            "loss_bound": point.loss_bound,
        }
        for table in tables
        for row in table.rows
        if row.contestant in looks
        for point in row.path
        if 0 < point.learning_rate < math.inf
    ]
    if not values:
        return
    epsilons = sorted({value["epsilon"] for value in values})
    names = [look.name for look in looks.values()]
    base = alt.Chart().mark_line(interpolate="step-after", strokeWidth=1.5).encode(
        # The beginning, where most happens, is wide.
        x=alt.X("step:Q", title="step (square root scale)", scale=alt.Scale(type="sqrt"), axis=alt.Axis(tickCount=6)),
        color=alt.Color("epsilon:O", title="target ε", scale=alt.Scale(domain=epsilons, range=_ramp(len(epsilons)))),
        strokeDash=alt.StrokeDash(
            "contestant:N",
            title=None,
            scale=alt.Scale(domain=names, range=[[1, 0], *REFERENCE_DASHES][: len(names)]),
            legend=alt.Legend() if len(names) > 1 else None,
        ),
        tooltip=[
            alt.Tooltip("contestant:N", title="method"),
            alt.Tooltip("epsilon:Q", title="target ε"),
            alt.Tooltip("step:Q", title="step"),
            alt.Tooltip("learning_rate:Q", title="learning rate", format=".3g"),
            alt.Tooltip("loss_bound:Q", title="loss bound", format=".3g"),
        ],
    ).properties(width=300, height=240)  # fmt: skip
    scale = alt.Scale(type="log", nice=False)
    ticks = _log_ticks((value["learning_rate"] for value in values), most=6)
    panels = [base.encode(y=alt.Y("learning_rate:Q", title="learning rate (log scale)", scale=scale,
                                  axis=alt.Axis(format="~g", values=ticks)))]  # fmt: skip
    bounds = {value["loss_bound"] for value in values if value["loss_bound"] is not None}
    if len(bounds) > 1:
        bounded = base.transform_filter("isValid(datum.loss_bound)")
        panels.append(bounded.encode(y=alt.Y("loss_bound:Q", title="bound on the losses")))
    constant = f" The bound on the losses stays at {min(bounds):g}." if len(bounds) == 1 else ""
    note = _best(looks, present)
    who = names[0] if len(names) == 1 else f"{len(names)} contestants"
    yield _chart(
        f"paths {setting}",
        f"Learning rate while training, {setting}",
        f"{who}, one run at each ε: what it released on its way.{constant}{note}",
        f"Learning rate and bound on the losses over the steps of training on {setting} "
        f"at ε = {', '.join(f'{epsilon:g}' for epsilon in epsilons)}, as released by {', '.join(names)}."
        f"{constant}{note}",
        alt.hconcat(*panels, data=_data(values), spacing=36),
    )


def _ramp(count: int) -> list[str]:
    """`count` colours from small ε to large."""
    return [RAMP[round(at * (len(RAMP) - 1) / max(1, count - 1))] for at in range(count)]
