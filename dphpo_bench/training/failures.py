"""Exceptions of models that are tried on made-up records, as lines that name the layer."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.tensors import Tensors, leaves
from dphpo_bench.base.text import one_line

ASKS_FOR_EXAMPLE = "If it needs certain values, give inputs of a public record: example=."
_MOST = 160


@contextmanager
def tried(inputs: Tensors, *, asks_for_example: bool = False) -> Iterator[None]:
    """Raise what a model raises as an `InvalidValueError` of one line. No private records may be in use.

    Args:
        inputs: of the shapes that the model is tried on.
        asks_for_example: whether other values than made-up ones may help.
    """
    try:
        yield
    except DphpoBenchError:
        raise
    except Exception as error:  # whatever a model raises
        shapes = ", ".join(str((1, *tensor.shape[1:])) for tensor in leaves(inputs))
        way = f" {ASKS_FOR_EXAMPLE}" if asks_for_example else ""
        raise InvalidValueError(
            f"The model fails on made-up records of shape {shapes}{described(error, inputs)}{way}"
        ) from None


def described(error: Exception, inputs: Tensors) -> str:
    """Return where a model raised an exception, what it says in its first line, and what may help."""
    modules = _modules(error)
    layer = modules[-1] if modules else None
    name = next((name for name, module in modules[0].named_modules() if module is layer), "") if modules else ""
    place = f" in {name!r} ({type(layer).__name__})" if name else f" in {type(layer).__name__}" if layer else ""
    text = next((line for line in str(error).splitlines() if line.strip()), "no text")
    kind = "" if isinstance(error, RuntimeError | ValueError) else f"{type(error).__name__}: "
    hint = _hint_at_layout(modules, inputs)
    if not hint and is_about_types(error):
        is_lookup = isinstance(layer, nn.Embedding | nn.EmbeddingBag)
        hint = "Pass its ids as integers." if is_lookup else "model.float() makes a model of one type."
    elif not hint and isinstance(layer, nn.Linear):
        hint = f"It takes {layer.in_features} numbers in the last dimension."
    if not hint and isinstance(error, TypeError) and "argument" in str(error):
        hint = "A model gets its inputs, several by name, and no labels: losses= makes losses of its outputs."
    hint = hint or "A model takes any number of records, in the first dimension."
    return f"{place}: {kind}{one_line(text, _MOST).rstrip('.')}. {hint}"


def is_about_types(error: Exception) -> bool:
    """Return whether a layer met integers where it takes floating-point numbers."""
    return re.search(r"dtype|Input type|scalar type|not implemented for", str(error)) is not None


def _modules(error: Exception) -> list[nn.Module]:
    """Return the modules whose code an exception passed, the innermost last."""
    modules, trace = [], error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            modules.append(module)
        trace = trace.tb_next
    return modules


def _hint_at_layout(modules: list[nn.Module], inputs: Tensors) -> str:
    """Return a sentence about the order of dimensions, if the first layer is a convolution that may miss one."""
    layers = [layer for layer in modules[0].modules() if not [*layer.children()]] if modules else []
    if not layers or not isinstance(layers[0], nn.modules.conv._ConvNd) or not isinstance(inputs, Tensor):
        return ""
    channels, places, shape = layers[0].in_channels, len(layers[0].kernel_size), inputs.shape[1:]
    if len(shape) == places + 1 and shape[-1] == channels != shape[0]:
        return f"Channels last? permute{(0, places + 1, *range(1, places + 1))} puts them first."
    if len(shape) == places and channels == 1:
        return "Are the channels missing? inputs[:, None] adds a dimension for one."
    if modules[-1] is layers[0]:
        return f"It takes inputs of shape (n, {channels}{', size' * places})."
    return ""
