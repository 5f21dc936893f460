"""Trained networks with what their predictions need, and their files of weights, of which reading runs no code.

A model's file is in the safetensors format. It holds the weights, the encoding of inputs, the meaning of outputs, which
run the model is of, and the structure of a network of torch's usual layers, as JSON text.
"""

import copy
import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dphpo_bench.base.checks import inside, typed
from dphpo_bench.base.displays import Display, Displayed, as_texts
from dphpo_bench.base.errors import DataError, InvalidValueError, UnknownNameError
from dphpo_bench.base.files import write_aside, write_whole
from dphpo_bench.base.tensors import Records, Tensors, each, length
from dphpo_bench.base.text import compact_json, shown
from dphpo_bench.contract.registry import make_task
from dphpo_bench.contract.task import Input, Kind, Task, inputs_json, inputs_of_json
from dphpo_bench.data.arrays import Class, as_inputs, check_whole, column_names, declared_classes, in_pandas
from dphpo_bench.data.columns import Number
from dphpo_bench.data.encoding import Columns
from dphpo_bench.records.record import RunRecord
from dphpo_bench.training.evaluation import all_outputs
from dphpo_bench.training.losses import logits
from dphpo_bench.training.model_checks import described
from dphpo_bench.training.target_scale import TargetScale

SUFFIX = ".safetensors"

_TEXTS = ("kind", "method", "task", "model", "unit", "record")
"""Fields that a file's metadata hold as they are."""

