"""Structures of networks of torch's usual layers, as JSON text, so that a saved model is read without its code."""

import inspect
import json
from typing import Any

import torch
from torch import nn

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.text import compact_json, shown

_LAYERS: dict[str, type[nn.Module]] = {
    layer.__name__: layer
    for layer in (
        *(nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d),
        *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
        *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout),
        *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.PReLU),
        *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Softmax, nn.LogSoftmax),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
        *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
        *(nn.Flatten, nn.Unflatten, nn.Identity, nn.Upsample, nn.PixelShuffle),
    )
}
"""Layers that their constructor's arguments describe, of which each is an attribute of the layer."""

_NOT_SETTINGS = ("device", "dtype")
_MAX_DEPTH = 50


def network_json(network: nn.Module) -> str | None:
    """Return the structure as JSON text: [class, arguments] of a layer, ["Sequential", [[name, layer], ...]] of more.

    Returns:
        None if other code than that of these layers may run, such as that of hooks or of a class of the user's.
    """
    try:
        described = _described(network)
        text = compact_json(described)
        state, ours = network.state_dict(), network_of(text).state_dict()
    except (AttributeError, DataError, RecursionError, TypeError, ValueError):
        return None
    same = [*state] == [*ours] and all(state[name].shape == ours[name].shape for name in state)
    return text if same else None


def network_of(text: str) -> nn.Module:
    """Build the network that `network_json` described, on the device "meta": without weights, which are in a file.

    Raises:
        DataError: if the text describes no network of the layers known here.
    """
    try:
        with torch.device("meta"):
            return _built(json.loads(text), 0)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"Expected the structure of a network of torch's layers: {shown(error, 200)}.") from None


def _described(module: nn.Module) -> list[Any]:
    hooks = [name for name, value in vars(module).items() if name.endswith("_hooks") and value]
    if hooks or "forward" in vars(module):
        raise TypeError("hooks")
    if type(module) is nn.Sequential:
        layers = vars(module)["_modules"].items()
        return ["Sequential", [[name, _described(layer)] for name, layer in layers if layer is not None]]
    if _LAYERS.get(type(module).__name__) is not type(module):
        raise TypeError(type(module).__name__)
    return [type(module).__name__, {name: _setting(module, name) for name in _arguments(type(module))}]


def _arguments(layer: type[nn.Module]) -> list[str]:
    parameters = inspect.signature(layer).parameters.values()
    named = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
    return [name for name in named if name not in _NOT_SETTINGS and not name.startswith("_")]


def _setting(module: nn.Module, name: str) -> Any:
    value = getattr(module, name)
    if name == "bias" and not isinstance(value, bool):
        return value is not None
    return list(value) if isinstance(value, tuple) else value


def _built(described: Any, depth: int) -> nn.Module:
    kind, arguments = described
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    if kind == "Sequential":
        network = nn.Sequential()
        for name, layer in arguments:
            network.add_module(name, _built(layer, depth + 1))
        return network
    layer = _LAYERS[kind]
    if not set(arguments) <= set(_arguments(layer)):
        raise ValueError(f"{kind} with other arguments")
    return layer(**{name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()})
