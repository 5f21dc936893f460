"""Outputs and scores of a model, a few records at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.tensors import Records, Tensors, call, each, gathered, joined
from dphpo_bench.training.alone import Alone
from dphpo_bench.training.lengths import by_length, cut, says_lengths
from dphpo_bench.training.losses import PerRecord, of_one, tensors_of

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
    for places, some in _pieces(model, records, rows, whole):
        with evaluating(model):
            outputs = compute(some.inputs)
        yield places, outputs, some.targets


def _pieces(
    model: nn.Module, records: Records, rows: Tensor | None, whole: bool
) -> Iterator[tuple[slice | Tensor, Records]]:
    """Yield pieces of the records; see `outputs_of`."""
    like, at_once = next(model.parameters()), rows_at_once(model, ROWS)
    if says_lengths(model, records.inputs) and not whole:
        for chosen, piece, size in by_length(model, records.inputs, records.targets, rows, at_once):
            yield chosen, Records(*cut(records.inputs, records.targets, piece, size)).to(like.device, like.dtype)
        return
    copy = not only_reads(model)
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


def total_score(
    model: nn.Module, scores: PerRecord, records: Records, rows: Tensor | None = None, shares: Tensor | None = None
) -> float:
    """Return the sum of all scores, each clipped to [0, 1], so that a record changes it by at most 1; NaN counts as 0.

    Args:
        model: see `outputs_of`.
        scores: (outputs, targets) → each record's score.
        records: the records.
        rows: of the records that count; None: all.
        shares: weights of these records, float64 of shape (n,); see `Units.shares`. None: 1.

    Raises:
        InvalidValueError: if there is not one score for each record.
    """
    total, score = 0.0, of_one(scores, "score")
    compute = Alone(lambda model, x, y: score(call(model, x), y), model)
    for places, some in _pieces(model, records, rows, whole=False):
        with evaluating(model):
            values = compute(some.inputs, some.targets)
        clipped = values.double().nan_to_num(nan=0.0).clamp(0.0, 1.0)
        total += float((clipped if shares is None else clipped * shares[places].to(clipped.device)).sum())
    return total
