"""Random numbers that are the same for a record alone and among others, to compare passes of models with dropout."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dphpo_bench.training.randomness import global_randomness

_MOST = 2**16
"""Numbers of records stay below."""


class RowDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, each record's random numbers follow its number alone.

    An operation that draws runs once for each record, on the record's rows of its tensors, from a generator seeded by
    the number. Numbers for all records at once, such as whether a layer is skipped, are the same in every pass.

    Args:
        device: where the model is.

    Attributes:
        records: numbers of the records of a pass, in their order.
        chance: number of what happens by chance: all numbers differ from those of another one.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.records: Sequence[int] = [0]
        self.chance = 0
        self._device = device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: else torch would import its compiler, which takes as long as a small run."""
        return False

    def __torch_dispatch__(
        self, operation: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation of torch."""
        if torch.Tag.nondeterministic_seeded not in operation.tags:
            return operation(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        of_records = any(self._part(value, 0) is not value for value in (*args, *kwargs.values()))
        parts = []
        for place, record in enumerate(self.records if of_records else [0]):
            with global_randomness(self.chance * _MOST + record, self._device):
                some = {name: self._part(value, place) for name, value in kwargs.items()}
                parts.append(operation(*(self._part(value, place) for value in args), **some))
        returns = operation._schema.returns
        if returns and returns[0].alias_info is not None:  # it wrote to its first argument
            return args[0]
        if not of_records:
            return parts[0]
        return tuple(map(torch.cat, zip(*parts, strict=True))) if isinstance(parts[0], tuple) else torch.cat(parts)

    def _part(self, value: Any, place: int) -> Any:
        """Return the rows of a record in a tensor, or their shape; anything else as it is."""
        n = len(self.records)
        if isinstance(value, Tensor) and value.dim() and len(value) % n == 0:
            return value.chunk(n)[place]
        if isinstance(value, list | torch.Size) and value and value[0] % n == 0:
            return [value[0] // n, *value[1:]]
        return value


def draws(compute: Callable[[], object], device: torch.device) -> bool:
    """Return whether a computation draws numbers from torch's global generators."""
    before = _states(device)
    compute()
    return not all(map(torch.equal, before, _states(device)))


def states_elsewhere() -> list[object]:
    """Return the states of the global generators of Python and numpy."""
    return [random.getstate(), [part.tolist() if hasattr(part, "tolist") else part for part in np.random.get_state()]]


def _states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states
