"""Outputs of a model, a few records at a time, cut to their lengths.

A model whose outputs depend on the beginning of a record alone may tell its length, by a method `lengths_of(inputs)`:
whole numbers, shape (n,), for inputs of shape (n, length, ...). Records of the same length then share micro-batches and
are cut to it. Each length is rounded up to a multiple of four, by that record alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, call, each, gathered, joined, leaves, length, single, take
from dphpo_bench.training.alone import Alone
from dphpo_bench.training.losses import IGNORED, check_one_each, tensors_of

_MULTIPLE = 4
_ROWS = 512
_TOLERANCE = 1e-3


def says_lengths(model: nn.Module, inputs: Tensors) -> bool:
    """Return whether the model tells the lengths of records with such inputs."""
    return isinstance(inputs, Tensor) and inputs.dim() > 1 and callable(getattr(model, "lengths_of", None))


def lengths_of(model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
    """Return lengths to cut records to, with all that the model needs and all targets that count: int64, shape (n,)."""
    inputs = single(inputs)
    whole = inputs.shape[1]
    needed: Tensor = Alone(lambda model, x: model.lengths_of(x), model)(inputs)
    check_one_each(needed, len(inputs), "length")
    needed = needed.long()
    if _are_by_place(targets, inputs):
        needed = torch.maximum(needed, last_place(single(targets) != IGNORED).to(needed.device))
    return (-(-needed // _MULTIPLE) * _MULTIPLE).clamp(min(_MULTIPLE, whole), whole)


def by_length(
    model: nn.Module, inputs: Tensors, targets: Tensors, indices: Tensor | None, rows: int
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield pieces of a batch, each of records of the same length: places in the batch, indices, and the length.

    Args:
        indices: the batch in it; None: all of it.
        rows: the most records of a piece.
    """
    batch = torch.arange(length(inputs)) if indices is None else indices
    lengths = lengths_at(model, inputs, targets, batch)
    for size in torch.unique(lengths).tolist():
        for places in (lengths == size).nonzero()[:, 0].split(rows):
            yield places, batch[places.to(batch.device)], size


def lengths_at(model: nn.Module, inputs: Tensors, targets: Tensors, rows: Tensor) -> Tensor:
    """Return `lengths_of` for these rows of a whole dataset, a few at a time, on the CPU."""
    lengths = [torch.empty(0, dtype=torch.int64)]
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        x, y = (each(partial(take, rows=some), data) for data in (inputs, targets))
        lengths.append(lengths_of(model, x, y).cpu())
    return torch.cat(lengths)


def last_place(counts: Tensor) -> Tensor:
    """Return the number of the last place that counts, from 1 on; 0 where none does.

    Args:
        counts: shape (n, length), bool.
    """
    return (counts * torch.arange(1, counts.shape[1] + 1, device=counts.device)).amax(1)


def cut(inputs: Tensors, targets: Tensors, rows: Tensor, size: int) -> tuple[Tensors, Tensors]:
    """Return some records cut to a length, with their targets, which are cut if there is one for each place.

    Records are cut before they are taken, so that copies have no gaps: of inputs with gaps a linear layer would make a
    product for each record.
    """
    inputs = single(inputs)
    if _are_by_place(targets, inputs):
        targets = single(targets)[:, :size]
    return take(inputs[:, :size], rows), each(partial(take, rows=rows), targets)


def _are_by_place(targets: Tensors, inputs: Tensor) -> bool:
    return isinstance(targets, Tensor) and targets.dim() == 2 and targets.shape == inputs.shape[:2]


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


def refuse_wrong_lengths(model: nn.Module, inputs: Tensors) -> None:
    """Reject a model whose outputs for made-up records depend on what comes behind the lengths that it tells."""
    if not says_lengths(model, inputs):
        return
    for padding in (0, 1):  # token ids of padding, as a rule
        texts = single(inputs).clone()
        n, longest = texts.shape[:2]
        for row in range(n):
            # Of a multiple of the lengths to cut to, and a place more: one that is told too short is cut.
            texts[row, row * longest // n // _MULTIPLE * _MULTIPLE + min(row, 1) :] = padding
        records = Records(texts, torch.zeros(n))
        complete = leaves(all_outputs(model, records))
        for places, outputs, _ in outputs_of(model, records):
            for tensor, short in zip(complete, leaves(each(Tensor.cpu, outputs)), strict=True):
                some = tensor[places]
                some = some if some.shape == short.shape else some[:, : short.shape[1]]  # an output for each place
                if some.shape != short.shape or bool((some - short).abs().max() > _TOLERANCE * tensor.abs().max()):
                    raise InvalidValueError(
                        "Expected outputs that do not depend on what comes after a record's length as lengths_of tells "
                        "it; they change when it is left out. Correct lengths_of, or remove it."
                    )
