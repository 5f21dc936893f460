"""Runs that are no better than a constant guess say so."""

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import f1_score, log_loss, mean_absolute_error, mean_squared_error
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.cli.records import to_text
from dphpo_bench.contract import metrics
from dphpo_bench.contract.metrics import Metric
from dphpo_bench.harness import training
from dphpo_bench.harness.run import RunResult
from dphpo_bench.harness.training import best_guess
from dphpo_bench.privacy.events import no_op
from dphpo_bench.privacy.holdout import held_out
from dphpo_bench.records.reading import read_results
from dphpo_bench.records.record import RunRecord
from methods.dp_sgd import FixedDpSgd
from tests.own_task import array_task

LABELS = torch.tensor([0] * 30 + [1] * 12 + [2] * 8)
BINARY = (torch.arange(100) < 7).float()
NUMBERS = torch.tensor([1.0, 2.0, 3.0, 4.0, 100.0])
DUMMY = DummyClassifier(strategy="prior").fit(np.zeros((50, 1)), LABELS.numpy())
MIDDLE = DummyRegressor(strategy="median").fit(np.zeros((5, 1)), NUMBERS.numpy())
ABSOLUTE = Metric("absolute", False, lambda outputs, targets: float((outputs.squeeze(-1) - targets).abs().mean()))
BUDGET = bench.PrivacyBudget(5.0, 1e-4)
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(600, 6))
CLASSES = (X @ np.array([2.0, -1.0, 1.0, 0.0, 0.0, 0.0]) > 0).astype(int)
VALUES = X @ np.array([2.0, -1.0, 1.0, 0.0, 0.0, 0.0]) + GENERATOR.normal(size=600)


def result_of(inputs: Any, targets: Any, model: nn.Module, method: str = "hyfreedp", **changes: Any) -> RunResult:
    task = array_task(
        *("mine", (inputs[:400], targets[:400]), model, (inputs[400:], targets[400:])), public=True, **changes
    )
    return bench.run(method, task, BUDGET, seed=0, progress=bench.NullProgress())


def unlearned(inputs: Any, targets: Any, model: nn.Module, method: str = "hyfreedp", **changes: Any) -> RunRecord:
    with pytest.warns(UserWarning, match="constant guess") as caught:
        record = result_of(inputs, targets, model, method, **changes).record
    (line,) = (str(warning.message) for warning in caught if "constant guess" in str(warning.message))
    assert line == record.guess_line()
    assert record.status == "ok"
    return record


def learned(*arguments: Any, **changes: Any) -> RunRecord:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record = result_of(*arguments, **changes).record
    assert record.constant_guess is None
    assert "constant_guess" not in json.loads(record.to_json())
    return record


@pytest.mark.parametrize(
    ("metric", "kind", "targets", "n_classes", "expected"),
    [
        (metrics.ACCURACY, "classification", LABELS, 3, DUMMY.score(np.zeros((50, 1)), LABELS.numpy())),
        (
            *(metrics.CROSS_ENTROPY, "classification", LABELS, 3),
            log_loss(LABELS.numpy(), DUMMY.predict_proba(np.zeros((50, 1)))),
        ),
        (metrics.F1, "classification", LABELS, 3, f1_score(LABELS.numpy(), np.zeros(50), average="macro")),
        (metrics.F1, "binary", BINARY, None, f1_score(BINARY.numpy(), np.ones(100))),
        (metrics.ACCURACY, "multilabel", torch.stack([BINARY, 1 - BINARY], 1), 2, 0.93),
        (metrics.R2, "regression", NUMBERS, None, 0.0),
        (metrics.MEAN_SQUARED_ERROR, "regression", NUMBERS, None, mean_squared_error(NUMBERS, torch.full((5,), 22.0))),
        (ABSOLUTE, "regression", NUMBERS, None, mean_absolute_error(NUMBERS, MIDDLE.predict(np.zeros((5, 1))))),
        (metrics.PERPLEXITY, "tokens", torch.tensor([[1, 1, -100], [2, 3, -100]]), 9, math.exp(1.5 * math.log(2))),
        (metrics.ACCURACY, "tokens", torch.tensor([[1, 1, -100], [2, 3, -100]]), 9, 0.5),
        (metrics.R2, "own", NUMBERS, None, None),
        (metrics.ROC_AUC, "binary", torch.zeros(5), None, None),
    ],
)
def test_the_best_guess_is_that_of_another_library(
    metric: Metric, kind: str, targets: Tensor, n_classes: int | None, expected: float | None
) -> None:
    assert best_guess(metric, kind, targets, n_classes) == (None if expected is None else pytest.approx(expected))


def test_a_metric_that_fails_on_a_guess_has_none() -> None:
    def fails(outputs: Any, targets: Any) -> float:
        raise AssertionError(f"{outputs} {targets}")

    assert best_guess(Metric("fails", True, fails), "regression", NUMBERS, None) is None


