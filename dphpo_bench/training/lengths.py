"""Texts without what fills them up: it changes no output, and would cost as much as words do.

A model whose outputs depend on the beginning of a record alone may say how long that is, by a method
`lengths_of(inputs)`: whole numbers, shape (n,), for inputs of shape (n, length, ...). Records of one length then share
micro-batches and are cut to it. Lengths are rounded up to a multiple of four, and by a rule that looks at one record
alone, so that no record decides where another one is cut.
"""

from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Tensors, call, leaves, single
from dphpo_bench.training.evaluation import check_one_each, tensors_of
from dphpo_bench.training.losses import IGNORED

_MULTIPLE = 4
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


def last_place(counts: Tensor) -> Tensor:
    """The number of the last place that counts, from 1 on; 0 where none does.

    Args:
        counts: shape (n, length), bool.
    """
    return (counts * torch.arange(1, counts.shape[1] + 1, device=counts.device)).amax(1)


def shortened(inputs: Tensors, targets: Tensors, length: int) -> tuple[Tensors, Tensors]:
    """Records cut to a length, and their targets if there is one for each place."""
    inputs = single(inputs)
    return inputs[:, :length], single(targets)[:, :length] if _are_by_place(targets, inputs) else targets


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
            for row, length in enumerate(lengths.tolist()):
                one = given[row : row + 1]
                try:
                    pairs = [*zip(_outputs(model, one), _outputs(model, one[:, :length]), strict=True)]
                except (IndexError, RuntimeError, ValueError):
                    raise InvalidValueError(
                        f"Expected a model that takes records of any length, since it has lengths_of; one of {length} "
                        "fails. Mend it, or remove lengths_of."
                    ) from None
                if any(_differ(complete, cut, length) for complete, cut in pairs):
                    raise InvalidValueError(
                        "Expected outputs that do not depend on what comes after a record's length as lengths_of tells "
                        "it; they change when it is left out. Correct lengths_of, or remove it."
                    )


def _outputs(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    return leaves(tensors_of(call(model, inputs)))


def _differ(complete: Tensor, cut: Tensor, length: int) -> bool:
    some = complete if complete.shape == cut.shape else complete[:, :length]  # one output for each place
    return some.shape != cut.shape or bool((some - cut).abs().max() > _TOLERANCE * complete.abs().max())


def _said(model: nn.Module, inputs: Tensor) -> Tensor:
    found: Any = model.lengths_of(inputs)  # type: ignore[operator]
    check_one_each(found, len(inputs), "length")
    if found.dtype not in (torch.int64, torch.int32):
        raise InvalidValueError(f"Expected lengths_of to give whole numbers, int64, got {found.dtype}.")
    lengths: Tensor = found.long()
    return lengths


def _are_by_place(targets: Tensors, inputs: Tensor) -> bool:
    return isinstance(targets, Tensor) and targets.dim() == 2 and targets.shape == inputs.shape[:2]
