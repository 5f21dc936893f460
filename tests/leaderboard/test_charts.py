"""Pictures: alike in two processes, legible, within their axes; a stranger's text in them does nothing."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.charts import curves, frame, panels
from dphpo_bench.leaderboard.charts.collection import charts
from dphpo_bench.leaderboard.charts.forest import Forest
from dphpo_bench.leaderboard.charts.frame import Axis, Chart, estimates_axis, log_axis, log_ticks, ticks
from dphpo_bench.leaderboard.values import Estimate, PathPoint
from dphpo_bench.records.measure import Measure
from tests.leaderboard import boards

SVG = "{http://www.w3.org/2000/svg}"
BOARDS = {
    "sample": boards.sample_board(),
    "hostile": boards.hostile_board(),
    "crowded": boards.crowded_board(),
    "one ε": boards.board([boards.table(boards.SETTINGS[0], 3.0)]),
}


@cache
def drawn(name: str) -> dict[str, Chart]:
    """The pictures of a board by their names, made once."""
    return {chart.name: chart for chart in charts(BOARDS[name])}


def parsed(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg)


def texts(root: ElementTree.Element) -> list[str]:
    return [node.text or "" for node in root.iter(f"{SVG}text")]


def percents(root: ElementTree.Element) -> Iterator[float]:
    for node in root.iter():
        for name in ("x", "y", "cx", "cy", "x1", "x2", "y1", "y2"):
            if node.get(name, "").endswith("%"):
                yield float(node.get(name, "")[:-1])


# --------------------------------------------------------------------------------------------- all pictures


@pytest.mark.parametrize("name", BOARDS)
def test_every_picture_is_an_image_with_words_and_stays_in_its_frame(name: str) -> None:
    for stem, chart in drawn(name).items():
        assert re.fullmatch("[a-z0-9_-]{1,70}", stem)
        root = parsed(chart)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert all(0 <= place <= 100 for place in percents(root))
        assert not re.search(r"\bnan\b|\binf\b", chart.svg)


def test_names_and_order() -> None:
    answers = ["answer-epsilon-1", "answer-epsilon-3", "answer-epsilon-8", "answer-all"]
    settings = [f"{kind}-{task}-linear" for task in ("cifar10", "digits", "mnist") for kind in ("accuracy", "paths")]
    assert list(drawn("sample")) == answers + settings
    assert list(drawn("one ε")) == ["answer-epsilon-3", "answer-all", "paths-cifar10-linear"]  # one ε makes no line
    assert charts(boards.empty_board()) == []


def test_hostile_texts_are_text() -> None:
    for chart in drawn("hostile").values():
        root = parsed(chart)
        allowed = ("svg", "style", "rect", "text", "line", "circle", "path", "polyline")
        assert {node.tag for node in root.iter()} <= {f"{SVG}{tag}" for tag in allowed}
        names = {name.lower() for node in root.iter() for name in node.attrib}
        assert not {name for name in names if name.startswith("on") or "href" in name or name == "style"}
    shown = texts(parsed(drawn("hostile")["answer-epsilon-1"]))
    assert any(text.startswith("<img src=x onerror") for text in shown)


def luminance(color: str) -> float:
    """Relative luminance by WCAG 2."""
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_stand_out_on_white_and_on_dark() -> None:
    """WCAG asks for 4.5 to 1 of words, and 3 to 1 where graphics carry meaning."""
    schemes = [dict(re.findall(r"--(\w+): (#\w{6});", part)) for part in frame.style().split("@media")[:2]]
    assert len(schemes[0]) == len(schemes[1]) == 12
    for scheme in schemes:
        for name, color in scheme.items():
            if name not in ("paper", "line", "grid"):
                low, high = sorted((luminance(color), luminance(scheme["paper"])))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (name, color)


# --------------------------------------------------------------------------------------------- axes


def test_an_axis_holds_every_interval_or_shows_that_it_does_not() -> None:
    """Student's t with one degree of freedom easily spans everything; it is cut off with an arrow, not left out."""
    usual = [Estimate(-0.02, -0.03, -0.01), Estimate(-0.05, -0.09, -0.01)]
    axis = estimates_axis(usual, 0.0)
    assert all(axis.holds(end) for one in usual for end in (one.low, one.high) if end is not None)
    wide = Estimate(-0.03, -0.8, 0.7)
    axis = estimates_axis([*usual, wide], 0.0)
    assert axis.high - axis.low == pytest.approx(0.15)  # three times the spread of the means
    answer = BOARDS["one ε"].answers[0]
    first = replace(answer.places[0], lead=Estimate(-0.006, -0.8, 0.7))
    forest = Forest.of(replace(answer, places=(first, *answer.places[1:])))
    assert forest.row(first).count('class="cut"') == 2
    assert forest.number(first) == "−0.6"
    assert all('class="cut"' not in forest.row(place) for place in answer.places[1:])


