"""Noisy answers about losses and scores, each a function of values of single records (`Batch.release`).

Write a query of your own in the same way: values of one record, a bound, and the noise. The session holds each record's
values to the bound and charges the sum as a Gaussian of that sensitivity, before it computes anything.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.checks import positive
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import plain
from dphpo_bench.recipes.dp_sgd import trainable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dphpo_bench.session.batch import Batch
    from dphpo_bench.session.session import Session
    from dphpo_bench.training.values import RecordModel, Values


def mean_score(session: "Session", model: "nn.Module", noise_multiplier: float) -> float:
    """Return the noisy mean score of a session's records.

    Args:
        session: whose records are scored, by the task's scores, each held to [0, 1]; NaN counts as 0.
        model: is scored in the mode of evaluation.
        noise_multiplier: noise standard deviation of the sum, whose sensitivity is 1.
    """
    from dphpo_bench.training.evaluation import evaluating
    from dphpo_bench.training.values import scores

    with evaluating(model):
        (mean,) = session.release(model, scores, 1.0, noise_multiplier, purpose="score")
    return mean


def mean_losses(
    batch: "Batch",
    model: "nn.Module",
    direction: "Sequence[Tensor]",
    steps: Sequence[float],
    bound: float,
    noise_multiplier: float,
) -> list[float]:
    """Return noisy mean losses along a line, each record's held to [0, bound].

    Args:
        batch: answers k Gaussian queries.
        model: at weights w.
        direction: G, one tensor for each trainable parameter.
        steps: h₁, ..., h_k; loss j is taken at w − h_j · G.
        bound: R, of one record's loss; the sensitivity of each sum.
        noise_multiplier: noise standard deviation / bound, of each sum.

    Returns:
        k noisy means; the noise of each has standard deviation noise_multiplier · bound / (N · rate).
    """
    losses_of = _losses_along(model, direction, steps)

    def values(model: "RecordModel", inputs: Any, targets: Any) -> "Tensor":
        return losses_of(model, inputs, targets).clamp(min=0)

    k = len(steps)
    return batch.release(model, values, bound, noise_multiplier, count=k, passes=k, purpose="losses")


def mean_loss_changes(
    batch: "Batch",
    model: "nn.Module",
    direction: "Sequence[Tensor]",
    steps: Sequence[float],
    bound: float,
    noise_multiplier: float,
) -> list[float]:
    """Return noisy mean changes of the loss along a line, each record's held to [-bound, bound].

    Along a step a record's loss changes by far less than the loss itself, so a small bound, and little noise, is
    enough. Change j is the loss at w − h_j · G minus the loss at w; all else is as in `mean_losses`.
    """
    losses_of, k = _losses_along(model, direction, (0.0, *steps)), len(steps)

    def values(model: "RecordModel", inputs: Any, targets: Any) -> "Tensor":
        losses = losses_of(model, inputs, targets)
        return losses[:, 1:] - losses[:, :1]

    return batch.release(model, values, bound, noise_multiplier, count=k, passes=k + 1, purpose="losses")


def rising_share(
    batch: "Batch",
    model: "nn.Module",
    direction: "Sequence[Tensor]",
    steps: Sequence[float],
    factor: float,
    noise_multiplier: float,
) -> float:
    """Return the noisy share of records whose loss rises by more than a factor, averaged over points of a line.

    The batch releases Σ (bᵢ − 1/2), where bᵢ = 1 if record i's loss rises or is not finite anywhere, else 0. This sum
    has sensitivity 1/2 and is one Gaussian, however many steps there are. A unit's bᵢ is its records' mean.

    Args:
        batch: answers one Gaussian query.
        model: at weights w.
        direction: G, one tensor for each trainable parameter.
        steps: h₁, ..., h_k, at least one; a record's loss is averaged over w − h_j · G.
        factor: positive, in use above 1. A record counts if that average exceeds factor · its loss at w; or
            (2 − factor) · its loss, where that is negative.
        noise_multiplier: noise standard deviation / sensitivity of the sum.

    Returns:
        The share, which may lie outside [0, 1]. Its noise has standard deviation noise_multiplier / (2 · N · rate);
        the number of records drawn adds ½ √((1 − rate) / (N · rate)), whatever the share.

    Raises:
        InvalidValueError: if there is no step, or the factor is not positive and finite.
    """
    import torch

    factor = positive("factor", factor)
    if not len(steps):
        raise InvalidValueError("Expected at least one step to average losses over, got none.")
    losses_of = _losses_along(model, direction, (0.0, *steps))

    def values(model: "RecordModel", inputs: Any, targets: Any) -> "Tensor":
        losses = losses_of(model, inputs, targets)
        start, average = losses[:, 0], losses[:, 1:].mean(dim=1)
        most = torch.where(start < 0, (2 - factor) * start, factor * start)  # a rise by the same share of its size
        return 0.5 - (start.isfinite() & average.isfinite() & (average <= most)).double()

    (centred,) = batch.release(model, values, 0.5, noise_multiplier, passes=1 + len(steps), purpose="losses")
    return 0.5 + centred  # of the expected batch size, never of the drawn one


def second_moments(
    batch: "Batch",
    model: "nn.Module",
    directions: "Sequence[Sequence[Tensor]]",
    step: float,
    noise_multiplier: float,
) -> "Tensor":
    """Return the noisy mean of u uᵀ, where u is a record's gradient along k directions, scaled to length 1.

    Along a direction G it is the loss at w + h · G minus that at w − h · G. The batch releases the mean's k (k + 1) / 2
    numbers, those off the diagonal times √2, as one vector. A record's vector has length 1, or 0 where its losses do
    not differ or are not finite, so all are one Gaussian.

    Args:
        batch: answers one Gaussian query.
        model: at weights w.
        directions: G₁, ..., G_k, each one tensor for each trainable parameter.
        step: h.
        noise_multiplier: noise standard deviation / sensitivity of the sum.

    Returns:
        float64 on the CPU, shape (k, k), symmetric. Its noise has standard deviation τ = noise_multiplier / (N · rate)
        on the diagonal and τ/√2 beside it.
    """
    import torch

    lines, k = [_losses_along(model, direction, (step, -step)) for direction in directions], len(directions)
    rows, columns = torch.triu_indices(k, k)
    weights = torch.where(rows == columns, 1.0, math.sqrt(2))

    def values(model: "RecordModel", inputs: Any, targets: Any) -> "Tensor":
        sides = torch.stack([losses_of(model, inputs, targets) for losses_of in lines])
        u = torch.nn.functional.normalize((sides[..., 1] - sides[..., 0]).T, eps=1e-300).nan_to_num(0.0)
        return u[:, rows] * u[:, columns] * weights.to(u)

    released = batch.release(
        model, values, 1.0, noise_multiplier, count=len(rows), together=True, passes=2 * k, purpose="moments"
    )
    moments = torch.zeros(k, k, dtype=torch.float64)
    moments[rows, columns] = moments[columns, rows] = torch.tensor(released, dtype=torch.float64) / weights
    return moments


def _losses_along(model: "nn.Module", direction: "Sequence[Tensor]", steps: Sequence[float]) -> "Values":
    """Return a function (model, inputs, targets) → losses at w − h · direction for each h, float64 of shape (n, k)."""
    parts = [plain(tensor).detach() for tensor in direction]
    shapes, expected = ([tuple(tensor.shape) for tensor in tensors] for tensors in (parts, trainable(model)))
    if shapes != expected or any(tensor.is_meta for tensor in parts):
        raise InvalidValueError(f"Expected a direction of shapes {expected}, with values, got {shapes}.")
    line = tuple(map(float, steps))
    return lambda model, inputs, targets: model.losses_along(parts, line, inputs, targets)
