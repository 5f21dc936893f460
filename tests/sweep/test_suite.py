"""Suites: what is read, and which key a mistake is at."""

from pathlib import Path

import pytest

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.data.source import DataSource
from dphpo_bench.sweep.cells import cells_of
from dphpo_bench.sweep.executors import DEFAULT_TIME_LIMIT_S, Resources
from dphpo_bench.sweep.suite import load_suite

SUITES = Path(__file__).parents[2] / "leaderboard" / "suites"

SUITE = """\
description = "x"
epsilons = [1, 3]
seeds = [0,
  1, 2]

# a comment
methods = [
  "auto_clipping",
  { name = "liu_talwar", parameters = { mean = 5 } },
  { name = "papernot_steinke", parameters = { distribution = "uniform", accounting = "layer_cake" } },
]
tasks = ["digits", { name = "mnist", models = ["linear", "cnn"], resources = { memory_gb = 4 } }]

[resources]
threads = 2
"""


@pytest.fixture
def load(tmp_path):
    def load(text: str):
        path = tmp_path / "suite.toml"
        path.write_text(text)
        return load_suite(path)

    return load


def test_cells_are_the_product_and_seeds_vary_slowest(load, tmp_path) -> None:
    suite = load(SUITE)
    cells = cells_of(suite, DataSource.resolve(tmp_path, tmp_path))
    assert len(cells) == 3 * 3 * 2 * 3  # methods, tasks with models, epsilons, seeds
    assert len({cell.key for cell in cells}) == len(cells)
    assert [cell.identity.seed for cell in cells] == sorted(cell.identity.seed for cell in cells)
    by_name = {(cell.identity.method, cell.identity.task, cell.identity.model): cell for cell in cells}
    assert by_name["liu_talwar", "digits", "linear"].identity.parameters["mean"] == 5
    assert by_name["auto_clipping", "mnist", "cnn"].resources == Resources(threads=2, memory_gb=4)
    assert by_name["auto_clipping", "digits", "linear"].resources.time_limit_s == DEFAULT_TIME_LIMIT_S
    digits = by_name["auto_clipping", "digits", "linear"]
    assert digits.identity.delta == pytest.approx(1438**-1.1)


@pytest.mark.parametrize(
    ("old", "new", "key", "reason"),
    [
        ("mean = 5", "meen = 5", "methods[1]", "Did you mean 'mean'?"),
        ('"auto_clipping"', '"auto_cliping"', "methods[0]", "Did you mean 'auto_clipping'?"),
        ('"digits"', '"digit"', "tasks[0]", "Did you mean 'digits'?"),
        ('"digits"', '"mnist"', "tasks[1]", "mnist (linear) is there twice"),
        ('"cnn"', '"cmm"', "tasks[1]", "Unknown model 'cmm'"),
        ("threads = 2", "threads = 0", "resources.threads", "greater than or equal to 1, got '0'"),
        ("[0,\n  1, 2]", "[]", "seeds", "at least 1 item"),
        ("[1, 3]", "[1, -3]", "epsilons", "epsilon=-3.0"),
        ("[1, 3]", "3", "epsilons", "valid tuple, got '3'"),
        ("epsilons = [1, 3]", "delta = 2.0\nepsilons = [1, 3]", "delta", "0 < delta < 1"),
    ],
)
def test_a_mistake_names_its_key(load, old: str, new: str, key: str, reason: str) -> None:
    assert old in SUITE
    with pytest.raises(InvalidValueError) as caught:
        load(SUITE.replace(old, new))
    message = str(caught.value)
    assert f"suite.toml, {key}: " in message
    assert reason in message
    assert "\n" not in message


def test_a_task_may_have_seeds_of_its_own(load, tmp_path) -> None:
    own = '{ name = "mnist", models = ["linear", "cnn"], seeds = [7, 8, 9, 10],'
    suite = load(SUITE.replace('{ name = "mnist", models = ["linear", "cnn"],', own))
    source = DataSource.resolve(tmp_path, tmp_path)
    cells = cells_of(suite, source)
    seeds = {(cell.identity.model, cell.identity.task): set[int]() for cell in cells}
    for cell in cells:
        seeds[cell.identity.model, cell.identity.task].add(cell.identity.seed)
    assert seeds == {
        ("linear", "digits"): {0, 1, 2},
        ("linear", "mnist"): {7, 8, 9, 10},
        ("cnn", "mnist"): {7, 8, 9, 10},
    }
    assert [cell.identity.seed for cell in cells[:18]] == [0] * 6 + [7] * 12  # each one's first seed comes first
    assert {cell.identity.task for cell in cells_of(suite, source, ["seed=8"])} == {"mnist"}


MORE = 'more_seeds = { seeds = [2, 7, 8, 7], methods = [{ name = "liu_talwar", parameters = { mean = 5 } }] }'


