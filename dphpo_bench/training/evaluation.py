"""A model's outputs and scores for records, a few at a time."""

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
    """The model in the mode of evaluation, without gradients; then each module in the mode it was in.

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
    """Outputs and targets of the records, or of some `rows` of them, in pieces.

    They are on the device of the model, which must have parameters and is in the mode of evaluation. The model and
    whoever gets the targets may write to them: they are copies, except for inputs that only torch's code sees.
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
    """`outputs_of` in any order, and without what fills records up if the model says how long they are."""
    for _, outputs, targets in _placed_outputs(model, records, rows):
        yield outputs, targets


def _placed_outputs(
    model: nn.Module, records: Records, rows: Tensor | None
) -> Iterator[tuple[slice | Tensor, Any, Tensors]]:
    """`outputs_by_length`, each piece with its places among all of them."""
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
    """How many records a model is given at once: `most`, or fewer if it says so by an attribute `rows_at_once`."""
    own = getattr(model, "rows_at_once", most)
    return min(most, own) if isinstance(own, int) and own > 0 else most


def only_reads(model: nn.Module) -> bool:
    """Return whether torch's own linear layer comes first: no other code sees the inputs, so nothing writes to them.

    Such a model needs no copy of its inputs, which would take as long as its outputs do.
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
    """The outputs for at least one record, on the CPU; of several by name, those that are tensors."""
    pieces: list[Any] = [each(Tensor.cpu, tensors_of(outputs)) for outputs, _ in outputs_of(model, records)]
    first = pieces[0]
    if isinstance(first, Tensor):
        return torch.cat([leaves(piece)[0] for piece in pieces])
    return {name: torch.cat([piece[name] for piece in pieces]) for name in first}


def total_score(
    model: nn.Module, scores: PerRecord, records: Records, rows: Tensor | None = None, shares: Tensor | None = None
) -> float:
    """The sum of all scores, each held to [0, 1], so that one record changes it by at most 1; NaN counts as 0.

    Args:
        model: see `outputs_of`.
        scores: (outputs, targets) → each record's score.
        records: of which the scores are.
        rows: of the records that count; None: all.
        shares: what each of these counts for, float64 of shape (n,); see `Units.shares`. None: 1.

    Raises:
        InvalidValueError: if there is not one score for each record.
    """
    total = 0.0
    for places, outputs, targets in _placed_outputs(model, records, rows):
        count, found = length(targets), scores(outputs, targets)
        check_one_each(found, count, "score")
        held = found.double().nan_to_num(nan=0.0).clamp(0.0, 1.0)
        total += float((held if shares is None else held * shares[places].to(held.device)).sum())
    return total
