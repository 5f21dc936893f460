"""Units of privacy that hold several records each, such as all visits of one patient.

A batch is then a sample of units: all records of a unit take part in it, or none. A unit adds the mean over its records
to a sum, and so moves the sum by as much as a record may (docs/accounting.md, units of several records).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_FILLED = 1.25


@dataclass(frozen=True, eq=False)
class Units:
    """Some units of a dataset, each of at least one record."""

    rows: Tensor  # rows of their records in the dataset, unit after unit, int64 of shape (n,)
    sizes: Tensor  # number of records of each unit, int64 of shape (units,); their sum is n

    @classmethod
    def of(cls, ids: Tensor) -> "Units":
        """Return all units of a dataset, by ascending id.

        Args:
            ids: of each record's unit, integers of shape (n,).
        """
        _, sizes = torch.unique(ids, return_counts=True)
        return cls(ids.argsort(stable=True), sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def some(self, which: Tensor) -> "Units":
        """Return the units at these places, int64."""
        sizes = self.sizes[which]
        shifts = (self._starts[which] - _before(sizes)).repeat_interleave(sizes)
        return Units(self.rows[shifts + torch.arange(len(shifts))], sizes)

    @property
    def heads(self) -> Tensor:
        """The row of the first record of each unit, int64 of shape (units,)."""
        return self.rows[self._starts]

    @property
    def shares(self) -> Tensor:
        """Reciprocal number of records of a record's unit, float64 of shape (n,)."""
        return self.sizes.double().reciprocal().repeat_interleave(self.sizes)

    def by_similar_size(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows of units of similar sizes, shape (units, largest size), and these sizes, ascending.

        Rows of a smaller unit are filled up with its last one; no more than a quarter is added in all. Units of one
        record come alone, and first.
        """
        order, starts = self.sizes.argsort(stable=True), self._starts
        sizes, counts = torch.unique(self.sizes, return_counts=True)
        ends, records = counts.cumsum(0).tolist(), (sizes * counts).cumsum(0).tolist()
        begin, before = 0, 0
        for place, size in enumerate(sizes.tolist()):
            ahead = place + 1
            if ahead < len(ends) and size > 1:
                filled = (ends[ahead] - begin) * int(sizes[ahead])
                if filled <= _MOST_FILLED * (records[ahead] - before):
                    continue
            some = order[begin : ends[place]]
            last = self.sizes[some][:, None] - 1
            yield self.rows[starts[some][:, None] + torch.minimum(torch.arange(size), last)], last[:, 0] + 1
            begin, before = ends[place], records[place]

    def by_power_of_two(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows of units, each filled up with its last one to a power of two, and their sizes, as above.

        The shape of a unit's tensors, which decides how sums over its records round, depends on that unit alone.
        """
        powers = self.sizes.double().log2().ceil().long()
        for power in torch.unique(powers).tolist():
            which = (powers == power).nonzero()[:, 0]
            places = torch.minimum(torch.arange(2**power), self.sizes[which][:, None] - 1)
            yield self.rows[self._starts[which][:, None] + places], self.sizes[which]

    @property
    def _starts(self) -> Tensor:
        """Places in `rows` of the first record of each unit."""
        return _before(self.sizes)


def _before(sizes: Tensor) -> Tensor:
    return sizes.cumsum(0) - sizes
