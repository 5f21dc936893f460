"""Numbers of research/figures.py: its stacks train as the package does, and its summaries are what they are called."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.methods.dp_zo import DpZo
from dphpo_bench.training.clipping import parse_clipping
from research import figure_charts, figures
from research.stacked import UniformAverage
from tests.conftest import TinyTask

DIGITS = bench.make_task("digits")


def test_a_stack_trains_as_the_package_does() -> None:
    rates = (0.1, 1.0, 5.0)
    (stacked,) = figures.scores(DIGITS, 0, figures.Schedule(1.0, 5), {"SGD": rates}, [0.0], [figures.UNIT])[0]
    run = bench.recipes.DpSgd(1.0, 5, 0.0, 1.0, clipping="abadi:1", averaging=0.0)
    assert stacked[0] == pytest.approx(figures.accuracies(DIGITS, run, rates, 0), abs=0.3)


def test_a_threshold_below_all_norms_cancels_in_adamw_and_multiplies_the_rate_of_sgd() -> None:
    """Theorems 1 and 2 of automatic clipping, with noise: the columns and the diagonal of its Figure 1."""
    thresholds = [parse_clipping(f"abadi:{bound}") for bound in (0.01, 0.1)]
    rates = {"SGD": (1.0, 10.0), "AdamW": (1e-4, 1e-3)}
    plan = figures.Schedule(0.25, 4)
    (sgd, adamw) = figures.scores(DIGITS, 0, plan, rates, [2.0], thresholds)[:, :, 0]
    assert adamw[0] == pytest.approx(adamw[1], abs=0.3)
    assert sgd[0, 1] == pytest.approx(sgd[1, 0], abs=0.3)
    assert sgd[0, 0] != pytest.approx(sgd[1, 0], abs=0.3)


def test_summaries_of_a_heatmap() -> None:
    assert figures.best_cell(np.array([[1.0, 5.0, 2.0], [4.0, 3.0, 5.0]])) == (0, 1)
    cells = np.full((3, len(figures.STEP_RATES)), 50.0)
    for row, at in enumerate((2, 4, 6)):
        cells[row, at] = 90.0
    assert np.exp(figures.centres(cells)) == pytest.approx([figures.STEP_RATES[at] for at in (2, 4, 6)])
    assert figures.slope((1, 2, 4), np.log([8, 4, 2])) == pytest.approx(-1)
    assert figures.carried(1) == pytest.approx(0.1)
    assert figures.carried(1000) == pytest.approx(1000, rel=0.01)


def test_the_rule_runs_on_dp_zo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 14: the ledger has three runs of `dp_zo` in each sweep, a last one, and six counts."""
    short = DpZo(epochs=5)
    monkeypatch.setattr(figures, "DpZo", lambda: short)
    task, budget = TinyTask(), bench.PrivacyBudget(3, figures.DELTA)
    rule = figures.ZerothScaling(steps=short.plan(task.facts, budget).parameters.steps, smallest=1e3, largest=1e5)
    record = figures.run(task, rule, 3.0, 0)
    assert record.status == "ok", record.error
    assert record.privacy.recomputed.epsilon <= 3
    assert record.released["learning_rate"] * rule.steps == pytest.approx(record.released["total_step_size"])
    counts = [entry["count"] for entry in record.privacy.ledger["entries"]]
    assert sorted(counts) == sorted([6, 3 * rule.steps, 3 * rule.steps, rule.steps])


def test_a_uniform_average_is_the_mean_of_late_weights() -> None:
    weights = [torch.zeros(2)]
    average = UniformAverage(weights, 2)
    for value in (1.0, 2.0, 3.0, 5.0):
        weights[0].fill_(value)
        average.update()
    assert average.average[0].tolist() == [4.0, 4.0]


def test_a_killed_table_goes_on_where_it_ended(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "DATA", tmp_path)
    keys, computed = [{"rate": rate, "clipping": "abadi:0.1"} for rate in (0.003, 0.1)], []

    def cell(rate: float, clipping: str) -> dict[str, float]:
        computed.append(rate)
        return {"accuracy": 98.123}

    figures.resumed("name", keys[:1], cell)
    rows = figures.resumed("name", keys, cell)
    assert computed == [0.003, 0.1]
    assert rows == figures.resumed("name", keys, cell)
    assert [row["accuracy"] for row in rows] == [98.12, 98.12]


