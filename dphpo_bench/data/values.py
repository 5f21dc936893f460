"""The values of one column of a table, in whatever form they come."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from dphpo_bench.base.checks import quoted
from dphpo_bench.base.errors import TableValueError
from dphpo_bench.base.text import shown

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Values:
    """One column of a table.

    Attributes:
        name: of the column.
        series: the values, of any type that pandas has; a categorical's have the type of its categories.
        missing: True for None, NaN, NA, NaT, what a mask hides, and the empty text; shape (n,).
        index: the caller's names of the rows; None if these are 0 ... n - 1.
        is_categorical: whether the column was one of pandas' categoricals, or the like of another library.
    """

    name: str
    series: pd.Series
    missing: Mask
    index: Any = None
    is_categorical: bool = False

    @classmethod
    def of(cls, name: str, data: Any, index: Any = None) -> "Values":
        """Read a series, an array, a tensor, or a sequence of any values.

        Raises:
            TableValueError: if it has not one value for each row.
        """
        hidden = np.ma.getmaskarray(data) if isinstance(data, np.ma.MaskedArray) else None
        try:
            series = pd.Series(_plain(data, name)).reset_index(drop=True)
        except (TypeError, ValueError):
            raise TableValueError(_not_a_column(name, data)) from None
        is_categorical = isinstance(series.dtype, pd.CategoricalDtype)
        if is_categorical:
            series = series.astype(series.cat.categories.dtype if not series.isna().any() else object)
        missing = series.isna().to_numpy(dtype=bool)
        if is_text(series):
            missing = missing | (series == "").fillna(False).to_numpy(dtype=bool)
        elif series.dtype == object:
            objects = series.to_numpy()
            kinds = set(map(type, objects))
            if any(issubclass(kind, str) for kind in kinds):
                missing = missing | [isinstance(value, str) and not value for value in objects]
            if type(np.ma.masked) in kinds:
                missing = missing | [value is np.ma.masked for value in objects]
        return cls(name, series, missing if hidden is None else missing | hidden, index, is_categorical)

    def __len__(self) -> int:
        return len(self.series)

    def reject(self, wrong: Mask, rule: str, way_out: str) -> None:
        """Reject the first value that breaks a rule, if there is any.

        Args:
            wrong: True for each value that breaks it; shape (n,).
            rule: the rule, such as "a finite number".
            way_out: what to do about it.

        Raises:
            TableValueError: with the value, its row and its column.
        """
        if wrong.any():
            self.fail(int(wrong.argmax()), rule, way_out)

    def fail(self, row: int, rule: str, way_out: str) -> NoReturn:
        """Reject the value of a row; see `reject`."""
        value = self.series.iloc[row]
        got = quoted(value)
        if self.missing[row]:
            got = f"a missing value ({got})" if pd.isna(value) is True or got == "''" else "a masked value"
        raise TableValueError(
            f"Expected {shown(self.name)} to be {rule}, got {got} in {row_text(row, self.index)}; {way_out}."
        )


def is_text(series: pd.Series) -> bool:
    """Return True for a type of texts; a series of objects may hold texts, too."""
    return bool(series.dtype != object and pd.api.types.is_string_dtype(series.dtype))


def row_text(row: int, index: Any = None) -> str:
    """Name a row by its position from 0, and by the caller's name of it if that is another."""
    return f"row {row}" if index is None else f"row {row} (index {quoted(index[row])})"


def _plain(data: Any, name: str) -> Any:
    """Return what `pandas.Series` reads value by value; never guess a type for Python's values."""
    if hasattr(data, "detach"):  # a tensor
        data = data.detach().cpu().to_dense()
        data = (data.float() if data.is_floating_point() and data.element_size() < 4 else data).numpy()
    if isinstance(data, np.ma.MaskedArray):
        data = data.data
    if isinstance(data, np.ndarray):
        if data.ndim != 1 or data.dtype.kind not in "biufcmMUSO":
            raise TableValueError(_not_a_column(name, data))
        if data.dtype.kind in "US":
            return data.astype(object)
        return data.astype(data.dtype.newbyteorder("="), copy=False)
    if isinstance(getattr(data, "dtype", None), pd.ArrowDtype):
        data = pa.array(data)
    if isinstance(data, pd.Series | pd.Index | pd.api.extensions.ExtensionArray):
        return data
    if hasattr(data, "to_pandas"):  # polars, Arrow; whole numbers stay so beside missing values
        arrow = data if isinstance(data, pa.Array | pa.ChunkedArray) else data.to_arrow()
        return arrow.to_pandas(integer_object_nulls=True)
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        raise TableValueError(_not_a_column(name, data))
    if any(hasattr(kind, "detach") for kind in set(map(type, data))):
        data = [value.item() if hasattr(value, "detach") else value for value in data]
    return pd.Series(np.fromiter(data, dtype=object, count=len(data)), dtype=object)


def _not_a_column(name: str, data: Any) -> str:
    form = f"of shape {tuple(data.shape)}" if hasattr(data, "shape") else quoted(data)
    return (
        f"Expected {shown(name)} to have one value for each row, got a {type(data).__name__} {form}; "
        "pass a list or an array of shape (n,), also of a single record."
    )
