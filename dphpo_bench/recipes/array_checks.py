"""Checks of the arrays and the model that an `ArrayTask` gets."""

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.checks import unexpected
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, call, each
from dphpo_bench.base.text import shown
from dphpo_bench.contract.metrics import OF_CLASSES, OF_NUMBERS, Metric, ModelMetric
from dphpo_bench.contract.task import Input
from dphpo_bench.data.labels import Class
from dphpo_bench.training.losses import IGNORED, PerRecord, logits, tensors_of
from dphpo_bench.training.model_checks import ASKS_FOR_EXAMPLE, described

_WEIGHTS = ("weight", "pos_weight")


def example_of(build: Callable[[], nn.Module], model: Any) -> nn.Module:
    """Return a model that an `ArrayTask` builds; reject a function that fails, or returns one module twice."""
    with torch.random.fork_rng(devices=[]):
        try:
            example = build()
        except DphpoBenchError:
            raise
        except Exception as error:  # whatever a function or a layer raises
            raise InvalidValueError(
                f"Cannot make a model of {shown(model)}: {shown(error, 200)}. Pass a module, or a function without "
                "parameters that makes one."
            ) from error
        if build() is example:
            raise InvalidValueError(
                "Expected model to make a new module at each call, got the same one twice: a run would start where "
                "another ended. Pass the module itself, which is copied."
            )
    return example


def checked_metrics(metrics: Any, kind: str) -> tuple[Metric | ModelMetric, ...]:
    """Return the metrics as a tuple; reject other types, and those of classes for a regression or the reverse."""
    several = tuple(metrics) if isinstance(metrics, list | tuple) else (metrics,)
    for metric in several:
        if not (isinstance(metric, Metric | ModelMetric) and isinstance(metric.name, str)):
            way = 'bench.metrics has them ready, and Metric("name", True, function) makes one of (outputs, targets).'
            raise unexpected("Expected metrics of type Metric or ModelMetric, with texts as names", metric, way)
        if kind == "regression" and any(metric is known for known in OF_CLASSES):  # its own may have the same name
            raise InvalidValueError(f"Expected metrics of a regression, got {metric.name}, which is about classes.")
        if kind not in ("regression", "own") and any(metric is known for known in OF_NUMBERS):
            raise InvalidValueError(f"Expected metrics of classes, got {metric.name}, which is about a regression.")
    return several


def refuse_ignored_steps(model: nn.Module, losses: PerRecord | None) -> None:
    """Reject a LightningModule whose loss is unknown; warn of what its training loop would do besides.

    Args:
        model: as it is built; its network is what `forward` computes.
        losses: those of the task, if declared: they stand for the loss of `training_step`.
    """
    if not any(base.__name__ == "LightningModule" for base in type(model).__mro__):
        return
    if losses is None:
        raise InvalidValueError(
            f"Expected a network, got the LightningModule {type(model).__name__}, whose training_step and optimizers "
            f"would be ignored. Pass the torch.nn.Module in it, or say its loss to ArrayTask, such as "
            'losses=nn.CrossEntropyLoss(reduction="none"): then forward is the network.'
        )
    warnings.warn(
        f"Of {type(model).__name__} only forward is used: losses=, optimizer= and learning_rate= of the task stand for "
        "its training_step and configure_optimizers.",
        stacklevel=4,
    )


def check_losses(losses: Any) -> None:
    """Reject class weights that clipping undoes, and losses with weights to train, which no step would change.

    Args:
        losses: as a task gets them: a function, a module of torch, a `functools.partial`, or None.
    """
    settings = losses.keywords if isinstance(losses, partial) else {}
    if isinstance(losses, nn.Module):
        settings = {key: getattr(losses, key, None) for key in _WEIGHTS}
        if any(parameter.requires_grad for parameter in losses.parameters()):
            raise InvalidValueError(
                f"Expected losses without weights to train, got {type(losses).__name__} with some, which no step would "
                "change. Put them into the model, which then returns what the losses need."
            )
    for key in _WEIGHTS:
        if settings.get(key) is not None:
            raise InvalidValueError(
                f"Expected losses without {key}=, got class weights: gradients are clipped after them, which undoes "
                'them. Leave it out, and declare class_weights="balanced" with class_shares=(0.93, 0.07) from public '
                "knowledge, which weigh clipped gradients."
            )


def check_columns(train: list[str] | None, test: list[str] | None) -> None:
    """Reject test records whose columns are others than those of the training records."""
    if train is not None and test is not None and test != train:
        raise InvalidValueError(
            f"Expected the columns of test to be those of train in the same order, {shown(', '.join(train), 200)}, "
            f"got {shown(', '.join(test), 200)}."
        )


def default_batch_size(n_records: int) -> int:
    """Return a quarter of the records, at most 8,192: under privacy large batches are better, at a price in time.

    Source: De et al., "Unlocking high-accuracy differentially private image classification through
    scale", 2022.
    """
    return min(8192, math.ceil(n_records / 4))


def reset(model: nn.Module) -> None:
    """Draw initial weights anew, from torch's global generator."""
    for name, layer in model.named_modules():
        if next(layer.parameters(recurse=False), None) is None and next(layer.buffers(recurse=False), None) is None:
            continue
        reset = None if layer._forward_pre_hooks else getattr(layer, "reset_parameters", None)
        if reset is None:  # of a layer whose hook makes its weights, it would draw others
            reason = "has weights that a hook makes" if layer._forward_pre_hooks else "has none"
            raise InvalidValueError(
                f"Expected layers with reset_parameters, so that initial weights follow a run's seed; "
                f"{name or 'the model'} ({type(layer).__name__}) {reason}. Pass a function that makes the model, or "
                "pretrained=True to start from the present weights."
            )
        reset()


