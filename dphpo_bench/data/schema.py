"""Propose the columns of a table from public data."""

import math
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.data.columns import TOO_LARGE, Category, Column, Date, Number, moment_of, sort_of
from dphpo_bench.data.encoders import numbers_of
from dphpo_bench.data.encoding import Columns
from dphpo_bench.data.seen import declare_learned_from
from dphpo_bench.data.tables import names_of, table
from dphpo_bench.data.values import Values

MOST_CATEGORIES = 50
"""A column of more different texts, such as names of persons, is left out."""

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
    - Columns with missing values get a stand-in and an indicator.
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
        raise InvalidValueError(
            f"Expected a table of public data, got a {type(data).__name__}, whose records are private: constants that "
            "are learned from them would be a release that no budget pays for. Pass public data, or declare columns by "
            "hand."
        )
    declare_learned_from(data)
    names = names_of(data)
    left_out = [leave_out] if isinstance(leave_out, str) else list(leave_out)
    for name in left_out:
        if name not in names:
            raise InvalidValueError(
                f"Expected leave_out to name columns among {shown(', '.join(names), 200)}, got {shown(name)}."
            )
    read, n_rows = table(data, {name: None if name in left_out else name for name in names})
    if not n_rows:
        raise DataError("Expected a table of public data with rows, got none.")
    return Columns({name: _proposed(read[name]) if name in read else None for name in names})


def _proposed(values: Values) -> Column | None:
    """Return a proposal; None where no kind of column fits."""
    series, has_gaps = values.series[~values.missing], bool(values.missing.any())
    distinct = list(series if series.dtype == object else series.unique())
    sorts = set(map(sort_of, distinct))
    standin: dict[str, Any] = {"missing": "typical", "indicator": True} if has_gaps else {}
    if sorts == {"boolean"}:
        return Category((False, True), other=has_gaps)
    if sorts == {"whole number"} and values.is_categorical:
        return _category(map(int, distinct))
    if sorts and sorts <= {"whole number", "number", TOO_LARGE}:
        return _number(values, standin)
    for zone in (None, UTC) if sorts else ():
        with suppress(ValueError):  # no dates, or dates with a zone
            moments = pd.Series([moment_of(value, zone) for value in series])
            return _date(moments, zone and "UTC", standin)
    return _category(map(str, distinct)) if sorts == {"text"} else None


def _category(values: Iterable[Any]) -> Category | None:
    categories = tuple(sorted(set(values)))
    return Category(categories, other=True) if len(categories) <= MOST_CATEGORIES else None


def _number(values: Values, standin: dict[str, Any]) -> Number:
    numbers = pd.Series(numbers_of(values)[~values.missing])
    if not np.isfinite(numbers).all():
        raise DataError(f"Expected finite numbers in {values.name}, got infinity; drop these rows.")
    logarithmic = bool(numbers.min() >= 0 and numbers.skew() > _SKEWED)
    return Number(*_constants(np.log1p(numbers) if logarithmic else numbers), logarithmic, **standin)


def _date(moments: pd.Series, zone: str | None, standin: dict[str, Any]) -> Date:
    start = datetime(2000, 1, 1)
    typical, spread = _constants((moments - start) / timedelta(days=1))
    return Date((start + timedelta(days=round(typical))).isoformat(), spread, zone=zone, **standin)


def _constants(numbers: pd.Series) -> tuple[float, float]:
    """Return median and spread, both to the second digit of the spread."""
    low, median, high = numbers.quantile([0.25, 0.5, 0.75])
    spread = (high - low) / _QUARTILES_APART or float(numbers.std(ddof=0))
    spread = spread if numbers.max() > numbers.min() else 1.0
    digits = 1 - math.floor(math.log10(spread))
    typical, spread = round(float(median), digits), round(float(spread), digits)
    return (int(typical), int(spread)) if digits <= 0 else (typical, spread)
