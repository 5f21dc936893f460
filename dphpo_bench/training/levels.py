"""Tensors as code within vmap sees them, and the rows of all records behind them.

A few operations run on the rows of all records: kernels for which torch has no rule, and layers whose inputs and
outputs give gradients. Each of them treats rows alone, whatever they hold.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Level:
    """A level of vmap.

    Attributes:
        number: torch's.
        n: number of records.
    """

    number: int
    n: int

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> "Level | None":
        """Return the level that some of the tensors have, and the others do not; None if there is no such level."""
        levels = set()
        for tensor in tensors:
            if _functorch.is_batchedtensor(tensor):
                rows = _functorch.get_unwrapped(tensor)
                levels.add(cls(_functorch.maybe_get_level(tensor), rows.shape[_functorch.maybe_get_bdim(tensor)]))
                tensor = rows
            if _functorch.is_functorch_wrapped_tensor(tensor):
                return None
        return levels.pop() if len(levels) == 1 else None

    def rows(self, tensor: Tensor) -> Tensor:
        """Return the rows of all records, shape (n, ...); copies of what all share."""
        rows: Tensor = _functorch._remove_batch_dim(tensor, self.number, self.n, 0)
        return rows

    def record(self, rows: Tensor) -> Tensor:
        """Return what code within vmap sees of rows of shape (n, ...)."""
        record: Tensor = _functorch._add_batch_dim(rows, 0, self.number)
        return record


def ours(function: Function) -> Function:
    """Run a function of the engine without torch's modes for functions, which take longer than the function may do."""

    @wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args, **named)

    return run  # type: ignore[return-value]


def is_shared(tensor: Tensor) -> bool:
    """Return whether all records share a tensor."""
    return not _functorch.is_functorch_wrapped_tensor(tensor)


def outside() -> AbstractContextManager[object]:
    """Return a context in which code runs outside of vmap."""
    return temporarily_pop_interpreter_stack()
