"""Give code of a task one record at a time, so that no record can affect what is computed for another.

`by_vmap` runs a function for all records of a micro-batch at once, by `torch.func.vmap`: the function sees tensors of a
single record, a batch of one. Torch runs every operation by a rule that keeps records apart. It refuses Python numbers
of a record, so code cannot go one way for a whole batch. What could get around that is refused here, at every pass:
custom autograd functions and operators of other libraries, which may have rules of their own; scripts, which may call
them unseen; modes that see the rows of all records; exceptions that the code catches, since one record may raise them
for all; questions whether a gradient is wanted, such as for a hook. A loop, which runs the function for each record in
turn, takes all code.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Tensors, each, joined, length, take
from dphpo_bench.base.text import one_line
from dphpo_bench.training.functional import Level, copied, is_shared, ours
from dphpo_bench.training.recurrent import by_steps

_TRACING = "transformers.utils.import_utils"
_MOST_OF_REASON = 160
_NAMESPACES = ("aten", "prims", "prim")
_OPERATORS = frozenset({torch._ops.OpOverload, torch._ops.OpOverloadPacket})
_ABOUT_GRADIENTS = frozenset(
    [*(vars(torch._C.TensorBase)[name].__get__ for name in ("requires_grad", "grad_fn")), Tensor.register_hook]
)
_ACCESS = frozenset(map(type, _ABOUT_GRADIENTS))
_TRUSTED = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, Path(__file__).parent))


def by_vmap(compute: Callable[..., Any], model: nn.Module | None = None) -> Callable[..., Any]:
    """Return a function of tensors with n rows that computes the outputs of each record by vmap.

    Args:
        compute: (tensors of one row each) → a tensor of one row, or several by name.
    """

    def of_record(*record: Tensors) -> Any:
        outputs = compute(*(each(lambda tensor: tensor[None], part) for part in record))
        return each(only_row, outputs)

    mapped = vmap(of_record, randomness="different")

    def of_all(*parts: Tensors) -> Any:
        with only_torch(), nullcontext() if model is None else by_steps(model):
            return mapped(*parts)

    return of_all


class Alone:
    """A function that computes for each record alone: by vmap, or in a loop where vmap refuses the function.

    Whether vmap refuses does not depend on values, since no decision in the function can. So the first call decides.

    Args:
        compute: see `by_vmap`. Its first argument is the model, if there is one.
        model: whatever a record leaves behind in it does not reach the next.
    """

    def __init__(self, compute: Callable[..., Any], model: nn.Module | None = None) -> None:
        self._compute, self._model = compute, model
        self._run: Callable[..., Any] | None = None

    def __call__(self, *parts: Tensors) -> Any:
        """Return the outputs for tensors with n rows each."""
        at_once = self._compute if self._model is None else partial(self._compute, self._model)
        if not length(parts[0]):
            return at_once(*parts)
        if self._run is None:
            self._run, mapped = self._loop, by_vmap(at_once, self._model)
            with suppress(Exception):  # whatever vmap, or the code inside of it, raises
                outputs = mapped(*(each(Tensor.clone, part) for part in parts))  # code may write to its arguments
                self._run = mapped
                return outputs
        return self._run(*parts)

    def _loop(self, *parts: Tensors) -> Any:
        outputs = []
        for row in range(length(parts[0])):
            record = [each(partial(take, rows=slice(row, row + 1)), part) for part in parts]
            compute = self._compute if self._model is None else partial(self._compute, copied(self._model))
            outputs.append(each(lambda tensor: only_row(tensor)[None], compute(*record)))
        return joined(outputs)


@contextmanager
def only_torch() -> Iterator[None]:
    """Refuse what could get around vmap; run some kernels on the rows of all records.

    Networks of Hugging Face look at ids and masks, to skip a mask or to warn, unless torch traces them.
    """
    refusals = _Refusals()
    script = refusals.refusing("is a script")
    replaced: list[tuple[Any, str, Any]] = [
        # Not `Function.apply`, which code may have bound before.
        (torch.autograd.function, "custom_function_call", refusals.refusing("is a custom autograd function")),
        (torch._C.ScriptFunction, "__call__", script),
        (torch._C.ScriptMethod, "__call__", script),
        (torch.utils._python_dispatch, "_push_mode", refusals.refusing("is a mode that sees all records")),
        (functional, "scaled_dot_product_attention", _attention),
        *((functional, name, function) for name, function in _OF_ROWS.items()),
        (torch, "addmm", _addmm),
    ]
    if _TRACING in sys.modules:
        replaced.append((sys.modules[_TRACING], "is_jit_tracing", lambda: True))
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
    fast = torch.backends.mha.get_fastpath_enabled()  # where no tensor wants a gradient, as it seems within vmap
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for owner, name, value in replaced:
            setattr(owner, name, value)
        with refusals:
            yield
        if refusals.error:
            raise refusals.error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for owner, name, value in before:
            setattr(owner, name, value)


_one_attention, _one_addmm = functional.scaled_dot_product_attention, torch.addmm


def _of_rows(function: Callable[..., Tensor], dimensions: Collection[int]) -> Callable[..., Tensor]:
    """Return a function within vmap: that of the rows of all records, if they share all but the first input.

    Torch's rules make of it several operations, to add a bias and to scale, and lose the layout of pictures with one
    channel.

    Args:
        function: computes for each row of the first dimension alone.
        dimensions: of an input that is a batch.
    """

    @ours
    def of_rows(inputs: Tensor, *others: Any, **named: Any) -> Tensor:
        level = _level_of_rows(inputs, *others, *named.values())
        if level is None or inputs.dim() not in dimensions:
            return function(inputs, *others, **named)
        outputs = function(joined_batches(level.rows(inputs)), *others, **named)
        return level.record(_unjoined(outputs, level.n, len(inputs)))

    return of_rows


_OF_ROWS = {
    "linear": _of_rows(functional.linear, range(2, 9)),
    "layer_norm": _of_rows(functional.layer_norm, [3]),
    "conv2d": _of_rows(functional.conv2d, [4]),
}


def joined_batches(rows: Tensor) -> Tensor:
    """Return batches of n records, shape (n, several, ...), as one batch, in their layout in memory."""
    return rows.squeeze(1) if rows.shape[1] == 1 else rows.flatten(0, 1)


def _unjoined(rows: Tensor, n: int, several: int) -> Tensor:
    """Return batches of n records, shape (n, several, ...), of one batch that nothing else uses.

    For autograd it is no view: of a view, `LayerwiseEngine` would copy all numbers.
    """
    return torch.ops.aten._unsafe_view(rows, (n, several, *rows.shape[1:]))  # type: ignore[no-any-return]


@ours
def _addmm(inputs: Tensor, a: Tensor, b: Tensor, **others: Any) -> Tensor:
    """Return torch's product within vmap; see `_of_rows`."""
    level = _level_of_rows(a, b, inputs)
    if level is None or inputs.dim() != 1:
        return _one_addmm(inputs, a, b, **others)
    outputs = _one_addmm(inputs, level.rows(a).flatten(0, 1), b, **others)
    return level.record(_unjoined(outputs, level.n, len(a)))


