"""The parts that all charts share: data, scales, the drawing."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import vl_convert

from dphpo_bench.leaderboard.board import Contestant
from dphpo_bench.leaderboard.charts.looks import LIGHT, Look
from dphpo_bench.leaderboard.columns import rounded_number

# The version that Altair writes, as vl-convert names it.
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
        kind: "ranks", "metric", "cost", "budget" or "paths".
        subject: the title of an overall standing, or the setting, that it is about.
    """

    name: str
    title: str
    description: str
    spec: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    subject: str = ""


def to_svg(chart: Chart) -> str:
    """The chart as SVG on white; the same bytes for the same chart.

    Raises:
        ValueError: if the specification does not compile.
    """
    # No address is allowed: charts contain their data.
    svg: str = vl_convert.vegalite_to_svg(chart.spec, vl_version=VEGA_LITE_VERSION, config=LIGHT, allowed_base_urls=[])
    return svg


def make_chart(drawing: Any, subtitle: str, *, name: str, title: str, description: str, **of_chart: str) -> Chart:
    """The chart of an Altair drawing, whose subtitle says how to read it."""
    shown = drawing.properties(title=alt.TitleParams(title, subtitle=subtitle), description=description)
    spec = shown.to_dict(validate=False)  # validation is slow, and tests do it
    del spec["config"]  # Altair's theme; ours is added when it is drawn
    return Chart(name, title, description, _rounded(spec), **of_chart)


def _rounded(node: Any) -> Any:
    """The specification without the last bits of its numbers, which differ between machines."""
    if isinstance(node, dict):
        return {key: _rounded(child) for key, child in node.items()}
    return [_rounded(child) for child in node] if isinstance(node, list) else rounded_number(node)


def inline_data(values: Sequence[dict[str, Any]]) -> Any:
    """The data of a chart, with a name, since Altair would make one up."""
    return alt.InlineData(values=list(values), name="results")


def sorted_by(field: str) -> Any:
    """Sorting by a field, because a list of names would go into an expression."""
    return alt.EncodingSortField(field=field, op="min")


def best_note(looks: dict[Contestant, Look], present: Iterable[Contestant]) -> str:
    """A remark if not all contestants are shown."""
    ranked = sum(not who.reference for who in set(present))
    shown = sum(not who.reference for who in looks)
    return "" if shown == ranked else f" The best {shown} of {ranked} contestants are shown."


def scale_of(looks: dict[Contestant, Look], channel: str) -> Any:
    """The scale from contestants to their "color", "shape" or "dash"."""
    return alt.Scale(
        domain=[look.name for look in looks.values()], range=[getattr(look, channel) for look in looks.values()]
    )


def log_ticks(values: Iterable[float], most: int = 4) -> list[float]:
    """The powers of ten in the range of the values, with steps in between if there is room."""
    values = list(values)
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(ticks) <= most:
            return ticks or sorted({low, high})
    return ticks[:: math.ceil(len(ticks) / most)]
