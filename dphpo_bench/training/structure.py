"""Hashes of a model's structure and of its weights, equal in every process."""

import hashlib
import json
import re
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_UNKNOWN = object()
_AS_PUBLISHED = {
    "dphpo_bench.zoo.language_models.CausalModel": "dphpo_bench.recipes.language_models.CausalModel",
    "dphpo_bench.zoo.language_models.PublishedCausalModel": "dphpo_bench.recipes.language_models.PublishedCausalModel",
    "dphpo_bench.zoo.networks.GruClassifier": "dphpo_bench.recipes.recurrent_network.GruClassifier",
    "dphpo_bench.zoo.networks.PictureClassifier": "dphpo_bench.recipes.vision_networks.PictureClassifier",
    "dphpo_bench.zoo.networks.PoolingBlock": "dphpo_bench.recipes.pooling_block.PoolingBlock",
    "dphpo_bench.zoo.networks.RobertaClassifier": "dphpo_bench.recipes.roberta_network.RobertaClassifier",
}
"""Names now → names by which fingerprints in published records know the classes."""


def structure_hash(model: nn.Module) -> str:
    """Return a hash of a model without its weights, 64 hexadecimal digits.

    Modules: name, class, `extra_repr`, and the public attributes that are numbers, texts, functions, classes, or lists
    of these, because some modules, such as `nn.MultiheadAttention`, have no `extra_repr`. Parameters and buffers: name,
    shape, dtype, and whether they are trained; shared ones count once. The code of `forward` is not part of it.
    """
    modules = []
    for name, module in model.named_modules():
        values = {key: _json_value(value) for key, value in vars(module).items() if not key.startswith("_")}
        settings = {key: value for key, value in values.items() if value is not _UNKNOWN}
        modules.append([name, published_name(type(module)), _ADDRESS.sub("", module.extra_repr()), settings])
    tensors = [
        [name, list(tensor.shape), str(tensor.dtype), tensor.requires_grad] for name, tensor in named_tensors(model)
    ]
    return hashlib.sha256(json.dumps([modules, tensors], sort_keys=True).encode()).hexdigest()


def weights_hash(model: nn.Module) -> str:
    """Return a hash of the values of all parameters and buffers, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, tensor in named_tensors(model):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(content(tensor))
    return digest.hexdigest()


def named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return all parameters and buffers with their names."""
    return [*model.named_parameters(), *model.named_buffers()]


def content(tensor: Tensor) -> bytes:
    """Return the bytes of all numbers."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def published_name(named: Any) -> str:
    """Return the name of a class or function by which published fingerprints know it."""
    name = f"{named.__module__}.{named.__qualname__}"
    return _AS_PUBLISHED.get(name, name)


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return published_name(value)
    if isinstance(value, tuple | list):
        values = [_json_value(item) for item in value]
        return _UNKNOWN if _UNKNOWN in values else values
    return _UNKNOWN
