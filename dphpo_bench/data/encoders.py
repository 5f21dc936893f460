"""Encode the values of a column as its declaration says, all rows at once."""

from contextlib import suppress
from datetime import date, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dphpo_bench.base.checks import quoted
from dphpo_bench.base.text import difference, folded, is_number, number_way_out, shown
from dphpo_bench.data.columns import CYCLES, ZONE_WAY_OUT, Category, Column, Date, Number, moment_of, sort_of
from dphpo_bench.data.values import Mask, Values, is_text

Inputs = NDArray[np.floating[Any]]

_MICROSECONDS = 24 * 3600 * 10**6
_DURATION_WAY_OUT = "divide the column by pandas.Timedelta('1D')"
_MONDAY = "2001-01-01"
"""A Monday, and the first day of a year: cycles are 0 there."""


def encoded(column: Column, values: Values, near: list[str]) -> Inputs:
    """Return the inputs of a column, float32, shape (n, column.size).

    Args:
        column: its declaration.
        values: of the column.
        near: gets each declared category that other values look like, and in what they differ.

    Raises:
        TableValueError: if a value is not as declared; with its row and column, and the way out.
    """
    if isinstance(column, Category):
        return _of_category(column, values, near)
    with np.errstate(over="ignore"):
        inputs = _of_number(column, values) if isinstance(column, Number) else _of_date(column, values)
        inputs = inputs.astype(np.float32)
    large = np.asarray(~np.isfinite(inputs).all(axis=1))
    values.reject(large, "in the range of float32 after scaling", f"check the constants of {column!r}")
    return inputs


def _of_number(column: Number, values: Values) -> Inputs:
    numbers, there = numbers_of(values), ~values.missing
    rule = "a finite number" + " above -1" * column.logarithmic
    if column.missing is None:
        values.reject(values.missing, rule, _missing_way_out(column))
    values.reject(there & ~np.isfinite(numbers), rule, "mend the value, or drop the record")
    if column.logarithmic:
        values.reject(there & (numbers <= -1), rule, "mend the value, or declare the column without logarithmic")

    def scaled(numbers: Any) -> Any:
        return ((np.log1p(numbers) if column.logarithmic else numbers) - column.typical) / column.spread

    inputs = scaled(numbers)
    inputs[values.missing] = 0.0 if column.missing in (None, "typical") else scaled(column.missing)
    return np.column_stack([inputs, values.missing] if column.indicator else [inputs])


def _of_category(column: Category, values: Values, near: list[str]) -> Inputs:
    codes, distinct = _distinct(values)
    rule = f"one of {shown(', '.join(map(quoted, column.values)), 200)}"

    def fail(code: int, way_out: str) -> None:
        values.fail(int((codes == code).argmax()), rule, way_out)

    places = {(sort_of(value), value): place for place, value in enumerate(column.values)}
    sorts = {"number" if sort == "whole number" else sort for sort, _ in places}
    other = len(column.values)
    place_of = np.array([places.get((sort_of(value), value), other) for value in distinct] + [other], np.intp)
    unlisted = np.flatnonzero(place_of[:-1] == other).tolist()
    for code in unlisted:
        sort = sort_of(distinct[code])
        if sort.removeprefix("whole ") not in sorts:  # a mistake, even where others are expected
            fail(code, f"the declared ones are {' and '.join(sorted(sorts))}s, and it is a {sort}: convert the column")
    looks = {folded(str(value)): value for value in reversed(column.values)}
    alike = {distinct[code]: looks[text] for code in unlisted if (text := folded(str(distinct[code]))) in looks}
    near += [f"{quoted(known)} ({difference(str(value), str(known))})" for value, known in alike.items()]
    if not column.other:
        values.reject(codes == -1, rule, "other=True has an input for missing and other values, or drop the record")
        for code in unlisted[:1]:
            close = f"did you mean {near[0]}? Mend it, or declare it, too" if distinct[code] in alike else ""
            fail(code, close or "other=True has an input for all other values")
    inputs = np.zeros((len(values), other + 1), np.float32)
    inputs[np.arange(len(values)), place_of[codes]] = 1
    return inputs[:, : column.size]


