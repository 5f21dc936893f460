"""The stages `train`, `verify` and `measure`: let a method run, compute ε of what it released, test its model.

A run whose first metric is no better than that of a constant has learned nothing. The guess is computed on the test
records, which no ε protects, and with hindsight: frequencies of classes, means and medians are theirs.
"""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import (
    DphpoBenchError,
    InvalidValueError,
    OverBudgetError,
    SealedDataError,
    UnsupportedEventError,
)
from dphpo_bench.base.progress import Meter, NullProgress
from dphpo_bench.base.tensors import Records, leaves
from dphpo_bench.contract.method import Outcome, refuse_shared, sibling_of
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
from dphpo_bench.harness.loading import check_declared
from dphpo_bench.harness.plan import parameters_of, quoted
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.harness.state import Run, timed
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.recipes.dp_sgd import TRAINED_BY
from dphpo_bench.recipes.noise_law import output_noise
from dphpo_bench.records.record import ConstantGuess, FurtherMetrics, OutputNoise
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.session.session import Session, open_session
from dphpo_bench.training import evaluation
from dphpo_bench.training.clipping import parse_clipping
from dphpo_bench.training.losses import IGNORED, logits
from dphpo_bench.training.randomness import global_randomness

EPSILON_ROUNDING = 1e-9  # rounding of two evaluations of one event, far below the resolution of any accountant


def execute(run: Run) -> Run:
    """Train and verify, without a test or a record, as audits and contract tests do; return the run."""
    train(run)
    verify(run)
    return run


def train(run: Run) -> None:
    """Let the method run on the records, within what its plan allows.

    Whatever the method raises is a result, except a mistake in the call and an interrupt.
    """
    run.ledger = Ledger(allowance=run.checked.plan.event)
    if run.hides_trials:
        run.progress.note("Searching. How many trials there are is a secret, so there is nothing to show.")
    with timed(run.seconds, "train"), run.progress.whole(Meter(run.checked.plan.cost.examples, "the test")) as meter:
        try:
            session = _open_session(run, run.meter or meter)
        except BaseException:
            run.take_back()
            raise
        try:
            with sealed() as complaints:
                if check := getattr(run.checked.plan.parameters, "check", None):
                    check(session)
                outcome = _isolated(run.checked.method.run(replace(run.checked.plan), session), run.unseeded)
                if isinstance(outcome, Outcome):
                    run.outcome = outcome
                else:
                    run.fail(outcome)
        except OverBudgetError as error:
            run.fail(error, status="over_budget")
        except DphpoBenchError as error:
            if run.ledger.untouched and not complaints:  # a mistake in the call, found before anything was released
                error.asked_nothing = True
                run.take_back()
                raise
            run.fail(error)
        except (Exception, SystemExit) as error:
            run.fail(error)
        except BaseException:
            if not run.ledger.untouched:
                run.journal.remember()
            raise
        finally:
            session.close()
            if complaints:
                run.ledger.refuse(complaints[0])


def _open_session(run: Run, meter: Meter) -> Session:
    """Open the session of the run, with one on the task's public sibling if the method needs it.

    The sibling's ledger has no bound: whatever it answers is a function of public records and of noise that nothing
    else uses.
    """
    method, facts, target, streams = run.checked.method, run.checked.facts, run.checked.plan.budget, run.streams()
    budget = PrivacyBudget(float(target.epsilon), float(target.delta))  # 3 and 3.0 are one run
    parameters = repr(sorted(parameters_of(method).items()))
    inner = streams.within(method.name, parameters, repr(budget), facts.task, facts.model)
    progress, meter = (NullProgress(), Meter()) if run.hides_trials else (run.progress, meter)
    public = None
    if sibling := sibling_of(method, run.task):
        sibling.prepare(run.source)
        records = sibling.load_train(run.source)
        check_declared(sibling.facts, records)
        refuse_shared(run.task, run.train, sibling, records)
        names = inner.within("sibling", sibling.name, sibling.model_name)
        raw = RawRecords(sibling, records, run.device)
        public = open_session(raw, Ledger(), names, progress=progress, meter=meter)
    return open_session(
        RawRecords(run.task, run.train, run.device),
        run.ledger,
        inner,
        model_streams=streams,
        progress=progress,
        meter=meter,
        observer=run.observer,
        order=run.order,
        checkpoints=run.checkpoints,
        releases=run.releases,
        sibling=public,
    )


