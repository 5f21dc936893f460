"""Tensors from whatever holds numbers: NumPy's and pandas' types, Arrow's, lists, and objects of Python.

Numbers are taken where their values survive. What would change silently is refused in a line, with its place.
"""

from collections.abc import Sequence
from decimal import Decimal
from numbers import Complex, Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.handed_over import way_out
from dphpo_bench.base.text import shown

_LARGEST = 2**63 - 1
_ENCODE = (
    "Declare the columns, such as columns={'city': Category(('Bern', 'Rome'))}, which makes numbers of texts, "
    "categories and dates"
)


def as_tensor(data: Any, what: str) -> Tensor:
    """Return the numbers as a tensor on the CPU, of a type that torch computes with; reals of any width.

    It may share memory with the data.

    Args:
        data: tensor, array, pandas' or Arrow's frame or column, sequence of these, of numbers or of sequences.
        what: names the data in messages.

    Raises:
        InvalidValueError: for anything else, for missing or hidden values, and for integers beyond 64 bits.
    """
    if isinstance(data, Tensor):
        return _of_tensor(data, what)
    if hasattr(data, "toarray"):
        raise InvalidValueError(f"Expected {what} to be dense, got a sparse matrix; use its toarray().")
    data = in_pandas(data)
    if hasattr(data, "isna") and hasattr(data, "to_numpy"):
        return _of_array(_of_pandas(data, what), what, _names(data))
    if hasattr(data, "__array__") or isinstance(data, memoryview | bytearray):
        return _of_array(data if isinstance(data, np.ndarray) else np.asarray(data), what)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _of_sequence(data, what)
    rule = f"Expected {what} to be numbers in an array or tensor, got {_type_of(data)}."
    raise InvalidValueError(f"{rule} {way_out(data)}".rstrip())


def in_pandas(data: Any) -> Any:
    """Return a table or a column of Arrow or polars in pandas' form, anything else as it is."""
    return data.to_pandas() if hasattr(data, "to_pandas") else data


def rounded(numbers: Tensor) -> Tensor:
    """Return True for whole numbers, float64, that float32 rounds, or that float64 has rounded already.

    Numbers from 2^64 on, which no integer type holds, are measurements.
    """
    size = numbers.abs()
    return (numbers == numbers.round()) & (size < 2.0**64) & ((numbers.float() != numbers) | (size >= 2.0**53))


def may_be_rounded(values: Any) -> bool:
    """Return True if some values are floats so large that they may stand for several whole numbers."""
    floats = values if isinstance(values, np.ndarray) else np.asarray(values)
    return floats.dtype.kind == "f" and bool((np.abs(floats) >= 2.0 ** (np.finfo(floats.dtype).nmant + 1)).any())


def place_of(wrong: Tensor, names: Sequence[str] | None = None) -> str:
    """Name the first place that is True, such as "row 3, column 'age'"; rows count from 0.

    Args:
        wrong: of shape (n, ...), True somewhere.
        names: of the columns, if they have some.
    """
    row, *rest = (int(index) for index in wrong.nonzero()[0])
    if len(rest) == 1 and names and rest[0] < len(names):
        return f"row {row}, column {shown(names[rest[0]], form=repr)}"
    return f"row {row}" + (f", column {rest[0]}" if len(rest) == 1 else f", place {tuple(rest)}" if rest else "")


def _of_tensor(tensor: Tensor, what: str) -> Tensor:
    if type(tensor).__name__ == "MaskedTensor":
        raise InvalidValueError(_hidden(what, "to_tensor(value)"))
    if tensor.is_nested:
        raise InvalidValueError(
            f"Expected {what} to be one tensor, got a nested one; pad it by to_padded_tensor(value)."
        )
    if tensor.layout != torch.strided:
        raise InvalidValueError(f"Expected {what} to be dense, got a sparse tensor; use its to_dense().")
    if tensor.is_quantized or tensor.is_meta:
        kind = "a quantized tensor; use its dequantize()" if tensor.is_quantized else "a tensor without values (meta)"
        raise InvalidValueError(f"Expected {what} to be numbers, got {kind}.")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.dtype == torch.uint64:
        return _of_array(tensor.numpy(), what)
    return tensor.as_subclass(Tensor)