def accepted(model: nn.Module, records: Records, example: Tensors | None = None) -> tuple[Records, Any]:
    """Return the records as the model takes them, and its outputs for an example, or for a record of zeros.

    Integers are token ids for a model that takes them, booleans are masks; they are numbers for others.
    """
    failures: list[Exception] = []
    for some in (records, as_real(records), as_real(records, booleans=True)):
        try:
            return some, _outputs(model, some, example)
        except InvalidValueError:
            raise
        except Exception as error:  # whatever a model raises
            failures.append(error)
    parts = records.inputs
    shapes = {name: (1, *part.shape[1:]) for name, part in parts.items()} if isinstance(parts, Mapping) else None
    what = shapes or (1, *records.named()["inputs"].shape[1:])
    text = f"The model does not accept inputs of shape {what}: {described(failures[-1])}"
    raise InvalidValueError(text if example is not None else f"{text} {ASKS_FOR_EXAMPLE}") from None


def as_real(records: Records, *, booleans: bool = False) -> Records:
    """Return the records with integer inputs as float32, and `booleans`, if these are no masks."""

    def real(tensor: Tensor) -> Tensor:
        stays = tensor.is_floating_point() or (tensor.dtype == torch.bool and not booleans)
        return tensor if stays else tensor.float()

    return Records(each(real, records.inputs), records.targets)


def _outputs(model: nn.Module, records: Records, example: Tensors | None) -> Any:
    like = next(model.parameters(), torch.zeros(1))
    model.eval()
    single = records.rows(slice(1)).each(torch.zeros_like)
    single = single if example is None else Records(of_form(example, records), example).rows(slice(1))
    with torch.no_grad():
        return tensors_of(call(model, single.to(like.device, like.dtype).inputs))


def of_form(example: Tensors, records: Records) -> Tensors:
    """Return example inputs in the types of the records' inputs; reject other names or shapes."""
    ours, theirs = (part if isinstance(part, Mapping) else {"": part} for part in (example, records.inputs))
    forms = [{name: tuple(part.shape[1:]) for name, part in parts.items()} for parts in (ours, theirs)]
    if forms[0] != forms[1]:
        raise InvalidValueError(f"Expected an example with rows of shapes {forms[1]}, as in train, got {forms[0]}.")
    converted = {name: part.to(theirs[name].dtype) for name, part in ours.items()}
    return converted if isinstance(example, Mapping) else converted[""]


def n_classes_of(outputs: Any, kind: str, expected: int | None, classes: tuple[Class, ...] | None = None) -> int | None:
    """Return the number of classes that a model puts out; reject another expected number, or one of `classes`.

    A binary task has a single output, and no number but an expected one.
    """
    if classes is not None and expected not in (None, len(classes)):
        raise InvalidValueError(
            f"Expected n_classes={len(classes)}, the number of classes={shown(classes, form=repr)}, got {expected}; "
            "leave n_classes out."
        )
    values = logits(outputs)
    if kind == "binary":
        if isinstance(values, Tensor) and values.numel() != 1:
            raise InvalidValueError(
                f"Expected a model with one output for kind='binary', got shape {tuple(values.shape)}; "
                "kind='classification' takes an output for each class."
            )
        return expected
    expected = expected if classes is None else len(classes)
    dimensions, least = (3 if kind == "tokens" else 2), (1 if kind == "multilabel" else 2)
    if not isinstance(values, Tensor) or values.ndim != dimensions or values.shape[-1] < least:
        shape = "1, length" if kind == "tokens" else "1"
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise InvalidValueError(f"Expected model outputs of shape ({shape}, n_classes >= {least}), got {got}.")
    if expected not in (None, values.shape[-1]):
        raise InvalidValueError(
            f"Expected a model with n_classes={expected} outputs, got {values.shape[-1]}; change one of them."
        )
    return values.shape[-1]


def check_labels(records: Records, kind: str, n_classes: int, which: str) -> None:
    """Reject labels that are no class, or not in as many columns; those of tokens may be `IGNORED`."""
    labels = records.named()["targets"]
    if kind == "multilabel":
        if labels.shape[1] != n_classes:
            raise InvalidValueError(
                f"Expected {which} labels in a column for each of the model's {n_classes} outputs, got "
                f"{labels.shape[1]}; change one of them."
            )
        return
    labels = labels[labels != IGNORED] if kind == "tokens" else labels
    if not len(labels):
        return
    low, high = int(labels.min()), int(labels.max())
    if low >= 0 and high < n_classes:
        return
    way = "renumber them"
    if kind == "classification" and n_classes == 2 and bool(((labels == low) | (labels == high)).all()) and low < high:
        way = f"declare what they mean, classes=({low}, {high})"
    elif kind == "classification" and high - low < n_classes:
        way = f"declare them, as classes=range({low}, {low + n_classes})"
    raise InvalidValueError(
        f"Expected {which} labels from 0 to {n_classes - 1}, got {low} to {high}; {way}, or widen the model."
    )


def inputs_of(records: Records) -> Input | dict[str, Input]:
    """Return the description of the inputs of records."""
    if isinstance(records.inputs, Mapping):
        return {name: _input(tensor) for name, tensor in records.inputs.items()}
    return _input(records.inputs)


def _input(tensor: Tensor) -> Input:
    shape = tuple(tensor.shape[1:])
    return Input(shape, "float" if tensor.is_floating_point() else "bool" if tensor.dtype == torch.bool else "int")


def shapes_of(records: Records) -> str:
    """Return the shapes of the inputs of records as text."""
    inputs = [tensor for name, tensor in records.named().items() if name.startswith("inputs")]
    return ", ".join(f"(n, {', '.join(map(str, tensor.shape[1:]))})" for tensor in inputs)
