"""Tables in the forms that people have them: frames, dictionaries, records and arrays, as columns by name."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dphpo_bench.base.errors import DataError, TableValueError
from dphpo_bench.base.handed_over import check_delimiter, comes_from
from dphpo_bench.base.text import count, shown
from dphpo_bench.data.values import Values, row_text


def table(data: Any, columns: Mapping[str, Any]) -> tuple[dict[str, Values], int]:
    """Return the columns of a table that are declared, by name, and the number of its rows.

    Args:
        data: a frame of pandas, polars or Arrow, a dictionary of columns, an array with named fields, or a sequence
            of dictionaries: columns are found by name. Or an array, a tensor, or a sequence of rows with a value for
            each declared column, in their order.
        columns: the declared columns; of those that are None the values are not read.

    Raises:
        DataError: if a declared column is missing, another one is there, or rows are too long or too short.
    """
    data = as_frame(data)
    if isinstance(data, pd.DataFrame):
        named = _of_frame(data)
        check_names(named, columns)
        index = None if _is_counted(data.index) else data.index
        return _read(named, columns, len(data), index)
    if isinstance(data, Mapping):
        named = {str(name): values for name, values in data.items()}
        check_names(named, columns)
        read = {name: Values.of(name, named[name]) for name in columns if columns[name] is not None}
        return read, _same_length(read)
    if isinstance(data, np.ndarray) or hasattr(data, "detach"):
        return _of_array(data, columns)
    if isinstance(data, str | bytes | set | frozenset) or not isinstance(data, Iterable):
        is_path = isinstance(data, str) or hasattr(data, "__fspath__")
        hint = "read files by pandas.read_csv" if is_path else "pass a frame or a dictionary of columns"
        raise TableValueError(f"Expected a table, got {type(data).__name__} {shown(data)}; {hint}.")
    rows = list(data)
    if rows and any(isinstance(row, Mapping) for row in rows):
        return _of_records(rows, columns)
    return _of_rows(rows, columns)


def as_frame(data: Any) -> Any:
    """Return a frame of another library as pandas', an array with named fields as a dictionary, all else as it is."""
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        raise DataError("Expected a table, got a lazy frame; pass frame.collect().")
    if hasattr(data, "toarray"):
        raise DataError("Expected a dense table, got a sparse matrix; pass its toarray().")
    if comes_from(data, "datasets", "Dataset"):  # Hugging Face's
        data = data.with_format("arrow")[:]
    if isinstance(data, pa.RecordBatch) or (hasattr(data, "to_arrow") and hasattr(data, "columns")):
        data = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data.to_arrow()
    if isinstance(data, pa.Table):  # whole numbers stay so beside missing values
        data = data.to_pandas(integer_object_nulls=True)
    if isinstance(data, pd.DataFrame):
        check_delimiter(data)
    if isinstance(data, np.ndarray) and data.dtype.names is not None:
        return {name: data[name] for name in data.dtype.names}
    return data


def names_of(data: Any) -> list[str]:
    """Return the names of the columns of a table, in their order.

    Raises:
        DataError: if it is no table whose columns have names.
    """
    data = as_frame(data)
    if isinstance(data, pd.DataFrame):
        return list(_of_frame(data))
    if isinstance(data, Mapping):
        return list(map(str, data))
    if isinstance(data, list | tuple) and data and all(isinstance(row, Mapping) for row in data):
        return _names_of_records(data)
    raise DataError(
        f"Expected a frame, or another table whose columns have names, got {type(data).__name__} {shown(data)}; make "
        "one by pandas.DataFrame(rows, columns=names)."
    )


