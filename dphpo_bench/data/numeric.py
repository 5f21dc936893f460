"""Numbers as tensors: whatever `numpy.asarray` makes numbers of. What would change a value silently is refused."""

from collections.abc import Sequence
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown

_WAY_OUT = (
    "Impute or drop missing values. Declare the columns of texts, categories and dates, such as "
    "columns={'city': Category(('Bern', 'Rome'))}"
)


def as_tensor(data: Any, what: str) -> Tensor:
    """Return the numbers as a tensor on the CPU, of a type that torch computes with.

    It may share memory with the data.

    Args:
        data: a tensor, or an array, a frame, a series or a sequence of real numbers.
        what: names the data in messages.

    Raises:
        InvalidValueError: for anything else, for missing or hidden values, and for integers beyond 64 bits.
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


def rounded(numbers: Tensor) -> Tensor:
    """Return True for whole numbers, float64, that float32 rounds, or that float64 has rounded already.

    Numbers from 2^64 on, which no integer type holds, are measurements.
    """
    size = numbers.abs()
    return (numbers == numbers.round()) & (size < 2.0**64) & ((numbers.float() != numbers) | (size >= 2.0**53))


def may_be_rounded(values: Any) -> bool:
    """Return True if some values are floats so large that they may stand for several whole numbers."""
    floats = np.asarray(values)
    return floats.dtype.kind == "f" and bool((np.abs(floats) >= 2.0 ** (np.finfo(floats.dtype).nmant + 1)).any())


def place_of(wrong: Tensor, names: Sequence[str] | None = None) -> str:
    """Name the first place that is True, such as "row 3, column 'age'"; rows count from 0.

    Args:
        wrong: of shape (n, ...), True somewhere.
        names: of the columns, if they have some.
    """
    row, *rest = (int(index) for index in wrong.nonzero()[0])
    column = shown(names[rest[0]], form=repr) if len(rest) == 1 and names else ", ".join(map(str, rest))
    return f"row {row}, column {column}" if rest else f"row {row}"


def of_objects(array: NDArray[Any]) -> NDArray[Any]:
    """Return Python's booleans, integers or reals as an array of the narrowest type; anything else as it is.

    Raises:
        OverflowError: if an integer is beyond 64 bits, or beyond floats.
    """
    kinds = set(map(type, array.flat))
    if array.dtype != object or not all(issubclass(kind, Real | Decimal | np.bool_) for kind in kinds):
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
    dtype = np.dtype(dtype).newbyteorder("=")
    fits = array.dtype == dtype and array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if fits else array.astype(dtype, order="C"))
