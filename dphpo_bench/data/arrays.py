"""Records from tensors, arrays, pandas' frames and series, dictionaries of these, and torch's datasets."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.tensors import RECORD, Records, Tensors, leaves
from dphpo_bench.base.text import shown
from dphpo_bench.data import labels
from dphpo_bench.data.numeric import as_tensor, in_pandas, may_be_rounded, place_of, rounded

_PRECISIONS = (torch.float32, torch.float16, torch.bfloat16, torch.bool)
_REREAD = 64
"""Number of items of a Dataset that are read twice: a coin for each would fall alike with probability 2^-64."""

_TARGET_DIMENSIONS = {
    "classification": (1,),
    "binary": (1,),
    "multilabel": (2,),
    "regression": (1, 2),
    "tokens": (2,),
}


def as_records(
    data: Any, which: str, kind: str, target: str, classes: tuple[labels.Class, ...] | None = None
) -> Records:
    """Make records of data in any of these forms, in their order; the index of a frame is ignored.

    - a pair (inputs, targets), of which each is an array, a frame, a series, or a dictionary of arrays;
    - a dictionary of arrays, or a frame, of which one, or one column, is called `target`;
    - a dataset with a length of such pairs or dictionaries; one of Hugging Face is a frame if all its columns hold
      single values, and else a dictionary of arrays;
    - for "tokens" also sequences alone, shape (n, length): each token but the first is to be predicted.

    Args:
        data: see above.
        which: names the data in messages.
        kind: of task; see `TaskFacts.kind`.
        target: see above.
        classes: declared ones of the labels; see `labels.encoded_labels`.

    Returns:
        Inputs as bool, int64, float32 or the half precision they have, targets as the kind's losses take them; all in
        memory of their own.

    Raises:
        InvalidValueError: if the data have none of these forms, or are not finite numbers.
    """
    inputs, targets = parted(data, which, kind, target)
    names = column_names(inputs, target)
    if isinstance(inputs, Mapping) and not inputs:
        raise InvalidValueError(f"Expected inputs beside the labels in {which}, got none; add them by name.")
    inputs = _each(as_tensor, inputs, f"{which} inputs")
    if labels.takes(kind):
        targets = labels.encoded_labels(targets, which, kind, classes)
    else:
        targets = _each(as_tensor, targets, f"{which} labels")
    sizes = {len(tensor) if tensor.ndim else -1 for part in (inputs, targets) for tensor in leaves(part)}
    rows_only = isinstance(inputs, Tensor) and inputs.ndim < 2
    wrong = isinstance(targets, Tensor) and targets.ndim not in _TARGET_DIMENSIONS.get(kind, (1, 2, 3, 4))
    if len(sizes) != 1 or rows_only or wrong:
        raise InvalidValueError(
            f"Expected {which} inputs of shape (n, ...) and labels of shape ({_label_shape(kind)}), "
            f"got {_shapes(inputs)} and {_shapes(targets)}."
        )
    if not sizes.pop():
        raise InvalidValueError(f"Expected at least one record in {which}, got none.")
    return Records(_each(partial(_as_input, names=names), inputs, which), _as_targets(targets, which, kind))


def as_inputs(data: Any, which: str) -> Tensors:
    """Make inputs of an array, a tensor or a frame, or of several by name in a dictionary; see `as_records`.

    Raises:
        InvalidValueError: if they are not finite numbers with a row for each record.
    """
    inputs: Tensors = _each(_as_input, _each(as_tensor, data, f"{which} inputs"), which)
    if len({len(tensor) if tensor.ndim else -1 for tensor in leaves(inputs)} - {-1}) != 1:
        raise InvalidValueError(f"Expected inputs of shape (n, ...), with n rows each, got {_shapes(inputs)}.")
    return inputs


def parted(data: Any, which: str, kind: str, target: str) -> tuple[Any, Any]:
    """Return inputs and targets as they are, the items of a dataset as columns; see `as_records`."""
    if isinstance(data, Dataset):
        data = _columns(data, which)
    if hasattr(data, "with_format"):  # of Hugging Face
        named = data.with_format("numpy")[:]
        data = named if any(values.ndim > 1 for values in named.values()) else data
    if isinstance(data, tuple | list) and len(data) == 2 and not np.isscalar(data[0]):
        if any(isinstance(part, Dataset) for part in data):  # NumPy would read it, and freeze what it draws at random
            raise InvalidValueError(f"Expected arrays in the pair of {which}, got a Dataset, which comes alone.")
        return data[0], data[1]
    data = in_pandas(data)
    if _is_frame(data) or isinstance(data, Mapping):
        if target not in data:
            raise InvalidValueError(f"Expected {target!r} among {list(data)} of {which}; name the labels by target=.")
        inputs, labels = without_column(data, target)
        return (inputs["inputs"] if isinstance(inputs, dict) and set(inputs) == {"inputs"} else inputs), labels
    if kind == "tokens" and isinstance(data, Tensor | np.ndarray) and data.ndim == 2:
        return data[:, :-1], data[:, 1:]
    raise InvalidValueError(
        f"Expected {which} to be (inputs, labels) or a torch Dataset of such pairs, or a dictionary or a frame with "
        f"{target!r}, got a {type(data).__name__}. tuple(zip(*records)) makes (inputs, labels) of pairs (input, "
        "label); loader.dataset are the records of a DataLoader."
    )


def _is_frame(data: Any) -> bool:
    return hasattr(data, "columns") and hasattr(data, "iloc")


def column_names(data: Any, target: str) -> list[str] | None:
    """Return the names of a frame's columns of inputs, in their order; None where the inputs are no frame."""
    inputs = in_pandas(data[0] if isinstance(data, tuple | list) and len(data) == 2 else data)
    if not _is_frame(inputs):
        return None
    is_pair = isinstance(data, tuple | list)
    return [str(name) for name in inputs.columns if is_pair or name != target]


