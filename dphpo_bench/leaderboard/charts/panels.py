"""Forest plots side by side on one axis: a row for each name, in each panel its mean and its interval."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from dphpo_bench.leaderboard.charts import frame
from dphpo_bench.leaderboard.charts.frame import Axis, interval, tick, ticks, upright
from dphpo_bench.records.estimates import Estimate

NAMES, GAP, ROW, TOP = 190, 24, 20, 108


@dataclass(frozen=True)
class Panel:
    title: str
    estimates: Mapping[str, Estimate]
    line: float | None = None


def to_svg(
    panels: Sequence[Panel],
    kinds: Mapping[str, str],
    axis: Axis,
    *,
    title: str,
    note: str,
    form: Callable[[float], str] = "{:g}".format,
    values: Sequence[float] = (),
    width: int = 860,
) -> str:
    """Return the plots as a file; the keys of `kinds` are rows, their values "", "better", "worse", "alike" or
    "reference".
    """
    each = (width - NAMES - GAP * len(panels)) // len(panels)
    values = values or ticks(axis, max(3, each // 40))
    rows = [
        frame.text(12, TOP + ROW * at + 14, name, kind if kind == "reference" else "")
        for at, (name, kind) in enumerate(kinds.items())
    ]
    parts = [part for at, panel in enumerate(panels) for part in _panel(panel, at, each, kinds, axis, form, values)]
    description = f"{title}. {len(panels)} panels: {', '.join(panel.title for panel in panels)}. {note}"
    return frame.document(width, TOP + ROW * len(kinds) + 12, title, note, description, [*rows, *parts])


def _panel(
    panel: Panel,
    at: int,
    width: int,
    kinds: Mapping[str, str],
    axis: Axis,
    form: Callable[[float], str],
    values: Sequence[float],
) -> Iterator[Markup]:
    x = NAMES + at * (width + GAP)
    yield frame.text(x, 70, panel.title, "name")
    names = Markup("").join(tick(axis, value, form(value).replace("-", "−")) for value in values)
    yield frame.place(x, 70, width, 34, names)
    lines = [upright(axis.at(value), "grid") for value in values]
    if axis.low < 0 < axis.high:
        lines.append(upright(axis.at(0.0), "zero"))
    if panel.line is not None:
        lines.append(upright(axis.at(panel.line), "untuned"))
    yield frame.place(x, TOP, width, ROW * len(kinds), Markup("").join(lines))
    for row, (name, kind) in enumerate(kinds.items()):
        if name in panel.estimates:
            yield frame.place(x, TOP + ROW * row, width, ROW, interval(axis, panel.estimates[name], kind))
