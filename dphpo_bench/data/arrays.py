"""Records from tensors, arrays, pandas' frames and series, dictionaries of these, and torch's datasets.

What would change a value silently is refused, and what the classes are never comes from private labels.

>>> encoded_labels(["yes", "no"], "train", "classification", ("no", "yes"))
tensor([1, 0])
"""

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date
from decimal import Decimal
from numbers import Integral, Number, Real
from typing import Any
from unicodedata import normalize
from uuid import UUID

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.tensors import RECORD, Records, Tensors, leaves
from dphpo_bench.base.text import count, shown

_WAY_OUT = (
    "Impute or drop missing values. Declare the columns of texts, categories and dates, such as "
    "columns={'city': Category(('Bern', 'Rome'))}"
)


def as_tensor(data: Any, what: str) -> Tensor:
    """Return the numbers as a tensor on the CPU, of a type that torch computes with.

    It may share memory with the data.

    Args:
        data: a tensor, or an array, a frame, a series or a sequence of real numbers.
    """
    if isinstance(data, Tensor) and data.dtype != torch.uint64:
        kinds = {"sparse": data.layout != torch.strided, "masked": hasattr(data, "get_mask"), "nested": data.is_nested}
        kinds |= {"complex": data.is_complex(), "quantized": data.is_quantized, "meta": data.is_meta}
        if any(kinds.values()):
            names = ", ".join(name for name, applies in kinds.items() if applies)
            raise InvalidValueError(f"Expected {what} to be dense real numbers, got a {names} tensor; convert it.")
        return data.detach().cpu().resolve_neg().as_subclass(Tensor)
    data = in_pandas(data)
    if not hasattr(data, "columns"):
        return _native(_reals(data, what), what)
    columns = [_reals(data.iloc[:, place], f"{what} {str(name)!r}") for place, name in enumerate(data.columns)]
    return _native(np.stack(columns, axis=1) if columns else np.empty((len(data), 0)), what)


def in_pandas(data: Any) -> Any:
    """Return a table or a column of Arrow or polars in pandas' form, anything else as it is."""
    return data.to_pandas() if hasattr(data, "to_pandas") else data


def is_masked(data: Any) -> bool:
    """Return True for a masked array or a sequence of these, of which `numpy.asarray` would take what is hidden."""
    return np.ma.isMA(data) or (isinstance(data, list | tuple) and any(map(np.ma.isMA, data)))


def fits_float32(numbers: Tensor) -> Tensor:
    """Return False for whole numbers, float64, that float32 rounds, or that float64 has rounded already.

    Numbers from 2^64 on, which no integer type holds, are measurements.
    """
    size = numbers.abs()
    return ~((numbers == numbers.round()) & (size < 2.0**64) & ((numbers.float() != numbers) | (size >= 2.0**53)))


def may_be_rounded(values: Any) -> bool:
    """Return True if some values are floats so large that they may stand for several whole numbers."""
    floats = np.asarray(values)
    return floats.dtype.kind == "f" and bool((np.abs(floats) >= 2.0 ** (np.finfo(floats.dtype).nmant + 1)).any())