def without_column(data: Any, name: str) -> tuple[Any, Any]:
    """Return the data without a column of the inputs, and the column; None if there is none of this name."""
    if isinstance(data, tuple | list) and len(data) == 2:
        inputs, column = without_column(data[0], name)
        return (data if column is None else (inputs, data[1])), column
    data = in_pandas(data)
    if _is_frame(data) and name in data.columns:
        return parted_frame(data, name)
    if isinstance(data, Mapping) and name in data:
        return {other: values for other, values in data.items() if other != name}, data[name]
    return data, None


def parted_frame(frame: Any, name: str) -> tuple[Any, Any]:
    """Return a frame without a column that it has, and the column; reject several of this name."""
    column = frame[name]
    if column.ndim > 1:
        raise DataError(
            f"Expected a single column {shown(name, form=repr)}, got {column.shape[1]} of this name; drop or rename "
            "all but one."
        )
    return frame.drop(columns=name), column


def parted_units(data: Any, unit: Any, target: str) -> tuple[Any, Tensor, str]:
    """Return the data without a column of ids, the numbers of the records' units, and what the units are called.

    Args:
        data: see `as_records`.
        unit: the name of the column, or a vector of ids.
        target: the labels' name.

    Raises:
        InvalidValueError: if there is no such column, or the ids do not tell one unit for each record.
    """
    if isinstance(unit, str):
        data, ids = without_column(data, unit)
        if ids is None or unit == target:
            raise InvalidValueError(
                f"Expected unit={shown(unit, form=repr)} to be a column of the inputs of train, got none of this name. "
                "Name another, or pass the ids themselves: one for each record."
            )
        name = unit
    else:
        ids, name = unit, str(getattr(unit, "name", None) or "unit")
    return data, _numbered(ids), "unit" if name == RECORD else name


def _numbered(ids: Any) -> Tensor:
    """Return the number of each record's unit, in the order in which ids appear: int64 of shape (n,)."""
    rule = "Expected unit to be a vector with one id for each record, all texts or all numbers"
    try:
        values = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        if any(value is None or bool(value != value) for value in values):
            raise InvalidValueError(f"{rule}, got some that are missing: drop these records, or give each its own id.")
        if may_be_rounded(ids):
            raise InvalidValueError(f"{rule}, got floats that may stand for several ids; pass integers or texts.")
        kinds = {Number if isinstance(value, Number) else type(value) for value in values}
        numbers: dict[Any, int] = {}
        units = [numbers.setdefault(value, len(numbers)) for value in values]
    except TypeError:  # no vector, or pandas' NA, which is not comparable; its text may quote an id
        raise InvalidValueError(f"{rule}, got missing ids or a {type(ids).__name__} of another form.") from None
    if len(kinds) > 1:  # 7 and "7" may be one person
        raise InvalidValueError(f"{rule}, got several types: {', '.join(sorted(kind.__name__ for kind in kinds))}.")
    if len(numbers) < 2:
        raise InvalidValueError(f"{rule}, and at least two different ones, got {len(numbers)}.")
    return torch.tensor(units)


