"""Checks of the arrays and the model that an `ArrayTask` gets."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, call, each
from dphpo_bench.base.text import shown
from dphpo_bench.contract.metrics import OF_CLASSES, Metric, ModelMetric
from dphpo_bench.contract.task import Input
from dphpo_bench.training.losses import IGNORED, logits, tensors_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def checked_metrics(metrics: Any, kind: str) -> tuple[Metric | ModelMetric, ...]:
    """Return the metrics as a tuple; reject other types, and metrics of classes for a regression."""
    several = tuple(metrics) if isinstance(metrics, list | tuple) else (metrics,)
    for metric in several:
        if not isinstance(metric, Metric | ModelMetric):
            raise InvalidValueError(f"Expected metrics of type Metric or ModelMetric, got {shown(metric, form=repr)}.")
        if kind == "regression" and any(metric is known for known in OF_CLASSES):  # its own may have the same name
            raise InvalidValueError(f"Expected metrics of a regression, got {metric.name}, which is about classes.")
    return several


def check_columns(train: list[str] | None, test: list[str] | None) -> None:
    """Reject test records whose columns are others than those of the training records."""
    if train is not None and test is not None and test != train:
        raise InvalidValueError(
            f"Expected the columns of test to be those of train in the same order, {shown(', '.join(train), 200)}, "
            f"got {shown(', '.join(test), 200)}."
        )


def checked_space(space: "Mapping[str, BaseDistribution]", n_records: int) -> "dict[str, BaseDistribution]":
    """Return a search space as a dictionary; reject what no run could draw."""
    from optuna.distributions import BaseDistribution

    for name, distribution in space.items():
        if not isinstance(distribution, BaseDistribution):
            raise InvalidValueError(
                f"Expected distributions of Optuna in search_space, such as FloatDistribution(1e-4, 1, log=True), got "
                f"{shown(distribution, form=repr)} for {name!r}."
            )
    sizes = space.get("batch_size")
    largest = max(getattr(sizes, "choices", [getattr(sizes, "high", 0)]))
    if largest > n_records:
        raise InvalidValueError(
            f"Expected batch sizes of search_space up to n_records={n_records}, got up to {largest}."
        )
    return dict(space)


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
        reset = getattr(layer, "reset_parameters", None)
        if reset is None:
            raise InvalidValueError(
                f"Expected layers with reset_parameters, so that initial weights follow a run's seed; "
                f"{name or 'the model'} ({type(layer).__name__}) has none. Pass a function that makes the model, or "
                "pretrained=True to start from the present weights."
            )
        reset()


def refuse_lazy(model: nn.Module) -> None:
    """Reject layers that learn their sizes from the first batch, which would be private records."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            layer = model.get_submodule(name.rpartition(".")[0])
            raise InvalidValueError(
                f"Expected layers of known sizes, got {type(layer).__name__} with {name}, which takes its size from a "
                "first batch. State the size, or call the module once on zeros before you pass it."
            )


def accepted(model: nn.Module, records: Records) -> tuple[Records, Any]:
    """Return the records as the model takes them, and its outputs for a record of zeros.

    Integers are token ids for a model that takes them, and numbers for others.
    """
    failures = []
    for tried in (records, as_real(records)):
        try:
            return tried, _outputs(model, tried)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            failures.append(str(error).partition("\n")[0])
    parts = records.inputs
    shapes = {name: (1, *part.shape[1:]) for name, part in parts.items()} if isinstance(parts, Mapping) else None
    what = shapes or (1, *records.named()["inputs"].shape[1:])
    raise InvalidValueError(f"The model does not accept inputs of shape {what}: {failures[0]}")


def as_real(records: Records) -> Records:
    """Return the records with integer inputs as float32."""

    def real(tensor: Tensor) -> Tensor:
        return tensor if tensor.is_floating_point() or tensor.dtype == torch.bool else tensor.float()

    return Records(each(real, records.inputs), records.targets)


def _outputs(model: nn.Module, records: Records) -> Any:
    like = next(model.parameters(), torch.zeros(1))
    model.eval()
    zeros = each(torch.zeros_like, records.rows(slice(1)).to(like.device, like.dtype).inputs)
    with torch.no_grad():
        return tensors_of(call(model, zeros))


def n_classes_of(outputs: Any, kind: str, expected: int | None) -> int:
    """Return the number of classes that a model puts out; reject another expected number."""
    values = logits(outputs)
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


def check_labels(records: Records, n_classes: int, which: str) -> None:
    """Reject labels that are no class."""
    labels = records.named()["targets"]
    labels = labels[labels != IGNORED]
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < n_classes):
        raise InvalidValueError(
            f"Expected {which} labels from 0 to {n_classes - 1}, "
            f"got {int(labels.min())} to {int(labels.max())}; renumber them, or widen the model."
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
