"""Losses, which training minimises, and scores, which a search compares, of single records.

Each takes a model's outputs and the targets of n records and returns shape (n,), a function of each record alone.
Outputs are a tensor, or a mapping with a tensor called "logits".
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Tensors, each, leaves, plain
from dphpo_bench.base.text import shown
from dphpo_bench.training.functional import Level, fresh, ours

PerRecord = Callable[[Any, Any], Tensor]
"""(outputs, targets) → one number for each record, shape (n,)."""

IGNORED = -100
"""The target of a token that does not count, as in torch."""


def _undefined(*_: Any) -> float:
    return math.nan


@dataclass(frozen=True)
class Objective:
    """Losses and scores of a task.

    Attributes:
        losses: of each record, to be small.
        scores: of each record, in [0, 1], to be large.
        quality: (model, records) → the task's first metric, negative if less is better, NaN where it is undefined; set
            once `Session.nonprivate` has lent the records.
    """

    losses: PerRecord
    scores: PerRecord
    quality: Callable[..., float] = _undefined


def logits(outputs: Tensor | Mapping[str, Tensor]) -> Tensor:
    """Return the outputs as a single tensor."""
    if isinstance(outputs, Mapping) and "logits" not in outputs:
        raise InvalidValueError(
            f"Expected a model whose outputs are a tensor, or one of them called 'logits'; got "
            f"{shown(', '.join(outputs) or 'none')}. Return the logits."
        )
    return outputs["logits"] if isinstance(outputs, Mapping) else outputs


def matched(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Return the outputs without a last dimension of 1 that the targets do not have."""
    values = logits(outputs)
    return values.squeeze(-1) if values.ndim == targets.ndim + 1 and values.shape[-1] == 1 else values


def check_one_each(values: object, count: int, what: str) -> None:
    """Reject values that are not a number for each record."""
    if not isinstance(values, Tensor) or values.shape != (count,):
        form = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        is_mean = isinstance(values, Tensor) and values.ndim == 0
        way = ' If it is a mean or a sum, leave that out: reduction="none".' if is_mean else ""
        raise InvalidValueError(f"Expected one {what} for each record, shape ({count},), got {form}.{way}")


def of_one(values: PerRecord, what: str) -> PerRecord:
    """Return losses or scores of a single record, checked to be one number; an object keeps nothing of a record.

    Within vmap torch computes the losses of `BY_RECORD` faster for the rows of all records at once.
    """

    def checked(outputs: Any, targets: Any) -> Tensor:
        value = _of_all(values, tensors_of(outputs), targets) if values in BY_RECORD else None
        if value is None:
            value = fresh(values)(outputs, targets)
        check_one_each(value, 1, what)
        return value

    return checked


def tensors_of(outputs: Any) -> Any:
    """Return a model's outputs that are tensors, without the None of optional outputs."""
    if isinstance(outputs, Tensor):
        return plain(outputs)
    if not isinstance(outputs, Mapping):
        raise InvalidValueError(
            f"Expected a model whose outputs are a tensor, or several by name, got {type(outputs).__name__}. Return "
            "the tensor of logits."
        )
    return {name: plain(value) for name, value in outputs.items() if isinstance(value, Tensor)}


def cross_entropy(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Return the cross-entropy: outputs of shape (n, classes), targets (n,) of int64 → losses (n,)."""
    return functional.cross_entropy(logits(outputs), targets, reduction="none")


def binary_cross_entropy(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Return the mean binary cross-entropy over a record's labels; logits and targets of shape (n,) or (n, labels)."""
    margins = matched(outputs, targets)
    return _mean(functional.binary_cross_entropy_with_logits(margins, targets.to(margins.dtype), reduction="none"))


def squared_error(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Return the mean squared error over a record's values; outputs have the targets' shape (n,) or (n, values)."""
    return _mean((_alike(outputs, targets) - targets).square())


def token_cross_entropy(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over a record's tokens that count, 0 for a record without any.

    Args:
        outputs: shape (n, length, vocabulary).
        targets: shape (n, length), int64; `IGNORED` where a token does not count.
    """
    losses = functional.cross_entropy(logits(outputs).movedim(-1, 1), targets, reduction="none", ignore_index=IGNORED)
    return _share(losses, targets != IGNORED)


def correct_predictions(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Return 1 where the largest output is that of the class, else 0, also where an output is not finite."""
    values = logits(outputs)
    return ((values.argmax(1) == targets) & values.isfinite().all(1)).to(values.dtype)


def correct_labels(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Return the share of a record's labels that are right: logits above 0 mean 1. Shapes as `binary_cross_entropy`."""
    margins = _alike(outputs, targets)
    return _mean((((margins > 0) == (targets > 0.5)) & margins.isfinite()).to(margins.dtype))


def correct_tokens(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Return the share of a record's tokens that are right, 0 for a record without any; see `token_cross_entropy`."""
    values = logits(outputs)
    right = (values.argmax(-1) == targets) & values.isfinite().all(-1)
    return _share(right.to(values.dtype), targets != IGNORED)


def one_minus_error(bound: float) -> PerRecord:
    """Return a score: the mean of 1 − `|error|` / bound, at least 0, over a record's values. Shapes as `squared_error`.

    Args:
        bound: the error from which on the score is 0, from public knowledge.

    Raises:
        InvalidValueError: if it is not positive and finite.
    """
    if not 0 < bound < float("inf"):
        raise InvalidValueError(f"Expected bound > 0, got {bound}.")

    def scores(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return _mean((1 - (_alike(outputs, targets) - targets).abs() / bound).clamp(0, 1))

    return scores


READY: dict[str, Objective] = {
    "classification": Objective(cross_entropy, correct_predictions),
    "binary": Objective(binary_cross_entropy, correct_labels),
    "multilabel": Objective(binary_cross_entropy, correct_labels),
    "tokens": Objective(token_cross_entropy, correct_tokens),
}
"""Losses and scores by kind of task. For "regression" the loss is `squared_error`, and the score needs a bound."""


BY_RECORD: tuple[PerRecord, ...] = (cross_entropy, binary_cross_entropy, squared_error, token_cross_entropy)
"""Losses that compute each record's from its outputs alone, also of a whole batch."""


@ours
def _of_all(losses: PerRecord, outputs: Tensors, targets: Tensors) -> Tensor | None:
    """Return a record's loss, computed for all records at once; None outside of vmap, and if a tensor has no row."""
    parts = [*leaves(outputs), *leaves(targets)]
    level = Level.of(parts)
    if level is None or not all(part.dim() and len(part) == 1 for part in parts):
        return None
    rows = [each(lambda part: level.rows(part).squeeze(1), tensors) for tensors in (outputs, targets)]
    return level.record(losses(*rows)[:, None])


def _mean(values: Tensor) -> Tensor:
    """Return the mean of each record's values."""
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def _share(values: Tensor, counts: Tensor) -> Tensor:
    """Return the mean of each record's values where they count; 0 if none does."""
    values, counts = values.flatten(1), counts.flatten(1)
    return torch.where(counts, values, 0.0).sum(1) / counts.sum(1).clamp(min=1)


def _alike(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Return `matched`; reject outputs that broadcasting would mix among the records."""
    values = matched(outputs, targets)
    if values.shape != targets.shape:
        raise InvalidValueError(
            f"Expected outputs of the targets' shape {tuple(targets.shape)}, got {tuple(values.shape)}."
        )
    return values