def check_names(names: Iterable[str], columns: Mapping[str, Any]) -> None:
    """Reject a table that lacks declared columns, or has others; it may lack those that are declared None.

    Raises:
        DataError: with their names.
    """
    names = list(names)
    missing = [name for name, column in columns.items() if column is not None and name not in names]
    if missing:
        raise DataError(
            f"Expected the declared columns in the table, which lacks {_listed(missing)}; it has {_listed(names)}. "
            "Rename its columns, or declare others."
        )
    others = [name for name in names if name not in columns]
    if others:
        raise DataError(
            f"Expected declared columns only, got {_listed(others)}, too; leave columns out of the inputs by declaring "
            f"them None: {{{others[0]!r}: None}}."
        )


def _read(
    named: Mapping[str, Any], columns: Mapping[str, Any], n_rows: int, index: Any = None
) -> tuple[dict[str, Values], int]:
    return {name: Values.of(name, named[name], index) for name in columns if columns[name] is not None}, n_rows


def _of_frame(frame: pd.DataFrame) -> dict[str, Any]:
    names = [str(name) for name in frame.columns]
    double = [name for name, times in Counter(names).items() if times > 1]
    if double:
        raise DataError(f"Expected columns with different names, got several {_listed(double)}; rename or drop some.")
    return {name: frame.iloc[:, place] for place, name in enumerate(names)}


def _of_array(array: Any, columns: Mapping[str, Any]) -> tuple[dict[str, Values], int]:
    array = array.to_dense() if hasattr(array, "detach") else array
    if array.ndim != 2 or array.shape[1] != len(columns):
        raise DataError(
            f"Expected an array of shape (n, {len(columns)}), a column for each of {_listed(columns)}, got shape "
            f"{tuple(array.shape)}; pass a frame to find columns by name."
        )
    named = {name: array[:, place] for place, name in enumerate(columns)}
    return _read(named, columns, len(array))


def _names_of_records(rows: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(str(name) for row in rows if isinstance(row, Mapping) for name in row))


def _of_records(rows: Sequence[Any], columns: Mapping[str, Any]) -> tuple[dict[str, Values], int]:
    check_names(_names_of_records(rows), columns)
    used = [name for name, column in columns.items() if column is not None]
    for place, row in enumerate(rows):
        lacking = [name for name in used if name not in row] if isinstance(row, Mapping) else used
        if lacking:
            raise DataError(
                f"Expected a value of each column in each dictionary, got none of {_listed(lacking)} in "
                f"{row_text(place)}; put None there for a missing value."
            )
    return _read({name: [row[name] for row in rows] for name in used}, columns, len(rows))


def _of_rows(rows: list[Any], columns: Mapping[str, Any]) -> tuple[dict[str, Values], int]:
    for place, row in enumerate(rows if set(map(type, rows)) - {list, tuple} else ()):
        if isinstance(row, str | bytes) or not isinstance(row, Iterable):
            raise TableValueError(
                f"Expected rows with a value for each of {_listed(columns)}, got {type(row).__name__} {shown(row)} as "
                f"{row_text(place)}; pass a list of rows, also of a single one."
            )
        rows[place] = row.tolist() if hasattr(row, "tolist") else tuple(row)
    lengths = list(map(len, rows))
    if set(lengths) - {len(columns)}:
        place = next(place for place, length in enumerate(lengths) if length != len(columns))
        raise DataError(
            f"Expected {count(len(columns), 'value')} in each row, of {_listed(columns)}, got {lengths[place]} in "
            f"{row_text(place)}; pass a frame to find columns by name."
        )
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    return _read(dict(zip(columns, values, strict=True)), columns, len(rows))


def _same_length(read: Mapping[str, Values]) -> int:
    lengths = {name: len(values) for name, values in read.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{size} of {name}" for name, size in lengths.items())
        raise DataError(f"Expected columns of one length, got {shown(listed, 200)} values; mend the columns.")
    return next(iter(lengths.values()), 0)


def _is_counted(index: Any) -> bool:
    return isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1


def _listed(names: Iterable[str]) -> str:
    """Return names for a message; in quotes if they have blanks that nobody would see."""
    visible = [name if name == " ".join(name.split()) else repr(name) for name in map(str, names)]
    return shown(", ".join(visible) or "none", 200)
