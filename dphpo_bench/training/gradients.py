"""Choice of the engine for a model.

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
from dphpo_bench.training.rare_classes import ClassWeighted
from dphpo_bench.training.vmap import VmapEngine

_TOLERANCE = 1e-3


def gradient_engine(
    model: nn.Module, loss: PerRecord = cross_entropy, *, like: Records | None = None, named: bool = False
) -> GradientEngine:
    """Return an engine for a model whose layers treat each record alone; reject other models.

    Args:
        model: trained as its parameters say.
        loss: per sample: (outputs, targets) → shape (n,). Of a `ClassWeighted` loss gradients are weighed once clipped.
        like: records for their names, shapes, types and device; their values are not used. Without, or if gradients
            layer by layer are wrong on made-up inputs, the engine takes each record alone.
        named: whether inputs or targets come by name; then there is no closed form.
    """
    if isinstance(loss, ClassWeighted):
        engine = gradient_engine(model, loss.plain, like=like, named=named)
        engine.class_weights = loss.weights
        return engine
    if can_be_closed(model, loss, named or (like is not None and like.are_named)):
        return LinearEngine(model)
    if like is not None and layerwise_pays(model) and _is_right_layer_by_layer(model, loss, like):
        return LayerwiseEngine(model, loss)
    return VmapEngine(model, loss)


def can_be_closed(model: nn.Module, loss: PerRecord, named: bool) -> bool:
    """Return whether there is a closed form, as for linear classifiers with cross-entropy."""
    return loss is cross_entropy and not named and linear_layer(model) is not None


def _is_right_layer_by_layer(model: nn.Module, loss: PerRecord, like: Records) -> bool:
    """Return whether sums layer by layer are those of a backward pass for each of some made-up records.

    Six and five records are tried: a tensor that has six rows by chance has not five. A model that draws random numbers
    does not pass, since no two passes can be compared.
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
            some, fewer_targets = (each(lambda tensor: take(tensor, fewer), part) for part in (inputs, targets))
            engine.clipped_sum(some, fewer_targets, AutoS())
            expected = _one_by_one(probe, loss, inputs, targets)
    except (InvalidValueError, IndexError, RuntimeError, TypeError, ValueError):
        return False
    size = torch.cat([part.flatten() for part in expected]).norm()
    return 0 < size < torch.inf and all(
        torch.cat([(a - b).flatten() for a, b in zip(sums, expected, strict=True)]).norm() <= _TOLERANCE * size
        for sums in together
    )


def _one_by_one(model: nn.Module, loss: PerRecord, inputs: Tensors, targets: Tensors) -> list[Tensor]:
    """Return the sum of gradients clipped by AUTO-S, from a backward pass for each record."""
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