def test_unscaled_targets_are_no_better_and_a_declared_scale_mends_them() -> None:
    prices = 3e5 + 1e5 * VALUES
    record = unlearned(X, prices, nn.Linear(6, 1), "recommended", kind="regression")
    assert record.constant_guess is not None
    assert record.constant_guess.value == 0.0
    assert record.constant_guess.why.startswith("Usual reasons: unscaled inputs or targets")
    mended = learned(X, prices, nn.Linear(6, 1), kind="regression", target_scale=(3e5, 2e5))
    assert mended.metrics["r2"] > 0.3
    variance = prices[400:].var()  # in the units of the prices
    assert mended.metrics["mean_squared_error"] == pytest.approx((1 - mended.metrics["r2"]) * variance, rel=1e-3)


def test_training_that_diverged_says_so() -> None:
    inputs, model = 1e30 * X, nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    record = unlearned(inputs, CLASSES, model, "dp_sgd", learning_rate=1e15, optimizer="SGD")
    assert record.constant_guess is not None
    assert record.constant_guess.why.startswith("Some outputs are not finite: training diverged")
    task = array_task(
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


def test_predictions_of_one_class_are_named_though_the_first_metric_is_better() -> None:
    inputs = np.tile(X, (4, 1))
    rare = (inputs @ np.array([2.0, -1.0, 1.0, 0.0, 0.0, 0.0]) > 5).astype(int)
    declared: dict[str, Any] = {"learning_rate": 0.05, "epochs": 10, "optimizer": "SGD"}
    measured = (metrics.ROC_AUC, metrics.BALANCED_ACCURACY)
    task = array_task(
        "rare", (inputs, rare), nn.Linear(6, 2), (inputs, rare), public=True, metrics=measured, **declared
    )
    with pytest.warns(UserWarning, match="test balanced accuracy 50.00%, any constant guess has 50.00%"):
        record = bench.run("dp_sgd", task, BUDGET, seed=0, progress=bench.NullProgress()).record
    assert record.metrics["roc_auc"] > 0.7
    assert record.constant_guess is None
    better = record.model_copy(update={"metrics": {**record.metrics, "balanced_accuracy": 0.51}})
    assert better.guess_line() is None


def test_no_run_fails_because_of_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> float:
        raise RuntimeError("no guess")

    monkeypatch.setattr(training, "best_guess", failing)
    assert result_of(X, 0 * CLASSES, nn.Linear(6, 2), "dp_sgd").record.status == "ok"


@pytest.mark.parametrize(("rate", "limit"), [(1e-3, "rate"), (100.0, "noise")])
def test_a_run_says_whether_its_rate_or_its_noise_limits_it(tmp_path: Path, rate: float, limit: str) -> None:
    task = array_task("mine", (X[:400], CLASSES[:400]), nn.Linear(6, 2), (X[400:], CLASSES[400:]), learning_rate=rate)
    result = bench.run("dp_sgd", task, BUDGET, seed=0, progress=bench.NullProgress(), results_dir=tmp_path)
    record = bench.read_record(result.path or "")
    assert record.output_noise is not None
    assert record.output_noise.limit == limit
    assert dict(record.display()[1])["limited by"].startswith(f"{limit}-bound: ")
    old = json.loads(record.to_json())
    del old["output_noise"]
    assert "limited by" not in dict(type(record).model_validate(old).display()[1])
    searched = bench.run("recommended", task, BUDGET, seed=0, progress=bench.NullProgress())
    assert searched.record.output_noise != record.output_noise  # of the rate that it chose


class OnHalf(FixedDpSgd):
    name = "on_half"

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.recipes.DpSgd]:
        plan = super().plan(facts, budget)
        return replace(plan, event=held_out(plan.event, no_op(), 0.5))

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: bench.Session) -> bench.Outcome:
        return super().run(plan, session.holdout(0.5)[0])


def test_a_run_on_half_of_the_records_has_twice_the_noise() -> None:
    task = array_task("mine", (X[:400], CLASSES[:400]), nn.Linear(6, 2), (X[400:], CLASSES[400:]), public=True)
    whole, half = (
        bench.run(method(optimizer="SGD"), task, BUDGET, seed=0, progress=bench.NullProgress()).record.output_noise
        for method in (FixedDpSgd, OnHalf)
    )
    assert whole
    assert half
    assert half.nu == pytest.approx(2 * whole.nu)


def test_record_show_run_and_results_say_it(tmp_path: Path) -> None:
    task = array_task(
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
    assert f"{guess.value:.2%}: this run is no better" in repr(result)
    text = to_text(read_results(tmp_path)[0], summarise=False)
    assert "1 run is no better than a constant guess: mine/dp_sgd/" in text
