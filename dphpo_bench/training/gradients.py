"""The right engine for a model.

Measured on one core, as ratios to a step without privacy (docs/accounting.md): a linear head costs 1.1 in closed form.
Layer by layer, networks cost 1.0 to 1.4, perceptrons 2 to 3. One record at a time by vmap, which takes any model, they
cost 1.1 to 1.7, a small perceptron 20.
"""

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, call, converted, each, length, take
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.layerwise import LayerwiseEngine, layerwise_pays
from dphpo_bench.training.linear import LinearEngine, linear_layer
from dphpo_bench.training.losses import PerRecord, cross_entropy
from dphpo_bench.training.model_checks import made_up, perturbed
from dphpo_bench.training.vmap import VmapEngine

_TOLERANCE = 1e-3


def gradient_engine(
    model: nn.Module, loss: PerRecord = cross_entropy, *, like: Records | None = None, named: bool = False
) -> GradientEngine:
    """An engine for sums of clipped gradients of a model whose layers treat each record alone; others are refused.

    Args:
        model: trained as its parameters say.
        loss: per sample: (outputs, targets) → shape (n,).
        like: records as the model takes them, of which names, shapes, types and the device are used, not the values.
            Without, or if gradients that are computed layer by layer turn out wrong on made-up inputs, each record is
            taken alone.
        named: whether inputs or targets come by name; then there is no closed form.
    """
    if can_be_closed(model, loss, named or (like is not None and like.are_named)):
        return LinearEngine(model)
    if like is not None and layerwise_pays(model) and _is_right_layer_by_layer(model, loss, like):
        return LayerwiseEngine(model, loss)
    return VmapEngine(model, loss)


def can_be_closed(model: nn.Module, loss: PerRecord, named: bool) -> bool:
    """Whether there is a closed form: for linear classifiers with cross-entropy; see `gradient_engine`."""
    return loss is cross_entropy and not named and linear_layer(model) is not None


def _is_right_layer_by_layer(model: nn.Module, loss: PerRecord, like: Records) -> bool:
    """Whether sums layer by layer are those of one backward pass for each of some made-up records.

    Of six and of five: what has six rows by chance, of whatever records, has not five. Not if the model draws random
    numbers, so that no two passes can be compared.
    """
    probe = perturbed(model)
    inputs = made_up(probe, like.inputs)
    rows, first = length(inputs), next(probe.parameters())

    def zeros(tensor: Tensor) -> Tensor:
        return converted(tensor.new_zeros((rows, *tensor.shape[1:])), first.device, first.dtype)

    targets, fewer = each(zeros, like.targets), slice(rows - 1)
    try:
        with torch.random.fork_rng(devices=[]):
            engine = LayerwiseEngine(probe, loss)
            together = [engine.clipped_sum(inputs, targets, AutoS()) for _ in range(2)]
            some, theirs = (each(lambda tensor: take(tensor, fewer), part) for part in (inputs, targets))
            engine.clipped_sum(some, theirs, AutoS())
            expected = _one_by_one(probe, loss, inputs, targets)
    except (InvalidValueError, IndexError, RuntimeError, TypeError, ValueError):
        return False
    size = torch.cat([one.flatten() for one in expected]).norm()
    return 0 < size < torch.inf and all(
        torch.cat([(a - b).flatten() for a, b in zip(found, expected, strict=True)]).norm() <= _TOLERANCE * size
        for found in together
    )


def _one_by_one(model: nn.Module, loss: PerRecord, inputs: Tensors, targets: Tensors) -> list[Tensor]:
    """The sum of gradients clipped by AUTO-S, from one backward pass for each record."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter, dtype=torch.float64, requires_grad=False) for parameter in parameters]
    for row in range(length(inputs)):
        alone = slice(row, row + 1)
        x, y = (each(lambda tensor: take(tensor, alone), part) for part in (inputs, targets))  # noqa: B023 - used at once
        losses = loss(call(model, x), y)
        gradients = torch.autograd.grad(losses.sum(), parameters, allow_unused=True, materialize_grads=True)
        norm = torch.cat([gradient.flatten().double() for gradient in gradients]).norm()
        if norm.isfinite():
            torch._foreach_add_(total, [AutoS().factors(norm[None]) * gradient for gradient in gradients])
    return total
