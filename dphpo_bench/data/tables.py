"""Tables as pandas reads them, encoded column by column as declared, all rows at once."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from numpy.typing import NDArray

from dphpo_bench.base.checks import quoted
from dphpo_bench.base.errors import DataError, InvalidValueError, TableValueError
from dphpo_bench.base.text import shown
from dphpo_bench.data.arrays import column_names, folded, in_pandas, without_column
from dphpo_bench.data.columns import (
    CYCLES,
    ZONE_WAY_OUT,
    Category,
    Column,
    Date,
    Number,
    moment_of,
    sort_of,
)

Inputs = NDArray[np.floating[Any]]
Declared = Mapping[str, Column | None]
Mask = NDArray[np.bool_]

_MICROSECONDS = 24 * 3600 * 10**6
_MONDAY = "2001-01-01"
"""A Monday, and the first day of a year: cycles are 0 there."""


@dataclass(frozen=True)
class Values:
    """One column of a table."""

    name: str
    series: pd.Series  # the values, numbered from 0; a categorical's have the type of its categories
    missing: Mask  # True for None, NaN, NA, NaT and the empty text; shape (n,)

    @classmethod
    def of(cls, name: str, series: pd.Series) -> "Values":
        """Read a column."""
        if isinstance(series.dtype, pd.ArrowDtype):
            series = pa.array(series).to_pandas()
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(series.cat.categories.dtype if not series.isna().any() else object)
        series = series.reset_index(drop=True)
        missing = series.isna().to_numpy(dtype=bool)
        if series.dtype == object:
            missing = missing | np.array([isinstance(value, str) and not value for value in series], dtype=bool)
        elif pd.api.types.is_string_dtype(series.dtype):
            missing = missing | (series == "").fillna(False).to_numpy(dtype=bool)
        return cls(name, series, missing)

    def reject(self, wrong: Mask, rule: str, way_out: str) -> None:
        """Reject the first value that breaks a rule, such as "a finite number"; `wrong` says which values do."""
        if wrong.any():
            self.fail(int(wrong.argmax()), rule, way_out)

    def fail(self, row: int, rule: str, way_out: str) -> NoReturn:
        """Reject the value of a row, counted from 0; `way_out` says what to do about it."""
        got = quoted(self.series.iloc[row])
        got = f"a missing value ({got})" if self.missing[row] else got
        raise TableValueError(f"Expected {shown(self.name)} to be {rule}, got {got} in row {row}; {way_out}.")

    def distinct(self) -> tuple[NDArray[np.intp], list[Any]]:
        """Return the code of each value, -1 of missing ones, and the value of each code; 1 and True have two codes."""
        codes = np.full(len(self.series), -1, np.intp)
        present = self.series[~self.missing]
        if present.dtype != object:
            codes[~self.missing], uniques = pd.factorize(present)
            return codes, list(uniques.array)  # of float32 as such
        typed = np.fromiter(((type(value), value) for value in present), dtype=object, count=len(present))
        codes[~self.missing], pairs = pd.factorize(typed)
        return codes, [value for _, value in pairs]

    def numbers(self) -> NDArray[np.float64]:
        """Return the column as numbers, of missing values NaN; reject the first value of another type."""
        there, numbers = ~self.missing, np.full(len(self.series), np.nan)
        dtype = self.series.dtype
        if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
            return np.where(there, self.series.to_numpy(dtype=float, na_value=np.nan), np.nan)
        objects = self.series.to_numpy(dtype=object)
        wrong = there & np.array([not isinstance(value, Real | Decimal | np.bool_) for value in objects], dtype=bool)
        way_out = "declare another kind of column, or make numbers, as by pandas.to_numeric or "
        self.reject(wrong, "a finite number", f"{way_out}pandas.read_csv(…, na_values=…, decimal=…)")
        numbers[there] = objects[there].astype(float)
        return numbers


def frame_of(data: Any, names: Iterable[str] = ()) -> pd.DataFrame:
    """Return a table as a frame whose columns have different texts as names; the index is of no meaning.

    Args:
        names: of the columns, in their order, for rows without names.
    """
    names = list(names)
    data = data.detach().cpu().numpy() if hasattr(data, "detach") else data
    data = in_pandas(data)
    try:
        if isinstance(data, pd.DataFrame):
            frame = data.set_axis([str(name) for name in data.columns], axis=1)
        elif isinstance(data, Mapping):
            columns = {str(name): _series(values) for name, values in data.items()}
            if len(set(map(len, columns.values()))) > 1:  # pandas would fill the shorter ones with missing values
                raise ValueError("columns have several lengths")
            frame = pd.DataFrame(columns)
        else:
            frame = _of_rows(data, names)
    except (TypeError, ValueError, AttributeError) as error:
        raise TableValueError(
            f"Expected a table, such as a frame or a dictionary of columns, got a {type(data).__name__} of another "
            f"form: {shown(error, 200)}."
        ) from None
    column_names(frame)  # which are different
    return frame


def _series(values: Any) -> pd.Series:
    values = in_pandas(values.detach().cpu().numpy() if hasattr(values, "detach") else values)
    if not pd.api.types.is_list_like(values, allow_sets=False):
        raise ValueError("a column is a list or an array of shape (n,), also of a single record")
    return pd.Series(values).reset_index(drop=True)  # pandas would put rows of equal names together


def _of_rows(data: Any, names: list[str]) -> pd.DataFrame:
    """Return a frame of dictionaries, or of rows with a value for each name."""
    rows = data if isinstance(data, np.ndarray) else list(map(_named, data))
    if len(rows) and isinstance(rows[0], Mapping):
        return pd.DataFrame(rows).rename(columns=str)
    if not isinstance(rows, np.ndarray):
        rows = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
        if {len(row) if isinstance(row, list | tuple) else 0 for row in rows} - {len(names)}:
            raise ValueError(f"rows have {len(names)} values each, of {shown(', '.join(names), 200)}")
    return pd.DataFrame(rows, columns=names)


def _named(row: Any) -> Any:
    """Return a row whose values have names as a dictionary; pandas' `itertuples` replaces some by names with _."""
    if isinstance(row, pd.Series):
        if not row.index.is_unique:
            raise ValueError("a row has several values of one name")
        return row.to_dict()
    return row if any(name.startswith("_") for name in getattr(row, "_fields", "_")) else row._asdict()


