"""Calls of layers within one pass, and which of their rows are of which record."""

from collections import Counter

from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError


class Calls:
    """Calls of layers and their rows: some for each record, or for all records at once, as embeddings of positions.

    A shape does not say which: a table of as many rows as there are records looks like records. So a pass of one record
    and a pass of two are seen first. What all records share has as many rows in both.
    """

    def __init__(self) -> None:
        self._numbers: Counter[int] = Counter()
        self._seen: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def begin(self) -> None:
        """Begin a pass."""
        self._numbers.clear()

    def see(self, module: nn.Module, args: object, outputs: object) -> None:
        """Note a call's rows and dimensions, as a forward hook."""
        del args
        if isinstance(outputs, Tensor) and outputs.dim():
            self._seen.setdefault(self._next(module), []).append((len(outputs), outputs.dim()))

    def rows_each(self, module: nn.Module, n: int, outputs: Tensor) -> int:
        """Return how many rows of the next call's outputs are of each record.

        If all records share them: 0 if they are a row in the place of the records', -1 if there is no such place.
        """
        seen = self._seen.get(self._next(module), [])
        (alone, dimensions), (pair, _) = seen if len(seen) == 2 else [(1, 0), (2, 0)]
        rows, rest = divmod(len(outputs), n)
        # What follows an embedding that was repeated for each record has a row, or a dimension, for records, too.
        if n > 1 and alone == pair and dimensions == outputs.dim() and (alone > 1 or len(outputs) == 1):
            return 0 if alone == 1 else -1
        if n > 1 and (rest or (rows != 1 and not 1 < alone < pair == 2 * alone)):
            raise InvalidValueError(f"Expected outputs of {type(module).__name__} for each record, or for all of them.")
        return rows

    def _next(self, module: nn.Module) -> tuple[int, int]:
        self._numbers[id(module)] += 1
        return id(module), self._numbers[id(module)]