def _of_array(array: NDArray[Any], what: str, names: list[str] | None = None) -> Tensor:
    """Convert an array; each copy is one that torch could not do without."""
    if isinstance(array, np.ma.MaskedArray):
        if np.ma.is_masked(array):
            raise InvalidValueError(_hidden(what, "filled(value)"))
        array = array.data
    array = np.asarray(array)
    if array.dtype.kind == "O":
        array = _of_objects(array, what, names)
    if array.dtype.names:
        fields = shown(", ".join(array.dtype.names))
        raise InvalidValueError(
            f"Expected {what} to be numbers in an array or tensor, got one with fields {fields}; pass a dictionary of "
            "them, or numpy.lib.recfunctions.structured_to_unstructured(array)."
        )
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "biufc":
        raise InvalidValueError(
            f"Expected {what} to be numbers in an array or tensor, got {array.dtype.name}. {_ENCODE}."
        )
    if kind == "u" and size == 8 and array.size and int(array.max()) > _LARGEST:
        raise InvalidValueError(_too_large(what, place_of(torch.from_numpy(np.atleast_1d(array > _LARGEST)), names)))
    dtype: Any = array.dtype
    if kind == "u" and size > 1:
        dtype = np.int64
    elif kind in "fc" and size > (8 if kind == "f" else 16):  # longdouble
        dtype = np.float64 if kind == "f" else np.complex128
    dtype = np.dtype(dtype).newbyteorder("=")
    fits = array.dtype == dtype and array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if fits else array.astype(dtype, order="C"))


def _of_pandas(data: Any, what: str) -> NDArray[Any]:
    """Return the values of a frame, or of a column, as an array; columns of several types get a common one."""
    names = _names(data)
    columns = [data] if names is None else [data.iloc[:, place] for place in range(len(names))]
    unlike = [place for place, column in enumerate(columns) if not _is_numeric(column)]
    if unlike:
        types = shown(", ".join(dict.fromkeys(str(columns[place].dtype) for place in unlike)), 200)
        which = f", got {types}"
        if names is not None:
            these = shown(", ".join(names[place] for place in unlike), 200)
            which = f", which the columns {these} do not have. They hold {types}"
        raise InvalidValueError(f"Expected {what} to be numbers in an array or tensor{which}. {_ENCODE}.")
    empty = [place for place, column in enumerate(columns) if not _is_float(column) and column.isna().any()]
    if empty:
        where = f"row {int(np.asarray(data.isna()).argmax())}"
        if names is not None:
            where = f"the columns {shown(', '.join(names[place] for place in empty), 200)}"
        raise InvalidValueError(f"Expected numbers in all of {what}, got missing ones in {where}; impute or drop them.")
    arrays = [_plain(column) for column in columns]
    if names is None:
        return arrays[0]
    return np.stack(arrays, axis=1) if arrays else np.empty((len(data), 0))


def _plain(column: Any) -> NDArray[Any]:
    """Return a column's values in NumPy's type of their kind, also of categories, nullable and Arrow's types."""
    if (categories := getattr(column.dtype, "categories", None)) is not None:
        column = column.astype(categories.dtype)
    plain = getattr(column.dtype, "numpy_dtype", None)
    return np.asarray(column.to_numpy(dtype=plain) if plain is not None and plain.kind in "biuf" else column.to_numpy())


def _is_float(column: Any) -> bool:
    return isinstance(column.dtype, np.dtype) and column.dtype.kind == "f"


def _is_numeric(column: Any) -> bool:
    from pandas.api.types import is_object_dtype, is_string_dtype

    dtype = getattr(getattr(column.dtype, "categories", column), "dtype", None)
    return getattr(dtype, "kind", "") in "biufcO" and (is_object_dtype(dtype) or not is_string_dtype(dtype))


