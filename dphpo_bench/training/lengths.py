"""Texts without what fills them up: it changes no output, and would cost as much as words do.

A model whose outputs depend on the beginning of a record alone may say how long that is, by a method
`lengths_of(inputs)`: whole numbers, shape (n,), for inputs of shape (n, length, ...). Records of one length then share
micro-batches and are cut to it. Lengths are rounded up to a multiple of four, and by a rule that looks at one record
alone, so that no record decides where another one is cut.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Tensors, call, each, leaves, length, single, take
from dphpo_bench.training.losses import IGNORED, check_one_each, tensors_of

_MULTIPLE = 4
_ROWS = 512
_TOLERANCE = 1e-3


def says_lengths(model: nn.Module, inputs: Tensors) -> bool:
    """Whether the model says how long records are that have such inputs."""
    return isinstance(inputs, Tensor) and inputs.dim() > 1 and callable(getattr(model, "lengths_of", None))


def lengths_of(model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
    """What records are cut to: all that the model needs and all targets that count, int64 of shape (n,).

    Raises:
        InvalidValueError: if what the model says is not one whole number for each record.
    """
    inputs = single(inputs)
    found, whole = _said(model, inputs), inputs.shape[1]
    if _are_by_place(targets, inputs):
        found = torch.maximum(found, last_place(single(targets) != IGNORED).to(found.device))
    return (-(-found // _MULTIPLE) * _MULTIPLE).clamp(min(_MULTIPLE, whole), whole)


def by_length(
    model: nn.Module, inputs: Tensors, targets: Tensors, indices: Tensor | None, rows: int
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """A batch in pieces, each of records that are cut to one length.

    Args:
        model: one that says lengths.
        inputs: of a whole dataset.
        targets: likewise.
        indices: the batch in it; None: all of it.
        rows: the most records of a piece.

    Yields:
        Of each piece the places in the batch, the indices into the dataset, and the length; see `cut`.
    """
    batch = torch.arange(length(inputs)) if indices is None else indices
    lengths = lengths_at(model, inputs, targets, batch)
    for one in torch.unique(lengths).tolist():
        for places in (lengths == one).nonzero()[:, 0].split(rows):
            yield places, batch[places.to(batch.device)], one


def lengths_at(model: nn.Module, inputs: Tensors, targets: Tensors, rows: Tensor) -> Tensor:
    """Return `lengths_of` for these rows of a whole dataset, a few at a time, on the CPU."""
    found = [torch.empty(0, dtype=torch.int64)]
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        x, y = (each(partial(take, rows=some), data) for data in (inputs, targets))
        found.append(lengths_of(model, x, y).cpu())
    return torch.cat(found)


def last_place(counts: Tensor) -> Tensor:
    """The number of the last place that counts, from 1 on; 0 where none does.

    Args:
        counts: shape (n, length), bool.
    """
    return (counts * torch.arange(1, counts.shape[1] + 1, device=counts.device)).amax(1)


def cut(inputs: Tensors, targets: Tensors, rows: Tensor, size: int) -> tuple[Tensors, Tensors]:
    """Some records cut to a length, and their targets likewise if there is one for each place.

    Cut before they are taken: what fills them up is not even copied, and what is copied has no gaps. Of inputs with
    gaps a linear layer would make one product for each record.
    """
    inputs = single(inputs)
    if _are_by_place(targets, inputs):
        targets = single(targets)[:, :size]
    return take(inputs[:, :size], rows), each(partial(take, rows=rows), targets)


def refuse_wrong_lengths(model: nn.Module, inputs: Tensors) -> None:
    """Refuse a model whose outputs depend on what comes after the length that it says, or whose lengths on others.

    Where it draws random numbers, outputs are not compared.

    Args:
        model: at weights that hide nothing, in the mode that is to be tried.
        inputs: made-up ones, of at least two records.
    """
    if not says_lengths(model, inputs):
        return
    for filler in (0, 1):  # what texts are filled up with is one of these, as a rule
        given = single(inputs).clone()
        n, whole = given.shape[:2]
        for row in range(n):
            given[row, row * whole // n :] = filler
        lengths = _said(model, given).clamp(1, whole)
        if not torch.equal(
            lengths, torch.cat([_said(model, given[row : row + 1]) for row in range(n)]).clamp(1, whole)
        ):
            raise InvalidValueError("Expected lengths_of to tell each record's length by that record alone.")
        if all(map(torch.equal, _outputs(model, given), _outputs(model, given))):  # else it draws random numbers
            for row, size in enumerate(lengths.tolist()):
                one = given[row : row + 1]
                try:
                    pairs = [*zip(_outputs(model, one), _outputs(model, one[:, :size]), strict=True)]
                except (IndexError, RuntimeError, ValueError):
                    raise InvalidValueError(
                        f"Expected a model that takes records of any length, since it has lengths_of; one of {size} "
                        "fails. Mend it, or remove lengths_of."
                    ) from None
                if any(_differ(complete, cut, size) for complete, cut in pairs):
                    raise InvalidValueError(
                        "Expected outputs that do not depend on what comes after a record's length as lengths_of tells "
                        "it; they change when it is left out. Correct lengths_of, or remove it."
                    )


def _outputs(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    return leaves(tensors_of(call(model, inputs.clone())))  # to which it may write


def _differ(complete: Tensor, cut: Tensor, size: int) -> bool:
    some = complete if complete.shape == cut.shape else complete[:, :size]  # one output for each place
    return some.shape != cut.shape or bool((some - cut).abs().max() > _TOLERANCE * complete.abs().max())


def _said(model: nn.Module, inputs: Tensor) -> Tensor:
    found: Any = model.lengths_of(inputs.clone())  # type: ignore[operator]
    check_one_each(found, len(inputs), "length")
    if found.dtype not in (torch.int64, torch.int32):
        raise InvalidValueError(f"Expected lengths_of to give whole numbers, int64, got {found.dtype}.")
    lengths: Tensor = found.long()
    return lengths


def _are_by_place(targets: Tensors, inputs: Tensor) -> bool:
    return isinstance(targets, Tensor) and targets.dim() == 2 and targets.shape == inputs.shape[:2]
