"""Runs that are no better than a constant guess say so, and why."""

import io
import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import dphpo_bench as bench
from dphpo_bench.cli import tables
from dphpo_bench.cli.run_tables import run_table
from dphpo_bench.cli.show_tables import record_json, record_lines
from dphpo_bench.harness import unlearned as unlearned_runs
from dphpo_bench.harness.run import RunResult
from dphpo_bench.records.guesses import guess_line
from dphpo_bench.records.reading import read_results
from dphpo_bench.records.record import RunRecord

BUDGET = bench.PrivacyBudget(5.0, 1e-4)
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(600, 6))
CLASSES = (X @ np.array([2.0, -1.0, 1.0, 0.0, 0.0, 0.0]) > 0).astype(int)
VALUES = X @ np.array([2.0, -1.0, 1.0, 0.0, 0.0, 0.0]) + GENERATOR.normal(size=600)


def result_of(inputs: Any, targets: Any, model: nn.Module, method: str = "hyfreedp", **changes: Any) -> RunResult:
    task = bench.ArrayTask(
        *("mine", (inputs[:400], targets[:400]), model, (inputs[400:], targets[400:])), public=True, **changes
    )
    return bench.run(method, task, BUDGET, seed=0, progress=bench.NullProgress())


def unlearned(inputs: Any, targets: Any, model: nn.Module, method: str = "hyfreedp", **changes: Any) -> RunRecord:
    with pytest.warns(UserWarning, match="constant guess") as caught:
        record = result_of(inputs, targets, model, method, **changes).record
    (line,) = (str(warning.message) for warning in caught if "constant guess" in str(warning.message))
    assert line == guess_line(record)
    assert record.status == "ok"
    return record


def learned(*arguments: Any, **changes: Any) -> RunRecord:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record = result_of(*arguments, **changes).record
    assert record.constant_guess is None
    assert "constant_guess" not in json.loads(record.to_json())
    return record


def test_a_large_column_of_the_inputs_is_named() -> None:
    inputs = np.hstack([X, 1e4 * np.ones((600, 1))])
    line = guess_line(unlearned(inputs, CLASSES, nn.Linear(7, 2), "dp_sgd")) or ""
    first, _, why = line.partition(". ")
    assert first.startswith("No better than a constant guess: test accuracy ")
    assert why.startswith("Column 6 (counted from 0) of the inputs has sizes of up to 1e+04 in the test records")
    learned(X, CLASSES, nn.Linear(6, 2))


@pytest.mark.parametrize("form", ["named", "picture", "tiny"])
def test_inputs_of_other_forms_are_named_too(form: str) -> None:
    class Sum(nn.Linear):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(a + b)

    inputs: Any = {"a": X, "b": 1e5 * np.ones((600, 6))}
    model: nn.Module = Sum(6, 2)
    if form == "picture":
        inputs = np.concatenate([inputs["b"], X], 1).reshape(600, 3, 2, 2)
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    elif form == "tiny":
        inputs, model = 1e-7 * X, nn.Linear(6, 2)
    task = bench.ArrayTask("mine", _rows(inputs, 0, 400), model, _rows(inputs, 400, 600), public=True)
    with pytest.warns(UserWarning, match="constant guess") as caught:
        bench.run("dp_sgd", task, BUDGET, seed=0, progress=bench.NullProgress())
    expected = {
        "named": "columns 0, 1, 2 and 3 more (counted from 0) of the input b have sizes of up to 1e+05",
        "picture": "inputs has sizes of up to 7.1e+04",
        "tiny": "all inputs are below 0.02",
    }
    assert expected[form].lower() in str(caught[-1].message).lower()


def _rows(inputs: Any, start: int, stop: int) -> Any:
    some = slice(start, stop)
    cut = {name: part[some] for name, part in inputs.items()} if isinstance(inputs, dict) else inputs[some]
    return cut, CLASSES[some]


def test_unscaled_targets_are_named_and_a_declared_scale_mends_them() -> None:
    prices = 3e5 + 1e5 * VALUES
    record = unlearned(X, prices, nn.Linear(6, 1), "recommended", kind="regression")
    assert record.constant_guess is not None
    assert record.constant_guess.value == 0.0
    assert record.constant_guess.why.startswith("Targets have a size of")
    assert "declare target_scale=(typical, spread)" in record.constant_guess.why
    mended = learned(X, prices, nn.Linear(6, 1), kind="regression", target_scale=(3e5, 2e5))
    assert mended.metrics["r2"] > 0.3
    variance = prices[400:].var()  # in the units of the prices
    assert mended.metrics["mean_squared_error"] == pytest.approx((1 - mended.metrics["r2"]) * variance, rel=1e-3)
    wrong = unlearned(X, prices, nn.Linear(6, 1), "recommended", kind="regression", target_scale=(0, 1))
    assert "also by their target_scale" in (wrong.constant_guess.why if wrong.constant_guess else "")


def test_the_plan_gives_reasons_where_the_scales_are_right() -> None:
    why = unlearned(X, CLASSES, nn.Sequential(nn.Linear(6, 2)), "dp_sgd", epochs=1, learning_rate=1e-6).constant_guess
    assert why is not None
    assert "There were only 4 steps" in why.why
    assert "Nobody tuned the learning rate of 1e-06" in why.why
    small = bench.PrivacyBudget(0.01, 1e-4)
    wide = nn.Sequential(nn.Linear(6, 400), nn.ReLU(), nn.Linear(400, 2))
    noise = GENERATOR.integers(0, 2, 600)
    task = bench.ArrayTask("mine", (X[:400], noise[:400]), wide, (X[400:], noise[400:]), public=True)
    with pytest.warns(UserWarning, match=r"hides the gradients of 3,602 weights"):
        bench.run("hyfreedp", task, small, seed=0, progress=bench.NullProgress())