def _of_sequence(data: Sequence[Any], what: str) -> Tensor:
    if not len(data):
        return torch.empty(0)
    if any(
        isinstance(part, Tensor) or hasattr(part, "toarray") or isinstance(part, np.ma.MaskedArray) for part in data
    ):
        parts = [as_tensor(part, what) for part in data]
        shapes = {tuple(part.shape) for part in parts}
        if len(shapes) > 1:
            raise InvalidValueError(_ragged(what, shapes))
        return torch.stack(_alike(parts))
    try:
        array = np.asarray(data)
    except ValueError:  # rows of several lengths
        raise InvalidValueError(_ragged(what, {_length(part) for part in data})) from None
    if array.dtype.kind in "US" or (array.dtype.kind == "f" and _has_large_integer(data)):
        array = np.asarray(data, dtype=object)
    return _of_array(array, what)


def _of_objects(array: NDArray[Any], what: str, names: list[str] | None = None) -> NDArray[Any]:
    """Return objects as numbers of the narrowest kind that holds them all."""
    values = array.ravel().tolist()
    first = values[0] if values else None
    if array.ndim == 1 and isinstance(first, np.ndarray | Tensor | list | tuple) and np.ndim(first):
        return as_tensor(list(array), what).numpy()  # a column of vectors

    def place(index: int) -> str:
        wrong = torch.zeros(array.shape or (1,), dtype=torch.bool)
        wrong.view(-1)[index] = True
        return place_of(wrong, names)

    plain = [
        value.item() if isinstance(value, np.generic | Tensor) and np.ndim(value) == 0 else value for value in values
    ]
    for index, value in enumerate(plain):
        if value is None or type(value).__name__ in ("NAType", "NaTType", "MaskedConstant"):
            raise InvalidValueError(
                f"Expected numbers in all of {what}, got a missing one in {place(index)}; impute or drop them."
            )
        if not isinstance(value, bool | Complex | Decimal):
            raise InvalidValueError(
                f"Expected {what} to be numbers in an array or tensor, got {_type_of(value)} in {place(index)}. "
                f"{_ENCODE}."
            )
    if all(isinstance(value, bool) for value in plain):
        return np.array(plain, dtype=bool).reshape(array.shape)
    if all(isinstance(value, Integral) for value in plain):
        for index, value in enumerate(plain):
            if not -_LARGEST - 1 <= value <= _LARGEST:
                raise InvalidValueError(_too_large(what, place(index)))
        return np.array(plain, dtype=np.int64).reshape(array.shape)
    reals = all(isinstance(value, Real | Decimal) for value in plain)
    try:
        return np.array([float(value) if reals else complex(value) for value in plain]).reshape(array.shape)
    except OverflowError:
        raise InvalidValueError(f"Expected {what} below 1.8e308, got larger integers.") from None


def _alike(parts: list[Tensor]) -> list[Tensor]:
    dtype = parts[0].dtype
    for part in parts:
        dtype = torch.promote_types(dtype, part.dtype)
    return [part.to(dtype) for part in parts]


def _has_large_integer(data: Any) -> bool:
    if isinstance(data, list | tuple):
        return any(map(_has_large_integer, data))
    return isinstance(data, int) and not -_LARGEST - 1 <= data <= _LARGEST


def _names(data: Any) -> list[str] | None:
    return [str(name) for name in data.columns] if hasattr(data, "columns") else None


def _length(part: Any) -> tuple[int, ...]:
    return (len(part),) if hasattr(part, "__len__") else ()


def _ragged(what: str, shapes: set[tuple[int, ...]]) -> str:
    some = ", ".join(map(str, sorted(shapes)[:2]))
    return f"Expected {what} of one shape for all records, got {some}; pad or cut them."


def _hidden(what: str, way: str) -> str:
    return (
        f"Expected {what} without hidden values, got a mask that hides some: what lies under it would be trained on. "
        f"Put in a public constant by {way}, or drop these records."
    )


def _too_large(what: str, where: str) -> str:
    return (
        f"Expected integers of {what} below 2^63, got a larger one in {where}; torch has no larger ones. Take fewer "
        "bits, such as values % 2**31, or make categories of them."
    )


def _type_of(value: Any) -> str:
    return f"a {type(value).__name__}"
