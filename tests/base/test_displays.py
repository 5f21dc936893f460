"""Short tables of results for terminals and notebooks: one of each type."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import dphpo_bench as bench
from dphpo_bench.base.displays import LINES, WIDTH, Displayed, flat
from dphpo_bench.harness.run import RunResult
from dphpo_bench.records.reading import read_results
from tests.own_task import array_task

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(90, 3))
BUDGET = bench.PrivacyBudget(3.0, 1e-3)
METHOD = bench.make_method("papernot_steinke", {"mean": 3})


class Markup(nn.Linear):
    """A network whose name is markup."""


Markup.__name__ = "<i>Net"
TASK = array_task("visits", (X, np.where(X[:, 0] > 0, "<b>", "no")), Markup(3, 2), classes=("<b>", "no"))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("results")
    return bench.run(METHOD, TASK, BUDGET, results_dir=folder, progress=bench.NullProgress())


@cache
def checked() -> Any:
    return bench.plan(METHOD, TASK, BUDGET)


SHOWN: dict[str, Callable[[RunResult], Any]] = {
    "result": lambda result: result,
    "record": lambda result: result.record,
    "model": lambda result: result.trained,
    "account": lambda result: result.account,
    "task": lambda _: TASK,
    "checked plan": lambda _: checked(),
    "plan": lambda _: checked().plan,
    "price": lambda _: bench.price(
        [bench.recipes.dp_sgd_event(0.01, 100 + trial, 1.0) for trial in range(5)], delta=1e-5
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_each_type_is_a_short_table(name: str, result: RunResult) -> None:
    value = SHOWN[name](result)
    lines = repr(value).splitlines()
    assert 4 <= len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    page = value._repr_html_()
    tags = set(re.findall("<[^>]*>", re.sub(' style="[^"]*"', "", page)))
    assert tags == {f"<{slash}{tag}>" for tag in ("table", "caption", "tr", "th", "td") for slash in ("", "/")}
    if name not in ("price", "plan"):
        assert "<i>Net" in repr(value)
        assert "&lt;i&gt;Net" in page


def test_a_private_record_shows_nothing_that_it_does_not_hold(result: RunResult) -> None:
    """Its search has a secret number of trials, so that it holds no time of training and no memory."""
    assert "train" not in result.record.seconds
    for value in (result, result.record):
        assert not re.search(r"train \d|memory", repr(value) + value._repr_html_())
    assert repr(result.record) == str(bench.read_record(result.path or ""))


def test_many_rows_and_long_texts_are_cut() -> None:
    class Long(Displayed):
        def display(self) -> tuple[str, list[tuple[str, str]]]:
            return "many\nrows " * 50, [(f"<row> {number} " * 9, "a & b " * 200) for number in range(99)]

    lines = repr(Long()).splitlines()
    assert len(lines) == LINES
    assert max(map(len, lines)) == WIDTH
    assert re.fullmatch(r"  … and \d+ more lines", lines[-1])
    page = Long()._repr_html_()
    assert page.count("<tr>") == LINES + 1
    assert "… and 59 more" in page
    assert "<row>" not in page
    assert "a &amp; b" in page


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_seed_of_private_records_is_not_shown() -> None:
    """A notebook is handed on with its outputs, and the seed takes the noise away."""
    result = bench.run("dp_sgd", TASK, BUDGET, seed=271828, progress=bench.NullProgress())
    for shown in (repr(result), repr(result.record), result._repr_html_()):
        assert "271828" not in shown
        assert "seed secret: ok" in shown


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_comparison_is_a_table_of_html(tmp_path: Path) -> None:
    task = array_task("visits", (X, X[:, 0] > 0), Markup(3, 2), (X, X[:, 0] > 0), public=True, epochs=1)
    for method in ("dp_sgd", "recommended"):
        bench.run(method, task, BUDGET, seed=0, results_dir=tmp_path, progress=bench.NullProgress())
    page = bench.Comparison(tuple(read_results(tmp_path)[0]), tmp_path)._repr_html_()
    assert page.count("<tr>") == 3
    assert '<th style="text-align: left">ε = 3</th>' in page
    assert "&lt;i&gt;Net" in page
    assert "<i>Net" not in page


def test_values_in_which_runs_differ_are_listed() -> None:
    runs = [{"rate": 0.5, "noise": [1.0, 2.0]}, {"rate": 0.5, "noise": [3.0]}]
    rows = dict(flat({"final": {"runs": runs, "steps": None}}))
    assert rows == {"final.runs.rate": "0.5", "final.runs.noise": "1.0, 2.0; 3.0", "final.steps": "none"}
