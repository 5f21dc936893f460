"""Code that looks at numbers of a batch: whether all records have converged, or how long the next step is.

One record may then decide which way the others go, and no made-up record may ever go it. So a network, a loss, a score
or a transform that looks at numbers gets each record alone. Integers are not numbers here, but for those of pictures:
code reads masks and lengths to save work. Numbers that follow from integers are, such as embeddings of words.

Not seen are kernels outside torch, custom operations that read inside, `tolist()` in TorchScript, other threads, and
exceptions that decide the way.
"""

import os
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

TO_PYTHON = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)
_FROM_PYTHON = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)
_CHECK_RANGES = (functional.one_hot, functional.gaussian_nll_loss, functional.ctc_loss)
_CHECK_RANGES_IN = (str(Path(torch.distributions.__file__).parent), torch.nn.modules.rnn.__file__)
_ONLY_SHAPES = frozenset(f"aten::{kind}_like" for kind in ("zeros", "ones", "empty", "full", "rand", "randn"))
_NOT_THE_USERS = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep)


def reads_numbers(what: str, compute: Callable[..., object], *made_up: Tensors) -> bool:
    """Return whether a computation reads numbers that follow from made-up tensors; a warning names the line.

    Args:
        what: its name in the warning, such as "model".
        compute: gets copies of the tensors. What it returns is differentiated, where gradients are on.
        made_up: of several records.
    """
    place = where_it_reads(compute, *made_up)
    if place is not None:
        warnings.warn(
            f"The {what} looks at numbers of a batch{place}, so that one record may decide what happens to the others. "
            "It gets each record alone, which takes longer. Compute with tensors, by torch.where, or leave it out; "
            "masks may be integers.",
            stacklevel=2,
        )
    return place is not None


def where_it_reads(compute: Callable[..., object], *made_up: Tensors) -> str | None:
    """Return where a computation reads numbers, such as " in net.py, line 3"; None: nowhere. See `reads_numbers`."""
    parts = [each(Tensor.clone, part) for part in made_up]
    reads = _Reads([tensor for part in parts for tensor in leaves(part)])
    with torch.random.fork_rng(devices=[]), reads, _Functions(reads):
        results = [leaf for leaf in tree_leaves(compute(*parts)) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if results and torch.is_grad_enabled():
            torch.autograd.backward([result.square().sum() for result in results])
    return reads.place


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what is computed from inputs: of all storages that hold such values, whether they hold numbers."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place: str | None = None
        self.is_paused = False
        self._holds: dict[int, bool] = {}
        self._alive: dict[int, Any] = {}  # so that no other storage gets the address of one of these
        for tensor in inputs:
            self._follow(tensor, _is_numeric(tensor) or tensor.dtype == torch.uint8)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see `RowDraws`

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs, name = kwargs or {}, operation._schema.name
        if self.place is not None:
            return operation(*args, **kwargs)
        used = _tensors((args, kwargs))
        if torch.Tag.data_dependent_output in operation.tags:
            self.look(used)
        elif torch.Tag.dynamic_output_shape in operation.tags:
            chosen_by = used[1:] if name in ("aten::index", "aten::masked_select") else used
            if name != "aten::index" or any(tensor.dtype in (torch.bool, torch.uint8) for tensor in chosen_by):
                self.look(chosen_by)
        results = operation(*args, **kwargs)
        if name not in _ONLY_SHAPES and not name.startswith("aten::new_") and any(map(self._is_followed, used)):
            written = [
                kwargs.get(argument.name, args[place] if place < len(args) else None)
                for place, argument in enumerate(operation._schema.arguments)
                if argument.alias_info and argument.alias_info.is_write
            ]
            numbers = any(map(self._is_number, used))
            for result in _tensors((results, written)):
                self._follow(result, numbers or _is_numeric(result))
        return results

    def look(self, tensors: list[Tensor]) -> None:
        """Note where code reads these tensors, if they hold numbers that follow from inputs."""
        if self.place is None and not self.is_paused and any(map(self._is_number, tensors)):
            self.place = _users_line()

    def _follow(self, tensor: Tensor, is_number: bool) -> None:
        key, holder = _memory(tensor)
        self._alive[key] = holder
        self._holds[key] = is_number or self._holds.get(key, False)

    def _is_followed(self, tensor: Tensor) -> bool:
        return _memory(tensor)[0] in self._holds

    def _is_number(self, tensor: Tensor) -> bool:
        return self._holds.get(_memory(tensor)[0], False)


class _Functions(TorchFunctionMode):
    """Tells of tensors that go to Python and come back, which no operation does, and of torch's own checks."""

    def __init__(self, reads: _Reads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func in TO_PYTHON:
            self._reads.look([args[0]])
        elif func in _FROM_PYTHON:
            self._reads.look(_tensors([value for value in args if isinstance(value, list | tuple)]))
        self._reads.is_paused = func in _CHECK_RANGES
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._reads.is_paused = False


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _is_numeric(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _memory(tensor: Tensor) -> tuple[int, Any]:
    """Return what is the same for all views of a tensor, and what holds it; sparse tensors have no storage."""
    if not torch._C._has_storage(tensor):
        return -id(tensor), tensor
    storage = tensor.untyped_storage()
    return storage._cdata, storage


def _users_line() -> str | None:
    """Return the innermost line that is neither torch's nor ours, "" if there is none; None for checks of torch's."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        if frame.f_code.co_filename.startswith(_CHECK_RANGES_IN):
            return None
        frame = frame.f_back
    return f" in {Path(frame.f_code.co_filename).name}, line {frame.f_lineno}" if frame.f_back else ""
