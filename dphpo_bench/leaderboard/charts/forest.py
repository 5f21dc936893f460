"""The forest plot of an answer: distances to the oracle with their intervals, and the cost beside them."""

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from dphpo_bench.leaderboard.answers import Answer, Place
from dphpo_bench.leaderboard.charts import frame
from dphpo_bench.leaderboard.charts.frame import (
    Axis,
    estimates_axis,
    interval,
    log_axis,
    log_ticks,
    strokes,
    tick,
    ticks,
    upright,
)
from dphpo_bench.leaderboard.sentences import about_intervals, point_text, sentences
from dphpo_bench.records.estimates import change_text, interval_text

WIDTH, NAMES, PLOT, NUMBERS, ROW = 860, 190, 330, 190, 20
KINDS = {1: "better", 0: "alike", -1: "worse"}


@dataclass(frozen=True)
class Forest:
    """The marks of an answer, row by row; `untuned` is where the line of untuned `auto_clipping` stands."""

    answer: Answer
    lead: Axis
    calibration: Axis | None
    cost: Axis | None
    untuned: float | None

    @classmethod
    def of(cls, answer: Answer) -> "Forest":
        calibrations = [place.calibration for place in answer.everyone if place.calibration]
        costs = [place.cost for place in answer.everyone if place.cost]
        untuned = [place.lead.mean for place in answer.places if place.contestant.label == "auto_clipping"]
        return cls(
            answer,
            estimates_axis(
                [place.lead for place in answer.everyone],
                0.0,
                *(part.value for place in answer.everyone for part in place.parts),
            ),
            estimates_axis(calibrations, 0.0, start=4, end=96) if calibrations else None,
            log_axis([1.0, *costs]) if costs else None,
            untuned[0] if len(untuned) == 1 else None,
        )

    def scale(self) -> Markup:
        unit = 100 if self.answer.measure.share else 1
        marks = [tick(self.lead, value, f"{unit * value:g}".replace("-", "−")) for value in _values(self.lead)]
        # The line of the untuned is usually left of the oracle's: their names point away from each other.
        before = self.untuned is None or self.untuned <= 0
        names = [(0.0, self.answer.anchor.removeprefix("the "), "start" if before else "end", "oracle")]
        if self.untuned is not None:
            names.append((self.untuned, "untuned", "end" if before else "start", "untuned"))
        for value, name, anchor, kind in names:
            marks.append(
                Markup('<text x="{}%" y="13" text-anchor="{}" class="{}">{}</text>').format(
                    self.lead.at(value), anchor, kind, name
                )
            )
        return Markup("").join(marks)

    def lines(self) -> Markup:
        values = [(value, "grid") for value in _values(self.lead)]
        values += [(self.untuned, "untuned")] if self.untuned is not None else []
        return Markup("").join(upright(self.lead.at(value), kind) for value, kind in (*values, (0.0, "zero")))

    def row(self, place: Place) -> Markup:
        parts = [self.lead.at(part.value) for part in place.parts] if len(place.parts) > 1 else []
        kind = "reference" if place.contestant.reference else KINDS[place.untuned]
        return strokes(parts, "part") + interval(self.lead, place.lead, kind)

    def calibration_scale(self) -> Markup:
        return tick(self.calibration, 0.0, "0") if self.calibration else Markup("")

    def places(self) -> str:
        """Return, for style sheets, where the lines of cost and cross entropy begin: a page has thousands of them."""
        axes = {"from": (self.cost, 1.0), "zero": (self.calibration, 0.0)}
        return ";".join(f"--{name}:{_share(axis, value)}" for name, (axis, value) in axes.items() if axis)

    def calibration_places(self, place: Place) -> str:
        """Return the places of one row's cross entropy for style sheets: its mean, and its interval if there is one."""
        if self.calibration is None or place.calibration is None:
            return ""
        estimate = place.calibration
        values = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
        return ";".join(
            f"--{name}:{_share(self.calibration, value)}" for name, value in values.items() if value is not None
        )

    def calibration_cut(self, place: Place) -> str:
        """Return the ends that the axis cuts off: "low", "high", both, or neither."""
        if self.calibration is None or place.calibration is None:
            return ""
        ends = {"low": place.calibration.low, "high": place.calibration.high}
        return " ".join(name for name, end in ends.items() if end is not None and not self.calibration.holds(end))

    def cost_place(self, place: Place) -> str:
        return f"--mean:{_share(self.cost, place.cost)}" if self.cost and place.cost else ""

    def cost_scale(self) -> Markup:
        if self.cost is None:
            return Markup("")
        return Markup("").join(tick(self.cost, cost, f"{cost:g}") for cost in log_ticks(self.cost, 4))

    def cost_row(self, place: Place) -> Markup:
        if self.cost is None or not place.cost:
            return Markup("")
        line = Markup('<line class="cost" x1="{}%" x2="{}%" y1="50%" y2="50%"/>')
        dot = Markup('<circle class="cost" cx="{}%" cy="50%" r="3.5"/>').format(self.cost.at(place.cost))
        return line.format(self.cost.at(1.0), self.cost.at(place.cost)) + dot

    def worst(self, place: Place) -> str:
        """Return the part on which it did worst, such as "−5.1 seed 3"."""
        if len(place.parts) < 2:
            return ""
        return f"{change_text(place.parts[-1].value, self.answer.measure)} {place.parts[-1].name}"

    def number(self, place: Place) -> str:
        return change_text(place.lead.mean, self.answer.measure)

    def half(self, place: Place) -> str:
        """Return the interval over seeds, with these tasks and test records."""
        return interval_text(place.lead, self.answer.measure)

    def tasks_half(self, place: Place) -> str:
        """Return the interval over tasks, such as "± 0.4"; empty for a single one."""
        return interval_text(place.over_tasks, self.answer.measure)

    @property
    def unit(self) -> str:
        measure = self.answer.measure
        return f"{measure.title}, {measure.unit or 'difference'} from"


