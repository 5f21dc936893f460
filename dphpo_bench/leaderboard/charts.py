"""All pictures of a board: distances to the oracle, and small pictures of each method on a task and model."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from dphpo_bench.leaderboard.answers import Answer
from dphpo_bench.leaderboard.entries import Entry
from dphpo_bench.leaderboard.sentences import (
    about_intervals,
    first_answers,
    headline,
    middle_answer,
    point_text,
    sentences,
)
from dphpo_bench.leaderboard.submissions import PathPoint
from dphpo_bench.leaderboard.tables import Board, Table
from dphpo_bench.records.charts import (
    DASHED,
    MARK,
    QUIET,
    WIDTH,
    Axis,
    Group,
    Panel,
    drawn,
    estimates_axis,
    forest,
    log_axis,
    shortened,
)
from dphpo_bench.records.measure import Estimate, change_text, interval_text

KINDS = {1: "better", 0: "undecided", -1: "worse"}
STYLES = {"equivalent": "bold", "uncertain": "quiet"}
DASHES = ((), (8, 3), (4, 3), (1, 3))
TOP, LEFT = 56, 44


@dataclass(frozen=True)
class Chart:
    """A picture.

    Attributes:
        name: the stem of its file.
        kind: "nearest", "answer", "metric" or "paths".
        subject: that of an answer, else the task and model.
        in_file: whether it has a file; the other answers are on the page only.
    """

    name: str
    title: str
    description: str
    svg: str
    kind: str
    subject: str
    in_file: bool = True


def charts(board: Board) -> list[Chart]:
    """Return the pictures of the answers over several tasks and models, and those of each task and model."""
    first = first_answers(board)
    several = [answer for answer in board.answers if answer in first or len(answer.task_models) > 1]
    middle = middle_answer(board)
    pictures = [replace(_answer(answer), in_file=answer in first) for answer in several]
    for task_model, tables in task_models_of(board):
        pictures += filter(None, (_metric(task_model, tables), _paths(task_model, tables)))
    pictures += [_nearest(middle)] if middle else []
    names = file_stems(f"{chart.name} {'' if chart.in_file else chart.subject}" for chart in pictures)
    return [replace(chart, name=name) for chart, name in zip(pictures, names, strict=True)]


def task_models_of(board: Board) -> list[tuple[str, list[Table]]]:
    return [(name, list(tables)) for name, tables in groupby(board.tables, key=lambda table: table.task_model)]


def file_stems(names: Iterable[str]) -> Iterator[str]:
    """Yield a stem of a file name for each name: plain, short, and different from all before."""
    taken: set[str] = set()
    for name in names:
        stem = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:60].strip("-") or "unnamed"
        new = next(new for number in range(1, len(taken) + 2) if (new := f"{stem}-{number}" if number > 1 else stem)
                   not in taken)  # fmt: skip
        taken.add(new)
        yield new


def _answer(answer: Answer) -> Chart:
    """Draw distances to the anchor with their intervals; beside them costs and cross entropies."""
    measure, everyone = answer.measure, answer.everyone
    unit = 100 if measure.share else 1
    leads = {place.entry.label: place.lead.through(lambda value: unit * value) for place in everyone}
    parts, texts = {}, {}
    for place in everyone:
        if len(place.parts) > 1:
            parts[place.entry.label] = [unit * part.value for part in place.parts]
        tasks = f"; {interval_text(place.over_tasks, measure)}" if place.over_tasks else ""
        seeds = f"{change_text(place.lead.mean, measure)} {interval_text(place.lead, measure)}"
        texts[place.entry.label] = seeds + tasks
    axis = estimates_axis(leads.values(), 0.0, *(value for values in parts.values() for value in values))
    title = f"{measure.title}, {measure.unit or 'difference'} from {answer.anchor}"
    panels = [Panel(title, leads, axis, leads["auto_clipping"].mean if "auto_clipping" in leads else None, parts, texts,
                    space=190, share=2.5)]  # fmt: skip
    costs = {place.entry.label: place.cost for place in everyone if place.cost}
    if costs:
        lines = {label: Estimate(cost, min(1.0, cost), max(1.0, cost)) for label, cost in costs.items()}
        panels.append(Panel("cost, untuned runs", lines, log_axis([1.0, *costs.values()]), colour=MARK))
    calibrations = {place.entry.label: place.calibration for place in everyone if place.calibration}
    if calibrations:
        panels.append(Panel("cross entropy", calibrations, estimates_axis(calibrations.values(), 0.0)))
    svg = forest(
        panels,
        {place.entry.label: "reference" if place.entry.reference else KINDS[place.untuned]
         for place in everyone},
        title=f"Distance to {answer.anchor}: {answer.title}",
        note="Right is better. Against untuned (dashed): filled better, hollow undecided, square worse. Strokes: "
        f"{'seeds' if answer.tables == 1 else 'tables'}. Texts: mean, interval over seeds; over tasks.",
        description=(description := f"Forest plot of distances to {answer.anchor}. {' '.join(sentences(answer))}"),
        styles={place.entry.label: STYLES.get(place.verdict, "") for place in answer.places},
        below=[
            f"Bold: within {point_text(answer)} of the first. Grey: too uncertain to say. Else: behind.",
            f"{about_intervals(answer).capitalize()}.",
        ],
    )  # fmt: skip
    at = "all" if answer.epsilon is None else f"epsilon {answer.epsilon:g}"
    return Chart(f"answer {at}", answer.title, description, svg, "answer", answer.subject)


NEAREST = 8


def _nearest(answer: Answer) -> Chart:
    """Draw the first methods of an answer, with their intervals over tasks, or over seeds if it has one task."""
    places = answer.places[:NEAREST]
    unit = 100 if answer.measure.share else 1
    intervals = {place.entry.label: place.over_tasks or place.lead for place in places}
    values = {label: each.through(lambda value: unit * value) for label, each in intervals.items()}
    axis = estimates_axis(values.values(), 0.0)
    texts = {place.entry.label: change_text(place.lead.mean, answer.measure) for place in places}
    title = f"{answer.measure.unit or 'difference'} from {answer.anchor}"
    svg = forest(
        [Panel(title, values, axis, 0.0, texts=texts, space=60)],
        {place.entry.label: "" for place in places},
        title=f"The nearest to {answer.anchor}",
        note=f"Lines: 95 % intervals over {'tasks' if places[0].over_tasks else 'seeds'}. Grey: too uncertain to say.",
        description=headline(answer),
        width=430,
        styles={place.entry.label: STYLES.get(place.verdict, "") for place in places},
    )
    return Chart("nearest", answer.title, headline(answer), svg, "nearest", "nearest", in_file=False)


def _metric(task_model: str, tables: Sequence[Table]) -> Chart | None:
    """Draw the metric of each method against ε, best mean first, with the oracle's line; None for a single ε."""
    measure = tables[0].measure
    utilities: defaultdict[Entry, dict[float, Estimate]] = defaultdict(dict)
    for table in tables:
        for row in table.everyone:
            if row.utility:
                utilities[row.entry][table.epsilon] = row.utility.inside(*measure.range)
    epsilons = sorted({epsilon for by_epsilon in utilities.values() for epsilon in by_epsilon})
    methods = {who: values for who, values in utilities.items() if not who.reference}
    if len(epsilons) < 2 or not methods:
        return None
    oracle = next((utilities[who] for table in tables if (who := table.oracle) and who in utilities), {})
    shown = estimates_axis(
        [estimate.through(measure.score) for values in methods.values() for estimate in values.values()],
        *(measure.score(estimate.mean) for estimate in oracle.values()),
    )
    unit = 100 if measure.share else 1
    low, high = sorted((unit * measure.value(shown.low), unit * measure.value(shown.high)))
    y, x = Axis(low, high, log=measure.logarithmic), log_axis(epsilons, epsilons)

    def best_first(who: Entry) -> tuple[int, float, str]:
        mean = sum(estimate.mean for estimate in methods[who].values()) / len(methods[who])
        return -len(methods[who]), -mean if measure.higher_is_better else mean, who.label

    def draw(group: Group, who: Entry) -> None:
        for values, colour, dash in ((oracle, QUIET, DASHED), (methods[who], MARK, ())):
            line = [{"x": epsilon, "y": unit * estimate.mean} for epsilon, estimate in sorted(values.items())]
            group.stroke("line", line, colour, 1.5, dash, x="x.x", y="y.y")
        ends = [
            {"x": epsilon, "low": y.inside(unit * each.low), "high": y.inside(unit * each.high)}
            for epsilon, each in methods[who].items()
            if each.low is not None and each.high is not None
        ]
        group.stroke("rule", ends, MARK, 2, x="x.x", y="y.low", y2="y.high")
        group.stroke("symbol", line, MARK, x="x.x", y="y.y", size=20, fill={"value": MARK})

    title = f"{measure.title[:1].upper()}{measure.title[1:]} against ε: {task_model}"
    scale = ", logarithmic" if measure.logarithmic else ""
    dashed = "dashed: the oracle; " if oracle else ""
    note = f"{measure.header}{scale}; mean over seeds and 95 % interval, best mean first; {dashed}ε below."
    name, order = f"{measure.name} {task_model}", sorted(methods, key=best_first)
    return _small_pictures(name, "metric", task_model, title, note, order, 5, 132, 16, x, y, draw)