def _columns(dataset: "Dataset[Any]", which: str) -> Any:
    """Return the rows of a dataset as columns: a pair of them, a dictionary of them, or a single one."""
    size = len(dataset) if hasattr(dataset, "__len__") else 0
    if size == 0:
        raise InvalidValueError(
            f"Expected a Dataset with a length and at least one record as {which}, got a {type(dataset).__name__}."
        )
    if not items_stay(dataset, size):
        raise InvalidValueError(
            f"Expected a Dataset whose items stay, but two reads of items of {which} differ: what it draws at random "
            "would be drawn once and frozen. Take the random transform out of it, and pass it as "
            "augment=Augmentation(transform, copies), which draws anew in each step."
        )
    rows = [dataset[index] for index in range(size)]
    return _stacked(rows, which)


def _same(a: Any, b: Any) -> bool:
    """Return whether two reads of an item are equal, NaN included."""
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Tensor) or hasattr(a, "__array__"):
        first, second = (part if isinstance(part, Tensor) else np.asarray(part) for part in (a, b))
        equal: Any = (first == second) | (first != first) & (second != second) if first.shape == second.shape else None
        return equal is not None and bool(equal.all())
    return bool(a == b or (a != a and b != b))


def items_stay(dataset: "Dataset[Any]", size: int) -> bool:
    """Return whether two reads of some items of a dataset are equal: a random transform would change them."""
    places = [number * size // _REREAD if size > _REREAD else number % size for number in range(_REREAD)]
    before = [copy.deepcopy(dataset[place]) for place in places]
    return all(_same(item, dataset[place]) for item, place in zip(before, places, strict=True))


def _stacked(rows: list[Any], which: str) -> Any:
    try:
        if isinstance(rows[0], Mapping):
            return {name: _stacked([row[name] for row in rows], which) for name in rows[0]}
        if isinstance(rows[0], tuple | list) and len(rows[0]) == 2 and not np.isscalar(rows[0][0]):
            inputs, targets = zip(*rows, strict=True)
            return _stacked(list(inputs), which), _stacked(list(targets), which)
        if isinstance(rows[0], str | bytes):  # labels
            return rows
        return torch.stack([as_tensor(row, which) for row in rows])
    except InvalidValueError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidValueError(
            f"Expected {which} to hold (input, label) pairs with inputs of one shape: {str(error).splitlines()[0]}"
        ) from error


def _as_input(tensor: Tensor, which: str, names: list[str] | None = None) -> Tensor:
    if not tensor.is_floating_point() and tensor.dtype != torch.bool:
        return tensor.to(torch.int64, copy=True)
    narrow = tensor.to(tensor.dtype if tensor.dtype in _PRECISIONS else torch.float32, copy=True)
    if not (finite := narrow.isfinite()).all():
        got = f"{float(narrow[~finite][0])} in {place_of(~finite, names)}"
        raise InvalidValueError(f"Expected finite inputs in {which}, got {got}; impute or drop them.")
    if tensor.dtype == torch.float64 and (wrong := rounded(tensor)).any():
        got = f"{float(tensor[wrong][0]):.0f} in {place_of(wrong, names)}"
        raise InvalidValueError(
            f"Expected whole numbers in {which} that float32 holds, got {got}, which it rounds. Scale amounts by "
            "public constants, and pass ids by themselves: {'ids': integers, 'x': floats}."
        )
    return narrow


def _as_targets(targets: Tensors, which: str, kind: str) -> Tensors:
    if kind == "own":
        real: Tensors = _each(_as_input, targets, which)
        return real
    if labels.takes(kind):
        return targets
    if not isinstance(targets, Tensor):
        raise InvalidValueError(f"Expected one tensor of labels in {which}, got several; kind='own' takes them.")
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise InvalidValueError(f"Expected integers as tokens in {which}, got {targets.dtype}; convert them.")
    return targets.to(torch.int64, copy=True)


def _each(function: Callable[[Any, str], Any], values: Any, what: str) -> Any:
    """Apply a function to the values, or to each of several, with their name for messages."""
    if isinstance(values, Mapping):
        return {str(name): function(value, f"{what} {name!r}") for name, value in values.items()}
    return function(values, what)


def _label_shape(kind: str) -> str:
    return {"tokens": "n, length", "multilabel": "n, labels"}.get(kind, "n,")


def _shapes(tensors: Tensors) -> Any:
    return _each(lambda tensor, _: tuple(tensor.shape), tensors, "")
