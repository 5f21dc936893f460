"""Measurement of a trained model: the task's metrics on its test records, then its further tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import InvalidValueError, SealedDataError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.further import AnyMetric
from dphpo_bench.contract.metrics import Metric, ModelMetric, ModelMetrics
from dphpo_bench.contract.seals import sealed
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.attempt import Attempt
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.harness.setup import Setup
from dphpo_bench.harness.unlearned import DIVERGED, constant_guess, diverged
from dphpo_bench.records.record import ConstantGuess, FurtherMetrics

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Measured:
    """The measurements of a model.

    Attributes:
        metrics: of the task, on its test records; none of a run that failed.
        guess: the best constant guess, if the model is no better.
        further: by name of the further test.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    guess: ConstantGuess | None = None
    further: Mapping[str, FurtherMetrics] = field(default_factory=dict)


def measure(
    attempt: Attempt, model: "nn.Module", task: Task, source: DataSource, setup: Setup
) -> "tuple[Attempt, Measured, nn.Module | None]":
    """Return the attempt, which failed if a metric cannot be computed, the measurements, and the model.

    The model stays with a failed attempt, unless its code reached for sealed data.
    """
    complaints: list[str] = []
    outputs: Any = None
    metrics: dict[str, float] = {}
    guess: ConstantGuess | None = None
    further: dict[str, FurtherMetrics] = {}
    try:
        test = task.load_test(source)
        with sealed() as complaints:  # the model runs, and its code is the method's
            if len(test):
                outputs = _outputs(model, test, task, task.metrics)
                metrics = _values(model, test, outputs, task.metrics)
                guess = constant_guess(task, test, outputs, metrics)
        if not complaints and metrics:
            further, complaints = _further(model, task, source, setup)
        if complaints:
            raise SealedDataError(complaints[0])
    except (Exception, SystemExit) as failure:
        reason = reason_of(failure, hide=setup.unseeded)
        if complaints:
            return attempt.failed(reason), Measured(), None
        reason += f" {DIVERGED}" if diverged(outputs) else ""
        return replace(attempt, status="failed", error=reason), Measured(), model
    return attempt, Measured(metrics, guess, further), model


def _further(
    model: "nn.Module", task: Task, source: DataSource, setup: Setup
) -> tuple[dict[str, FurtherMetrics], list[str]]:
    """Return the metrics of the further tests, and complaints about the model's code.

    A further test that cannot be run is left out: the run itself is sound, and may have been paid for.
    """
    further = {}
    complaints: list[str] = []
    for test in task.further_tests:
        metrics = task.metrics if test.metrics is None else test.metrics
        heard: list[str] = []
        try:
            records = test.records(task.name, source)
            with sealed() as heard:
                values = _values(model, records, _outputs(model, records, task, metrics), metrics)
            further[test.name] = FurtherMetrics(about=test.about, metrics=values)
        except (Exception, SystemExit) as failure:
            setup.progress.note(f"No further test {test.name}: {reason_of(failure, hide=setup.unseeded)}")
        complaints += heard
    return further, complaints


def _outputs(model: "nn.Module", records: Records, task: Task, metrics: Sequence[AnyMetric]) -> Any:
    """Return the outputs in the units of the targets; None if no metric is of outputs."""
    if not any(isinstance(metric, Metric) for metric in metrics):
        return None
    from dphpo_bench.training.evaluation import all_outputs

    outputs = all_outputs(model, records)
    _check_classes(outputs, task.facts)
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


def _check_classes(outputs: Any, facts: TaskFacts) -> None:
    """Refuse outputs with another number of classes than the task has: their metrics would mean nothing."""
    from dphpo_bench.training.losses import logits

    shape = tuple(logits(outputs).shape)
    if facts.kind in ("classification", "tokens") and shape[-1] != facts.n_classes:
        raise InvalidValueError(
            f"Expected a model with {facts.n_classes} outputs, one for each class, got outputs of shape "
            f"{shape}. Return a model that the session built."
        )
