"""Propose the columns of a table from public data, and refuse tables that are declared private."""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np
import pandas as pd

from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.data.columns import TOO_LARGE, Category, Column, Date, Number, moment_of, sort_of
from dphpo_bench.data.encoding import Columns
from dphpo_bench.data.tables import Values, frame_of

MOST_CATEGORIES = 50
"""A column of more different texts, such as names of persons, is left out of a proposal."""

_QUARTILES_APART = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""
_SKEWED = 2.0


def schema(data: Any, *, leave_out: Iterable[str] = ()) -> Columns:
    """Propose columns from public data, such as a published table of the same kind or a documented example.

    Never pass private records. Medians, spreads and lists of categories tell about each of them, and no ε covers that:
    a category that a single person has would stand in the proposal as it is. Read the proposal, which prints as Python
    code, and add what documents list and these data lack.

    - Numbers get their median, and the standard deviation of a normal distribution with their quartiles, to two
      digits; of log(1 + value) if values are not negative and far from symmetric.
    - Texts in ISO's form become dates; other texts, and categoricals of pandas, categories with an input for others;
      booleans two categories.
    - Columns with missing values get a value for these and an indicator.
    - Categories of more than 50 values, columns without any value, and other types are left out.

    Args:
        data: a table whose columns have names; see `Columns.encode`.
        leave_out: names of columns that are no inputs, such as the labels.

    Raises:
        InvalidValueError: if it is a task, its records, or a table that a task declared private, or `leave_out` names
            no columns.
        DataError: if it is no table with names and rows, or a number is infinite.
    """
    if hasattr(data, "load_train") or hasattr(data, "targets"):
        raise InvalidValueError(f"Expected a table of public data, got a {type(data).__name__}. {_LEARNED}")
    declare("public", data)
    frame = frame_of(data)
    left_out = [leave_out] if isinstance(leave_out, str) else list(leave_out)
    for name in left_out:
        if name not in frame:
            raise InvalidValueError(
                f"Expected leave_out to name columns among {shown(', '.join(frame), 200)}, got {shown(name)}."
            )
    if frame.empty:
        raise DataError("Expected a table of public data with rows and names of columns, got none.")
    if len(frame.columns) == 1 and ";" in frame.columns[0]:
        raise DataError(f"Expected several columns, got {shown(frame.columns[0])}; read its file with sep=';'.")
    return Columns({name: None if name in left_out else _proposed(name, frame[name]) for name in frame})


def _proposed(name: str, column: pd.Series) -> Column | None:
    """Return a proposal; None where no kind of column fits."""
    values = Values.of(name, column)
    series, has_gaps = values.series[~values.missing], bool(values.missing.any())
    distinct = list(series if series.dtype == object else series.unique())
    sorts = set(map(sort_of, distinct))
    instead: dict[str, Any] = {"missing": "typical", "indicator": True} if has_gaps else {}
    if sorts == {"boolean"}:
        return Category((False, True), other=has_gaps)
    if sorts == {"whole number"} and isinstance(column.dtype, pd.CategoricalDtype):
        return _category(map(int, distinct))
    if sorts and sorts <= {"whole number", "number", TOO_LARGE}:
        numbers = pd.Series(values.numbers()[~values.missing])
        if not np.isfinite(numbers).all():
            raise DataError(f"Expected finite numbers in {name}, got infinity; drop these rows.")
        logarithmic = bool(numbers.min() >= 0 and numbers.skew() > _SKEWED)
        return Number(*_constants(np.log1p(numbers) if logarithmic else numbers), logarithmic, **instead)
    for zone in (None, UTC) if sorts else ():
        with suppress(ValueError):  # no dates, or dates with a zone
            moments = pd.Series([moment_of(value, zone) for value in series])
            start = datetime(2000, 1, 1)
            typical, spread = _constants((moments - start) / timedelta(days=1))
            moment = (start + timedelta(days=round(typical))).isoformat()
            return Date(moment, spread, zone=zone and "UTC", **instead)
    return _category(map(str, distinct)) if sorts == {"text"} else None


def _category(values: Iterable[Any]) -> Category | None:
    categories = tuple(sorted(set(values)))
    return Category(categories, other=True) if len(categories) <= MOST_CATEGORIES else None


def _constants(numbers: pd.Series) -> tuple[float, float]:
    """Return median and spread, both to the second digit of the spread."""
    low, median, high = numbers.quantile([0.25, 0.5, 0.75])
    spread = (high - low) / _QUARTILES_APART or float(numbers.std(ddof=0))
    spread = spread if numbers.max() > numbers.min() else 1.0
    digits = 1 - math.floor(math.log10(spread))
    typical, spread = round(float(median), digits), round(float(spread), digits)
    return (int(typical), int(spread)) if digits <= 0 else (typical, spread)


_LEARNED = (
    "Constants that are learned from private records are a release that no budget pays for: propose columns from "
    "other, public data, or declare them by hand. Records that anybody may have are declared public=True."
)
_declared: dict[str, "WeakValueDictionary[int, Any]"] = {kind: WeakValueDictionary() for kind in ("private", "public")}


def declare(kind: Literal["private", "public"], data: Any) -> None:
    """Remember a table, a pair of a table and labels, or columns, that a task calls private or `schema` learns from.

    This finds the same object, and frames that share memory, such as a slice of a frame. It does not find copies.
    """
    others = _declared["public" if kind == "private" else "private"].values()
    pair = data if isinstance(data, tuple | list) and len(data) == 2 else (data,)
    for table in (part for each in pair for part in (each.values() if isinstance(each, Mapping) else (each,))):
        if any(table is other or _share_memory(table, other) for other in others):
            raise InvalidValueError(f"Expected private records that bench.schema has not seen. {_LEARNED}")
        with suppress(TypeError):  # a list, to which there is no weak reference
            _declared[kind][id(table)] = table


def _share_memory(table: Any, other: Any) -> bool:
    if not (isinstance(table, pd.DataFrame) and isinstance(other, pd.DataFrame)):
        return False
    names = set(table.columns) & set(other.columns)
    return any(np.may_share_memory(table[name].to_numpy(), other[name].to_numpy()) for name in names)
