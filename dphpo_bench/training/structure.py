"""Hashes of a model that are the same in every process: of its structure, and of its weights."""

import hashlib
import json
import re
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_UNTOLD = object()


def structure_hash(model: nn.Module) -> str:
    """A hash of everything about a model but its weights, 64 hexadecimal digits.

    Modules: name, class, `extra_repr`, and the public attributes that are numbers, texts, functions, classes, or lists
    of these, because some modules, such as `nn.MultiheadAttention`, have no `extra_repr`. Parameters and buffers: name,
    shape, dtype, and whether they are trained; shared ones count once. The code of `forward` is not part of it.
    """
    modules = [
        [name, _full_name(type(module)), _ADDRESS.sub("", module.extra_repr()), _settings(module)]
        for name, module in model.named_modules()
    ]
    tensors = [[name, list(tensor.shape), str(tensor.dtype), tensor.requires_grad] for name, tensor in _tensors(model)]
    return hashlib.sha256(json.dumps([modules, tensors], sort_keys=True).encode()).hexdigest()


def weights_hash(model: nn.Module) -> str:
    """A hash of the values of all parameters and buffers, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, tensor in _tensors(model):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _full_name(one: Any) -> str:
    return f"{one.__module__}.{one.__qualname__}"


def _settings(module: nn.Module) -> dict[str, Any]:
    """Public attributes as JSON values, where they can be written as such."""
    values = {name: _told(value) for name, value in vars(module).items() if not name.startswith("_")}
    return {name: value for name, value in values.items() if value is not _UNTOLD}


def _told(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return _full_name(value)
    if isinstance(value, tuple | list):
        told = [_told(one) for one in value]
        return _UNTOLD if _UNTOLD in told else told
    return _UNTOLD
