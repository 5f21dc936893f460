"""Pictures: alike in two processes, legible, within their axes; a stranger's text in them does nothing."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from dphpo_bench.leaderboard.charts import frame
from dphpo_bench.leaderboard.charts.collection import charts
from dphpo_bench.leaderboard.charts.forest import Forest
from dphpo_bench.leaderboard.charts.frame import Axis, Chart, estimates_axis, ticks
from dphpo_bench.records.estimates import Estimate
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


def test_the_note_explains_a_dashed_line_only_where_one_is_drawn() -> None:
    tables = [boards.table(boards.SETTINGS[0], epsilon) for epsilon in (1.0, 3.0)]
    without = [replace(table, oracle=None) for table in tables]
    for given, dashed in ((tables, True), (without, False)):
        [chart] = [chart for chart in charts(boards.board(given)) if chart.kind == "metric"]
        assert ("dashed: the oracle" in chart.svg) is dashed
        assert ("dashed: the oracle" in chart.description) is dashed
        assert ('class="oracle"' in chart.svg) is dashed


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
    assert "<img src=x o…dow.pwned=1>)" in shown


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


@pytest.mark.parametrize(("low", "high"), [(-0.16, 0.05), (0.0, 1.0), (-3e-7, 2e-7), (4000.0, 4100.0), (-1e6, 3e6)])
def test_ticks_are_round_and_few(low: float, high: float) -> None:
    found = ticks(Axis(low, high))
    assert 2 <= len(found) <= 6
    assert all(low <= one <= high for one in found)
    steps = {round((b - a) / (found[1] - found[0]), 6) for a, b in pairwise(found)}
    assert steps == {1.0}


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


def test_long_labels_of_one_method_stay_apart() -> None:
    labels = [f"hyfreedp_paper (initial_learning_rate={rate})" for rate in (0.001, 0.01, 0.03)]
    drawn = {frame.text(0, 0, label) for label in labels}
    assert len(drawn) == 3
    assert all(">hyfreedp_pap…" in each for each in drawn)
    assert ">short<" in frame.text(0, 0, "short")
