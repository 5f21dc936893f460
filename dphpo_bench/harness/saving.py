"""Trained models as files of weights, in the safetensors format: reading one runs nothing."""

import copy
import json
import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from dphpo_bench.base.checks import typed
from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.files import write_aside, write_whole
from dphpo_bench.base.text import compact_json, shown
from dphpo_bench.contract.registry import make_task, tasks
from dphpo_bench.contract.task import Kind, Task, inputs_json, inputs_of_json
from dphpo_bench.data.columns import Number
from dphpo_bench.data.encoding import Columns
from dphpo_bench.data.labels import declared_classes
from dphpo_bench.harness.trained import TrainedModel
from dphpo_bench.training.target_scale import TargetScale

if TYPE_CHECKING:
    from torch import nn

SUFFIX = ".safetensors"


def check_model_path(path: Path) -> None:
    """Check, before any work is done, that a model can be written there; no file is overwritten."""
    if path.suffix != SUFFIX:
        raise InvalidValueError(f"Expected a model's file to end in {SUFFIX}, got {shown(path, 300)}.")
    if os.path.lexists(path):
        raise InvalidValueError(
            f"Expected a model's file that does not exist, got {shown(path, 300)}. Name another one."
        )
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise InvalidValueError(f"Cannot write a model to {shown(path, 300)}: {shown(folder)} is no writable folder.")


def write_model(trained: TrainedModel, path: Path) -> Path:
    """Write a model, what its predictions need, and which run it is of, whole or not at all."""
    from safetensors.torch import save

    check_model_path(path)
    # Each tensor is copied: weights that two layers share are written for both, so that a plain load finds all of them.
    state = trained.network.state_dict()
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}
    content = save(tensors, metadata=_metadata(trained))
    try:
        return write_whole(path, content)
    except OSError as error:
        reason = f"Cannot write the model {path}: {error.strerror}."
    try:  # it has been paid for
        aside = write_aside(path, content)
    except OSError:
        raise DataError(reason) from None
    raise DataError(f"{reason} It was kept at {aside}.")


def loading_code(trained: TrainedModel, path: Path | str) -> str:
    """Return the call that loads a model which `write_model` wrote to a path."""
    from dphpo_bench.training.structure import network_json

    if network_json(trained.network) is not None or trained.task in tasks():
        return f"dphpo_bench.load_model({str(path)!r})"
    return f"dphpo_bench.load_model({str(path)!r}, model=...)"  # a module of the network's class