def test_training_that_diverged_says_so() -> None:
    inputs, model = 1e30 * X, nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    record = unlearned(inputs, CLASSES, model, "dp_sgd", learning_rate=1e15, optimizer="SGD")
    assert record.constant_guess is not None
    assert record.constant_guess.why.startswith("Some outputs are not finite: training diverged")
    task = bench.ArrayTask(
        *("mine", (inputs[:400], CLASSES[:400]), model, (inputs[400:], CLASSES[400:])),
        *(),
        public=True,
        learning_rate=1e15,
        optimizer="SGD",
        metrics=[bench.metrics.ROC_AUC],
    )
    error = bench.run("dp_sgd", task, BUDGET, seed=0, progress=bench.NullProgress(), check=False).record.error
    assert error is not None
    assert error.endswith(
        "Some outputs are not finite: training diverged, as by a large learning rate or unscaled inputs."
    )


class OtherTargets(bench.ArrayTask):
    """A task whose test targets are of a type that losses and metrics take, and means do not."""

    def load_test(self, source: bench.DataSource) -> bench.Records:
        test = super().load_test(source)
        return bench.Records(test.inputs, test.targets.round().long())  # type: ignore[union-attr]


def test_whole_numbers_as_targets_of_a_regression_have_a_guess() -> None:
    rows = (X[:400], VALUES[:400]), nn.Linear(6, 1), (X[400:], VALUES[400:])
    task = OtherTargets("mine", *rows, kind="regression", error_bound=5.0, public=True, learning_rate=1e-9)
    with pytest.warns(UserWarning, match="constant guess"):
        record = bench.run("dp_sgd", task, BUDGET, seed=0, progress=bench.NullProgress()).record
    assert record.constant_guess is not None
    assert record.constant_guess.value == 0


def test_predictions_of_one_class_are_named_though_the_first_metric_is_better() -> None:
    inputs = np.tile(X, (4, 1))
    rare = (inputs @ np.array([2.0, -1.0, 1.0, 0.0, 0.0, 0.0]) > 5).astype(int)
    declared: dict[str, Any] = {"learning_rate": 0.05, "epochs": 10, "optimizer": "SGD"}
    metrics = (bench.metrics.ROC_AUC, bench.metrics.BALANCED_ACCURACY)
    task = bench.ArrayTask(
        "rare", (inputs, rare), nn.Linear(6, 2), (inputs, rare), public=True, metrics=metrics, **declared
    )
    with pytest.warns(UserWarning, match="test balanced accuracy 50.00%, any constant guess has 50.00%"):
        record = bench.run("dp_sgd", task, BUDGET, seed=0, progress=bench.NullProgress()).record
    assert record.metrics["roc_auc"] > 0.7
    assert record.constant_guess is None
    better = record.model_copy(update={"metrics": {**record.metrics, "balanced_accuracy": 0.51}})
    assert guess_line(better) is None


def test_a_learning_rate_that_is_no_number_is_named() -> None:
    rows = (X[:400], CLASSES[:400]), nn.Linear(6, 2), (X[400:], CLASSES[400:])
    task = bench.ArrayTask("mine", *rows, public=True)
    checked = bench.plan("dp_sgd", task, BUDGET)
    method: Any = SimpleNamespace(tuning=(), parameters={"learning_rate": "by layer"})
    test = task.load_test(bench.DataSource.resolve())
    why = unlearned_runs.reasons(task, test, None, task.build_model(), replace(checked, method=method))
    assert "obody tuned the learning rate of by layer" in why


def test_no_run_fails_because_of_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> float:
        raise RuntimeError("no guess")

    monkeypatch.setattr(unlearned_runs, "best_guess", failing)
    assert result_of(X, 0 * CLASSES, nn.Linear(6, 2), "dp_sgd").record.status == "ok"


def test_record_show_run_and_results_say_it(tmp_path: Path) -> None:
    task = bench.ArrayTask(
        *("mine", (X[:400], 0 * CLASSES[:400]), nn.Linear(6, 2), (X[400:], CLASSES[400:])),
        public=True,
        learning_rate=0.3,
    )
    with pytest.warns(UserWarning, match="constant guess"):
        result = bench.run("dp_sgd", task, BUDGET, seed=0, progress=bench.NullProgress(), results_dir=tmp_path)
    record = bench.read_record(result.path or "")
    guess = record.constant_guess
    assert guess is not None
    assert record == result.record
    assert json.loads(record.to_json())["constant_guess"] == {"value": guess.value, "why": guess.why}
    shown = " ".join(record_lines(record, None, "again"))
    assert guess_line(record) in shown
    assert record_json(record, None, "again")["constant_guess"]["value"] == guess.value
    output = io.StringIO()
    Console(file=output, width=200).print(run_table(result))
    assert f"{guess.value:.2%}: this run is not clearly better" in output.getvalue()
    text = tables.to_text(read_results(tmp_path)[0], summarise=False)
    assert "1 run is not clearly better than a constant guess: mine/dp_sgd/" in text
