"""A trained network with what its predictions need: the encoding of its inputs, and the meaning of its outputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.displays import Display, Displayed, as_texts
from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, each, length
from dphpo_bench.base.text import shown
from dphpo_bench.contract.task import Input, Kind, Task
from dphpo_bench.data.encoding import Columns
from dphpo_bench.records.record import RunRecord
from dphpo_bench.training.target_scale import TargetScale

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from dphpo_bench.data.labels import Class


@dataclass(frozen=True, eq=False, repr=False)
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

    network: "nn.Module"
    kind: Kind
    inputs: Input | Mapping[str, Input]
    columns: Columns | None
    input_names: tuple[str, ...] | None
    classes: "tuple[Class, ...] | None"
    target_scale: TargetScale | None
    method: str
    task: str
    model: str
    epsilon: float | None
    delta: float
    unit: str
    record: str
    consumed: tuple[str, ...] = ()
    threshold: float | None = None

    def __post_init__(self) -> None:
        self.network.eval()

    @classmethod
    def of(cls, network: "nn.Module", task: Task, record: RunRecord) -> "TrainedModel":
        """Return the model of a run."""
        who, facts = record.identity, task.facts
        return cls(
            network=network,
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

    def predict(self, data: Any) -> "NDArray[Any]":
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
            chosen = (self.predict_proba(data)[:, 1] >= self.threshold).astype(int)
            return chosen if self.classes is None else _array_of(self.classes)[chosen]
        outputs = self._finite(data)
        if self.kind == "regression":
            outputs = outputs if self.target_scale is None else self.target_scale.invert(outputs)
            return outputs.squeeze(-1).numpy() if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs.numpy()
        if self.kind == "multilabel":
            return (outputs > 0).long().numpy()
        places = (outputs > 0).long().reshape(-1) if self.kind == "binary" else outputs.argmax(-1)
        return places.numpy() if self.classes is None else _array_of(self.classes)[places.numpy()]

    def predict_proba(self, data: Any) -> "NDArray[Any]":
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
        import torch

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
        import torch

        from dphpo_bench.training.evaluation import all_outputs

        inputs = self._inputs_of(data)
        rows = length(inputs)
        if not rows:  # the shape of the outputs is that for a record of zeros
            inputs = each(lambda tensor: tensor.new_zeros((1, *tensor.shape[1:])), inputs)
        outputs = all_outputs(self.network, Records(inputs, torch.zeros(max(rows, 1))))
        return each(lambda tensor: tensor[:rows], outputs)

    def _finite(self, data: Any) -> "Tensor":
        """Return the outputs as a tensor of float64, all finite."""
        from dphpo_bench.training.losses import logits

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
        from torch import Tensor

        from dphpo_bench.data.arrays import as_inputs

        data = self._without_consumed(data.inputs if isinstance(data, Records) else data)
        if self.columns is not None and not isinstance(data, Tensor):
            data = self.columns.encode(data)
        elif self.input_names is not None and hasattr(data, "columns"):
            data = _selected(data, self.input_names)
        inputs = as_inputs(data, "data")
        if isinstance(self.inputs, Input):
            if isinstance(inputs, Mapping):
                raise InvalidValueError(f"Expected one array of inputs, got several: {shown(', '.join(inputs))}.")
            return _converted(inputs, self.inputs, "inputs")
        if not isinstance(inputs, Mapping) or set(inputs) != set(self.inputs):
            names = ", ".join(inputs) if isinstance(inputs, Mapping) else "a single array"
            raise InvalidValueError(f"Expected inputs by name, {', '.join(self.inputs)}, got {shown(names)}.")
        return {name: _converted(inputs[name], spec, f"input {name!r}") for name, spec in self.inputs.items()}

    def _without_consumed(self, data: Any) -> Any:
        """Return a table or several inputs by name without the columns that training consumed."""
        declared = self.inputs if self.columns is None else self.columns
        if isinstance(declared, Input) or (self.columns is None and not isinstance(data, Mapping)):
            return data  # of a frame, the inputs are selected
        from dphpo_bench.data.tables import without_columns

        return without_columns(data, {*self.consumed} - {*declared})


def _selected(frame: Any, names: tuple[str, ...]) -> Any:
    """Return the columns of these names, in their order."""
    by_name = {str(name): place for place, name in enumerate(frame.columns)}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise DataError(
            f"Expected the columns of the training records, {shown(', '.join(names), 200)}; the frame lacks "
            f"{shown(', '.join(missing))}."
        )
    return frame.iloc[:, [by_name[name] for name in names]] if hasattr(frame, "iloc") else frame[list(names)]


def _converted(tensor: "Tensor", spec: Input, what: str) -> "Tensor":
    """Return an input as the network takes it; reject another shape or type."""
    got = tuple(tensor.shape)
    if got[1:] != tuple(spec.shape):
        expected = f"({', '.join(map(str, ('n', *spec.shape)))})"
        hint = "; put a single record in a list" if got == tuple(spec.shape) else ""
        raise InvalidValueError(f"Expected {what} of shape {expected}, got {got}{hint}.")
    is_bool, is_float = str(tensor.dtype) == "torch.bool", tensor.is_floating_point()
    if spec.dtype == "float":
        return tensor if is_float else tensor.float()
    if spec.dtype == "bool" and is_bool:
        return tensor
    if spec.dtype == "bool" or is_float or is_bool:
        kind = "booleans" if spec.dtype == "bool" else "integers"
        raise InvalidValueError(f"Expected {what} to be {kind}, as in training, got {tensor.dtype}.")
    if (
        spec.vocabulary is not None
        and tensor.numel()
        and not 0 <= int(tensor.min()) <= int(tensor.max()) < spec.vocabulary
    ):
        raise InvalidValueError(
            f"Expected {what} from 0 to {spec.vocabulary - 1}, got {int(tensor.min())} to {int(tensor.max())}."
        )
    return tensor


def _array_of(classes: "tuple[Class, ...]") -> "NDArray[Any]":
    """Return classes as an array of their type; of objects if they have several types."""
    import numpy as np

    return np.array(classes, dtype=None if len(set(map(type, classes))) == 1 else object)