def _of_date(column: Date, values: Values) -> Inputs:
    if column.missing is None:
        values.reject(values.missing, "a date", _missing_way_out(column))

    def day(text: Any) -> float:
        return float(np.datetime64(moment_of(text, column.clock()), "us").astype(np.int64)) / _MICROSECONDS

    days, typical = _days(column, values), day(column.typical)
    standin = typical if column.missing in (None, "typical") else day(column.missing)
    inputs = [(np.where(values.missing, standin, days) - typical) / column.spread]
    for cycle in column.cycles:
        angle = 2 * np.pi * ((days - day(_MONDAY)) / CYCLES[cycle] % 1)
        inputs += [np.where(values.missing, 0.0, turn(angle)) for turn in (np.sin, np.cos)]
    return np.column_stack([*inputs, values.missing] if column.indicator else inputs)


def numbers_of(values: Values) -> NDArray[np.float64]:
    """Return a column as numbers, of missing values NaN; reject the first value of another type."""
    series, there = values.series, ~values.missing
    for is_wrong, way_out in (
        (pd.api.types.is_complex_dtype, "declare real and imaginary part as two columns"),
        (pd.api.types.is_datetime64_any_dtype, "declare the column a Date"),
        (pd.api.types.is_timedelta64_dtype, _DURATION_WAY_OUT),
    ):
        if is_wrong(series.dtype):
            values.reject(there, "a finite number", way_out)
            return np.full(len(series), np.nan)
    if is_text(series):
        _reject_texts(values, there)
        return np.full(len(series), np.nan)
    if pd.api.types.is_numeric_dtype(series.dtype):
        return np.where(there, series.to_numpy(dtype=float, na_value=np.nan), np.nan)
    objects = series.to_numpy(dtype=object)
    wrong = {kind for kind in set(map(type, objects[there])) if not issubclass(kind, Real | Decimal | np.bool_)}
    numbers = np.full(len(series), np.nan)
    try:
        numbers[there] = objects[there].astype(float) if not wrong else np.nan
    except OverflowError:  # whole numbers beyond the largest float
        numbers[there] = [float(value) if abs(value) < 2**1023 else np.inf for value in objects[there]]
    if wrong:
        row = int(next(row for row in np.flatnonzero(there) if type(objects[row]) in wrong))
        if isinstance(objects[row], str):
            _reject_texts(values, there & [isinstance(value, str) for value in objects])
        values.fail(row, "a finite number", _object_way_out(objects[row]))
    return numbers


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
        codes, distinct = _distinct(values)
        known = np.full(len(distinct) + 1, np.datetime64("NaT"), dtype="datetime64[us]")
        for code, value in enumerate(distinct):
            try:
                known[code] = moment_of(value, zone)
            except ValueError as error:
                values.fail(int((codes == code).argmax()), "a date", str(error))
        moments = known[codes]
    return np.where(values.missing, np.nan, moments.astype(np.int64) / _MICROSECONDS)


def _distinct(values: Values) -> tuple[NDArray[np.intp], list[Any]]:
    """Return the code of each value, -1 of missing ones, and the value of each code; 1 and True have two codes."""
    series, there = values.series, ~values.missing
    codes = np.full(len(series), -1, np.intp)
    with suppress(TypeError):  # of objects that are not hashable
        if series.dtype != object or len(set(map(type, series[there]))) <= 1:
            codes[there], uniques = pd.factorize(series[there])
            return codes, list(uniques.array)  # of float32 as such
    code_of: dict[Any, int] = {}
    objects = series.to_numpy()
    for row in np.flatnonzero(there):
        try:
            codes[row] = code_of.setdefault((type(objects[row]), objects[row]), len(code_of))
        except TypeError:  # not hashable
            values.fail(int(row), "a text, a number or a date", "mend the value")
    return codes, [value for _, value in code_of]


def _reject_texts(values: Values, texts: Mask) -> None:
    """Reject the first text that is no number, or else the first of them; say what makes numbers of such texts."""
    objects, rows = values.series.to_numpy(dtype=object), np.flatnonzero(texts)
    if len(rows):
        row = next((row for row in rows if not is_number(objects[row])), rows[0])
        if_missing = 'declare missing="typical", indicator=True'
        way_out = number_way_out(objects[row], f"frame[{values.name!r}]", if_missing)
        values.fail(int(row), "a finite number", way_out)


def _object_way_out(value: Any) -> str:
    if isinstance(value, timedelta):
        return _DURATION_WAY_OUT
    return "declare the column a Date" if isinstance(value, date | np.datetime64) else "mend the value"


def _missing_way_out(column: Number | Date) -> str:
    return f'declare {type(column).__name__}(…, missing="typical", indicator=True), or drop the record'