_VALUES = ("epsilon", "delta", "input_names", "classes", "consumed", "threshold")
"""Fields that they hold as JSON."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TrainedModel(Displayed):
    """A released model: `load_model` reads it from a file, and a run's result has it as `trained`.

    Attributes:
        network: in evaluation mode; move it to another device by `network.to(device)`.
        kind: of its outputs; see `TaskFacts.kind`.
        inputs: shape and type of what the network takes.
        columns: how tables become its inputs; None: it takes arrays or tensors.
        input_names: names of the columns of a frame, where inputs are its numbers as they are; None: unknown.
        classes: what predictions are, in the order of the outputs; None: numbers from 0.
        target_scale: of a regression: the declared scale of its targets, by which `predict` returns their units.
        method: the method that trained it.
        task: the task's name.
        model: the name of the task's model.
        epsilon: ε of the run, tuning included; None if it could not be computed.
        delta: δ.
        unit: what ε and δ protect as a whole: "record", or the name of units of several records.
        record: key of the run's record.
        consumed: columns that training took for ids of units and for labels; predictions ignore them.
        threshold: of two classes: the second is predicted from this probability on. It is a public number, and
            `dataclasses.replace` sets it. None: the more probable class is.
    """

    network: nn.Module
    kind: Kind
    inputs: Input | Mapping[str, Input]
    columns: Columns | None = None
    input_names: tuple[str, ...] | None = None
    classes: tuple[Class, ...] | None = None
    target_scale: TargetScale | None = None
    method: str
    task: str
    model: str
    epsilon: float | None = None
    delta: float
    unit: str
    record: str
    consumed: tuple[str, ...] = ()
    threshold: float | None = None

    @classmethod
    def of(cls, network: nn.Module, task: Task, record: RunRecord) -> "TrainedModel":
        """Return the model of a run."""
        who, facts = record.identity, task.facts
        return cls(
            network=network.eval(),
            kind=facts.kind,
            inputs=facts.inputs,
            columns=task.columns,
            input_names=None if task.input_names is None else tuple(task.input_names),
            classes=task.classes,
            target_scale=facts.target_scale,
            method=who.method,
            task=who.task,
            model=who.model,
            epsilon=record.privacy.epsilon if record.privacy else None,
            delta=who.delta,
            unit=who.unit,
            record=who.key,
            consumed=getattr(task, "consumed", ()),  # an ArrayTask knows them
        )

    def display(self) -> Display:
        """Return the facts of the run, and what predictions take and return."""
        rows = {
            "kind": self.kind,
            "inputs": self.inputs if self.columns is None else ", ".join(self.columns),
            "classes": self.classes,
            "threshold": self.threshold,
            "ε": f"{self.epsilon} at δ = {self.delta:.3g} per {self.unit}",
            "record": self.record,
        }
        return f"Model {self.model} of task {self.task}, trained by {self.method}", as_texts(rows)

    def predict(self, data: Any) -> NDArray[Any]:
        """Predict, in the labels of the training records.

        Args:
            data: a table that `Columns.encode` takes, if the model has `columns`; a tensor is taken as encoded already.
                Else inputs as those of the training records: an array, a tensor or a frame, several by name in a
                dictionary, or `Records`, of which the inputs count. There may be no rows.

        Returns:
            Classes, or their numbers, of shape (n,); for "multilabel" 0 and 1 of shape (n, labels); for "regression"
            numbers of shape (n,) or (n, values), in the targets' units; for "tokens" ids of shape (n, length).

        Raises:
            DataError: if the table is not as declared, or an output is not finite.
            InvalidValueError: if the inputs have another shape or type, or the outputs of a task of kind "own" no
                meaning that is known here: use `outputs`.
        """
        if self.threshold is not None:
            chances = self.predict_proba(data)
            check_threshold(self.threshold, chances.shape[-1], self.kind)
            chosen = (chances[:, 1] >= self.threshold).astype(int)
            return chosen if self.classes is None else _array_of(self.classes)[chosen]
        outputs = self._finite(data)
        if self.kind == "regression":
            outputs = outputs if self.target_scale is None else self.target_scale.invert(outputs)
            return outputs.squeeze(-1).numpy() if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs.numpy()
        if self.kind == "multilabel":
            return (outputs > 0).long().numpy()
        places = (outputs > 0).long().reshape(-1) if self.kind == "binary" else outputs.argmax(-1)
        return places.numpy() if self.classes is None else _array_of(self.classes)[places.numpy()]

    def predict_proba(self, data: Any) -> NDArray[Any]:
        """Predict the probability of each class, in the order of `classes`.

        Args:
            data: see `predict`.

        Returns:
            Shape (n, classes), also of a binary task; (n, length, classes) of tokens. Rows sum to 1, but for
            "multilabel", where each of (n, labels) stands for itself.

        Raises:
            DataError, InvalidValueError: as `predict`; of a regression, always.
        """
        if self.kind == "regression":
            raise InvalidValueError("Expected a task with classes, got a regression, which has no probabilities.")
        outputs = self._finite(data)
        if self.kind == "multilabel":
            return outputs.sigmoid().numpy()
        if self.kind == "binary":
            margins = outputs.reshape(-1)
            return torch.stack([(-margins).sigmoid(), margins.sigmoid()], 1).numpy()
        return outputs.softmax(-1).numpy()

    def outputs(self, data: Any) -> Any:
        """Return the outputs of the network, on the CPU, without gradients; several by name.

        Args:
            data: see `predict`.

        Raises:
            DataError, InvalidValueError: as `predict`.
        """
        inputs = self._inputs_of(data)
        rows = length(inputs)
        if not rows:  # the shape of the outputs is that for a record of zeros
            inputs = each(lambda tensor: tensor.new_zeros((1, *tensor.shape[1:])), inputs)
        try:
            outputs = all_outputs(self.network, Records(inputs, torch.zeros(max(rows, 1))))
        except (IndexError, RuntimeError) as error:  # as of an id that an embedding has not
            raise DataError(f"The network fails on these inputs: {described(error)}") from error
        return each(lambda tensor: tensor[:rows], outputs)

    def _finite(self, data: Any) -> Tensor:
        """Return the outputs as a tensor of float64, all finite."""
        if self.kind == "own":
            raise InvalidValueError(
                "Cannot tell what the outputs of a task of kind 'own' mean; use outputs(data), and compute predictions."
            )
        outputs: Tensor = logits(self.outputs(data)).double()
        width = 1 if self.kind == "binary" else None if self.classes is None else len(self.classes)
        if width is not None and outputs[:1].numel() not in (0, width):
            raise DataError(
                f"Expected {width} outputs for a record, as the model's classes say, got shape {tuple(outputs.shape)}."
            )
        if not outputs.isfinite().all():
            row = int((~outputs.isfinite()).nonzero()[0, 0])
            raise DataError(
                f"The network's output for row {row} is not finite; are its inputs as those of the training records, "
                "such as scaled?"
            )
        return outputs

    def _inputs_of(self, data: Any) -> Tensors:
        """Return data as the network takes them."""

        from dphpo_bench.data.tables import without_columns

        data = data.inputs if isinstance(data, Records) else data
        by_name = None if isinstance(self.inputs, Input) else self.inputs
        if self.columns is not None or (by_name is not None and isinstance(data, Mapping)):
            data = without_columns(data, {*self.consumed} - {*(self.columns or by_name or ())})
        if self.columns is not None and not isinstance(data, Tensor):
            data = self.columns.encode(data)
        elif self.input_names is not None and (columns := column_names(data := in_pandas(data))) is not None:
            missing = [name for name in self.input_names if name not in columns]
            if missing or (isinstance(data, Mapping) and columns != [*self.input_names]):
                got = f"lack {shown(', '.join(missing))}" if missing else "have another order or more"
                raise DataError(
                    f"Expected the columns of the training records, {shown(', '.join(self.input_names), 200)}; the "
                    f"data {got}."
                )
            if not isinstance(data, Mapping):
                data = data.iloc[:, list(map(columns.index, self.input_names))]
        inputs = as_inputs(data, "data")
        if isinstance(self.inputs, Input) and not isinstance(inputs, Mapping):
            return _converted(inputs, self.inputs, "inputs")
        if by_name is None or not isinstance(inputs, Mapping) or set(inputs) != set(by_name):
            form = "one array of inputs" if by_name is None else f"inputs by name, {', '.join(by_name)}"
            names = ", ".join(inputs) if isinstance(inputs, Mapping) else "a single array"
            raise InvalidValueError(f"Expected {form}, got {shown(names)}.")
        return {name: _converted(inputs[name], spec, f"input {name!r}") for name, spec in by_name.items()}


def _converted(tensor: Tensor, spec: Input, what: str) -> Tensor:
    """Return an input as the network takes it; reject another shape or type."""
    if (got := tuple(tensor.shape))[1:] != tuple(spec.shape):
        expected = ", ".join(map(str, ("n", *spec.shape)))
        hint = "; put a single record in a list" if got == tuple(spec.shape) else ""
        raise InvalidValueError(f"Expected {what} of shape ({expected}), got {got}{hint}.")
    is_bool, is_float = str(tensor.dtype) == "torch.bool", tensor.is_floating_point()
    if spec.dtype == "float" and is_float:
        return tensor
    if spec.dtype == "float":
        check_whole(tensor, what)
        return tensor.float()
    if is_float or is_bool != (spec.dtype == "bool"):
        kind = "booleans" if spec.dtype == "bool" else "integers"
        raise InvalidValueError(f"Expected {what} to be {kind}, as in training, got {tensor.dtype}.")
    return tensor


def check_threshold(threshold: float, n_classes: int, kind: Kind = "classification") -> None:
    """Reject a threshold that is no probability, or of other than two classes."""
    inside("threshold", threshold)
    if n_classes != 2 or kind not in ("classification", "binary"):
        raise InvalidValueError(f"Expected two classes with a threshold, got {n_classes} of kind {kind}; leave it out.")


def _array_of(classes: tuple[Class, ...]) -> NDArray[Any]:
    """Return classes as an array of their type; of objects if they have several types."""
    return np.array(classes, dtype=None if len(set(map(type, classes))) == 1 else object)


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


@typed
def load_model(
    path: Path | str, task: str | Task | None = None, *, model: nn.Module | Callable[[], nn.Module] | None = None
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
    from safetensors import SafetensorError, safe_open

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
    values = {
        "format": "pt",
        "dphpo-bench": version("dphpo-bench"),
        **{name: getattr(trained, name) for name in (*_TEXTS, *_VALUES)},
        "inputs": inputs_json(trained.inputs),
        "columns": None if trained.columns is None else trained.columns.to_json(),
        "target_scale": None if trained.target_scale is None else trained.target_scale.to_json(),
        "network": network_json(trained.network),
    }
    known = {name: value for name, value in values.items() if value is not None and value != ()}
    return {name: value if isinstance(value, str) else compact_json(value) for name, value in known.items()}


def _described(metadata: Mapping[str, str], path: Path | str, network: nn.Module) -> TrainedModel:
    """Return the model that `_metadata` described."""
    try:
        texts: dict[str, Any] = {name: metadata[name] for name in _TEXTS}
        if (kind := texts["kind"]) not in get_args(Kind):
            raise ValueError(f"kind {kind}")
        names = (*_VALUES, "inputs", "columns", "target_scale")
        values: dict[str, Any] = {name: json.loads(metadata[name]) for name in names if name in metadata}
        values["inputs"] = inputs_of_json(values["inputs"])
        values["delta"] = float(values["delta"])
        if "columns" in values:
            values["columns"] = Columns.from_json(values["columns"])
        if "classes" in values:
            values["classes"] = declared_classes(values["classes"], kind)
        if "target_scale" in values:
            values["target_scale"] = TargetScale.of([Number(**part) for part in values["target_scale"]], kind)
        for name in {"input_names", "consumed"} & values.keys():
            values[name] = tuple(map(str, values[name]))
        return TrainedModel(network=network.eval(), **texts, **values)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, DataError) as error:
        raise DataError(
            f"Expected in {path} a model that RunResult.save wrote, got metadata without a usable "
            f"{shown(error, 200).rstrip('.')}. safetensors.torch.load_file reads the weights alone."
        ) from None


def _network(
    metadata: Mapping[str, str],
    path: Path | str,
    task: str | Task | None,
    model: nn.Module | Callable[[], nn.Module] | None,
) -> nn.Module:
    """Return a network of the structure of that in the file, without its weights."""
    if model is not None:
        network = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        if not isinstance(network, nn.Module):
            raise InvalidValueError(f"Expected model= to be or to make a torch.nn.Module, got {shown(model)}.")
        return network
    if task is None and "network" in metadata:
        return network_of(metadata["network"])
    name, kind = metadata.get("task", "unknown"), metadata.get("model", "unknown")
    expected = (task.facts.task, task.facts.model) if isinstance(task, Task) else (task or name, kind)
    if expected != (name, kind):
        raise DataError(
            f"Expected in {path} model {shown(expected[1])} of task {shown(expected[0])}, got {shown(kind)} of "
            f"{shown(name)}."
        )
    try:
        return (task if isinstance(task, Task) else make_task(name, kind)).build_model()
    except UnknownNameError:  # a task of the user's own, also of the name of a registered one
        raise InvalidValueError(
            f"The network {shown(kind)} in {path} has code of its own, which no file holds. Pass "
            f"model=, a module or a function that makes it; or the task {shown(name, form=repr)}."
        ) from None


_LAYERS: dict[str, type[nn.Module]] = {
    layer.__name__: layer
    for layer in (
        *(nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d),
        *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
        *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout),
        *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.PReLU),
        *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Softmax, nn.LogSoftmax),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
        *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
        *(nn.Flatten, nn.Unflatten, nn.Identity, nn.Upsample, nn.PixelShuffle),
    )
}
"""Layers that their constructor's arguments describe, of which each is an attribute of the layer."""

