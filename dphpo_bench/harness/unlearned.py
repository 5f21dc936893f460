"""The best constant guess: a run whose first metric is no better than that of a constant has learned nothing.

The guess is computed on the test records, which no ε protects, and with hindsight: frequencies of classes, means and
medians of targets are those of the test records.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.tensors import Records, leaves
from dphpo_bench.contract.metrics import ACCURACY, CROSS_ENTROPY, F1, PERPLEXITY, Metric
from dphpo_bench.records.record import ConstantGuess

if TYPE_CHECKING:
    from torch import Tensor

    from dphpo_bench.contract.task import Task

DIVERGED = "Some outputs are not finite: training diverged, as by a large learning rate or unscaled inputs."
USUAL = "Usual reasons: unscaled inputs or targets, too few steps, an untuned learning rate, a small budget."


def diverged(outputs: Any) -> bool:
    """Return whether a model's outputs, a tensor or several by name, hold NaN or infinity."""
    return outputs is not None and not all(bool(tensor.isfinite().all()) for tensor in leaves(outputs))


def constant_guess(task: "Task", test: Records, outputs: Any, metrics: dict[str, float]) -> ConstantGuess | None:
    """Return the best constant guess if a run's first metric is no better; else None.

    Args:
        task: the task.
        test: its test records, at least one.
        outputs: of the model, in the units of the targets; None if no metric is of outputs.
        metrics: of the run, by name.
    """
    first, facts = next(iter(task.metrics), None), task.facts
    if not isinstance(first, Metric) or outputs is None or isinstance(test.targets, dict):
        return None
    targets: Tensor = leaves(test.targets)[0]
    if facts.kind == "regression" and not targets.is_floating_point():
        targets = targets.double()
    try:
        guess, value = best_guess(first, facts.kind, targets, facts.n_classes), metrics[first.name]
        if guess is None or (value > guess if first.higher_is_better else value < guess):
            return None
        return ConstantGuess(value=guess, why=DIVERGED if diverged(outputs) else USUAL)
    except Exception:  # targets of a plug-in may be of any form, and no run fails because of a guess
        return None


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
