"""Random numbers that are the same for a record alone and among others, to compare passes of models with dropout."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dphpo_bench.training.randomness import global_randomness


class RowDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, each record's random numbers follow its place alone.

    An operation that draws runs once for each record, on the record's rows of its tensors, from a generator seeded by
    the place. Numbers for all records at once, such as whether a layer is skipped, are the same in every pass.

    Args:
        device: where the model is.

    Attributes:
        first: the place of a pass's first record.
        n: number of records of a pass.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first, self.n = 0, 1
        self._device = device

    def __torch_dispatch__(
        self, operation: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation of torch."""
        if torch.Tag.nondeterministic_seeded not in operation.tags:
            return operation(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        of_records = any(self._part(value, 0) is not value for value in (*args, *kwargs.values()))
        parts = []
        for place in range(self.n if of_records else 1):
            with global_randomness(self.first + place if of_records else 0, self._device):
                some = {name: self._part(value, place) for name, value in kwargs.items()}
                parts.append(operation(*(self._part(value, place) for value in args), **some))
        if operation._schema.is_mutable:
            return args[0]
        if not of_records:
            return parts[0]
        return tuple(map(torch.cat, zip(*parts, strict=True))) if isinstance(parts[0], tuple) else torch.cat(parts)

    def _part(self, value: Any, place: int) -> Any:
        """Return the rows of a record in a tensor, or their shape; anything else as it is."""
        if isinstance(value, Tensor) and value.dim() and len(value) % self.n == 0:
            return value.chunk(self.n)[place]
        if isinstance(value, list | torch.Size) and value and value[0] % self.n == 0:
            return [value[0] // self.n, *value[1:]]
        return value