def encoded_table(frame: pd.DataFrame, columns: Declared) -> torch.Tensor:
    """Return the inputs of a frame of `frame_of`; see `Columns.encode`."""
    missing = [name for name, column in columns.items() if column is not None and name not in frame]
    others = [name for name in frame if name not in columns]
    if missing or others:
        listed = shown(", ".join(map(str, missing or others)), 200)
        wrong = f"which lacks {listed}" if missing else f"which has {listed}, too"
        raise DataError(
            f"Expected the declared columns in the table, {wrong}; it has {shown(', '.join(frame), 200)}. Rename its "
            f"columns, or declare others; None leaves a column out of the inputs, such as {{'id': None}}."
        )
    inputs = torch.empty(len(frame), sum(column.size for column in columns.values() if column is not None))
    start = 0
    for name, column in columns.items():
        if column is not None:
            try:
                values = _encoded(column, Values.of(name, frame[name]))
            except (TypeError, ValueError, OverflowError) as error:  # as pandas raises them
                raise TableValueError(
                    f"Expected {shown(name)} to be as {column!r} says, got: {shown(error, 200)}."
                ) from None
            inputs[:, start : start + column.size] = torch.from_numpy(values)
            start += column.size
    return inputs


def _encoded(column: Column, values: Values) -> Inputs:
    """Return the inputs of a column, float32, shape (n, column.size)."""
    if isinstance(column, Category):
        return _of_category(column, values)
    with np.errstate(over="ignore"):
        inputs = _of_number(column, values) if isinstance(column, Number) else _of_date(column, values)
        inputs = inputs.astype(np.float32)
    large = np.asarray(~np.isfinite(inputs).all(axis=1))
    values.reject(large, "in the range of float32 after scaling", f"check the constants of {column!r}")
    return inputs


def _of_number(column: Number, values: Values) -> Inputs:
    numbers, there = values.numbers(), ~values.missing
    rule = "a finite number" + " above -1" * column.logarithmic
    if column.missing is None:
        values.reject(values.missing, rule, _missing_way_out(column))
    too_low = numbers <= -1 if column.logarithmic else np.zeros(len(numbers), bool)
    values.reject(there & (~np.isfinite(numbers) | too_low), rule, "mend the value, or drop the record")

    def scaled(numbers: Any) -> Any:
        return ((np.log1p(numbers) if column.logarithmic else numbers) - column.typical) / column.spread

    inputs = scaled(numbers)
    inputs[values.missing] = 0.0 if column.missing in (None, "typical") else scaled(column.missing)
    return np.column_stack([inputs, values.missing] if column.indicator else [inputs])


def _of_category(column: Category, values: Values) -> Inputs:
    codes, distinct = values.distinct()
    rule = f"one of {shown(', '.join(map(quoted, column.values)), 200)}"
    places = {(sort_of(value), value): place for place, value in enumerate(column.values)}
    sorts = {"number" if sort == "whole number" else sort for sort, _ in places}
    other = len(column.values)
    place_of = np.array([places.get((sort_of(value), value), other) for value in distinct] + [other], np.intp)
    unlisted = np.flatnonzero(place_of[:-1] == other).tolist()
    for code in unlisted:
        sort = sort_of(distinct[code])
        if sort.removeprefix("whole ") not in sorts:  # a mistake, even where others are expected
            way_out = f"the declared ones are {' and '.join(sorted(sorts))}s, and it is a {sort}: convert the column"
            values.fail(int((codes == code).argmax()), rule, way_out)
    if not column.other:
        way_out = "other=True has an input for missing and all other values"
        values.reject(np.isin(codes, [-1, *unlisted]), rule, way_out)
    known = {*map(folded, column.values)}
    near = [code for code in unlisted if folded(distinct[code]) in known]
    if near:
        warnings.warn(
            f"{len(near)} different values of {shown(values.name)} count as others, though they are declared ones but "
            "for white space, capitals, type or form of Unicode. Mend them, such as by frame[name].str.strip() or "
            '.str.normalize("NFC"), or declare them, too.',
            stacklevel=4,
        )
    inputs = np.zeros((len(codes), other + 1), np.float32)
    inputs[np.arange(len(codes)), place_of[codes]] = 1
    return inputs[:, : column.size]


