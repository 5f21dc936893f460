"""The stage `measure`: the task's metrics on its test records, then its further tests."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import InvalidValueError, SealedDataError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.further import AnyMetric
from dphpo_bench.contract.metrics import Metric, ModelMetric, ModelMetrics
from dphpo_bench.contract.seals import sealed
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.harness.state import Run, timed
from dphpo_bench.harness.unlearned import DIVERGED, constant_guess, diverged
from dphpo_bench.records.record import FurtherMetrics

if TYPE_CHECKING:
    from torch import nn


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
            reason = reason_of(failure, hide=run.unseeded)
            reason += f" {DIVERGED}" if not complaints and diverged(outputs) else ""
            run.fail(reason, keep_model=not complaints)


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
