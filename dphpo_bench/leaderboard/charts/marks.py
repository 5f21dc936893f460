"""Marks on an axis: ticks, upright lines, a mean with its interval. Places are percents, so that they stretch."""

from collections.abc import Sequence

from markupsafe import Markup

from dphpo_bench.leaderboard.board import Estimate
from dphpo_bench.leaderboard.charts.scales import Axis


def tick(axis: Axis, value: float, name: str) -> Markup:
    """Return the words above a place; those at an edge stay inside."""
    at = axis.at(value)
    anchor = "start" if at < 3 else "end" if at > 97 else "middle"
    return Markup('<text x="{}%" y="30" text-anchor="{}" class="tick">{}</text>').format(at, anchor, name)


def upright(at: float, kind: str) -> Markup:
    """Return a line from top to bottom."""
    return Markup('<line class="{}" x1="{}%" x2="{}%" y2="100%"/>').format(kind, at, at)


def strokes(places: Sequence[float], kind: str) -> Markup:
    """Return short upright lines: one mark, since a page has thousands. It is stretched, its lines are not."""
    if not places:
        return Markup("")
    drawing = "".join(f"M{at} 1v2" for at in places)
    return Markup('<svg viewBox="0 0 100 4" preserveAspectRatio="none"><path class="{}" d="{}"/></svg>').format(
        kind, drawing
    )


def interval(axis: Axis, estimate: Estimate, kind: str) -> Markup:
    """Return the interval as a line, with an arrow where the axis cuts it off, and the mean as a dot or a square."""
    marks = []
    if estimate.low is not None and estimate.high is not None:
        ends = axis.at(estimate.low), axis.at(estimate.high)
        marks.append(Markup('<line class="interval {}" x1="{}%" x2="{}%" y1="50%" y2="50%"/>').format(kind, *ends))
        for end, at, arrow in zip((estimate.low, estimate.high), ends, "‹›", strict=True):
            if not axis.holds(end):
                marks.append(
                    Markup('<text class="cut" x="{}%" y="50%" dy="0.35em" text-anchor="middle">{}</text>').format(
                        at, arrow
                    )
                )
    at = axis.at(estimate.mean)
    if kind == "worse":
        dot = Markup('<rect class="dot {}" x="{}%" y="50%" width="8" height="8" transform="translate(-4 -4)"/>')
    else:
        dot = Markup('<circle class="dot {}" cx="{}%" cy="50%" r="4"/>')
    return Markup("").join([*marks, dot.format(kind, at)])