def _paths(task_model: str, tables: Sequence[Table]) -> Chart | None:
    """Draw the learning rates that one run of each method at each ε released; None without any."""
    paths: defaultdict[Entry, dict[float, list[PathPoint]]] = defaultdict(dict)
    for table in tables:
        for row in table.rows:
            points = [point for point in row.path if 0 < point.learning_rate < math.inf]
            if points:
                paths[row.entry][table.epsilon] = points
    everything = [point for by_epsilon in paths.values() for points in by_epsilon.values() for point in points]
    if not everything:
        return None
    y = log_axis([point.learning_rate for point in everything])
    x = Axis(0, max(point.step for point in everything) + 1)
    epsilons = sorted({epsilon for by_epsilon in paths.values() for epsilon in by_epsilon})
    places = {epsilon: round(3 * at / max(1, len(epsilons) - 1)) for at, epsilon in enumerate(epsilons)}

    def draw(group: Group, who: Entry) -> None:
        for at, (epsilon, points) in enumerate(paths[who].items()):
            colour, dash = f"var(--shade{1 + places[epsilon]})", DASHES[places[epsilon]]
            line = [{"x": point.step, "y": point.learning_rate} for point in points]
            group.stroke("line", line, colour, 1.5, dash, x="x.x", y="y.y", interpolate={"value": "step-after"})
            group.text(group.width + 6, 12 + 14 * at, f"ε = {epsilon:g}", colour)

    title = f"Learning rate while training: {task_model}"
    note = "What one run at each ε released, by steps; logarithmic. The more broken a line, the larger its ε."
    return _small_pictures(f"paths {task_model}", "paths", task_model, title, note, [*paths], 3, 180, 60, x, y, draw)


def _small_pictures(
    name: str,
    kind: str,
    task_model: str,
    title: str,
    note: str,
    methods: Sequence[Entry],
    columns: int,
    each: int,
    right: int,
    x: Axis,
    y: Axis,
    draw: Callable[[Group, Entry], None],
) -> Chart:
    step = (WIDTH - 12) / columns
    whole = Group()
    for number, who in enumerate(methods):
        left, top = 12 + step * (number % columns), TOP + each * (number // columns)
        whole.text(round(left, 1), top + 14, shortened(who.label, 20), "bold")
        group = Group(round(left + LEFT, 1), top + 24, round(step - LEFT - right, 1), each - 50)
        group.axis("x", x, "bottom", 3)
        group.axis("y", y, "left", 4)
        draw(group, who)
        whole.put(group)
    description = f"A small picture for each of {len(methods)} methods: {note}"
    svg = drawn(whole, TOP + each * math.ceil(len(methods) / columns) + 6, title, note, description)
    return Chart(name, title, description, svg, kind, task_model)
