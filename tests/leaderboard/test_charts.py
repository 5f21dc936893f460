"""Pictures: legible, within their axes, the same in each process; a stranger's text in them does nothing."""

import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dphpo_bench.leaderboard.charts import Chart, charts
from dphpo_bench.records.charts import Panel, estimates_axis, forest, log_axis, shortened
from dphpo_bench.records.measure import Estimate
from tests.leaderboard import boards

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
BOARDS = {
    "sample": boards.sample_board(),
    "hostile": boards.hostile_board(),
    "crowded": boards.crowded_board(),
    "one ε": boards.board([boards.table(boards.TASK_MODELS[0], 3.0)]),
}


@cache
def drawn(name: str) -> dict[str, Chart]:
    """The pictures of a board by their names, made once."""
    return {chart.name: chart for chart in charts(BOARDS[name])}


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", BOARDS)
def test_every_picture_is_an_image_with_words_and_nothing_but_marks(name: str) -> None:
    for stem, chart in drawn(name).items():
        assert re.fullmatch("[a-z0-9_-]{1,70}", stem)
        root = ElementTree.fromstring(chart.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == chart.description
        assert not re.search(r"\bNaN\b|\bInfinity\b|\bnull\b", chart.svg)
        assert {node.tag for node in root.iter()} <= {
            f"{SVG}{tag}" for tag in ("svg", "style", "g", "rect", "text", "line", "path")
        }
        names = {attribute.lower() for node in root.iter() for attribute in node.attrib}
        assert not {each for each in names if each.startswith("on") or "href" in each or each == "style"}
        assert not re.search(r"\d\.\d{3,}", re.sub(">[^<]*<", "><", chart.svg))  # two decimals


def test_a_hostile_label_is_text() -> None:
    assert "<img src=x onerro…wned=1>)" in texts(drawn("hostile")["answer-epsilon-1"].svg)


def test_names_and_order() -> None:
    answers = ["answer-epsilon-1", "answer-epsilon-3", "answer-epsilon-8", "answer-all"]
    task_models = [f"{kind}-{task}-linear" for task in ("cifar10", "digits", "mnist") for kind in ("accuracy", "paths")]
    assert list(drawn("sample")) == [*answers, *task_models, "nearest-nearest"]
    assert list(drawn("one ε")) == [
        "answer-epsilon-3",
        "answer-all",
        "paths-cifar10-linear",
        "nearest-nearest",
    ]  # one ε: no line
    assert charts(boards.empty_board()) == []


def test_a_picture_is_the_same_in_another_process() -> None:
    script = (
        "from tests.leaderboard import boards; from dphpo_bench.leaderboard.charts import charts; import sys; "
        "sys.stdout.write(charts(boards.board([boards.table(boards.TASK_MODELS[0], 3.0)]))[0].svg)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == drawn("one ε")["answer-epsilon-3"].svg


def test_the_note_explains_a_dashed_line_only_where_one_is_drawn() -> None:
    tables = [boards.table(boards.TASK_MODELS[0], epsilon) for epsilon in (1.0, 3.0)]
    without = [replace(table, oracle=None) for table in tables]
    for given_tables, dashed in ((tables, True), (without, False)):
        [chart] = [chart for chart in charts(boards.board(given_tables)) if chart.kind == "metric"]
        assert ("dashed: the oracle" in chart.description) is dashed
        assert ("stroke-dasharray" in chart.svg) is dashed


def test_an_axis_holds_every_interval_or_shows_that_it_does_not() -> None:
    """Student's t with one degree of freedom easily spans everything; it is cut off with an arrow, not left out."""
    usual = [Estimate(-0.02, -0.03, -0.01), Estimate(-0.05, -0.09, -0.01)]
    axis = estimates_axis(usual, 0.0)
    assert all(axis.holds(end) for each in usual for end in (each.low, each.high) if end is not None)
    wide = Estimate(-0.03, -0.8, 0.7)
    axis = estimates_axis([*usual, wide], 0.0)
    assert axis.high - axis.low == pytest.approx(1.05 * 0.15)  # three times the spread of the means, and a margin
    svg = forest([Panel("p", {"a": usual[0], "b": wide}, axis)], {"a": "", "b": ""}, title="t", note="n")
    assert [text for text in texts(svg) if text in "‹›"] == ["‹", "›"]
    assert {"a", "b", "p", "t", "n", "0.02"} <= set(texts(svg))


@pytest.mark.parametrize(("values", "marks"), [((1, 10), [1, 2, 5, 10]), ((0.01, 300), [0.01, 0.1, 1, 10, 100])])
def test_marks_of_a_logarithmic_axis_are_round_and_few(values: tuple[float, float], marks: list[float]) -> None:
    assert log_axis(values).values == marks


def test_a_forest_shows_every_method_its_numbers_and_its_runs() -> None:
    answer = BOARDS["crowded"].answers[0]
    svg = drawn("crowded")["answer-epsilon-1"].svg
    assert {place.entry.label for place in answer.everyone} <= set(texts(svg))
    assert len(answer.everyone) == 41
    assert "−7.8 ± 0.4" in texts(svg)
    assert svg.count('x2="0" y2="10"') == 2 * 41  # a stroke for each seed


def test_marks_tell_better_from_worse_by_more_than_colour() -> None:
    kinds = {"a": "better", "b": "undecided", "c": "worse"}
    panel = Panel("p", dict.fromkeys(kinds, Estimate(0.5)), estimates_axis([Estimate(0.5)], 0.0, 1.0))
    svg = forest([panel], kinds, title="t", note="n")
    marks = re.findall(r'd="(.)[^"]*" fill="([^"]+)" stroke="([^"]+)" stroke-width="1.5"', svg)
    looks = [(fill, stroke) for _, fill, stroke in marks]
    assert looks == [("var(--good)", "var(--good)"), ("var(--paper)", "var(--ink)"), ("var(--bad)", "var(--bad)")]
    shapes = ["A" in path for path in re.findall(r'<path transform[^>]* d="([^"]*)"', svg)]
    assert shapes == [True, True, False]  # the last is a square


def test_long_labels_of_one_method_stay_apart() -> None:
    labels = {shortened(f"hyfreedp_paper (initial_learning_rate={rate})") for rate in (0.001, 0.01, 0.03)}
    assert len(labels) == 3
    assert all(label.startswith("hyfreedp_paper (…") for label in labels)


def test_a_narrow_logarithmic_axis_has_its_ends_for_ticks() -> None:
    """Of two learning rates that are close, no round number lies between."""
    axis = log_axis([0.0061, 0.0068])
    assert axis.values == [float(f"{end:.3g}") for end in (axis.low, axis.high)]
