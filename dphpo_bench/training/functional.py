"""Models at other weights, copies of models, and tensors as code within vmap sees them.

Torch's own functions fail, or leave a model with wrong weights, where a module is used twice or a hook makes a weight.

Within vmap a few operations run on the rows of all records: kernels for which torch has no rule, and layers whose
inputs and outputs give gradients. Each of them treats rows alone, whatever they hold.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.func import functional_call

from dphpo_bench.base.tensors import Tensors

Function = TypeVar("Function", bound=Callable[..., Any])
Model = TypeVar("Model", bound=nn.Module)

_LISTED = "_flat_weights"
"""Attribute in which torch's recurrent layers list their weights, parametrised ones as they are computed."""


def call_with(model: nn.Module, weights: Mapping[str, Tensor], inputs: Tensors) -> Any:
    """Return the model's outputs at other weights, by the name that a parameter or buffer has first."""
    tensors = dict([*model.named_buffers(), *model.named_parameters()])
    new = {id(tensors[name]): weight for name, weight in weights.items()}
    # By all places where the model holds them. A module that is used twice is a single place: with two names for it,
    # torch would put back the new weights.
    places = {
        f"{prefix}.{name}" if prefix else name: new[id(tensor)]
        for prefix, part in model.named_modules()
        for name, tensor in (*part._parameters.items(), *part._buffers.items())
        if id(tensor) in new
    }
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else ((inputs,), {})
    # What is computed from other weights, by hooks such as `weight_norm` or in lists of recurrent layers, is put back.
    before = [(part, {**_attributes(part)}) for part in model.modules() if part._forward_pre_hooks]
    before += [(part, {_LISTED: vars(part)[_LISTED]}) for part in model.modules() if _LISTED in vars(part)]
    try:
        return functional_call(model, places, args, kwargs, tie_weights=False)
    finally:
        for part, attributes in before:
            vars(part).update(attributes)


def copied(model: Model) -> Model:
    """Return a copy of a model. Weights that a hook has computed are copied as numbers."""
    computed: dict[int, Any] = {
        id(tensor): tensor.detach().clone()
        for module in model.modules()
        for tensor in (*_attributes(module).values(), *vars(module).get(_LISTED, ()))
        if tensor is not None and not tensor.is_leaf
    }
    return copy.deepcopy(model, computed)


def fresh(function: Function) -> Function:
    """Return a copy of a callable object, so that what it keeps is lost with the copy; functions as they are."""
    return function if isinstance(function, MethodType) else copy.deepcopy(function)


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Level:
    """A level of vmap."""

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