def _of_date(column: Date, values: Values) -> Inputs:
    if column.missing is None:
        values.reject(values.missing, "a date", _missing_way_out(column))

    def day(text: Any) -> float:
        return float(np.datetime64(moment_of(text, column.clock()), "us").astype(np.int64)) / _MICROSECONDS

    days, typical = _days(column, values), day(column.typical)
    instead = typical if column.missing in (None, "typical") else day(column.missing)
    inputs = [(np.where(values.missing, instead, days) - typical) / column.spread]
    for cycle in column.cycles:
        angle = 2 * np.pi * ((days - day(_MONDAY)) / CYCLES[cycle] % 1)
        inputs += [np.where(values.missing, 0.0, turn(angle)) for turn in (np.sin, np.cos)]
    return np.column_stack([*inputs, values.missing] if column.indicator else inputs)


def _days(column: Date, values: Values) -> NDArray[np.float64]:
    """Return days since 1970 on the column's clock, of missing values NaN."""
    series, zone = values.series, column.clock()
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        if getattr(series.dt, "tz", None) is not None:
            if zone is None:
                values.reject(~values.missing, "a date without a time zone", ZONE_WAY_OUT)
            series = series.dt.tz_convert(zone).dt.tz_localize(None)
        moments = series.to_numpy(dtype="datetime64[us]", na_value=np.datetime64("NaT"))
    else:
        codes, distinct = values.distinct()
        known = np.full(len(distinct) + 1, np.datetime64("NaT"), dtype="datetime64[us]")
        for code, value in enumerate(distinct):
            try:
                known[code] = moment_of(value, zone)
            except ValueError as error:
                values.fail(int((codes == code).argmax()), "a date", str(error))
        moments = known[codes]
    return np.where(values.missing, np.nan, moments.astype(np.int64) / _MICROSECONDS)


def _missing_way_out(column: Number | Date) -> str:
    return f'declare {type(column).__name__}(…, missing="typical", indicator=True), or drop the record'


def encoded_tables(train: Any, test: Any, columns: Declared, target: str, unit: Any) -> tuple[Any, Any, Any]:
    """Return the pairs of train and test, and the ids of the units of train.

    Args:
        train: a table that `Columns.encode` takes, with a column of labels; or a pair of a table and labels.
        unit: name of a column of ids, which the test records need not have; or ids, or None, which are returned.

    Returns:
        (inputs, labels) of train and of test, or None without test; and the ids.
    """
    for what, name in (("labels", target), ("ids", unit)):
        if isinstance(name, str) and columns.get(name) is not None:
            raise InvalidValueError(f"Expected inputs without the {what}, got column {name!r}; declare it None.")
    pair, ids = _encoded_pair(train, "train", columns, target, unit)
    return pair, None if test is None else _encoded_pair(test, "test", columns, target, unit)[0], ids


def _encoded_pair(data: Any, which: str, columns: Declared, target: str, unit: Any) -> tuple[Any, Any]:
    table, labels = data if _is_pair(data) else (data, None)
    try:
        frame = frame_of(table, columns)
        if labels is None:
            frame, labels = without_column(frame, target)
        frame, ids = without_column(frame, unit) if isinstance(unit, str) else (frame, unit)
        for name, column in ((target, labels), (unit, ids if which == "train" or unit is None else unit)):
            if column is None and name is not None:
                raise InvalidValueError(f"Expected a column {shown(name, form=repr)} of labels or ids, got none of it.")
        inputs = encoded_table(frame, columns).numpy()
        inputs.flags.writeable = False  # so that nobody copies it
        return (inputs, labels), ids
    except (DataError, InvalidValueError) as error:
        raise type(error)(f"In {which}: {error}") from None


def _is_pair(data: Any) -> bool:
    """Return True for a table and labels; False for a table, also for a list of two records."""
    return isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[1], Mapping)


def consumed_names(data: Any, target: str, unit: Any) -> tuple[str, ...]:
    """Return the names of the columns of labels and of ids, as far as they have some."""
    label = getattr(data[1], "name", None) if _is_pair(data) else target
    ids = unit if isinstance(unit, str) else getattr(unit, "name", None)
    return tuple(name for name in (label, ids) if isinstance(name, str))


def without_columns(table: Any, names: Iterable[str]) -> Any:
    """Return a table without columns of these names, as far as it has them."""
    if isinstance(table, Mapping):
        return {name: values for name, values in table.items() if name not in names}
    if isinstance(table, list | tuple) and table and isinstance(table[0], Mapping):
        return [without_columns(row, names) for row in table]
    table = in_pandas(table)
    return table.drop(columns=names, errors="ignore") if isinstance(table, pd.DataFrame) else table
