"""Columns of a table as numbers, by public constants: anything learned from private records would be a release.

>>> columns = Columns({"age": Number(typical=40, spread=15), "employer": Category(("Private", "State-gov"))})
>>> columns.encode({"employer": ["State-gov"], "age": [39]})
tensor([[-0.0667,  0.0000,  1.0000]])
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.checks import quoted
from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.files import read_whole, write_whole
from dphpo_bench.base.text import compact_json, shown
from dphpo_bench.data.columns import Category, Column, Date, Number, stated_constants

if TYPE_CHECKING:
    from torch import Tensor

_MAX_BYTES = 2**26


class Columns(Mapping[str, Column | None]):
    """The declared columns of a table, in their order; it does not change.

    Declare each from documents or general knowledge: constants learned from private records would be a release that no
    budget pays for.

    Args:
        columns: by name, how each is encoded; None leaves a column out of the inputs.

    Raises:
        InvalidValueError: if it is no mapping of names to columns, or leaves all out.
    """

    def __init__(self, columns: Mapping[str, Column | None]) -> None:
        if not isinstance(columns, Mapping):
            raise InvalidValueError(
                f'Expected columns by name, such as {{"age": Number(40, 15)}}, got {type(columns).__name__} '
                f"{shown(columns)}."
            )
        for name, column in columns.items():
            if not isinstance(name, str):
                raise InvalidValueError(f"Expected names of columns to be texts, got {quoted(name)}.")
            if not isinstance(column, Number | Category | Date | None):
                raise InvalidValueError(
                    f"Expected column {shown(name)} to be a Number, a Category, a Date or None, got {quoted(column)}."
                )
        if all(column is None for column in columns.values()):
            raise InvalidValueError("Expected at least one column that is not None; the inputs would be empty.")
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> Column | None:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __eq__(self, other: object) -> bool:
        """Compare names, constants and order: another order is another encoding."""
        return isinstance(other, Columns) and list(self.items()) == list(other.items())

    def __hash__(self) -> int:
        return hash(compact_json(self.to_json()))

    def __repr__(self) -> str:
        """Return Python code."""
        return "\n".join(["Columns({", *(f"    {name!r}: {column!r}," for name, column in self.items()), "})"])

    @property
    def size(self) -> int:
        """Number of inputs."""
        return sum(column.size for column in self.values() if column is not None)

    def encode(self, data: Any) -> "Tensor":
        """Encode a table as inputs, float32, shape (n, size).

        Args:
            data: a frame of pandas, polars or Arrow, a dictionary of columns, or a sequence of dictionaries, series or
                named tuples, whose columns are found by name. Or an array or a sequence of other rows, with a value
                for each column in their order.

        Raises:
            DataError: if the table has other columns, or a value is not as declared; with its row and column.
        """
        from dphpo_bench.data.tables import encoded_table, frame_of

        return encoded_table(frame_of(data, self), self)

    def to_json(self) -> list[dict[str, Any]]:
        """Return JSON values, a dictionary for each column in their order; constants that are defaults are left out."""
        return [{"name": name, **_column_json(column)} for name, column in self.items()]

    @classmethod
    def from_json(cls, value: Any) -> "Columns":
        """Return the columns that `to_json` described.

        Raises:
            DataError: if it is something else.
        """
        try:
            columns = dict(map(_column_of, value if isinstance(value, list) else [value]))
            if isinstance(value, list) and len(columns) < len(value):
                raise ValueError("a name stands twice")
            return cls(columns)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"Expected columns as Columns.to_json returns them, got {shown(value)}: "
                f"{shown(error, 200).rstrip('.')}."
            ) from None

    def write(self, path: str | Path) -> Path:
        """Write a JSON file, whole or not at all; it replaces an older one. Returns its path.

        Raises:
            DataError: if it cannot be written.
        """
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"
        try:
            return write_whole(Path(path), text)
        except (OSError, TypeError, ValueError) as error:  # the last two: no path
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"Cannot write the columns {shown(path, 300)}: {shown(reason)}.") from None

    @classmethod
    def read(cls, path: str | Path) -> "Columns":
        """Read a file that `write` wrote.

        Raises:
            DataError: if there is none, or it holds something else.
        """
        try:
            return cls.from_json(json.loads(read_whole(Path(path), _MAX_BYTES).decode("utf-8-sig")))
        except (OSError, TypeError, ValueError, RecursionError, DataError) as error:  # no path, no JSON, no columns
            reason = shown(getattr(error, "strerror", None) or error, 300).rstrip(".")
            raise DataError(f"Cannot read the columns {shown(path, 300)}: {reason}.") from None


def encode(data: Any, columns: Mapping[str, Column | None]) -> "Tensor":
    """Encode a table as inputs, float32, shape (n, sum of the columns' sizes).

    Args:
        data: a table; see `Columns.encode`.
        columns: how each is encoded; None leaves a column out.

    Raises:
        DataError: if the table has other columns, or a value is not as declared; with its row and column.
        InvalidValueError: if `columns` are none.
    """
    return (columns if isinstance(columns, Columns) else Columns(columns)).encode(data)


_KINDS: dict[str, type[Column]] = {"number": Number, "category": Category, "date": Date}


def _column_json(column: Column | None) -> dict[str, Any]:
    """Return a column's kind and constants, but for those that are defaults."""
    if column is None:
        return {"kind": "left out"}
    kind = next(kind for kind, cls in _KINDS.items() if isinstance(column, cls))
    values = stated_constants(column).items()
    return {"kind": kind} | {name: list(value) if isinstance(value, tuple) else value for name, value in values}


def _column_of(value: Any) -> tuple[str, Column | None]:
    """Return the name and the column of JSON values; raise TypeError or ValueError if they are none."""
    constants = dict(value) if isinstance(value, dict) else {}
    name, kind = constants.pop("name", None), constants.pop("kind", None)
    if kind == "left out" and not constants:
        return name, None
    if kind not in _KINDS:
        raise ValueError(f"expected a kind of column among {', '.join([*_KINDS, 'left out'])}")
    return name, _KINDS[kind](**constants)
