"""Hold named tensors with one row for each record: tasks load them, and models take them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Union

from dphpo_bench.base.errors import DataError, InvalidValueError

if TYPE_CHECKING:
    from typing import Self

    import torch
    from torch import Tensor, nn

Tensors = Union["Tensor", Mapping[str, "Tensor"]]
"""A tensor, or several by name. Those of records have one row for each."""

RECORD = "record"
"""The unit of privacy unless a task names another."""


@dataclass(frozen=True)
class Records:
    """Records as tensors, in any dtype: token ids stay integers.

    Attributes:
        inputs: shape (n, ...); by name where the model takes several, such as token ids and a mask.
        targets: shape (n, ...), in the order of the inputs.
        units: whose records they are: equal integers for records of one person, int64 of shape (n,). They are as
            private as the records. None: each record is a unit of its own.

    Raises:
        InvalidValueError: if not all tensors have n rows, or if units are no integers.
    """

    inputs: Tensors
    targets: Tensors
    units: "Tensor | None" = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        sizes = {name: len(tensor) for name, tensor in self.named().items()}
        if len(set(sizes.values())) != 1:
            raise InvalidValueError(f"Expected one row in each tensor for each record, got {sizes or 'no tensor'}.")
        if self.units is not None and (self.units.ndim != 1 or str(self.units.dtype) != "torch.int64"):
            shape = tuple(self.units.shape)
            raise InvalidValueError(f"Expected units of int64 and shape (n,), got {self.units.dtype} and {shape}.")

    def __len__(self) -> int:
        return length(self.inputs)

    @property
    def n_units(self) -> int:
        """Number of different units; of records where they have none."""
        return len(self) if self.units is None else len(self.units.unique())  # type: ignore[no-untyped-call]

    def check_unit(self, unit: str) -> None:
        """Reject records that do not hold what a task says is its unit; see `TaskFacts.unit`.

        Raises:
            DataError: if they have units and the task names none, or the other way round.
        """
        if unit != RECORD and self.units is None:
            raise DataError(
                f"Expected the units of the training records, since the task's unit is {unit!r}, got none. Return "
                "Records(inputs, targets, units=...) from load_train, or leave unit out of the facts."
            )
        if unit == RECORD and self.units is not None:
            raise DataError("Expected a name for the units of the training records, got none: set unit of the facts.")

    @property
    def are_named(self) -> bool:
        """True if inputs or targets are several tensors by name."""
        return isinstance(self.inputs, Mapping) or isinstance(self.targets, Mapping)

    def named(self) -> "dict[str, Tensor]":
        """Return all tensors, as "inputs", "targets", "units", or with their own names as "inputs.ids"."""
        tensors_by_name = {}
        for kind, tensors in (("inputs", self.inputs), ("targets", self.targets)):
            if isinstance(tensors, Mapping):
                tensors_by_name.update({f"{kind}.{name}": tensor for name, tensor in tensors.items()})
            else:
                tensors_by_name[kind] = tensors
        return tensors_by_name if self.units is None else {**tensors_by_name, "units": self.units}

    def each(self, function: "Callable[[Tensor], Tensor]") -> "Records":
        """Apply a function to every tensor."""
        units = None if self.units is None else function(self.units)
        return Records(each(function, self.inputs), each(function, self.targets), units=units)

    def rows(self, rows: Any) -> "Records":
        """Return some of the records: a slice, whole numbers, or a mask with a boolean for each record.

        Raises:
            IndexError: if the rows are none of these.
        """
        import torch

        if isinstance(rows, slice):
            return self.each(lambda tensor: tensor[rows])
        some = torch.as_tensor(rows) if len(rows) else torch.empty(0, dtype=torch.int64)
        if some.ndim != 1:
            raise IndexError(f"Expected rows of one dimension, got the shape {tuple(some.shape)}.")
        return self.each(lambda tensor: tensor[some.to(tensor.device)])

    def copied(self) -> "Self":
        """Copy the records, for whoever may write to them."""
        return replace(self, inputs=each(gathered, self.inputs), targets=each(gathered, self.targets))

    def first(self, n: int) -> "Records":
        """Return the records of the first n units."""
        if self.units is None:
            return self.rows(slice(n))
        ids: Tensor = self.units.unique()  # type: ignore[no-untyped-call]
        return self.rows(self.units <= ids[:n][-1])

    def outputs(self, model: "nn.Module") -> Any:
        """Compute the outputs of the model for the inputs."""
        return call(model, self.inputs)

    def to(self, device: "torch.device", dtype: "torch.dtype") -> "Records":
        """Move the records to a device; floating-point numbers become `dtype`, integers keep their type."""
        return self.each(lambda tensor: converted(tensor, device, dtype))


def each(function: "Callable[[Tensor], Tensor]", tensors: Tensors) -> Tensors:
    """Apply a function to the tensor, or to each of several."""
    if isinstance(tensors, Mapping):
        return {name: function(tensor) for name, tensor in tensors.items()}
    return function(tensors)


def leaves(tensors: Tensors) -> "list[Tensor]":
    """Return the tensor, or all of several."""
    return list(tensors.values()) if isinstance(tensors, Mapping) else [tensors]


def joined(pieces: "Sequence[Any]") -> Any:
    """Return the rows of at least one piece, one piece after another."""
    import torch

    if isinstance(pieces[0], Mapping):
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    return torch.cat([*pieces])


def single(tensors: Tensors) -> "Tensor":
    """Return the tensor; reject several by name."""
    if isinstance(tensors, Mapping):
        raise InvalidValueError(f"Expected one tensor, got several by name: {', '.join(tensors)}.")
    return tensors


def length(tensors: Tensors) -> int:
    """Return the number of rows."""
    return len(leaves(tensors)[0])


def take(tensor: "Tensor", rows: "slice | Tensor") -> "Tensor":
    """Take some rows of a tensor, wherever it lies: a slice is a view, indices are a copy."""
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows.to(tensor.device))


def gathered(
    tensor: "Tensor",
    rows: "slice | Tensor" = slice(None),
    device: "torch.device | None" = None,
    dtype: "torch.dtype | None" = None,
    copy: bool = True,
) -> "Tensor":
    """Take some rows and convert them as `converted` does.

    Args:
        rows: a slice, or indices of int64.
        device: None: the tensor's.
        dtype: of floating-point numbers; None: the tensor's.
        copy: never give out the tensor's own memory. Whatever runs code of a plug-in needs a copy: the code may write.
    """
    copy = copy and isinstance(rows, slice)  # indices copy anyway
    return take(tensor, rows).to(device, dtype if tensor.is_floating_point() else None, copy=copy)


def converted(tensor: "Tensor", device: "torch.device", dtype: "torch.dtype") -> "Tensor":
    """Move a tensor to a device; floating-point numbers become `dtype`, integers keep their type."""
    return tensor.to(device, dtype if tensor.is_floating_point() else None)


def call(model: "nn.Module", inputs: Tensors) -> Any:
    """Compute the model's outputs: `model(inputs)`, or `model(**inputs)` if the inputs have names."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def plain(tensor: object) -> "Tensor":
    """Return the tensor; reject subclasses, whose code would see any tensor that it is combined with."""
    from torch import Tensor, nn

    if type(tensor) not in (Tensor, nn.Parameter):
        raise InvalidValueError(
            f"Expected a torch.Tensor, got a {type(tensor).__name__}. Convert it to a plain tensor."
        )
    return tensor  # type: ignore[return-value]
