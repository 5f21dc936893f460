"""The best constant guess of each metric, and when a model is no better."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import f1_score, log_loss, mean_absolute_error, mean_squared_error
from torch import Tensor

from dphpo_bench.contract import metrics
from dphpo_bench.contract.guesses import best_guess, is_no_better
from dphpo_bench.contract.metrics import Metric

CLASSES = torch.tensor([0] * 30 + [1] * 12 + [2] * 8)
BINARY = (torch.arange(100) < 7).float()
VALUES = torch.tensor([1.0, 2.0, 3.0, 4.0, 100.0])
DUMMY = DummyClassifier(strategy="prior").fit(np.zeros((50, 1)), CLASSES.numpy())
MIDDLE = DummyRegressor(strategy="median").fit(np.zeros((5, 1)), VALUES.numpy())
ABSOLUTE = Metric("absolute", False, lambda outputs, targets: float((outputs.squeeze(-1) - targets).abs().mean()))


@pytest.mark.parametrize(
    ("metric", "kind", "targets", "n_classes", "expected"),
    [
        (metrics.ACCURACY, "classification", CLASSES, 3, DUMMY.score(np.zeros((50, 1)), CLASSES.numpy())),
        (
            *(metrics.CROSS_ENTROPY, "classification", CLASSES, 3),
            log_loss(CLASSES.numpy(), DUMMY.predict_proba(np.zeros((50, 1)))),
        ),
        (metrics.BALANCED_ACCURACY, "classification", CLASSES, 3, 1 / 3),
        (metrics.ROC_AUC, "classification", CLASSES, 3, 0.5),
        (metrics.F1, "classification", CLASSES, 3, f1_score(CLASSES.numpy(), np.zeros(50), average="macro")),
        (metrics.ACCURACY, "binary", BINARY, None, 0.93),
        (metrics.ROC_AUC, "binary", BINARY, None, 0.5),
        (metrics.F1, "binary", BINARY, None, f1_score(BINARY.numpy(), np.ones(100))),
        (metrics.F1, "classification", BINARY.long(), 2, f1_score(BINARY.numpy(), np.ones(100))),
        (metrics.ACCURACY, "multilabel", torch.stack([BINARY, 1 - BINARY], 1), 2, 0.93),
        (metrics.R2, "regression", VALUES, None, 0.0),
        (metrics.MEAN_SQUARED_ERROR, "regression", VALUES, None, mean_squared_error(VALUES, torch.full((5,), 22.0))),
        (ABSOLUTE, "regression", VALUES, None, mean_absolute_error(VALUES, MIDDLE.predict(np.zeros((5, 1))))),
        (metrics.PERPLEXITY, "tokens", torch.tensor([[1, 1, -100], [2, 3, -100]]), 9, math.exp(1.5 * math.log(2))),
        (metrics.ACCURACY, "tokens", torch.tensor([[1, 1, -100], [2, 3, -100]]), 9, 0.5),
        (metrics.R2, "own", VALUES, None, None),
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

    assert best_guess(Metric("fails", True, fails), "regression", VALUES, None) is None


def models(generator: torch.Generator, n: int, signal: float) -> tuple[Tensor, Tensor]:
    """Logits and labels of n records, 30 % of them of the second class."""
    labels = (torch.rand(n, generator=generator) < 0.3).float()
    return signal * (labels - 0.5) + torch.randn(n, generator=generator), labels


def constant(generator: torch.Generator, n: int) -> tuple[Tensor, Tensor]:
    outputs, labels = models(generator, n, 0.0)
    return outputs.sign() * 0.01 + -0.8, labels


@pytest.mark.parametrize("metric", [metrics.ROC_AUC, metrics.BALANCED_ACCURACY, metrics.CROSS_ENTROPY])
@pytest.mark.parametrize(
    ("model", "least", "most"),
    [
        (lambda generator, n: models(generator, n, 0.0), 0.75, 1.0),
        (constant, 0.75, 1.0),
        (lambda generator, n: models(generator, n, 3.0), 0.0, 0.0),
    ],
)
def test_models_that_know_nothing_are_named_and_good_ones_are_not(
    metric: Metric, model: Callable[..., tuple[Tensor, Tensor]], least: float, most: float
) -> None:
    """Of 60 models 57 are expected in the first two rows; that 44 or fewer are has a probability below 1e-6."""
    generator, named, count = torch.Generator().manual_seed(0), 0, 60 if least else 6
    for _ in range(count):
        outputs, labels = model(generator, 100)
        guess = best_guess(metric, "binary", labels, None)
        assert guess is not None
        named += is_no_better(metric, metric.of(outputs, labels), guess, "binary", outputs, labels, None)
    assert least <= named / count <= most


def test_a_model_that_diverged_is_named_however_it_is_measured() -> None:
    outputs, labels = torch.full((50, 2), math.inf), BINARY[:50].long()
    for metric in (metrics.ACCURACY, metrics.CROSS_ENTROPY):
        guess = best_guess(metric, "classification", labels, 2)
        assert guess is not None
        assert is_no_better(metric, metric.of(outputs, labels), guess, "classification", outputs, labels, 2)