def first_wrong(
    numbers: Tensor, fits: Callable[[Tensor], Tensor], names: Sequence[str] | None = None
) -> tuple[float, str] | None:
    """Return the first number that does not fit, and its place, such as "row 3, column 'age'"; None if all fit.

    Rows count from 0. A few are asked about at a time: a mask of all would be another table in memory.

    Args:
        numbers: of shape (n, ...).
        fits: (some of them) → bool, of their shape.
        names: of the columns, if they have some.
    """
    at_once = max(1, _ASKED // max(1, math.prod(numbers.shape[1:])))
    for start, some in enumerate(torch.split(numbers, at_once) if numbers.ndim else [numbers[None]]):
        wrong = ~fits(some)
        if wrong.any():
            row, *rest = (int(index) for index in wrong.nonzero()[0])
            column = shown(names[rest[0]], form=repr) if len(rest) == 1 and names else ", ".join(map(str, rest))
            place = f"row {start * at_once + row}"
            return float(some[wrong][0]), f"{place}, column {column}" if rest else place
    return None


def of_objects(array: NDArray[Any]) -> NDArray[Any]:
    """Return Python's booleans, integers or reals as an array of the narrowest type; anything else as it is.

    Raises:
        OverflowError: if an integer is beyond 64 bits, or beyond floats.
    """
    if array.dtype != object:
        return array
    kinds = set(map(type, array.flat))
    if not all(issubclass(kind, Real | Decimal | np.bool_) for kind in kinds):
        return array
    for dtype, numbers in ((bool, bool | np.bool_), (np.int64, Integral | np.bool_)):
        if all(issubclass(kind, numbers) for kind in kinds):
            return array.astype(dtype)
    return array.astype(float)


def _reals(data: Any, what: str) -> NDArray[Any]:
    """Return an array of booleans, integers or floats of any width."""
    rule = f"Expected {what} to be numbers in an array or tensor"
    if is_masked(data):
        raise InvalidValueError(f"{rule}, got a masked array; pass array.filled(value), with a public constant.")
    try:
        array = np.asarray(data)
        if array.dtype == object and array.ndim == 1 and array.size and np.ndim(array[0]):
            array = np.stack(list(array))  # a column of vectors
        array = of_objects(array)
    except OverflowError:
        raise InvalidValueError(f"{rule} below 2^63, got a larger integer; take fewer bits, or categories.") from None
    except (TypeError, ValueError, RuntimeError):  # its text may quote a record
        raise InvalidValueError(f"{rule}, with one shape for all records; pad or cut them.") from None
    if array.dtype.kind not in "biuf":
        got = f"a {type(data).__name__}" if array.ndim == 0 else str(array.dtype)
        if array.dtype == object and array.ndim:
            got = ", ".join(sorted({kind.__name__ for kind in map(type, array.flat) if not issubclass(kind, Real)}))
        raise InvalidValueError(f"{rule}, got {shown(got)}. {_WAY_OUT}.")
    return array


def _native(array: NDArray[Any], what: str) -> Tensor:
    """Convert an array; each copy is one that torch could not do without."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "u" and size == 8 and array.size and int(array.max()) >= 2**63:
        raise InvalidValueError(f"Expected integers of {what} below 2^63, got a larger one; take fewer bits.")
    dtype: Any = np.int64 if kind == "u" and size > 1 else np.float64 if size > 8 else array.dtype
    return unwritten(array.astype(dtype, copy=False))


def unwritten(array: Any) -> Tensor:
    """Return a tensor of an array that may be read-only, without torch's warning: nothing writes to it.

    It shares the array's memory, unless torch knows no such order of bytes or of rows.
    """
    if isinstance(array, np.ndarray):
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        array = array.copy() if any(stride < 0 for stride in array.strides) else array
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.as_tensor(array)


Class = str | bool | int | float
"""A label's meaning, as its owner writes it."""

KINDS = ("classification", "binary", "multilabel")
"""Kinds of tasks whose labels have classes."""

_IN_ROWS = (*KINDS, "regression")
"""Kinds whose labels `encoded_labels` takes."""


def declared_classes(classes: Any, kind: str) -> tuple[Class, ...]:
    """Return declared classes as texts, booleans and numbers of Python, in their order.

    Args:
        classes: a sequence; the first is the network's first output, or the label 0 of a binary task. Of "multilabel",
            the names of the labels.
    """
    if kind not in KINDS:
        raise InvalidValueError(
            f"Expected no classes of a task of kind {kind!r}, got {shown(classes, form=repr)}; leave them out."
        )
    rule = 'Expected classes in the order of the outputs, such as classes=("no", "yes")'
    if isinstance(classes, str | bytes | Mapping | AbstractSet) or not hasattr(classes, "__iter__"):
        raise InvalidValueError(f"{rule}, got {shown(classes, form=repr)}.")
    values = tuple(map(_plain, classes.tolist() if hasattr(classes, "tolist") else classes))
    for value in values:
        if not isinstance(value, Class) or (isinstance(value, float) and not math.isfinite(value)):
            raise InvalidValueError(f"{rule}: texts, booleans or finite numbers, got {shown(value, form=repr)}.")
    if len(set(values)) != len(values):
        raise InvalidValueError(f"{rule}, each once, got {shown(values, form=repr)}.")
    least = 1 if kind == "multilabel" else 2
    if len(values) < least or (kind == "binary" and len(values) > 2):
        number = "two of them" if kind == "binary" else f"at least {least}"
        raise InvalidValueError(f"{rule}, {number}, got {shown(values, form=repr)}.")
    return values


def implied_classes(labels: Any, kind: str) -> tuple[Class, ...] | None:
    """Return (False, True) if the labels' type is boolean, which says what they mean; else None."""
    dtype = str(getattr(labels, "dtype", "")).removeprefix("torch.")
    return (False, True) if kind in ("classification", "binary") and dtype.startswith("bool") else None


def encoded_labels(labels: Any, which: str, kind: str, classes: tuple[Class, ...] | None = None) -> Tensor:
    """Return labels as the losses of a kind take them, in memory of their own.

    Args:
        labels: an array, a tensor, a series, a frame or a sequence with one row for each record. With `classes`, each
            label is a class. Of "multilabel", rows are 0 and 1 for each class; a frame's columns may have any order.
        which: names the records in messages, such as "train".
        kind: "classification", "binary", "multilabel" or "regression".
        classes: from `declared_classes`; None: labels are numbers from 0, or booleans.

    Returns:
        int64 of shape (n,) for "classification", else float32: (n,) for "binary", (n, classes) for "multilabel", and
        the labels' shape for "regression". Labels of another shape come back as they are: the caller refuses them.
    """
    names = list(map(_plain, labels.columns)) if hasattr(labels, "columns") else None
    values = _array(labels, which)
    if kind == "regression":
        return _numbers(values, which)
    if kind == "multilabel":
        return _several(values, which, classes, names)
    if values.ndim == 2 and values.shape[1] != 1:
        raise InvalidValueError(
            f"Expected labels of {which} of shape (n,), got a matrix {values.shape}. Of columns with one 1 in each "
            "row, pass labels.argmax(1), or frame.idxmax(axis=1); kind='multilabel' takes several labels a record."
        )
    values = values[:, 0] if values.ndim == 2 else values
    if values.ndim != 1:
        return torch.zeros(values.shape)
    if classes is not None:
        encoded = torch.tensor(_places(values, which, classes), dtype=torch.int64)
    else:
        encoded = _undeclared(values, which, kind)
    return encoded if kind == "classification" else encoded.float()


def _array(labels: Any, which: str) -> "np.ndarray[Any, Any]":
    """Return labels as an array of NumPy, in which texts stay texts and objects stay objects."""
    try:
        if is_masked(labels):
            raise TypeError
        if isinstance(labels, Tensor):
            labels = labels.detach().cpu()
            labels = labels.float() if labels.dtype == torch.bfloat16 else labels
        values = np.asarray(labels)
        if isinstance(labels, list | tuple) and values.dtype.kind not in "biufcMmO":
            values = np.array(labels, dtype=object)  # NumPy would make texts of numbers beside texts
    except (TypeError, ValueError, RuntimeError, OverflowError):  # its text may quote a record
        values = np.asarray(None)
    if values.dtype == object and values.ndim == 0:
        raise InvalidValueError(
            f"Expected {which} labels as a dense array, a series or a list with one label for each record, got a "
            f"{type(labels).__name__} of another form."
        )
    return values


def _plain(value: Any) -> Any:
    """Return a value of NumPy as Python's, and bytes as text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _places(values: "np.ndarray[Any, Any]", which: str, classes: tuple[Class, ...]) -> list[int]:
    """Return the place of each label among the classes."""
    rule = f"Expected each label of {which} to be one of classes={shown(classes, 120, form=repr)}"
    if may_be_rounded(values):
        raise InvalidValueError(f"{rule}, got {values.dtype} that may stand for several; pass integers or texts.")
    places = {value: place for place, value in enumerate(classes)}
    takes_booleans = set(classes) == {0, 1} or any(isinstance(value, bool) for value in classes)
    numbers = []
    for row, label in enumerate(values.tolist()):
        value = _plain(label)
        is_class = isinstance(value, Class) and (takes_booleans or not isinstance(value, bool))  # to Python, True is 1
        number = places.get(value) if is_class else None
        if number is None:
            raise InvalidValueError(
                f"{rule}, got {shown(value, form=repr)} in row {row}; mend it, declare it, or drop these records. "
                "Texts are no numbers."
            )
        numbers.append(number)
    return numbers


def _several(
    values: "np.ndarray[Any, Any]", which: str, classes: tuple[Class, ...] | None, names: list[Any] | None
) -> Tensor:
    """Return several labels for each record, float32 of shape (n, labels), in the order of the classes."""
    if values.ndim != 2:
        return torch.zeros(values.shape)
    try:
        fits = bool(np.isin(values, (0, 1)).all())
    except TypeError:  # objects that cannot be compared
        fits = False
    if not fits:
        raise InvalidValueError(f"Expected labels of 0 and 1 in {which}, got others, such as (labels > 0.5) makes.")
    if classes is not None:
        if values.shape[1] != len(classes) or (names is not None and set(names) != set(classes)):
            raise InvalidValueError(
                f"Expected a column of labels of {which} for each of classes={shown(classes, 120, form=repr)}, got "
                f"{values.shape[1] if names is None else shown(names, 120)}; rename them, or pass labels.to_numpy()."
            )
        if names is not None:
            values = values[:, [names.index(value) for value in classes]]
    return torch.tensor(values.astype(np.int64)).float()


def _undeclared(values: "np.ndarray[Any, Any]", which: str, kind: str) -> Tensor:
    """Return labels without declared classes: whole numbers from 0, of which the caller checks the range."""
    values = _as_numbers(values)
    rule = f"Expected {'labels of 0 and 1' if kind == 'binary' else 'integer class labels'} in {which}"
    fits = np.full(len(values), values.dtype.kind in ("biuf" if kind == "binary" else "biu"))
    if kind == "binary" and fits.all():
        fits = (values == 0) | (values == 1)
    if not fits.all():
        row = int((~fits).argmax())
        raise InvalidValueError(
            f"{rule}, got {values.dtype} such as {shown(_plain(values[row]), form=repr)} in row {row}; drop missing "
            'ones, use labels.astype(int), or say what they mean, in the order of the outputs: classes=("no", "yes").'
        )
    if values.dtype.kind == "u" and len(values) and int(values.max()) >= 2**63:
        raise InvalidValueError(f"{rule}, got one above 2^63; renumber them.")
    return torch.tensor(values.astype(np.int64))


def _as_numbers(values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return an array of objects that are all real numbers, and no booleans, as such numbers; others as they are."""
    if values.dtype != object:
        return values
    kinds = {type(_plain(value)) for value in values.flat}
    if bool in kinds or not all(issubclass(kind, Real | Decimal) for kind in kinds):
        return values
    try:
        return of_objects(values)
    except (OverflowError, ValueError):  # as of a signalling NaN
        return values


def _numbers(values: "np.ndarray[Any, Any]", which: str) -> Tensor:
    """Return the targets of a regression: float32, finite."""
    values = _as_numbers(values)
    if values.dtype.kind not in "iuf":
        raise InvalidValueError(
            f"Expected numbers as labels of {which}, since kind='regression', got {values.dtype}; make numbers of "
            "texts, such as by pandas.to_numeric, and drop records whose label is missing."
        )
    exact = torch.tensor(values.astype(np.float64))
    numbers = exact.float()
    if wrong := first_wrong(numbers, torch.isfinite):
        raise InvalidValueError(
            f"Expected finite labels in {which}, got NaN or infinity in {wrong[1]} as float32; "
            "drop these records, or scale them."
        )
    if values.dtype != np.float32 and (wrong := first_wrong(exact, fits_float32)):
        raise InvalidValueError(
            f"Expected labels in {which} that float32 holds, got {wrong[0]:.0f} in {wrong[1]}, "
            "which it rounds; divide them by a public constant, such as labels / 1000."
        )
    return numbers


_ASKED = 2**22
"""Numbers that are asked about at a time."""
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


def as_records(data: Any, which: str, kind: str, target: str, classes: tuple[Class, ...] | None = None) -> Records:
    """Make records of data in any of these forms, in their order; the index of a frame is ignored.

    - a pair (inputs, targets), of which each is an array, a frame, a series, or a dictionary of arrays;
    - a dictionary of arrays, or a frame, of which one, or one column, is called `target`;
    - a dataset with a length of such pairs or dictionaries; one of Hugging Face is a frame if all its columns hold
      single values, and else a dictionary of arrays;
    - for "tokens" also sequences alone, shape (n, length): each token but the first is to be predicted.

    Args:
        classes: declared ones of the labels; see `encoded_labels`.

    Returns:
        Inputs as bool, int64, float32 or the half precision they have, targets as the kind's losses take them; all in
        memory of their own, except for inputs in arrays whose memory is read-only, as that of maps of mode "r".
    """
    inputs, targets, _ = parted(data, which, kind, target)
    names = column_names(inputs)
    if isinstance(inputs, Mapping) and not inputs:
        raise InvalidValueError(f"Expected inputs beside the labels in {which}, got none; add them by name.")
    originals, inputs = inputs, _each(as_tensor, inputs, f"{which} inputs")
    if kind in _IN_ROWS:
        targets = encoded_labels(targets, which, kind, classes)
    else:
        targets = _each(as_tensor, targets, f"{which} labels")
    sizes = {len(tensor) if tensor.ndim else -1 for part in (inputs, targets) for tensor in leaves(part)}
    rows_only = isinstance(inputs, Tensor) and inputs.ndim < 2
    wrong = isinstance(targets, Tensor) and targets.ndim not in _TARGET_DIMENSIONS.get(kind, (1, 2, 3, 4))
    if len(sizes) != 1 or rows_only or wrong:
        shape = {"tokens": "n, length", "multilabel": "n, labels"}.get(kind, "n,")
        raise InvalidValueError(
            f"Expected {which} inputs of shape (n, ...) and labels of shape ({shape}), "
            f"got {_shapes(inputs)} and {_shapes(targets)}."
        )
    if not sizes.pop():
        raise InvalidValueError(f"Expected at least one record in {which}, got none.")
    if isinstance(originals, Mapping):
        inputs = {
            name: _as_input(inputs[name], f"{which} {name!r}", data=data)
            for name, data in zip(inputs, originals.values(), strict=True)
        }
    else:
        inputs = _as_input(inputs, which, names, data=originals)
    return Records(inputs, _as_targets(targets, which, kind))


def as_inputs(data: Any, which: str) -> Tensors:
    """Make inputs of an array, a tensor or a frame, or of several by name in a dictionary; see `as_records`."""
    inputs: Tensors = _each(_as_input, _each(as_tensor, data, f"{which} inputs"), which)
    if len({len(tensor) if tensor.ndim else -1 for tensor in leaves(inputs)} - {-1}) != 1:
        raise InvalidValueError(f"Expected inputs of shape (n, ...), with n rows each, got {_shapes(inputs)}.")
    return inputs


def parted(data: Any, which: str, kind: str, target: str, unit: str | None = None) -> tuple[Any, Any, Any]:
    """Return inputs and targets as they are, and the column of inputs that is called `unit`; see `as_records`.

    Tables are frames of pandas then, and items of a dataset are columns. The third is None if there is no such column.
    """
    if isinstance(data, Dataset):
        data = _columns(data, which)
    if hasattr(data, "with_format"):  # of Hugging Face
        named = data.with_format("numpy")[:]
        data = named if any(values.ndim > 1 for values in named.values()) else data
    if kind == "tokens" and isinstance(data, Tensor | np.ndarray) and data.ndim == 2:
        return data[:, :-1], data[:, 1:], None
    is_pair = isinstance(data, tuple | list) and len(data) == 2 and not np.isscalar(data[0])
    if is_pair:
        if any(isinstance(part, Dataset) for part in data):  # NumPy would read it, and freeze what it draws at random
            raise InvalidValueError(f"Expected arrays in the pair of {which}, got a Dataset, which comes alone.")
        inputs, targets = map(in_pandas, data)
    else:
        inputs, targets = without_column(in_pandas(data), target)
        if targets is None:
            raise InvalidValueError(
                f"Expected {which} to be (inputs, labels) or a torch Dataset of such pairs, or a dictionary or a frame "
                f"with {target!r}, which Labels(target=...) names, got a {type(data).__name__}. "
                "tuple(zip(*records)) makes (inputs, labels) of pairs (input, label); loader.dataset are the records "
                "of a DataLoader."
            )
    inputs, ids = (inputs, None) if unit is None else without_column(inputs, unit)
    if not is_pair and isinstance(inputs, dict) and set(inputs) == {"inputs"}:
        inputs = inputs["inputs"]
    return inputs, targets, ids


def column_names(inputs: Any) -> list[str] | None:
    """Return the names of a frame's columns, in their order, or of frames by name; None where there is no frame."""
    if isinstance(inputs, Mapping):
        by_name = {str(name): column_names(in_pandas(inputs[name])) or () for name in inputs}
        return [f"{name}.{column}" for name in sorted(by_name) for column in by_name[name]] or None
    if not (hasattr(inputs, "iloc") and hasattr(inputs, "columns")):
        return None
    names = [str(name) for name in inputs.columns]
    if len({*names}) < len(names):
        twice = max(names, key=names.count)
        raise DataError(f"Expected columns with different names, got several {shown(twice)}; rename or drop some.")
    return names


def without_column(data: Any, name: str) -> tuple[Any, Any]:
    """Return a frame or a dictionary without a column, and the column; None if there is none of this name."""
    if isinstance(data, Mapping):
        return {other: values for other, values in data.items() if other != name}, data.get(name)
    is_there = column_names(data) is not None and name in data.columns
    return (data.drop(columns=name), data[name]) if is_there else (data, None)


def refuse_other_order(*parts: Any) -> None:
    """Reject frames and series of the same index in several orders: rows count in their order, and would be mixed."""
    first, *others = _indexes(parts) or [None]
    for other in others:
        are_unlike = len(other) == len(first) and not other.equals(first)
        if are_unlike and first.is_unique and other.is_unique and first.isin(other).all():
            raise InvalidValueError(
                "Expected inputs, labels and ids of units in one order, got the same index in several orders: rows of "
                "different records would be put together. Sort them alike, as labels.loc[frame.index] does; or, where "
                "they are in one order, drop their indexes by reset_index(drop=True)."
            )


def _indexes(data: Any) -> list[Any]:
    """Return the indexes of frames and series in a pair or a dictionary."""
    if hasattr(data, "iloc"):
        return [data.index]
    is_pair = isinstance(data, tuple | list) and len(data) <= 2
    parts = data.values() if isinstance(data, Mapping) else data if is_pair else ()
    return [index for part in parts for index in _indexes(part)]


def folded(value: Any) -> str:
    """Return a text without white space around it, capitals and forms of Unicode, as of near misses."""
    return normalize("NFKC", str(value)).strip().casefold()


def units_of(unit: Any, ids: Any) -> tuple[Tensor, str]:
    """Return the number of each record's unit, in the order in which ids appear, and what units are called.

    Args:
        unit: the name of a column of ids, or a vector of ids.
        ids: the column; None: `unit` is a vector, or names no column.
    """
    if isinstance(unit, str) and ids is None:
        raise InvalidValueError(
            f"Expected unit={shown(unit, form=repr)} to be a column of the inputs of train, got none of this name. "
            "Name another, or pass the ids themselves: one for each record."
        )
    name = unit if isinstance(unit, str) else str(getattr(unit, "name", None) or "unit")
    ids = in_pandas(unit if ids is None else ids)
    rule = "Expected unit to be a vector with one id for each record, all texts, all numbers or all dates"
    try:
        values = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        if any(value is None or bool(value != value) for value in values):
            raise InvalidValueError(f"{rule}, got some that are missing: drop these records, or give each its own id.")
        if may_be_rounded(ids):
            raise InvalidValueError(f"{rule}, got floats that may stand for several ids; pass integers or texts.")
        types = set(map(type, values))
        kinds = {next((kind for kind in (str, Number) if issubclass(each, kind)), each) for each in types}
        numbers: dict[Any, int] = {}
        units = [numbers.setdefault(value, len(numbers)) for value in values]
    except (TypeError, RuntimeError):  # no vector, or pandas' NA, which is not comparable; its text may quote an id
        raise InvalidValueError(f"{rule}, got missing ids or a {type(ids).__name__} of another form.") from None
    if len(kinds) > 1 or not all(issubclass(kind, str | bytes | Number | date | UUID) for kind in kinds):
        # 7 and "7" may be one person, and equal objects of other types different keys.
        raise InvalidValueError(f"{rule}, got {', '.join(sorted(kind.__name__ for kind in kinds))}.")
    if len(numbers) < 2:
        raise InvalidValueError(f"{rule}, and at least two different ones, got {len(numbers)}.")
    if similar := len(numbers) - len({*map(folded, numbers)}):
        warnings.warn(
            f"{count(similar, 'id')} of a unit {'differs' if similar == 1 else 'differ'} from another in white space, "
            "capitals or form of Unicode alone: if they are of one person, each is protected as a person of its own. "
            'Mend them, such as by ids.str.strip().str.normalize("NFC").',
            stacklevel=4,
        )
    return torch.tensor(units), "unit" if name == RECORD else name


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


def _as_input(tensor: Tensor, which: str, names: list[str] | None = None, *, data: Any = None) -> Tensor:
    """Return inputs of a type that models take, in memory of their own, unless nobody can write to the `data`."""
    copy = not (hasattr(data, "columns") or _is_fixed(data))  # `as_tensor` copies a frame
    if not tensor.is_floating_point() and tensor.dtype != torch.bool:
        return tensor.to(torch.int64, copy=copy)
    narrow = tensor.to(tensor.dtype if tensor.dtype in _PRECISIONS else torch.float32, copy=copy)
    if wrong := first_wrong(narrow, torch.isfinite, names):
        raise InvalidValueError(
            f"Expected finite inputs in {which}, got {wrong[0]} in {wrong[1]}; impute or drop them."
        )
    if tensor.dtype == torch.float64:
        check_whole(tensor, which, names)
    return narrow


def check_whole(numbers: Tensor, which: str, names: list[str] | None = None) -> None:
    """Reject whole numbers, float64 or int64, that float32 rounds."""
    if wrong := first_wrong(numbers, lambda some: fits_float32(some.double()), names):
        raise InvalidValueError(
            f"Expected whole numbers in {which} that float32 holds, got {wrong[0]:.0f} in {wrong[1]}, which it rounds. "
            "Scale amounts by public constants, and pass ids by themselves: {'ids': integers, 'x': floats}."
        )


def _is_fixed(data: Any) -> bool:
    """Return whether nobody can write to an array's memory, also not through another array that it is a view of."""
    while isinstance(data, np.ndarray) and not data.flags.writeable:
        if data.base is None:
            return True
        data = data.base
    try:
        return memoryview(data).readonly
    except TypeError:
        return False


def _as_targets(targets: Tensors, which: str, kind: str) -> Tensors:
    if kind == "own":
        real: Tensors = _each(_as_input, targets, which)
        return real
    if kind in _IN_ROWS:
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


def _shapes(tensors: Tensors) -> Any:
    return _each(lambda tensor, _: tuple(tensor.shape), tensors, "")