def cross_entropy_text(place: Place) -> str:
    return f"{place.cross_entropy.mean:.2f}" if place.cross_entropy else ""


def cost_text(place: Place) -> str:
    return f"{place.cost:,.{1 if place.cost < 10 else 0}f} ×" if place.cost else "–"


def to_svg(answer: Answer) -> str:
    forest = Forest.of(answer)
    costs = NAMES + PLOT + NUMBERS
    heads = [
        frame.place(NAMES, 56, PLOT, 34, forest.scale()),
        frame.text(NAMES + PLOT + 14, 86, "mean, seeds; tasks", "note"),
        frame.text(costs, 68, "cost, untuned runs", "note"),
        frame.place(costs, 56, WIDTH - costs - 12, 34, forest.cost_scale()),
    ]
    rows = [part for at, place in enumerate(answer.everyone) for part in _file_row(forest, place, 92 + ROW * at)]
    note = (
        f"{forest.unit} {answer.anchor}, right is better. Against untuned: filled better, hollow undecided, square "
        "worse."
    )
    legend = [
        f"Bold: within {point_text(answer)} of the first. Grey: too uncertain to say. Else: behind.",
        f"{about_intervals(answer).capitalize()}.",
    ]
    bottom = 92 + ROW * len(answer.everyone)
    below = [frame.text(12, bottom + 14 + 16 * at, line, "note", most=200) for at, line in enumerate(legend)]
    title = f"Distance to {answer.anchor}: {answer.title}"
    return frame.document(
        WIDTH, bottom + 40, title, note, " ".join(sentences(answer)),
        [*heads, *rows, *below],
    )  # fmt: skip


def _file_row(forest: Forest, place: Place, y: int) -> Iterator[Markup]:
    kind = "reference" if place.contestant.reference else place.standing
    yield frame.text(12, y + 14, place.contestant.label, kind)
    yield frame.place(NAMES, y, PLOT, ROW, forest.lines() + forest.row(place))
    tasks = f"; {forest.tasks_half(place)}" if place.over_tasks else ""
    yield frame.text(NAMES + PLOT + 10, y + 14, f"{forest.number(place)} {forest.half(place)}{tasks}", most=40)
    costs = NAMES + PLOT + NUMBERS
    yield frame.place(costs, y, WIDTH - costs - 12, ROW, forest.cost_row(place))


def _share(axis: Axis, value: float) -> str:
    return f"{axis.at(value) / 100:.3f}".removeprefix("0")


def _values(axis: Axis) -> list[float]:
    return ticks(axis, 5)  # more would touch one another on a phone
