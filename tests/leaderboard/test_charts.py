"""Charts: valid, alike in two processes, legible, and without a stranger's text where it could do something."""

import hashlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import altair as alt
import jsonschema
import pytest
import vl_convert
from altair.vegalite.v6.schema import load_schema

from dphpo_bench.leaderboard.board import Board, Estimate, Overall, PathPoint
from dphpo_bench.leaderboard.charts.collection import charts
from dphpo_bench.leaderboard.charts.frame import VEGA_LITE_VERSION, Chart, to_svg
from dphpo_bench.leaderboard.charts.looks import COLORS, MOST, RAMP, REFERENCE_COLORS, SHAPES
from tests.leaderboard import boards

SVG = "{http://www.w3.org/2000/svg}"
BOARDS = {
    "sample": boards.sample_board(),
    "hostile": boards.hostile_board(),
    "crowded": boards.crowded_board(),
    "one ε": boards.board([boards.table(boards.SETTINGS[0], 3.0)]),
}


@cache
def drawn(board: Board) -> list[Chart]:
    """The charts of a board, made once."""
    return charts(board)


def chart_of(board: Board, name: str) -> Chart:
    (chart,) = (chart for chart in drawn(board) if chart.name == name)
    return chart


def values(chart: Chart) -> list[dict[str, Any]]:
    data = chart.spec["data"]
    assert set(data) == {"name", "values"}
    return list(data["values"])


def parts(node: Any) -> Iterator[dict[str, Any]]:
    """All objects in a specification, but for the data."""
    if isinstance(node, dict):
        yield node
        for key, child in node.items():
            if key != "values":
                yield from parts(child)
    elif isinstance(node, list):
        for child in node:
            yield from parts(child)


def scale(chart: Chart, channel: str) -> dict[str, Any]:
    """From contestant to what it looks like; the same wherever it is given."""
    scales = {
        json.dumps(part[channel]["scale"])
        for part in parts(chart.spec)
        if isinstance(part.get(channel), dict) and part[channel].get("field") == "contestant"
    }
    (only,) = scales
    found = json.loads(only)
    return dict(zip(found["domain"], map(str, found["range"]), strict=True))


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(load_schema())


# --------------------------------------------------------------------------------------------- all charts


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_names_and_numbers(board: Board) -> None:
    found = drawn(board)
    names = [chart.name for chart in found]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z0-9_-]{1,70}", name) for name in names)
    for chart in found:
        text = json.dumps(chart.spec, allow_nan=False)
        assert chart.description == chart.spec["description"]
        assert chart.title == chart.spec["title"]["text"]
        # What Altair numbers depends on what it has made before.
        assert not re.search(r'"(view|param|selector|concat)_?\d+"|"data-[0-9a-f]{32}"', text)
        assert "config" not in chart.spec


def test_specifications_are_valid(validator: jsonschema.Draft7Validator) -> None:
    kinds = {chart.name.split("-")[0]: chart for chart in drawn(BOARDS["sample"])}
    assert set(kinds) == {"ranks", "accuracy", "cost", "budget", "paths"}
    for chart in kinds.values():
        # Two values tell as much as hundreds, which take seconds.
        spec = {**chart.spec, "data": {**chart.spec["data"], "values": values(chart)[:2]}}
        validator.validate(spec)
        assert alt.Chart.from_dict(spec, validate=False).to_dict(validate=False)["$schema"] == spec["$schema"]


def test_versions_agree() -> None:
    assert VEGA_LITE_VERSION in vl_convert.get_vegalite_versions()
    assert all(f"/v{VEGA_LITE_VERSION}." in chart.spec["$schema"] for chart in drawn(BOARDS["one ε"]))


def test_order() -> None:
    kinds = [chart.name.split("-")[0] for chart in drawn(BOARDS["sample"])]
    assert [kind for kind, _ in itertools.groupby(kinds)] == ["ranks", "accuracy", "cost", "budget", "paths"]
    assert kinds.count("ranks") == 4  # all ε, and three
    assert kinds.count("accuracy") == kinds.count("cost") == kinds.count("paths") == 3


def test_no_tables_no_charts() -> None:
    assert charts(boards.empty_board()) == []


