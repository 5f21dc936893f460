"""Losses and scores of single records: what a task is trained for, and what a search pays to see.

Each takes a model's outputs and the targets of n records and returns shape (n,), a function of each record alone.
Outputs are a tensor, or a mapping with a tensor called "logits".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import plain

PerRecord = Callable[[Any, Any], Tensor]
"""(outputs, targets) → one number for each record, shape (n,)."""

IGNORED = -100
"""The target of a token that does not count, as in torch."""


@dataclass(frozen=True)
class Objective:
    """What a task's models are trained for.

    Attributes:
        losses: of each record, to be small.
        scores: of each record, in [0, 1], to be large.
    """

    losses: PerRecord
    scores: PerRecord


def logits(outputs: Tensor | Mapping[str, Tensor]) -> Tensor:
    """The outputs as one tensor."""
    return outputs["logits"] if isinstance(outputs, Mapping) else outputs


def matched(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """The outputs in the shape of the targets: a last dimension of 1 may be there or not."""
    found = logits(outputs)
    return found.squeeze(-1) if found.ndim == targets.ndim + 1 and found.shape[-1] == 1 else found


def check_one_each(values: object, count: int, what: str) -> None:
    """Refuse values that are not one number for each record."""
    if not isinstance(values, Tensor) or values.shape != (count,):
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise InvalidValueError(f"Expected one {what} for each record, shape ({count},), got {found}.")


def tensors_of(outputs: Any) -> Any:
    """A model's outputs that are tensors, without the None of an output that was not asked for.

    Raises:
        InvalidValueError: if one is of a subclass, whose code would see the targets.
    """
    if isinstance(outputs, Tensor):
        return plain(outputs)
    return {name: plain(value) for name, value in outputs.items() if isinstance(value, Tensor)}


def cross_entropy(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Cross-entropy: outputs of shape (n, classes), targets (n,) of int64 → losses (n,)."""
    return functional.cross_entropy(logits(outputs), targets, reduction="none")


def binary_cross_entropy(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Binary cross-entropy of logits, shape (n,) or (n, labels) as the targets; its mean over a record's labels."""
    found = matched(outputs, targets)
    return _mean(functional.binary_cross_entropy_with_logits(found, targets.to(found.dtype), reduction="none"))


def squared_error(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Squared error, shape (n,) or (n, values) as the targets; its mean over a record's values."""
    return _mean((_alike(outputs, targets) - targets).square())


def token_cross_entropy(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Cross-entropy of tokens: its mean over a record's own tokens, 0 for a record without any.

    Args:
        outputs: shape (n, length, vocabulary).
        targets: shape (n, length), int64; `IGNORED` where a token does not count.
    """
    losses = functional.cross_entropy(logits(outputs).movedim(-1, 1), targets, reduction="none", ignore_index=IGNORED)
    return _share(losses, targets != IGNORED)


def correct(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """1 where the largest output is that of the class, else 0, also where an output is not finite."""
    found = logits(outputs)
    return ((found.argmax(1) == targets) & found.isfinite().all(1)).to(found.dtype)


def correct_labels(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """The share of a record's labels that are right: positive logits are for 1. Shapes as `binary_cross_entropy`."""
    found = _alike(outputs, targets)
    return _mean((((found > 0) == (targets > 0.5)) & found.isfinite()).to(found.dtype))


def correct_tokens(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """The share of a record's own tokens that are right, 0 for a record without any; see `token_cross_entropy`."""
    found = logits(outputs)
    right = (found.argmax(-1) == targets) & found.isfinite().all(-1)
    return _share(right.to(found.dtype), targets != IGNORED)


def one_minus_error(bound: float) -> PerRecord:
    """1 − `|error|` / bound, at least 0; its mean over a record's values. Shapes as `squared_error`.

    Args:
        bound: the error that is as bad as any larger one, from public knowledge.

    Raises:
        InvalidValueError: if it is not positive and finite.
    """
    if not 0 < bound < float("inf"):
        raise InvalidValueError(f"Expected bound > 0, got {bound}.")

    def scores(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return _mean((1 - (_alike(outputs, targets) - targets).abs() / bound).clamp(0, 1))

    return scores


READY: dict[str, Objective] = {
    "classification": Objective(cross_entropy, correct),
    "binary": Objective(binary_cross_entropy, correct_labels),
    "multilabel": Objective(binary_cross_entropy, correct_labels),
    "tokens": Objective(token_cross_entropy, correct_tokens),
}
"""By kind of task. For "regression" the loss is `squared_error`, and the score needs a bound."""


def _mean(values: Tensor) -> Tensor:
    """The mean of each record's values."""
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def _share(values: Tensor, counts: Tensor) -> Tensor:
    """The mean of each record's values where they count; 0 if none does."""
    values, counts = values.flatten(1), counts.flatten(1)
    return torch.where(counts, values, 0.0).sum(1) / counts.sum(1).clamp(min=1)


def _alike(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """`matched`, refused where broadcasting would let each record count in all the others."""
    found = matched(outputs, targets)
    if found.shape != targets.shape:
        raise InvalidValueError(
            f"Expected outputs of the targets' shape {tuple(targets.shape)}, got {tuple(found.shape)}."
        )
    return found
