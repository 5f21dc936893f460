"""The best constant guess: what a metric is for a model that says the same of every test record.

It is computed on the test records, which no ε protects, and with hindsight: frequencies of classes, means and medians
of targets are those of the test records.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import each, take
from dphpo_bench.contract.metrics import ACCURACY, CROSS_ENTROPY, F1, OF_CLASSES, OF_NUMBERS, PERPLEXITY, Metric

if TYPE_CHECKING:
    from torch import Tensor

GROUPS = 20
QUANTILE = 1.73
"""Student's t of 19 degrees of freedom at 95 %, one-sided."""
MANY = 1000
FAR = 0.5
"""With this many test records, no margin is so large: of the way from the guess to a perfect value."""


def best_guess(metric: Metric, kind: str, targets: "Tensor", n_classes: int | None) -> float | None:
    """Return the metric of the best constant guess; None if the kind of task has none, or the metric is undefined.

    Guesses are the frequencies of the classes, as log-odds; for F1 also the rare class, always; of a regression the
    mean and the median. They need not be the best ones of a metric that is not ready-made.

    Args:
        metric: the metric.
        kind: of the task; see `TaskFacts.kind`.
        targets: of the test records.
        n_classes: of the task.
    """
    if kind == "tokens":
        return _of_tokens(metric, targets)
    values = []
    for outputs in _constants(metric, kind, targets, n_classes):
        try:
            values.append(metric.of(outputs, targets))
        except Exception:  # a metric of a user's may raise anything, and no run fails because of a guess
            continue
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    return round(max(finite), 12) + 0.0 if metric.higher_is_better else min(finite)  # the R² of a mean is 0


def is_no_better(
    metric: Metric, value: float, guess: float, kind: str, outputs: Any, targets: "Tensor", n_classes: int | None
) -> bool:
    """Return whether a model's metric is no better than a constant guess, as far as the test records can tell.

    A ready-made metric must be better by a margin: 1.73 standard errors of its difference to the guess, by a jackknife
    of 20 groups of records. So a model that is no better is passed over with probability 5 %, and a model that is truly
    better by two margins is called no better with probability 5 %. Metrics of tokens, and those that are not
    ready-made, have no margin.

    Args:
        metric: the metric.
        value: of the model.
        guess: of the best constant guess.
        kind: of the task.
        outputs: of the model, for all test records.
        targets: of all test records.
        n_classes: of the task.
    """
    gain = _gain(metric, value, guess)
    if gain <= 0:
        return True
    if kind == "tokens" or metric not in (*OF_CLASSES, *OF_NUMBERS):
        return False
    perfect = 1.0 if metric.higher_is_better else 0.0
    if len(targets) >= MANY and gain > FAR * abs(perfect - guess):
        return False
    return gain <= QUANTILE * _standard_error(metric, kind, outputs, targets, n_classes)


def _gain(metric: Metric, value: float, guess: float) -> float:
    return value - guess if metric.higher_is_better else guess - value


def _standard_error(metric: Metric, kind: str, outputs: Any, targets: "Tensor", n_classes: int | None) -> float:
    """Return the jackknife's standard error of the gain; 0 where the metric is undefined on parts of the records.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, section 11.5 (delete-d jackknife).
    """
    import torch

    groups = min(GROUPS, len(targets))
    group = torch.arange(len(targets)) % groups
    gains = []
    for index in range(groups):
        rows = (group != index).nonzero().squeeze(1)
        some, true = each(lambda tensor: take(tensor, rows), outputs), take(targets, rows)  # noqa: B023 - used at once
        try:
            value = metric.of(some, true)
        except InvalidValueError:
            return 0.0
        guess = best_guess(metric, kind, true, n_classes)
        if guess is None:
            return 0.0
        gains.append(_gain(metric, value, guess))
    mean = math.fsum(gains) / groups
    return math.sqrt((groups - 1) / groups * math.fsum((gain - mean) ** 2 for gain in gains))


def _constants(metric: Metric, kind: str, targets: "Tensor", n_classes: int | None) -> "Iterator[Tensor]":
    """Yield the outputs of constant guesses."""
    import torch

    n = len(targets)
    if kind == "classification" and n_classes:
        shares = targets.bincount(minlength=n_classes).double() / n
        yield shares.clamp(min=1e-12).log().expand(n, n_classes)
        if metric == F1 and n_classes == 2:
            yield torch.tensor([-1.0, 1.0]).expand(n, 2)
    elif kind in ("binary", "multilabel"):
        yield targets.double().mean(0).clamp(1e-12, 1 - 1e-12).logit().expand_as(targets)
        if metric == F1:
            yield torch.ones_like(targets)
    elif kind == "regression":
        yield targets.mean(0).expand_as(targets)
        yield targets.median(0).values.expand_as(targets)


def _of_tokens(metric: Metric, targets: "Tensor") -> float | None:
    """Return the metric of the frequencies of the tokens that count."""
    import torch

    from dphpo_bench.training.losses import IGNORED

    tokens = targets[targets != IGNORED]
    if metric not in (ACCURACY, CROSS_ENTROPY, PERPLEXITY) or not len(tokens):
        return None
    shares = torch.unique(tokens, return_counts=True)[1].double() / len(tokens)
    if metric == ACCURACY:
        return float(shares.max())
    entropy = float(-(shares * shares.log()).sum())
    return entropy if metric == CROSS_ENTROPY else math.exp(entropy)