_MAX_DEPTH = 50


def network_json(network: nn.Module) -> str | None:
    """Return the structure as JSON text: [class, arguments] of a layer, ["Sequential", [[name, layer], ...]] of more.

    Returns:
        None if other code than that of these layers may run, such as that of hooks or of a class of the user's.
    """
    try:
        described = _layer_json(network)
        text = compact_json(described)
        state, ours = network.state_dict(), network_of(text).state_dict()
    except (AttributeError, DataError, RecursionError, TypeError, ValueError):
        return None
    same = [*state] == [*ours] and all(state[name].shape == ours[name].shape for name in state)
    return text if same else None


def network_of(text: str) -> nn.Module:
    """Build the network that `network_json` described, on the device "meta": without weights, which are in a file."""
    try:
        with torch.device("meta"):
            return _built(json.loads(text), 0)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"Expected the structure of a network of torch's layers: {shown(error, 200)}.") from None


def _layer_json(module: nn.Module) -> list[Any]:
    hooks = [name for name, value in vars(module).items() if name.endswith("_hooks") and value]
    if hooks or "forward" in vars(module):
        raise TypeError("hooks")
    if type(module) is nn.Sequential:
        layers = vars(module)["_modules"].items()
        return ["Sequential", [[name, _layer_json(layer)] for name, layer in layers if layer is not None]]
    if _LAYERS.get(type(module).__name__) is not type(module):
        raise TypeError(type(module).__name__)
    return [type(module).__name__, {name: _setting(module, name) for name in _arguments(type(module))}]


def _arguments(layer: type[nn.Module]) -> list[str]:
    parameters = inspect.signature(layer).parameters.values()
    named = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
    return [name for name in named if name not in ("device", "dtype") and not name.startswith("_")]


def _setting(module: nn.Module, name: str) -> Any:
    value = getattr(module, name)
    if name == "bias" and not isinstance(value, bool):
        return value is not None
    return list(value) if isinstance(value, tuple) else value


def _built(described: Any, depth: int) -> nn.Module:
    kind, arguments = described
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    if kind == "Sequential":
        network = nn.Sequential()
        for name, layer in arguments:
            network.add_module(name, _built(layer, depth + 1))
        return network
    layer = _LAYERS[kind]
    if not set(arguments) <= set(_arguments(layer)):
        raise ValueError(f"{kind} with other arguments")
    return layer(**{name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()})