def _isolated(outcome: Any, hide: bool) -> Outcome | str:
    """Return a copy of the outcome with plain JSON values that the method does not hold, or why there is none."""
    model = outcome.model if isinstance(outcome, Outcome) else None
    if not isinstance(model, torch.nn.Module):
        what = f"one with {type(model).__name__}" if isinstance(outcome, Outcome) else type(outcome).__name__
        return f"Expected an Outcome with a torch.nn.Module, got {what}."
    try:
        text = json.dumps(outcome.released, ensure_ascii=False)
        text.encode()
        released = dict(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        return f"Expected a dictionary of released values that JSON can hold: {reason_of(error, hide)}."
    if not all(torch.isfinite(parameter).all() for parameter in model.parameters()):
        return (
            "The trained model has weights that are not finite: training diverged. Scale inputs and targets to about 1 "
            "by public constants, or take a smaller learning rate."
        )
    return Outcome(model, released)


def verify(run: Run) -> None:
    """Compute ε again from the ledger; a run that released more than planned, or whose ε has no bound, has failed."""
    try:
        run.recomputed = quoted(run.ledger.event, run.checked.plan, run.checked.cache)
    except UnsupportedEventError as refusal:
        run.fail(str(refusal), status="unverified")
        return
    planned, spent = run.checked.epsilon.epsilon, run.recomputed.epsilon
    if run.ledger.refused:
        run.fail(run.ledger.refused, status="over_budget")
    elif run.ledger.failed:  # the method may have gone on as if nothing had happened
        run.fail(run.ledger.failed)
    elif spent > planned + EPSILON_ROUNDING:
        reason = f"The releases cost epsilon={spent:.6g}, more than the planned epsilon={planned:.6g}."
        run.fail(reason, status="over_budget")


DIVERGED = "Some outputs are not finite: training diverged, as by a large learning rate or unscaled inputs."
USUAL = "Usual reasons: unscaled inputs or targets, too few steps, an untuned learning rate, a small budget."


def measure(run: Run) -> None:
    """Measure the model on the test records, which are opened here for the first time.

    The run fails if a metric cannot be computed. Its model stays, unless the model's code reached for sealed data. A
    further test that cannot be run is left out: the run itself is sound, and may have been paid for.
    """
    if run.outcome is None:
        return
    complaints: list[str] = []
    outputs: Any = None
    model, task, further = run.outcome.model, run.task, dict[str, FurtherMetrics]()
    with timed(run.seconds, "test"), run.progress.track("Testing", 0):
        try:
            test = task.load_test(run.source)
            with sealed() as complaints:  # the model runs, and its code is the method's
                if len(test):
                    outputs = _outputs(model, test, task, task.metrics)
                    run.metrics = _values(model, test, outputs, task.metrics)
                    run.guess = constant_guess(task, test, outputs, run.metrics)
                    run.output_noise = noise_in_outputs(run, test)
            for more in task.further_tests if run.metrics and not complaints else ():
                metrics = task.metrics if more.metrics is None else more.metrics
                heard: list[str] = []
                if task.public:  # what follows may take longer than the training
                    name, value = next(iter(run.metrics.items()))
                    run.progress.note(f"Test {name} {value:.4g}. A further test follows: {more.name}.")
                try:
                    records = more.records(task.name, run.source)
                    with sealed() as heard:
                        values = _values(model, records, _outputs(model, records, task, metrics), metrics)
                    further[more.name] = FurtherMetrics(about=more.about, metrics=values)
                except (Exception, SystemExit) as failure:
                    run.progress.note(f"No further test {more.name}: {reason_of(failure, hide=run.unseeded)}")
                complaints += heard
            if complaints:
                raise SealedDataError(complaints[0])
            run.further = further
        except (Exception, SystemExit) as failure:
            run.fail(failure, keep_model=not complaints)
            if not complaints and _diverged(outputs):
                run.error = f"{run.error} {DIVERGED}"


def _outputs(model: nn.Module, records: Records, task: Task, metrics: Sequence[AnyMetric]) -> Any:
    """Return the outputs in the units of the targets; None if no metric is of outputs."""
    if not any(isinstance(metric, Metric) for metric in metrics):
        return None
    outputs, facts = evaluation.all_outputs(model, records), task.facts
    shape = tuple(logits(outputs).shape)
    if facts.kind in ("classification", "tokens") and shape[-1] != facts.n_classes:  # metrics would mean nothing
        raise InvalidValueError(
            f"Expected a model with {facts.n_classes} outputs, one for each class, got outputs of shape {shape}. "
            "Return a model that the session built."
        )
    return outputs if task.target_scale is None else task.target_scale.invert(outputs)


def _values(model: nn.Module, records: Records, outputs: Any, metrics: Sequence[AnyMetric]) -> dict[str, float]:
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


def noise_in_outputs(run: Run, test: Records) -> OutputNoise | None:
    """Return what the noise of the run does to the outputs; None if no `DpSgd` at a constant rate trained the model."""
    training, records = TRAINED_BY.get(run.outcome.model, (None, 0)) if run.outcome else (None, 0)
    if training is None or training.schedule != "constant":
        return None
    try:
        facts, targets = run.task.facts, leaves(test.targets)[0]
        with global_randomness(0):
            model = run.task.build_model()
        if facts.kind == "regression" and facts.target_scale:
            targets = facts.target_scale.apply(targets)
        noise = training.noise_multiplier * parse_clipping(training.clipping).sensitivity
        return output_noise(
            model,
            test.inputs,
            learning_rate=training.learning_rate,
            noise=noise / (training.sample_rate * records),
            steps=training.steps,
            optimizer=training.optimizer,
            target_spread=targets.double().std().item() if facts.kind == "regression" else None,
        )
    except Exception:  # a plug-in's outputs may have any form, and no run fails because of this
        return None


def constant_guess(task: Task, test: Records, outputs: Any, metrics: dict[str, float]) -> ConstantGuess | None:
    """Return the best constant guess if a run's first metric is no better; else None.

    Args:
        outputs: of the model, in the units of the targets; None if no metric is of outputs.
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


def best_guess(metric: Metric, kind: str, targets: Tensor, n_classes: int | None) -> float | None:
    """Return the metric of the best constant guess; None if the kind of task has none, or the metric is undefined.

    Guesses are the frequencies of the classes, as log-odds; for F1 also the rare class, always; of a regression the
    mean and the median. They need not be the best ones of a metric that is not ready-made.
    """
    n = len(targets)
    guesses: list[Tensor] = []
    if kind == "tokens":
        return _of_tokens(metric, targets)
    if kind == "classification" and n_classes:
        shares = targets.bincount(minlength=n_classes).double() / n
        guesses = [shares.clamp(min=1e-12).log().expand(n, n_classes)]
        if metric == F1 and n_classes == 2:
            guesses.append(torch.tensor([-1.0, 1.0]).expand(n, 2))
    elif kind in ("binary", "multilabel"):
        guesses = [targets.double().mean(0).clamp(1e-12, 1 - 1e-12).logit().expand_as(targets)]
        if metric == F1:
            guesses.append(torch.ones_like(targets))
    elif kind == "regression":
        guesses = [targets.mean(0).expand_as(targets), targets.median(0).values.expand_as(targets)]
    values = []
    for outputs in guesses:
        with suppress(Exception):  # a metric of a user's may raise anything, and no run fails because of a guess
            values.append(metric.of(outputs, targets))
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    return round(max(finite), 12) + 0.0 if metric.higher_is_better else min(finite)  # the R² of a mean is 0


def _of_tokens(metric: Metric, targets: Tensor) -> float | None:
    """Return the metric of the frequencies of the tokens that count."""
    tokens = targets[targets != IGNORED]
    if metric not in (ACCURACY, CROSS_ENTROPY, PERPLEXITY) or not len(tokens):
        return None
    shares = torch.unique(tokens, return_counts=True)[1].double() / len(tokens)
    if metric == ACCURACY:
        return float(shares.max())
    entropy = float(-(shares * shares.log()).sum())
    return entropy if metric == CROSS_ENTROPY else math.exp(entropy)