def _level_of_rows(rows: Tensor, *shared: Any) -> Level | None:
    """Return the level of vmap at which records have rows, and share all else; None if there is none."""
    return Level.of([rows]) if all(is_shared(part) for part in shared if isinstance(part, Tensor)) else None


@ours
def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, *others: Any,
    **named: Any,
) -> Tensor:  # fmt: skip
    """Return torch's attention within vmap: that of all records at once, each a part of the kernel's batch.

    On a CPU torch has no rule for its kernel, and would run it for each record.
    """
    some = [tensor for tensor in (query, key, value, attn_mask) if tensor is not None]
    level = Level.of(some)
    if level is None or dropout_p or any(tensor.dim() != 4 for tensor in some):
        return _one_attention(query, key, value, attn_mask, dropout_p, *others, **named)
    several = len(query)

    def folded(tensor: Tensor) -> Tensor:
        rows = level.rows(tensor)
        return rows.expand(-1, several, *rows.shape[2:]).flatten(0, 1)

    mask = None if attn_mask is None else folded(attn_mask)
    outputs = _one_attention(folded(query), folded(key), folded(value), mask, dropout_p, *others, **named)
    return level.record(_unjoined(outputs, level.n, several))


class _Refusals(TorchFunctionMode):
    """Refuses operators of other libraries and questions about gradients; keeps the first error, also if it is caught.

    Within vmap no tensor seems to want a gradient, so that code would not add its hook.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None

    def refusing(self, reason: str) -> Callable[..., None]:
        """Return a function that refuses its first argument, also if the code catches the exception."""

        def refuse(what: Any, /, *args: object, **kwargs: object) -> None:
            del args, kwargs
            kind = what if isinstance(what, type) else type(what)
            self.error = self.error or RuntimeError(f"{kind.__name__} {reason}")
            raise self.error

        return refuse

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch."""
        try:
            kind = type(func)
            if any(cls.__module__.partition(".")[0] != "torch" for cls in types):
                raise RuntimeError("it uses a class of tensors of its own")
            if func is Tensor.__repr__:
                raise RuntimeError("it makes a text of a tensor")
            if kind in _OPERATORS:
                name = str(getattr(func, "namespace", None) or func._qualified_op_name)
                if name.partition("::")[0] not in _NAMESPACES:
                    raise RuntimeError(f"{func} is no operator of torch")
            elif (
                kind in _ACCESS
                and func in _ABOUT_GRADIENTS
                and not sys._getframe(1).f_code.co_filename.startswith(_TRUSTED)
            ):
                raise RuntimeError("it asks whether a gradient is wanted")
            return func(*args, **kwargs) if kwargs else func(*args)
        except Exception as error:
            self.error = self.error or error
            raise


def first_line(error: Exception) -> str:
    """Return the first line of an exception's text, or its type if there is no text."""
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return one_line(text, _MOST_OF_REASON).rstrip(".")


def only_row(tensor: Tensor) -> Tensor:
    """Return the row of a tensor of one record; reject another number of rows."""
    if tensor.dim() == 0 or len(tensor) != 1:
        raise InvalidValueError(f"Expected one row for one record, got shape {tuple(tensor.shape)}.")
    return tensor.squeeze(0)
