"""What all charts share: data, scales, the drawing."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import vl_convert

from dphpo_bench.leaderboard.board import Contestant, Row, Table
from dphpo_bench.leaderboard.charts.looks import LIGHT, _Look
from dphpo_bench.leaderboard.columns import (
    rounded_number,
)

# As vl-convert names the version that Altair writes.
VEGA_LITE_VERSION = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
MOST_PATHS = 3
MOST_SPLITS = 4


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


def to_svg(chart: Chart) -> str:
    """The chart as SVG on white; the same bytes for the same chart.

    Raises:
        ValueError: the specification does not compile.
    """
    # No address is allowed: a chart brings its data along.
    svg: str = vl_convert.vegalite_to_svg(chart.spec, vl_version=VEGA_LITE_VERSION, config=LIGHT, allowed_base_urls=[])
    return svg


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


def _everyone(tables: Sequence[Table]) -> list[Row]:
    return [row for table in tables for row in (*table.rows, *table.references)]


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
