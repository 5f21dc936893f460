"""Tables that this process declared private, and those that `schema` learned from: they must not be the same.

This finds the same object, and pandas' frames that share memory, such as a slice of a frame. It does not find copies.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from dphpo_bench.base.errors import InvalidValueError

_private: "WeakValueDictionary[int, Any]" = WeakValueDictionary()
_learned_from: "WeakValueDictionary[int, Any]" = WeakValueDictionary()


def declare_private(data: Any) -> None:
    """Remember private records: a table, or a pair of tables and labels.

    Raises:
        InvalidValueError: if `schema` has learned from them.
    """
    for table in data if isinstance(data, tuple | list) and len(data) == 2 else (data,):
        if _overlaps(table, _learned_from.values()):
            raise InvalidValueError(
                "Expected private records that bench.schema has not seen, got a table that it learned from: no ε "
                "covers these constants. Propose columns from other, public data; then read the table anew. Or declare "
                "public=True if anybody may have these records."
            )
        with suppress(TypeError):  # a list or a dictionary, to which there is no weak reference
            _private[id(table)] = table


def declare_learned_from(table: Any) -> None:
    """Remember a table that `schema` learns from.

    Raises:
        InvalidValueError: if it was declared private.
    """
    if _overlaps(table, _private.values()):
        raise InvalidValueError(
            "Expected a table of public data, got records that a task declares private: constants learned from them "
            "would be a release that no budget pays for. Pass public data, or declare columns by hand."
        )
    with suppress(TypeError):
        _learned_from[id(table)] = table


def _overlaps(table: Any, others: Iterable[Any]) -> bool:
    return any(table is other or _share_memory(table, other) for other in others)


def _share_memory(table: Any, other: Any) -> bool:
    if not (hasattr(table, "dtypes") and type(table) is type(other) and hasattr(table, "columns")):
        return False
    names = set(table.columns) & set(other.columns)
    return any(np.may_share_memory(table[name].to_numpy(), other[name].to_numpy()) for name in names)