def test_one_value_alone_has_an_axis() -> None:
    for values in ([Estimate(0.0)], [Estimate(0.5)], [Estimate(-3.0)]):
        axis = estimates_axis(values)
        assert axis.low < values[0].mean < axis.high
        assert axis.at(values[0].mean) == 50.0
    assert log_axis([2.0]).at(2.0) == 4.0


@pytest.mark.parametrize(("low", "high"), [(-0.16, 0.05), (0.0, 1.0), (-3e-7, 2e-7), (4000.0, 4100.0), (-1e6, 3e6)])
def test_ticks_are_round_and_few(low: float, high: float) -> None:
    found = ticks(Axis(low, high))
    assert 2 <= len(found) <= 6
    assert all(low <= one <= high for one in found)
    steps = {round((b - a) / (found[1] - found[0]), 6) for a, b in pairwise(found)}
    assert steps == {1.0}


def test_logarithmic_ticks() -> None:
    assert log_ticks(log_axis([1.0, 20.0])) == [1, 2, 5, 10, 20]
    assert log_ticks(log_axis([1e-7, 0.3]), 5) == [1e-6, 1e-4, 1e-2] or len(log_ticks(log_axis([1e-7, 0.3]), 5)) <= 5
    assert log_ticks(log_axis([2.2, 2.4])) == [2.2, 2.4]


# --------------------------------------------------------------------------------------------- each kind


def test_a_forest_shows_every_contestant_and_what_it_did_worst() -> None:
    answer = BOARDS["crowded"].answers[0]
    shown = texts(parsed(drawn("crowded")["answer-epsilon-1"]))
    assert {place.contestant.label for place in answer.everyone} <= set(shown)
    assert len(answer.everyone) == 41
    forest = Forest.of(answer)
    last = answer.places[-1]
    (strokes,) = re.findall(r'class="part" d="([^"]+)"', forest.row(last))
    assert strokes.count("M") == len(last.parts) == 2
    assert forest.worst(last) == "−8.0 seed 1"
    assert (forest.number(last), forest.half(last)) == ("−7.8", "± 0.4")


def test_marks_tell_better_from_worse_by_more_than_colour() -> None:
    answer = BOARDS["sample"].answers[0]
    forest = Forest.of(answer)
    marks = [forest.row(replace(answer.places[0], untuned=sign)) for sign in (1, 0, -1)]
    shapes = [re.findall(r'<(circle|rect) class="dot (\w+)"', mark) for mark in marks]
    assert shapes == [[("circle", "better")], [("circle", "alike")], [("rect", "worse")]]


def test_one_panel_each_with_the_oracle_behind() -> None:
    tables = [table for table in BOARDS["sample"].tables if table.setting == "digits (linear)"]
    panels = curves.metric_panels(tables)
    assert [panel.contestant.label for panel in panels][:2] == ["hyfreedp", "linear_scaling"]
    assert len(panels) == 8
    for panel in panels:
        assert panel.marks.count("<circle") == 3
        assert panel.behind == panels[0].behind
        assert panel.behind.count('class="oracle"') == 2
        assert all(f">{epsilon:g}</text>" in panel.behind for epsilon in boards.EPSILONS)


def test_perplexities_have_a_logarithmic_axis() -> None:
    """A search that collapsed would leave the others on one line; and nothing is below 1."""
    measure = Measure("perplexity", higher_is_better=False)
    values = (Estimate(8.0, 7.0, 9.2), Estimate(80.0, 0.1, 6e4), Estimate(800.0, 700.0, 900.0))

    def marks(low: float) -> list[str]:
        own = [values[0], replace(values[1], low=low), values[2]]
        tables = [
            replace(table, measure=measure, oracle=None, references=(), rows=tuple(
                replace(row, utility=one) for row, one in zip(table.rows, own, strict=False)))
            for table in (boards.table(boards.SETTINGS[0], epsilon) for epsilon in boards.EPSILONS)
        ]  # fmt: skip
        return [panel.marks for panel in curves.metric_panels(tables)]

    best, middle, worst = (float(re.findall(r'cy="([\d.]+)%"', each)[0]) for each in marks(0.1))
    assert best - middle == pytest.approx(middle - worst, abs=0.11)
    assert best - middle > 10
    assert marks(0.1) == marks(1.0) != marks(2.0)


