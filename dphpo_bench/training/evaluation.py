"""Outputs of a model, a few records at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.tensors import Records, Tensors, call, each, gathered, joined
from dphpo_bench.training.alone import Alone
from dphpo_bench.training.lengths import by_length, cut, says_lengths
from dphpo_bench.training.losses import tensors_of

ROWS = 1024


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in the mode of evaluation, without gradients; then each module in its earlier mode.

    Unlike `model.train()`, this leaves layers that were frozen by `eval()` frozen.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def outputs_of(
    model: nn.Module, records: Records, rows: Tensor | None = None, *, whole: bool = False
) -> Iterator[tuple[slice | Tensor, Any, Tensors]]:
    """Yield outputs and targets of pieces of the records, or of some `rows`, each with its places among all of them.

    They are on the device of the model, which must have parameters and is in the mode of evaluation. The model gets
    each record alone; of several outputs by name, those that are tensors are yielded. Inputs and targets are copies, to
    which the model and the caller may write, except for inputs that only torch's code sees. If the model says how long
    records are, pieces come in any order and without padding, unless they are to be `whole`.
    """
    compute = Alone(lambda model, x: tensors_of(call(model, x)), model)
    for places, some in pieces_of(model, records, rows, ROWS, whole=whole, copy=not only_reads(model)):
        with evaluating(model):
            outputs = compute(some.inputs)
        yield places, outputs, some.targets


def pieces_of(
    model: nn.Module, records: Records, rows: Tensor | None, most: int, *, whole: bool = False, copy: bool = True
) -> Iterator[tuple[slice | Tensor, Records]]:
    """Yield pieces of the records, of `most` rows or fewer, on the device of the model; see `outputs_of`.

    Inputs are copies, unless neither code of the model nor of the caller writes to them.
    """
    like, at_once = next(model.parameters()), rows_at_once(model, most)
    if says_lengths(model, records.inputs) and not whole:
        for chosen, piece, size in by_length(model, records.inputs, records.targets, rows, at_once):
            yield chosen, Records(*cut(records.inputs, records.targets, piece, size)).to(like.device, like.dtype)
        return
    for start in range(0, len(records) if rows is None else len(rows), at_once):
        places = slice(start, start + at_once)
        taken = partial(gathered, rows=places if rows is None else rows[places], device=like.device, dtype=like.dtype)
        yield places, Records(each(partial(taken, copy=copy), records.inputs), each(taken, records.targets))


def rows_at_once(model: nn.Module, most: int) -> int:
    """Return how many records a model takes at once: `most`, or fewer if its attribute `rows_at_once` says so."""
    rows = getattr(model, "rows_at_once", most)
    return min(most, rows) if isinstance(rows, int) and rows > 0 else most


def only_reads(model: nn.Module) -> bool:
    """Return whether torch's own linear layer comes first, so that no other code can write to the inputs.

    A copy of the inputs would take as long as the outputs do.
    """
    if nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]
        return False
    layers = [model]
    for layer in layers:
        if layer._forward_pre_hooks or layer._forward_hooks or "forward" in vars(layer):
            return False
        if type(layer) is nn.Linear:
            return True
        if type(layer) is nn.Sequential and len(layers) == 1:
            layers += layer
        elif type(layer) is not nn.Flatten:
            return False
    return False


def all_outputs(model: nn.Module, records: Records) -> Any:
    """Return the outputs for at least one record, on the CPU; of several by name, those that are tensors."""
    return joined([each(Tensor.cpu, tensors_of(some)) for _, some, _ in outputs_of(model, records, whole=True)])