def test_one_epsilon_is_not_ranked_twice() -> None:
    names = [chart.name for chart in drawn(BOARDS["one ε"])]
    assert [name for name in names if name.startswith("ranks")] == ["ranks-all"]


def test_same_bytes_in_two_processes_and_in_any_order() -> None:
    """In the other process the last chart is drawn first."""
    code = (
        "import hashlib, json, sys; from tests.leaderboard import boards\n"
        "from dphpo_bench.leaderboard.charts.collection import charts\n"
        "from dphpo_bench.leaderboard.charts.frame import to_svg\n"
        "drawn = reversed(charts(boards.board([boards.table(boards.SETTINGS[0], 3.0)])))\n"
        "print(json.dumps({one.name: hashlib.sha256(to_svg(one).encode()).hexdigest() for one in drawn}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    here = {chart.name: hashlib.sha256(to_svg(chart).encode()).hexdigest() for chart in drawn(BOARDS["one ε"])}
    assert len(here) == 5
    assert here == there


def test_drawing_is_white_and_says_what_is_drawn() -> None:
    chart = chart_of(BOARDS["sample"], "ranks-all")
    root = ElementTree.fromstring(to_svg(chart))
    background = next(root.iter(f"{SVG}rect"))
    assert (background.get("fill"), background.get("width")) == ("#ffffff", root.get("width"))
    assert {"Ranks, all ε", *(row.contestant.label for row in BOARDS["sample"].overalls[0].rows)} <= {
        node.text for node in root.iter(f"{SVG}text")
    }
    fonts = {node.get("font-family") for node in root.iter(f"{SVG}text")}
    assert len(fonts) == 1
    assert next(iter(fonts)).startswith("Liberation Sans")  # type: ignore[union-attr]


# --------------------------------------------------------------------------------------------- strangers' texts


def hostile_charts() -> list[Chart]:
    """One of each kind, of the setting that is hostile to JavaScript."""
    setting = boards.HOSTILE[4]
    return [
        chart
        for chart in drawn(BOARDS["hostile"])
        if setting in chart.title or chart.name in ("ranks-all", "budget-split")
    ]


def test_hostile_texts_are_text() -> None:
    assert len(hostile_charts()) == 5
    for chart in hostile_charts():
        root = ElementTree.fromstring(to_svg(chart))
        assert {node.tag for node in root.iter()} <= {
            f"{SVG}{tag}" for tag in ("svg", "g", "rect", "path", "text", "line")
        }
        names = {name.lower() for node in root.iter() for name in node.attrib}
        assert not {name for name in names if name.startswith("on") or "href" in name or name == "style"}
        assert "<script>" in "".join(
            text for node in root.iter() for text in (node.text or "", node.get("aria-label") or "")
        )


def test_hostile_texts_are_in_no_expression() -> None:
    def expressions(node: Any) -> Iterator[str]:
        for part in parts(node):
            yield from (
                part[key] for key in ("expr", "signal", "update", "test", "init") if isinstance(part.get(key), str)
            )

    for chart in hostile_charts():
        found = list(expressions(vl_convert.vegalite_to_vega(chart.spec, vl_version=VEGA_LITE_VERSION)))
        assert len(found) > 3
        for text in boards.HOSTILE[:7]:
            assert not [one for one in found if text in one or json.dumps(text)[1:-1] in one]


def test_two_contestants_of_one_label_are_told_apart() -> None:
    table = boards.table(boards.SETTINGS[0], 3.0)
    twin = replace(table.rows[1], contestant=replace(table.rows[1].contestant, label=table.rows[0].contestant.label))
    board = boards.board([replace(table, rows=(table.rows[0], twin, *table.rows[2:]))])
    names = [value["contestant"] for value in values(chart_of(board, "ranks-all"))]
    assert names[:2] == ["hyfreedp", "hyfreedp (2)"]


# --------------------------------------------------------------------------------------------- looks


def test_a_contestant_looks_the_same_everywhere() -> None:
    for channel in ("color", "shape"):
        looks: dict[str, set[str]] = {}
        for chart in drawn(BOARDS["sample"]):
            if chart.name.split("-")[0] in ("ranks", "accuracy", "cost"):
                for name, look in scale(chart, channel).items():
                    looks.setdefault(name, set()).add(look)
        assert len(looks) == 10
        assert all(len(found) == 1 for found in looks.values()), looks
        private = {look for name, found in looks.items() if name not in ("grid_oracle", "nonprivate") for look in found}
        assert len(private) == 8


def test_the_best_twelve_and_who_is_left_out() -> None:
    for name in ("ranks-all", "accuracy-cifar10-linear", "cost-cifar10-linear", "budget-split"):
        chart = chart_of(BOARDS["crowded"], name)
        names = {value["contestant"] for value in values(chart)}
        assert names - {"grid_oracle", "nonprivate"} == {f"method_{number:02d}" for number in range(MOST)}
        assert "The best 12 of 40 contestants are shown." in chart.description
        assert "The best 12 of 40" in chart.spec["title"]["subtitle"]


def test_who_is_not_among_the_best_takes_colours_that_are_free() -> None:
    """In a setting of its own, a newcomer is drawn beside the best, in another colour."""
    methods = [(f"method_{number:02d}", "", 0.002 * number, 0.0, 1.0) for number in range(14)]
    common = boards.table(boards.SETTINGS[0], 3.0, methods[:13])
    other = boards.table(boards.SETTINGS[1], 3.0, [methods[0], methods[13]])
    looks = scale(chart_of(boards.board([common, other]), "accuracy-digits-linear"), "color")
    first = scale(chart_of(boards.board([common, other]), "accuracy-cifar10-linear"), "color")
    assert looks["method_00"] == first["method_00"] == COLORS[0]
    assert set(first) == {f"method_{number:02d}" for number in range(MOST)} | {"grid_oracle", "nonprivate"}
    assert looks["method_13"] in COLORS[1:]


def luminance(color: str) -> float:
    """Relative luminance by WCAG 2."""
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_stand_out_on_white_and_on_dark() -> None:
    """WCAG asks for 3 to 1 where graphics carry meaning."""
    for color in (*COLORS, *REFERENCE_COLORS, *RAMP):
        for background in ("#ffffff", "#14171a"):
            low, high = sorted((luminance(color), luminance(background)))
            assert (high + 0.05) / (low + 0.05) >= 3, (color, background)
    assert len(set(COLORS)) == len(set(SHAPES)) == MOST


# --------------------------------------------------------------------------------------------- each kind


def test_rank_intervals_are_the_boards() -> None:
    overall: Overall = BOARDS["sample"].overalls[0]
    found = values(chart_of(BOARDS["sample"], "ranks-all"))
    assert [(value["contestant"], value["mean_rank"], value["low"], value["high"]) for value in found] == [
        (row.contestant.label, row.mean_rank.mean, row.mean_rank.low, row.mean_rank.high) for row in overall.rows
    ]
    assert [value["mean_rank"] for value in found] == sorted(value["mean_rank"] for value in found)
    left_out = {row.contestant.label for row in (*overall.incomplete, *overall.references)}
    assert left_out == {"propose_test", "grid_oracle", "nonprivate"}
    assert not left_out & {value["contestant"] for value in found}


def test_accuracy_is_the_boards() -> None:
    found = {
        (value["contestant"], value["epsilon"]): value
        for value in values(chart_of(BOARDS["sample"], "accuracy-cifar10-linear"))
    }
    rows = [
        (table, row)
        for table in BOARDS["sample"].tables
        if table.setting == "cifar10 (linear)"
        for row in (*table.rows, *table.references)
    ]
    assert len(rows) == 30
    for table, row in rows:
        if row.utility is None:
            assert (row.contestant.label, table.epsilon) not in found
        else:
            assert found.pop((row.contestant.label, table.epsilon))["value"] == round(row.utility.mean, 9)
    assert not found


def test_points_at_one_epsilon_stand_side_by_side() -> None:
    found = [value for value in values(chart_of(BOARDS["sample"], "accuracy-digits-linear")) if not value["reference"]]
    for epsilon in boards.EPSILONS:
        places = [value["x"] for value in found if value["epsilon"] == epsilon]
        assert len(set(places)) == len(places) == 8
        # Nearer to this ε than to any other.
        assert all(min(boards.EPSILONS, key=lambda other: abs(other - x)) == epsilon for x in places)


def test_an_interval_of_two_seeds_does_not_dwarf_the_means() -> None:
    """Student's t with one degree of freedom easily spans everything; it is cut off at the axis, not left out."""
    table = boards.table(boards.SETTINGS[0], 3.0)
    wide = replace(table.rows[0], utility=Estimate(0.67, -0.4, 1.7))
    chart = chart_of(boards.board([replace(table, rows=(wide, *table.rows[1:]))]), "accuracy-cifar10-linear")
    domains = [part["y"]["scale"]["domain"] for part in parts(chart.spec) if "scale" in part.get("y", {})]
    low, high = domains[0]
    means = [value["value"] for value in values(chart)]
    assert low < min(means) < max(means) < high
    assert high - low < 3 * (max(means) - min(means))
    assert all(low <= value["low"] <= value["value"] <= value["high"] <= high for value in values(chart))
    (shown,) = (value["interval"] for value in values(chart) if value["contestant"] == "hyfreedp")
    assert "40.00, 170.00]" in shown  # the tooltip tells the truth
    assert "cut off at the frame" in chart.spec["title"]["subtitle"]


def test_missing_values() -> None:
    """No interval, no finished run, no ranks, no cost, no finite step of a path: what is left is drawn."""
    table = boards.table(boards.SETTINGS[0], 3.0)
    first, second, third, *others = table.rows
    broken = (
        replace(first, path=(PathPoint(0, 0.0, None), PathPoint(1, float("inf"), None), PathPoint(2, 0.1, None))),
        replace(second, utility=None, ranks=None),
        replace(third, utility=Estimate(0.5), examples=0.0),
    )
    board = boards.board([replace(table, rows=(*broken, *others), references=())])
    found = {chart.name: chart for chart in charts(board)}
    assert [value["contestant"] for value in values(found["accuracy-cifar10-linear"])][:2] == [
        "hyfreedp",
        "auto_clipping",
    ]
    assert "auto_clipping" not in {value["contestant"] for value in values(found["cost-cifar10-linear"])}
    assert [value["step"] for value in values(found["paths-cifar10-linear"])] == [2]
    assert len(found["paths-cifar10-linear"].spec["hconcat"]) == 1  # no panel for a bound that nobody has
    for chart in found.values():
        assert ElementTree.fromstring(to_svg(chart)).tag == f"{SVG}svg"


def test_nothing_finished_nothing_drawn() -> None:
    table = boards.table(boards.SETTINGS[0], 3.0)
    rows = tuple(replace(row, utility=None, path=(), ranks=None) for row in table.rows)
    board = boards.board([replace(table, rows=rows, references=())])
    board = replace(board, overalls=tuple(replace(one, rows=(), incomplete=one.rows) for one in board.overalls))
    assert [chart.name for chart in charts(board)] == ["budget-split"]


def test_shares_add_up() -> None:
    found = values(chart_of(BOARDS["sample"], "budget-split"))
    sums: dict[tuple[str, str], float] = {}
    for value in found:
        key = (value["contestant"], value["panel"])
        sums[key] = sums.get(key, 0) + value["share"]
    assert len(sums) == 8 * 3
    assert all(total == pytest.approx(1) for total in sums.values())
    assert {value["share"] for value in found if value["contestant"] == "hyfreedp" and value["part"] == "tuning"} == {
        0.06
    }


def test_paths_are_the_boards() -> None:
    chart = chart_of(BOARDS["sample"], "paths-digits-linear")
    expected = [
        (table.epsilon, point.step, point.learning_rate, point.loss_bound)
        for table in BOARDS["sample"].tables
        if table.setting == "digits (linear)"
        for row in table.rows
        for point in row.path
    ]
    keys = ("epsilon", "step", "learning_rate", "loss_bound")
    found = [value[key] for value in values(chart) for key in keys]
    assert found == pytest.approx([part for point in expected for part in point], rel=1e-8)
    assert len(expected) == 150
