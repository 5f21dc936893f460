"""Code that looks at numbers of a batch: whether all records have converged, or how long the next step is.

One record may then decide which way the others go, though made-up records never go it. Such a model, loss, score or
transform gets each record alone. Integers are exempt, since masks and lengths are read to save work; made-up records
show whether they mix others.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dphpo_bench.base.tensors import Tensors, each, leaves

_READS = frozenset({"aten::_local_scalar_dense", "aten::equal"})
_LISTS = (Tensor.tolist, Tensor.numpy, Tensor.__array__)
_ONLY_SHAPES = frozenset({"aten::zeros_like", "aten::ones_like", "aten::empty_like", "aten::full_like"})
_CHECKED_BY_TORCH = (str(Path(torch.distributions.__file__).parent), functional.__file__)  # that values are in range
_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def reads_numbers(what: str, compute: Callable[..., object], *made_up: Tensors) -> bool:
    """Return whether a computation reads numbers that follow from made-up tensors; a warning names the line.

    Args:
        what: computes, such as "model", for the warning.
        compute: gets copies of the tensors.
        made_up: of several records.
    """
    place = where_it_reads(compute, *made_up)
    if place is not None:
        warnings.warn(
            f"The {what} looks at numbers of a batch{place}, so that one record may decide what happens to the others. "
            "It gets each record alone, which takes longer. Compute with tensors, by torch.where, or leave it out.",
            stacklevel=2,
        )
    return place is not None


def where_it_reads(compute: Callable[..., object], *made_up: Tensors) -> str | None:
    """Return where a computation reads numbers, such as " in net.py, line 3"; None: nowhere. See `reads_numbers`."""
    parts = [each(Tensor.clone, part) for part in made_up]
    reads = _Reads([tensor for part in parts for tensor in leaves(part)])
    with torch.random.fork_rng(devices=[]), reads, _Functions(reads):
        compute(*parts)
    return reads.place


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what is computed from inputs: of all storages that hold such values, whether they hold numbers."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place: str | None = None
        self.is_paused = False
        self._holds: dict[int, bool] = {}
        self._alive: list[Any] = []  # so that no other storage gets the address of one of these
        for tensor in inputs:
            self._follow(tensor, tensor.is_floating_point())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see `RowDraws`

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs, name = kwargs or {}, operation._schema.name
        used = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if name in _READS:
            self.look(used)
        elif torch.Tag.dynamic_output_shape in operation.tags:
            chosen_by = used[1:] if name in ("aten::index", "aten::masked_select") else used
            if name != "aten::index" or any(tensor.dtype in (torch.bool, torch.uint8) for tensor in chosen_by):
                self.look(chosen_by)
        results = operation(*args, **kwargs)
        if name not in _ONLY_SHAPES and not name.startswith("aten::new_") and any(map(self._is_followed, used)):
            numbers = any(map(self._is_number, used))
            for result in tree_leaves(results):
                if isinstance(result, Tensor):
                    self._follow(result, numbers or result.is_floating_point())
        return results

    def look(self, tensors: list[Tensor]) -> None:
        """Note where code reads these tensors, if they hold numbers that follow from inputs."""
        if self.place is None and not self.is_paused and any(map(self._is_number, tensors)):
            self.place = _users_line()

    def _follow(self, tensor: Tensor, is_number: bool) -> None:
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        self._holds[storage._cdata] = is_number or self._holds.get(storage._cdata, False)

    def _is_followed(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._holds

    def _is_number(self, tensor: Tensor) -> bool:
        return self._holds.get(tensor.untyped_storage()._cdata, False)


class _Functions(TorchFunctionMode):
    """Tells of tensors that become lists and arrays, which no operation does, and of torch's own checks of a range."""

    def __init__(self, reads: _Reads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func in _LISTS:
            self._reads.look([args[0]])
        self._reads.is_paused = func is functional.one_hot
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._reads.is_paused = False


def _users_line() -> str | None:
    """Return the innermost line that is neither torch's nor ours, "" if there is none; None for checks of torch's."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        if frame.f_code.co_filename.startswith(_CHECKED_BY_TORCH):
            return None
        frame = frame.f_back
    return f" in {Path(frame.f_code.co_filename).name}, line {frame.f_lineno}" if frame.f_back else ""
