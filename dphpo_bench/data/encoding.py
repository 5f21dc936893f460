"""Columns of a table as numbers, by public constants: anything learned from private records would be a release.

>>> encode([(39, "State-gov")], {"age": Number(typical=40, spread=15), "employer": Category(("Private", "State-gov"))})
tensor([[-0.0667,  0.0000,  1.0000]])
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.text import shown

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Number:
    """A numeric column as (value − typical) / spread.

    Attributes:
        typical: a value that is known to be typical, from outside of the records.
        spread: how far typical values lie apart.
        logarithmic: take log(1 + value) first; for amounts of money, of which many are 0. `typical` and `spread` are
            then of the logarithm.
    """

    typical: float
    spread: float
    logarithmic: bool = False

    @property
    def size(self) -> int:
        """Number of inputs that it becomes."""
        return 1

    def encoded(self, value: Any) -> list[float]:
        """Return the inputs of one value.

        Raises:
            ValueError: if it is no number, or has no logarithm.
        """
        if not isinstance(value, int | float) or not math.isfinite(value) or (self.logarithmic and value <= -1):
            raise ValueError("a finite number" + " above -1" * self.logarithmic)
        return [((math.log1p(value) if self.logarithmic else value) - self.typical) / self.spread]


@dataclass(frozen=True)
class Category:
    """A column of categories as one input each, of which one is 1 and the others are 0.

    Attributes:
        values: all that are documented.
    """

    values: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of inputs that it becomes."""
        return len(self.values)

    def encoded(self, value: Any) -> list[float]:
        """Return the inputs of one value.

        Raises:
            ValueError: if the value is not documented.
        """
        if value not in self.values:
            raise ValueError(f"one of {', '.join(self.values)}")
        return [float(value == other) for other in self.values]


Column = Number | Category


def encode(rows: Sequence[Sequence[Any]], columns: Mapping[str, Column | None]) -> "Tensor":
    """Encode rows as inputs, float32, shape (n, sum of the columns' sizes).

    Args:
        rows: each with a value for each column, in their order.
        columns: how each is encoded; None leaves a column out.

    Raises:
        DataError: if a value is not documented, or is no number where one is expected.
    """
    import torch

    used = [(index, name, column) for index, (name, column) in enumerate(columns.items()) if column is not None]

    def inputs(row: Sequence[Any]) -> list[float]:
        values: list[float] = []
        for index, name, column in used:
            try:
                values += column.encoded(row[index])
            except (TypeError, ValueError) as error:
                raise DataError(f"Expected {name} to be {error}, got {shown(row[index])}.") from None
        return values

    return torch.tensor([inputs(row) for row in rows])
