"""Small pictures side by side, one for each contestant: the metric against ε, and what it released."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from markupsafe import Markup

from dphpo_bench.leaderboard.charts import frame
from dphpo_bench.leaderboard.charts.frame import Axis, estimates_axis, log_axis, log_ticks, ticks
from dphpo_bench.leaderboard.rows import Table
from dphpo_bench.leaderboard.values import Contestant, PathPoint
from dphpo_bench.records.estimates import Estimate
from dphpo_bench.records.measure import Measure

WIDTH = 860
TOP, BOTTOM = 6.0, 84.0
"""Between these percents of the height lies the metric, above the names of the ε."""


@dataclass(frozen=True)
class SmallPicture:
    """A small picture: whose, its marks in percents of its width and height, and what all of a figure have behind."""

    contestant: Contestant
    marks: Markup
    behind: Markup = field(default_factory=Markup)


def metric_panels(tables: Sequence[Table]) -> list[SmallPicture]:
    """Return the metric of each contestant against ε, best mean first, with the oracle's line; several ε only."""
    measure = tables[0].measure
    utilities: defaultdict[Contestant, dict[float, Estimate]] = defaultdict(dict)
    for table in tables:
        for row in table.everyone:
            if row.utility:
                utilities[row.contestant][table.epsilon] = _possible(row.utility, measure)
    epsilons = sorted({epsilon for by_epsilon in utilities.values() for epsilon in by_epsilon})
    if len(epsilons) < 2:
        return []
    methods = {who: values for who, values in utilities.items() if not who.reference}
    oracle = next((utilities[who] for table in tables if (who := table.oracle) and who in utilities), {})
    if not methods:
        return []
    shown = estimates_axis(
        [estimate.through(measure.score) for values in methods.values() for estimate in values.values()],
        *(measure.score(estimate.mean) for estimate in oracle.values()),
    )
    low, high = sorted((measure.value(shown.low), measure.value(shown.high)))
    y = Axis(low, high, math.log if measure.logarithmic else float, start=BOTTOM, end=TOP)
    x = log_axis(epsilons, 20, 88)

    def best_first(who: Contestant) -> tuple[int, float, str]:
        mean = sum(estimate.mean for estimate in methods[who].values()) / len(methods[who])
        return -len(methods[who]), -mean if measure.higher_is_better else mean, who.label

    behind = _grid(y, measure) + _line(x, y, oracle, "oracle") + _names(x, epsilons)
    return [
        SmallPicture(who, _line(x, y, methods[who], "own", measure), behind) for who in sorted(methods, key=best_first)
    ]


def _possible(estimate: Estimate, measure: Measure) -> Estimate:
    """Return the estimate, whose interval ends where values do: 0 and 1 of a share, 1 of a perplexity."""
    if estimate.low is None or estimate.high is None or not (measure.share or measure.logarithmic):
        return estimate
    least, most = (0.0, 1.0) if measure.share else (1.0, math.inf)
    return replace(estimate, low=max(estimate.low, least), high=min(estimate.high, most))


def path_panels(tables: Sequence[Table]) -> list[SmallPicture]:
    paths: defaultdict[Contestant, dict[float, list[PathPoint]]] = defaultdict(dict)
    for table in tables:
        for row in table.rows:
            points = [point for point in row.path if 0 < point.learning_rate < math.inf]
            if points:
                paths[row.contestant][table.epsilon] = points
    everything = [point for by_epsilon in paths.values() for points in by_epsilon.values() for point in points]
    if not everything:
        return []
    y = log_axis([point.learning_rate for point in everything], 88, 8)
    # The beginning, where most happens, is wide.
    x = Axis(0, max(point.step for point in everything) + 1, math.sqrt, 16, 84)
    epsilons = sorted({epsilon for by_epsilon in paths.values() for epsilon in by_epsilon})
    return [SmallPicture(who, _rates(by_epsilon, epsilons, x, y)) for who, by_epsilon in paths.items()]


