"""Layers that no engine trains, refused by name."""

from collections.abc import Callable, Iterator
from types import MappingProxyType

from torch import nn
from torch.nn.parameter import is_lazy

from dphpo_bench.base.errors import InvalidValueError

_LARGEST_SINGULAR_VALUE = (
    "Use weight_norm, freeze the estimate by eval(), or register_parametrization with a module that returns "
    "weight / torch.linalg.matrix_norm(weight, 2)."
)
_UNQUANTISED = "Pass the model as it was before it was quantised."


def refuse_unfit(model: nn.Module) -> None:
    """Reject a model without weights, or with a layer that no engine trains.

    Raises:
        InvalidValueError: names the layer, the reason, and what works instead.
    """
    if next(model.parameters(), None) is None:
        way = _UNQUANTISED if any(map(_is_quantised, model.modules())) else "Add a layer with weights."
        raise InvalidValueError(f"Expected a model with weights to train, got {type(model).__name__} with none. {way}")
    for name, layer in model.named_modules():
        for reason in _reasons(layer):
            raise InvalidValueError(
                f"Expected layers that can be trained record by record; {name or 'the model'!r} "
                f"({type(layer).__name__}) {reason}"
            )


def _reasons(layer: nn.Module) -> Iterator[str]:
    yield from (reason for applies, reason in _REASONS.items() if applies(layer))


def _is_quantised(layer: nn.Module) -> bool:
    return "quantized" in type(layer).__module__


def _is_lazy(layer: nn.Module) -> bool:
    return any(is_lazy(tensor) for tensor in layer.parameters(recurse=False))


def _is_on_meta(layer: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in layer.parameters(recurse=False))


def _estimates_a_norm(layer: nn.Module) -> bool:
    kinds = {type(part).__name__ for part in (layer, *layer._forward_pre_hooks.values())}
    return layer.training and not kinds.isdisjoint({"SpectralNorm", "_SpectralNorm"})


_REASONS: "MappingProxyType[Callable[[nn.Module], bool], str]" = MappingProxyType(
    {
        _is_lazy: "does not know its shape yet. Call the model once on an example before you pass it.",
        _is_on_meta: "has no values, only shapes, on the device meta. Build the model without torch.device('meta').",
        _is_quantised: f"has integers for weights. {_UNQUANTISED}",
        lambda layer: isinstance(layer, nn.DataParallel | nn.parallel.DistributedDataParallel): (
            "spreads a batch over devices. Pass what it wraps: model.module."
        ),
        lambda layer: getattr(layer, "max_norm", None) is not None: (
            "shortens the rows that a batch looks up, which no noise covers. Build it without max_norm."
        ),
        lambda layer: getattr(layer, "sparse", None) is True: (
            "has sparse gradients, which noise makes dense. Build it without sparse=True."
        ),
        _estimates_a_norm: f"changes its estimate of a norm with every use. {_LARGEST_SINGULAR_VALUE}",
    }
)