def test_no_interval_of_a_share_leads_beyond_all_or_nothing() -> None:
    """Three seeds of which one fails have an interval up to 130 %."""
    tables = [boards.table(boards.SETTINGS[0], epsilon) for epsilon in boards.EPSILONS]

    def drawn(high: float) -> list[str]:
        found = Estimate(0.87, 0.43, high)
        wide = [replace(one, rows=tuple(replace(row, utility=found) for row in one.rows)) for one in tables]
        return [panel.marks for panel in curves.metric_panels(wide)]

    assert drawn(1.31) == drawn(1.0) != drawn(0.9)


def test_the_line_behind_is_the_oracle_that_gaps_are_measured_to() -> None:
    """It was the first contestant of that method's name: an oracle of other parameters, where that was better."""
    tables = [boards.table(boards.SETTINGS[0], epsilon) for epsilon in boards.EPSILONS]
    (oracle,) = [row for row in tables[0].references if row.contestant == tables[0].oracle]
    other = replace(oracle, contestant=boards.contestant("grid_oracle", '{"optimizer": "SGD"}', True))
    also = [replace(one, references=(other, *one.references)) for one in tables]
    assert curves.metric_panels(also)[0].behind == curves.metric_panels(tables)[0].behind
    without = [replace(one, oracle=None) for one in also]
    assert 'class="oracle"' not in curves.metric_panels(without)[0].behind


def test_names_of_lines_do_not_cover_each_other() -> None:
    tables = [boards.table(boards.SETTINGS[0], epsilon) for epsilon in boards.EPSILONS]
    flat = tuple(PathPoint(step, 0.5, None) for step in range(4))
    same = [replace(one, rows=(replace(one.rows[0], path=flat), *one.rows[1:])) for one in tables]
    (panel,) = curves.path_panels(same)
    places = [float(y) for y in re.findall(r'shade\d" x="86%" y="([\d.]+)%"', panel.marks)]
    assert len(places) == 3
    assert all(b - a >= 10 for a, b in pairwise(places))
    assert places[-1] <= 92


def test_missing_values_leave_the_rest() -> None:
    table = boards.table(boards.SETTINGS[0], 3.0)
    first, second, *others = table.rows
    broken = replace(
        first, path=(PathPoint(0, 0.0, None), PathPoint(1, math.inf, None), PathPoint(2, 0.1, None)), cross_entropy=None
    )
    tables = [
        replace(table, rows=(broken, replace(second, utility=None), *others), references=()),
        boards.table(boards.SETTINGS[0], 8.0),
    ]
    assert [panel.contestant.label for panel in curves.path_panels(tables)] == ["hyfreedp"]
    labels = [panel.contestant.label for panel in curves.metric_panels(tables)]
    assert labels[-1] == "linear_scaling"  # in one of the two tables
    nothing = replace(table, rows=tuple(replace(row, utility=None, path=()) for row in table.rows), references=())
    assert charts(Board((), (), (nothing,), (), (), (), 0, 8)) == []


@pytest.mark.parametrize("means", [[0.5], [0.5, 0.5], [0.1, 0.9], [-3.0, 70.0], [0.0]])
def test_panels_stay_inside_their_frame(means: list[float]) -> None:
    estimates = {f"<{at}>": Estimate(mean, mean - 9, mean + 9) for at, mean in enumerate(means)}
    drawn = panels.to_svg(
        [panels.Panel("a & b", estimates), panels.Panel("c", {})],
        dict.fromkeys([*estimates, "empty"], "reference"),
        estimates_axis(estimates.values()),
        title="T",
        note="N",
    )
    root = ElementTree.fromstring(drawn)
    places = [float(mark.get("cx").rstrip("%")) for mark in root.iter(f"{SVG}circle")]
    assert len(places) == len(means)
    assert all(0 <= place <= 100 for place in places)
    texts = [mark.text for mark in root.iter(f"{SVG}text")]
    assert {"a & b", "c", "empty", *estimates} <= {*texts}