@typed
def load_model(
    path: Path | str,
    task: str | Task | None = None,
    *,
    model: "nn.Module | Callable[[], nn.Module] | None" = None,
) -> TrainedModel:
    """Load the trained model that `RunResult.save` or `run --save-model` wrote; its `predict` takes a table.

    The file alone is enough if the network consists of torch's usual layers, one or several in a `Sequential`, or if
    its task is registered. Reading the file runs no code of it. Without this package, the weights go into a network of
    the same structure by `network.load_state_dict(safetensors.torch.load_file(path))`.

    Args:
        path: of the file.
        task: the task whose model it is, or its registered name.
        model: instead of the task, a module of the network's structure, which is copied, or a function that makes one.

    Returns:
        The model, on the CPU, its network in evaluation mode.

    Raises:
        DataError: if there is no such file, it is damaged, it is not of this task and its model, or the network has
            another structure.
        InvalidValueError: if neither file, task nor `model` say what the network's structure is.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    if not (model is None or callable(model)) or not (task is None or isinstance(task, str | Task)):
        wrong = task if model is None else model
        raise InvalidValueError(
            f"Expected a task, its name, or model=, a module or a function that makes one, got "
            f"{shown(wrong, form=repr)}."
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dictionary)
    except (OSError, SafetensorError) as error:
        raise DataError(f"Cannot read the model {path}: {shown(error, 200)}.") from None
    with torch.random.fork_rng(devices=[]):
        network = _network(metadata, path, task, model)
    try:
        network.load_state_dict(tensors, assign=next(network.parameters(), torch.empty(0)).is_meta)
    except RuntimeError as error:
        raise DataError(
            f"The model in {path} has another structure than {type(network).__name__}: {shown(error, 300)}."
        ) from None
    return _described(metadata, path, network)


def _metadata(trained: TrainedModel) -> dict[str, str]:
    """Return all about a model but its weights, as texts; what JSON text holds reads back as it was."""
    from dphpo_bench.training.structure import network_json

    values = {
        "inputs": inputs_json(trained.inputs),
        "columns": None if trained.columns is None else trained.columns.to_json(),
        "input_names": trained.input_names,
        "classes": trained.classes,
        "target_scale": None if trained.target_scale is None else trained.target_scale.to_json(),
        "consumed": trained.consumed or None,
        "threshold": trained.threshold,
    }
    structure = network_json(trained.network)
    return {
        "format": "pt",
        "dphpo-bench": version("dphpo-bench"),
        "record": trained.record,
        "method": trained.method,
        "task": trained.task,
        "model": trained.model,
        "epsilon": "unknown" if trained.epsilon is None else repr(trained.epsilon),
        "delta": repr(trained.delta),
        "unit": trained.unit,
        "kind": trained.kind,
        **{name: compact_json(value) for name, value in values.items() if value is not None},
        **({} if structure is None else {"network": structure}),
    }


def _described(metadata: Mapping[str, str], path: Path | str, network: "nn.Module") -> TrainedModel:
    """Return the model that `_metadata` described."""
    try:
        kind: Any = metadata["kind"]
        if kind not in get_args(Kind):
            raise ValueError(f"kind {kind}")
        names, classes, columns, scale, consumed, threshold = (
            json.loads(metadata[name]) if name in metadata else None
            for name in ("input_names", "classes", "columns", "target_scale", "consumed", "threshold")
        )
        return TrainedModel(
            network=network,
            kind=kind,
            inputs=inputs_of_json(json.loads(metadata["inputs"])),
            columns=None if columns is None else Columns.from_json(columns),
            input_names=None if names is None else tuple(map(str, names)),
            classes=None if classes is None else declared_classes(classes, kind),
            target_scale=None if scale is None else TargetScale.of([Number(**part) for part in scale], kind),
            method=metadata["method"],
            task=metadata["task"],
            model=metadata["model"],
            epsilon=None if metadata["epsilon"] == "unknown" else float(metadata["epsilon"]),
            delta=float(metadata["delta"]),
            unit=metadata["unit"],
            record=metadata["record"],
            consumed=tuple(map(str, consumed or ())),
            threshold=None if threshold is None else float(threshold),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, DataError) as error:
        raise DataError(
            f"Expected in {path} a model that RunResult.save wrote, got metadata without a usable "
            f"{shown(error, 200).rstrip('.')}. safetensors.torch.load_file reads the weights alone."
        ) from None


def _network(
    metadata: Mapping[str, str],
    path: Path | str,
    task: str | Task | None,
    model: "nn.Module | Callable[[], nn.Module] | None",
) -> "nn.Module":
    """Return a network of the structure of that in the file, without its weights."""
    from torch import nn

    from dphpo_bench.training.structure import network_of

    name, kind = metadata.get("task", "unknown"), metadata.get("model", "unknown")
    if model is not None:
        try:
            network = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        except TypeError as error:
            raise InvalidValueError(
                f"Cannot make a model of {shown(model)}: {shown(error, 200)}. Pass a module, or a function without "
                "parameters that makes one."
            ) from None
        if not isinstance(network, nn.Module):
            raise InvalidValueError(f"Expected model= to be or to make a torch.nn.Module, got {shown(model)}.")
        return network
    if task is None and "network" in metadata:
        return network_of(metadata["network"])
    if task is None and name not in tasks():
        raise InvalidValueError(
            f"The network {shown(kind)} in {path} has code of its own, which no file holds. Pass "
            f"model=, a module or a function that makes it; or the task {shown(name, form=repr)}."
        )
    if isinstance(task, str) and name != task:
        raise DataError(f"Expected in {path} a model of task {task}, got one of {shown(name)}.")
    chosen = task if isinstance(task, Task) else make_task(name, kind)
    if (name, kind) != (chosen.facts.task, chosen.facts.model):
        raise DataError(
            f"Expected in {path} model {chosen.facts.model} of task {chosen.facts.task}, got {shown(kind)} of "
            f"{shown(name)}."
        )
    return chosen.build_model()
