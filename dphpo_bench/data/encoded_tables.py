"""Tables of training and test records as pairs of encoded inputs and labels."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.handed_over import parted_frame
from dphpo_bench.base.text import shown
from dphpo_bench.data.encoding import Columns, Near, encoded_table, warn_of_near_misses
from dphpo_bench.data.tables import as_frame


def encoded_tables(train: Any, test: Any, columns: Columns, target: str, unit: Any) -> tuple[Any, Any, Any]:
    """Return the pairs of train and test, and the ids of the units of train.

    Args:
        train: a table that `Columns.encode` takes, with a column of labels; or a pair of a table and labels.
        test: the same, or None.
        columns: the inputs.
        target: name of the column of labels.
        unit: name of a column of ids, which the test records need not have; or ids, or None, which are returned.

    Returns:
        (inputs, labels) of train and of test, or None without test; and the ids.

    Raises:
        InvalidValueError: if labels or ids are declared to be inputs, or a table has none.
        DataError: if a table is not as declared; its message names which.
    """
    for what, name in (("labels", target), ("ids", unit)):
        if isinstance(name, str) and columns.get(name) is not None:
            raise InvalidValueError(
                f"Expected inputs without the {what}, got column {name!r} in columns; remove it there, or declare it "
                "None."
            )
    near: Near = {}
    pair, ids = _encoded(train, "train", columns, target, unit, near)
    tested = None if test is None else _encoded(test, "test", columns, target, unit, near)[0]
    warn_of_near_misses(near)
    return pair, tested, ids


def _encoded(data: Any, which: str, columns: Columns, target: str, unit: Any, near: Near) -> tuple[Any, Any]:
    table, labels = data if _is_pair(data, target) else (data, None)
    table = as_frame(table)
    if labels is None:
        table, labels = _parted(table, target)
        if labels is None:
            raise InvalidValueError(
                f"Expected the labels {target!r} in {which}, or {which}=(table, labels), got a {type(data).__name__} "
                "without them; name the labels by target=."
            )
    if isinstance(unit, str):
        table, ids = _parted(table, unit)
        if ids is None and which == "train":
            raise InvalidValueError(f"Expected unit={shown(unit, form=repr)} to be a column of train, got none of it.")
        unit = ids if ids is None or isinstance(ids, pd.Series) else pd.Series(ids, name=unit)
    try:
        return (encoded_table(table, columns, near), labels), unit
    except DataError as error:
        raise type(error)(f"In {which}: {error}") from None


def _is_pair(data: Any, target: str) -> bool:
    """Return True for a table and labels; False for a table, also for a list of two records."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    return not (isinstance(data, list) and all(isinstance(row, Mapping) and target in row for row in data))


def _parted(table: Any, name: str) -> tuple[Any, Any]:
    """Return the table without a column, and the column; None if there is none of this name."""
    if isinstance(table, pd.DataFrame):
        return parted_frame(table, name) if name in table else (table, None)
    if isinstance(table, Mapping):
        return {other: values for other, values in table.items() if other != name}, table.get(name)
    if isinstance(table, list | tuple) and table and all(isinstance(row, Mapping) and name in row for row in table):
        rest = [{other: value for other, value in row.items() if other != name} for row in table]
        return rest, [row[name] for row in table]
    return table, None


def consumed_names(data: Any, target: str, unit: Any) -> tuple[str, ...]:
    """Return the names of the columns of labels and of ids, as far as they have some."""
    label = getattr(data[1], "name", None) if _is_pair(data, target) else target
    ids = unit if isinstance(unit, str) else getattr(unit, "name", None)
    return tuple(name for name in (label, ids) if isinstance(name, str))


def without_columns(table: Any, names: Iterable[str]) -> Any:
    """Return a table without columns of these names, as far as it has them."""
    table = as_frame(table)
    for name in names:
        table, _ = _parted(table, name)
    return table