def test_a_method_may_have_more_seeds_on_a_task(load, tmp_path) -> None:
    here = '{ name = "mnist", models = ["linear", "cnn"],'
    suite = load(SUITE.replace(here, f"{here} {MORE},"))
    source = DataSource.resolve(tmp_path, tmp_path)
    found, usual = (
        {(each.task, each.model, each.method, each.epsilon, each.seed)
         for each in (cell.identity for cell in cells_of(one, source))}
        for one in (suite, load(SUITE))
    )  # fmt: skip
    more = {
        ("mnist", model, "liu_talwar", epsilon, seed)
        for model in ("linear", "cnn")
        for epsilon in (1, 3)
        for seed in (7, 8)
    }
    assert found == usual | more
    assert len(cells_of(suite, source, ["seed=7,epsilon=3"])) == 2
    for old, new, key, reason in (
        ("liu_talwar", "liu_talwa", "more_seeds", "Did you mean 'liu_talwar'?"),
        ("mean = 5", "mean = 6", "more_seeds", "Expected a method of the suite, got liu_talwar with "),
        ("[2, 7, 8, 7]", "[]", "more_seeds.seeds", "at least 1 item"),
    ):
        with pytest.raises(InvalidValueError) as caught:
            load(SUITE.replace(here, f"{here} {MORE.replace(old, new)},"))
        assert f"tasks[1].{key}: " in str(caught.value)
        assert reason in str(caught.value)


def test_a_task_may_go_without_some_methods(load, tmp_path) -> None:
    here = '{ name = "mnist", models = ["linear", "cnn"],'
    suite = load(SUITE.replace(here, f'{here} without = ["liu_talwar", "papernot_steinke"],'))
    cells = cells_of(suite, DataSource.resolve(tmp_path, tmp_path))
    on = {task: [cell.identity.method for cell in cells if cell.identity.task == task] for task in ("digits", "mnist")}
    assert len(on["digits"]) == 3 * 2 * 3
    assert on["mnist"] == ["auto_clipping"] * (2 * 2 * 3)
    with pytest.raises(InvalidValueError, match=r"tasks\[1\].without: .*'auto_clippin'.* Did you mean"):
        load(SUITE.replace(here, f'{here} without = ["auto_clippin"],'))
    with pytest.raises(InvalidValueError, match="No cell of the suite"):
        cells_of(suite, DataSource.resolve(tmp_path, tmp_path), ["task=mnist,method=liu_talwar"])
    nothing = 'methods = ["dp_sgd"]\ntasks = [{ name = "digits", without = ["dp_sgd"] }]\nepsilons = [1]\nseeds = [0]'
    with pytest.raises(InvalidValueError, match="No cell of the suite: each task is without all methods"):
        cells_of(load(nothing), DataSource.resolve(tmp_path, tmp_path))


def test_a_missing_key_is_named(load) -> None:
    with pytest.raises(InvalidValueError, match=", seeds: Field required"):
        load('methods = ["dp_sgd"]\ntasks = ["digits"]\nepsilons = [1]')


def test_a_file_that_is_not_toml_names_the_line(load, tmp_path) -> None:
    with pytest.raises(InvalidValueError, match=r"is not TOML: .*line 2"):
        load("seeds = [0]\nepsilons = [1,, 2]\n")
    with pytest.raises(InvalidValueError, match="Cannot read the suite"):
        load_suite(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidValueError, match="is not TOML"):
        load_suite(tmp_path / "binary.toml")


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("quick", 99),
        ("core", 26 * 3 * 43 - 9 * 3 * 3 + 6 * 3 * 17),
        ("clients", 10 * 2 * 2 * 5),
        ("fine_tuning", 17 * 3 * 18),
        ("full", 39 * 8 * 3 * 5),
        ("two_tables", 18 * 2 * 3 * 5),
        ("public", 2 * 3 * 3 * 5),
        ("records", 13 * 2 * (6 * 8 + 7 * 3) + 4 * 2 * 2 * 2),
        ("convex", 2 * 3 * (5 + 5 + 3 + 3 + 2)),
        ("spaces", 5 * 2 * 3 * 5),
        ("epsilons", (9 * 5 + 4 * 2) * 4 * 3),
        ("tables", (16 * 2 + 15 * 3) * 2 * 3 + (4 * 2 + 3 * 3) * 2 * 2),
        ("twenty_seeds", 7 * 4 * 3 * 20),
        ("persons", 12 * 3 * 3 * 5),
        ("untouched", (22 * 24 + 4 * 12 - 4 - 2) * 4 * 5),
    ],
)
def test_the_suites_of_the_leaderboard(name: str, cells: int, tmp_path) -> None:
    suite = load_suite(SUITES / f"{name}.toml")
    assert len(cells_of(suite, DataSource.resolve(tmp_path, tmp_path))) == cells
    assert suite.description