def test_an_interval_of_a_single_seed_has_no_ends() -> None:
    row = figures.interval([3.0])
    assert row["accuracy"] == 3.0
    assert math.isnan(row["accuracy_low"])


def test_blur_costs_what_the_pictures_of_a_severity_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twenty pictures, four by severity, none is blurred out of its class at severity 1, and all at 5."""
    targets = torch.arange(20) // 5
    blurred = torch.where(targets < torch.arange(20) % 5, 9, targets)
    records = {name: bench.Records(nn.functional.one_hot(each, 10).bfloat16(), targets)
               for name, each in (("clean", targets), ("blurred", blurred))}  # fmt: skip
    cifar10 = type(bench.make_task("cifar10"))
    monkeypatch.setattr(cifar10, "load_test", lambda *_: records["clean"])
    monkeypatch.setattr(cifar10, "_load_corrupted", lambda *_: records["blurred"])
    monkeypatch.setattr(bench, "run", lambda *_, **__: SimpleNamespace(model=nn.Identity()))
    rows = {(row["method"], row["severity"]): row for row in figures.blur(2)}
    assert len(rows) == 3 * 6
    assert [rows["recommended", str(severity)]["lost"] for severity in range(1, 6)] == [0, 25, 50, 75, 100]
    mean = rows["linear_scaling", "mean"]
    assert (mean["clean"], mean["accuracy"], mean["lost"], mean["lost_low"]) == (100, 50, 50, 50)


READMISSIONS = bench.make_task("readmissions")


def test_a_run_on_numbers_as_they_are_is_the_tasks() -> None:
    """Of the example too, without noise and in full batches."""
    run = 0, figures.Schedule(1.0, 3), {"SGD": [4.0]}, [0.0], [figures.UNIT]
    numbers = figures.encoded(READMISSIONS)["numbers"]
    (area,) = figures.scores(READMISSIONS, *run).flatten()
    assert figures.scores(numbers, *run).flatten() == area
    train, test = (load(bench.DataSource.resolve()).named() for load in (numbers.load_train, numbers.load_test))
    move = 4 / len(train["targets"])
    weights = figures.select_encoding.descend(
        train["inputs"], train["targets"], 0.0, torch.Generator().manual_seed(0), move, 1.0, 3
    )
    outputs = test["inputs"] @ weights[:-1] + weights[-1]
    assert 100 * bench.metrics.ROC_AUC.of(outputs[:, None], test["targets"]) == pytest.approx(area, abs=0.1)


def test_bins_hold_each_number_once_and_leave_categories() -> None:
    columns = bench.Columns({"age": bench.Number(50, 10), "ward": bench.Category(("a", "b")), "id": None})
    inputs = columns.encode({"age": [30, 50, 90], "ward": ["a", "b", "a"], "id": [1, 2, 3]})
    ways = figures.select_encoding.encodings(inputs, columns)
    assert ways["bins"][:, :2].tolist() == [[1, 0], [0, 1], [1, 0]]
    assert ways["bins"][:, 2:].argmax(1).tolist() == [0, 3, 7]  # z = -2, 0, 4; a number on an edge is below it
    assert ways["bins"][:, 2:].sum(1).tolist() == [1, 1, 1]
    assert torch.equal(ways["both"], torch.cat([inputs, ways["bins"][:, 2:]], 1))
    assert figures.select_encoding.encodings(inputs, None)["bins"].shape == (3, 3 * 8)


def test_a_range_is_between_the_means_of_the_best_and_the_worst() -> None:
    values = [np.array([1.0, 5.0]), np.array([4.0, 4.0]), np.array([2.0, 3.0])]
    assert figures.from_worst_to_best(values).tolist() == [2.0, 1.0]


def test_every_picture_has_numbers_that_a_command_computes() -> None:
    numbers = {path.stem.removeprefix("figure_") for path in figures.DATA.glob("figure_*.csv")}
    assert set(figure_charts.FIGURES) <= numbers <= set(figures.FIGURES)
