"""Outputs and scores of a model, a few records at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.tensors import Records, Tensors, call, each, gathered, leaves, length
from dphpo_bench.training.lengths import by_length, cut, says_lengths
from dphpo_bench.training.losses import PerRecord, check_one_each, tensors_of

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


def outputs_of(model: nn.Module, records: Records, rows: Tensor | None = None) -> Iterator[tuple[Any, Tensors]]:
    """Yield outputs and targets of the records, or of some `rows` of them, in pieces, on the device of the model.

    The model must have parameters and is in the mode of evaluation. Inputs and targets are copies, to which the model
    and the caller may write, except for inputs that only torch's code sees.
    """
    like = next(model.parameters())
    count = len(records) if rows is None else len(rows)
    at_once, copy = rows_at_once(model, ROWS), not only_reads(model)
    for start in range(0, count, at_once):
        piece = slice(start, start + at_once)
        taken = partial(gathered, rows=piece if rows is None else rows[piece], device=like.device, dtype=like.dtype)
        inputs = each(partial(taken, copy=copy), records.inputs)
        with evaluating(model):
            outputs = call(model, inputs)
        yield outputs, each(taken, records.targets)


def outputs_by_length(model: nn.Module, records: Records, rows: Tensor | None = None) -> Iterator[tuple[Any, Tensors]]:
    """Yield `outputs_of` in any order, without the padding of records if the model says how long they are."""
    for _, outputs, targets in _placed_outputs(model, records, rows):
        yield outputs, targets


def _placed_outputs(
    model: nn.Module, records: Records, rows: Tensor | None
) -> Iterator[tuple[slice | Tensor, Any, Tensors]]:
    """Yield `outputs_by_length`, each piece with its places among all of them."""
    if not says_lengths(model, records.inputs):
        start = 0
        for outputs, targets in outputs_of(model, records, rows):
            end = start + length(targets)
            yield slice(start, end), outputs, targets
            start = end
        return
    like = next(model.parameters())
    for places, piece, size in by_length(model, records.inputs, records.targets, rows, rows_at_once(model, ROWS)):
        some = Records(*cut(records.inputs, records.targets, piece, size)).to(like.device, like.dtype)
        with evaluating(model):
            outputs = call(model, some.inputs)
        yield places, outputs, some.targets


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
    pieces: list[Any] = [each(Tensor.cpu, tensors_of(outputs)) for outputs, _ in outputs_of(model, records)]
    first = pieces[0]
    if isinstance(first, Tensor):
        return torch.cat([leaves(piece)[0] for piece in pieces])
    return {name: torch.cat([piece[name] for piece in pieces]) for name in first}


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
    total = 0.0
    for places, outputs, targets in _placed_outputs(model, records, rows):
        count, values = length(targets), scores(outputs, targets)  # counted first: scores may write to the targets
        check_one_each(values, count, "score")
        clipped = values.double().nan_to_num(nan=0.0).clamp(0.0, 1.0)
        total += float((clipped if shares is None else clipped * shares[places].to(clipped.device)).sum())
    return total