def to_svg(panels: Sequence[SmallPicture], columns: int, each: int, title: str, note: str, description: str) -> str:
    step = (WIDTH - 12) / columns
    parts = []
    for number, panel in enumerate(panels):
        x, y = 12 + step * (number % columns), 56 + each * (number // columns)
        parts.append(frame.text(round(x, 1), y + 14, panel.contestant.label, "name", 20))
        parts.append(frame.place(round(x, 1), y + 20, round(step - 12, 1), each - 30, panel.behind + panel.marks))
    height = 56 + each * math.ceil(len(panels) / columns) + 6
    return frame.document(WIDTH, height, title, note, description, parts)


def _grid(y: Axis, measure: Measure) -> Markup:
    marks = []
    for value in log_ticks(y, 4) if measure.logarithmic else ticks(y, 4):
        at = y.at(value)
        name = f"{100 * value:g}" if measure.share else f"{value:g}"
        marks.append(Markup('<line class="grid" x1="14%" x2="100%" y1="{}%" y2="{}%"/>').format(at, at))
        marks.append(_text(12, at, name, "tick", "end"))
    return Markup("").join(marks)


def _names(x: Axis, epsilons: Iterable[float]) -> Markup:
    return Markup("").join(_text(x.at(epsilon), 94, f"{epsilon:g}", "tick") for epsilon in epsilons)


def _line(x: Axis, y: Axis, values: dict[float, Estimate], kind: str, measure: Measure | None = None) -> Markup:
    places = [(x.at(epsilon), y.at(estimate.mean), estimate) for epsilon, estimate in sorted(values.items())]
    marks = [
        Markup('<line class="{}" x1="{}%" y1="{}%" x2="{}%" y2="{}%"/>').format(kind, *a[:2], *b[:2])
        for a, b in pairwise(places)
    ]
    for at, mean, estimate in places if measure else ():
        if estimate.low is not None and estimate.high is not None:
            ends = y.at(estimate.low), y.at(estimate.high)
            marks.append(Markup('<line class="interval" x1="{}%" x2="{}%" y1="{}%" y2="{}%"/>').format(at, at, *ends))
        marks.append(Markup('<circle class="own" cx="{}%" cy="{}%" r="2.5"/>').format(at, mean))
    return Markup("").join(marks)


def _rates(by_epsilon: dict[float, list[PathPoint]], epsilons: Sequence[float], x: Axis, y: Axis) -> Markup:
    marks = [_text(14, y.at(point), f"{point:g}".replace("e-0", "e-"), "tick", "end") for point in log_ticks(y, 5)]
    marks += [_text(at, 98, name, "tick") for at, name in ((16, "0"), (84, f"{x.high - 1:,.0f} steps"))]
    ends: list[tuple[float, str, str]] = []
    for epsilon, points in by_epsilon.items():
        steps = [f"{x.at(point.step)},{y.at(a.learning_rate)}" for a, b in pairwise(points) for point in (a, b)]
        shade = f"shade{1 + round(3 * epsilons.index(epsilon) / max(1, len(epsilons) - 1))}"
        # Stretched to the picture, so that places are percents here, too; the width of the line is not.
        marks.append(
            Markup(
                '<svg viewBox="0 0 100 100" preserveAspectRatio="none" overflow="visible">'
                '<polyline class="path {}" points="{}"/></svg>'
            ).format(shade, " ".join(steps))
        )
        ends.append((y.at(points[-1].learning_rate), f"ε = {epsilon:g}", shade))
    ends.sort()
    places = _apart([at for at, _, _ in ends])
    marks += [_text(86, at, name, f"tick {shade}", "start") for at, (_, name, shade) in zip(places, ends, strict=True)]
    return Markup("").join(marks)


def _apart(places: Iterable[float], least: float = 10.0, last: float = 92.0) -> list[float]:
    """Return ascending places, each at least so far from the one before, and none below the last."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + least) if moved else place)
    return [round(place - max(0.0, moved[-1] - last), 1) for place in moved]


def _text(x: float, y: float, words: str, kind: str, anchor: str = "middle") -> Markup:
    mark = Markup('<text class="{}" x="{}%" y="{}%" dy="0.35em" text-anchor="{}">{}</text>')
    return mark.format(kind, x, y, anchor, words)
