"""The stage `measure`: the task's metrics on its test records, the best constant guess, and further tests.

A run whose first metric is no better than that of a constant has learned nothing. The guess is computed on the test
records, which no ε protects, and with hindsight: frequencies of classes, means and medians are theirs.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import InvalidValueError, SealedDataError
from dphpo_bench.base.tensors import Records, leaves
from dphpo_bench.contract.metrics import (
    ACCURACY,
    CROSS_ENTROPY,
    F1,
    PERPLEXITY,
    AnyMetric,
    Metric,
    ModelMetric,
    ModelMetrics,
)
from dphpo_bench.contract.seals import sealed
from dphpo_bench.contract.task import Task
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.harness.state import Run, timed
from dphpo_bench.records.record import ConstantGuess, FurtherMetrics

if TYPE_CHECKING:
    from torch import Tensor, nn

DIVERGED = "Some outputs are not finite: training diverged, as by a large learning rate or unscaled inputs."
USUAL = "Usual reasons: unscaled inputs or targets, too few steps, an untuned learning rate, a small budget."


def measure(run: Run) -> None:
    """Measure the model on the test records, which are opened here for the first time.

    The run fails if a metric cannot be computed. Its model stays, unless the model's code reached for sealed data.
    """
    if run.outcome is None:
        return
    complaints: list[str] = []
    outputs: Any = None
    model, task = run.outcome.model, run.task
    with timed(run.seconds, "test"), run.progress.track("Testing", 0):
        try:
            test = task.load_test(run.source)
            with sealed() as complaints:  # the model runs, and its code is the method's
                if len(test):
                    outputs = _outputs(model, test, task, task.metrics)
                    run.metrics = _values(model, test, outputs, task.metrics)
                    run.guess = constant_guess(task, test, outputs, run.metrics)
            if not complaints and run.metrics:
                run.further, complaints = _further(run, model)
            if complaints:
                raise SealedDataError(complaints[0])
        except (Exception, SystemExit) as failure:
            run.fail(failure, keep_model=not complaints)
            if not complaints and _diverged(outputs):
                run.error = f"{run.error} {DIVERGED}"


def _further(run: Run, model: "nn.Module") -> tuple[dict[str, FurtherMetrics], list[str]]:
    """Return the metrics of the further tests, and complaints about the model's code.

    A further test that cannot be run is left out: the run itself is sound, and may have been paid for.
    """
    task, further = run.task, {}
    complaints: list[str] = []
    for test in task.further_tests:
        metrics = task.metrics if test.metrics is None else test.metrics
        heard: list[str] = []
        try:
            records = test.records(task.name, run.source)
            with sealed() as heard:
                values = _values(model, records, _outputs(model, records, task, metrics), metrics)
            further[test.name] = FurtherMetrics(about=test.about, metrics=values)
        except (Exception, SystemExit) as failure:
            run.progress.note(f"No further test {test.name}: {reason_of(failure, hide=run.unseeded)}")
        complaints += heard
    return further, complaints


def _outputs(model: "nn.Module", records: Records, task: Task, metrics: Sequence[AnyMetric]) -> Any:
    """Return the outputs in the units of the targets; None if no metric is of outputs."""
    if not any(isinstance(metric, Metric) for metric in metrics):
        return None
    from dphpo_bench.training.evaluation import all_outputs
    from dphpo_bench.training.losses import logits

    outputs, facts = all_outputs(model, records), task.facts
    shape = tuple(logits(outputs).shape)
    if facts.kind in ("classification", "tokens") and shape[-1] != facts.n_classes:  # metrics would mean nothing
        raise InvalidValueError(
            f"Expected a model with {facts.n_classes} outputs, one for each class, got outputs of shape {shape}. "
            "Return a model that the session built."
        )
    return outputs if task.target_scale is None else task.target_scale.invert(outputs)


def _values(model: "nn.Module", records: Records, outputs: Any, metrics: Sequence[AnyMetric]) -> dict[str, float]:
    values: dict[str, float] = {}
    for metric in metrics:
        if isinstance(metric, ModelMetrics):
            values |= metric.of(model, records)
        elif isinstance(metric, ModelMetric):
            values[metric.name] = metric.of(model, records)
        else:
            values[metric.name] = metric.of(outputs, records.targets)
    return values


def _diverged(outputs: Any) -> bool:
    """Return whether a model's outputs, a tensor or several by name, hold NaN or infinity."""
    return outputs is not None and not all(bool(tensor.isfinite().all()) for tensor in leaves(outputs))


def constant_guess(task: Task, test: Records, outputs: Any, metrics: dict[str, float]) -> ConstantGuess | None:
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
        return ConstantGuess(value=guess, why=DIVERGED if _diverged(outputs) else USUAL)
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
