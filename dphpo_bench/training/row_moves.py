"""Models that choose or order rows by values, so that a layer's row need not be the record's at its place.

Gradients layer by layer would then be given to other records. Made-up records may hide it: sorted by a length that all
of them share, they stay where they are.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dphpo_bench.training.value_reads import TO_PYTHON

_ORDERS = ("aten::sort", "aten::argsort", "aten::topk")


def moves_rows(compute: Callable[[int], object], count: int) -> bool:
    """Return whether a model sorts along the first dimension, chooses rows by values, or reads each record in Python.

    What it reads for a whole batch, as whether a mask is empty, orders nothing.

    Args:
        compute: calls the model on that many records.
        count: number of records, at least 2.
    """
    reads = []
    for n in (1, count):
        with _Lists() as lists, _Moves() as moves:
            compute(n)
        reads.append(moves.reads)
    return bool(moves.some or lists.some or reads[1] > reads[0])


class _Moves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.some, self.reads = False, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see `RowDraws`

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs, name = kwargs or {}, operation._schema.name
        if name in _ORDERS and args[0].dim():
            named = {argument.name: value for argument, value in zip(operation._schema.arguments, args, strict=False)}
            self.some |= {**named, **kwargs}.get("dim", -1) % args[0].dim() == 0 and len(args[0]) > 1
        elif name == "aten::_local_scalar_dense":
            self.reads += 1
        elif torch.Tag.dynamic_output_shape in operation.tags:
            indices = args[1] if name == "aten::index" else [None]
            self.some |= name != "aten::index" or any(
                index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices
            )
        return operation(*args, **kwargs)


class _Lists(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.some = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        self.some |= func in TO_PYTHON and args[0].numel() > 1
        return func(*args, **(kwargs or {}))
