"""Choice of the engine for a model.

Measured on one core, as ratios to a step without privacy (docs/accounting.md): a linear head costs 1.1 in closed form.
Layer by layer, networks cost 1.0 to 1.4, perceptrons 2 to 3. One record at a time by vmap, which takes most models,
they cost 1.1 to 1.7, a small perceptron 20. A loop over records takes any model, and as long as single records do.
"""

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from dphpo_bench.base.tensors import Records, Tensors, call, converted, each, gathered, length
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.functional import copied
from dphpo_bench.training.layerwise import LayerwiseEngine, layerwise_pays
from dphpo_bench.training.linear import LinearEngine, linear_layer
from dphpo_bench.training.loop import LoopEngine
from dphpo_bench.training.losses import PerRecord, cross_entropy
from dphpo_bench.training.model_checks import made_up, perturbed
from dphpo_bench.training.rare_classes import ClassWeighted
from dphpo_bench.training.row_draws import RowDraws, draws
from dphpo_bench.training.row_moves import moves_rows
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
            layer by layer are wrong on made-up inputs, the engine takes each record alone: by vmap, or by a loop where
            vmap fails on these inputs.
        named: whether inputs or targets come by name; then there is no closed form.
    """
    if isinstance(loss, ClassWeighted):
        weighted = gradient_engine(model, loss.plain, like=like, named=named)
        weighted.class_weights = loss.weights
        return weighted
    model = getattr(model, "_orig_mod", model)  # a compiled module would be compiled anew for the hooks of each pass
    if can_be_closed(model, loss, named or (like is not None and like.are_named)):
        return LinearEngine(model)
    if like is None:
        return VmapEngine(model, loss)
    pays = layerwise_pays(model)
    engine = _layerwise_engine(model, loss, like) if pays else None
    if engine is None and _runs_by_vmap(model, loss, like):
        return VmapEngine(model, loss)
    if engine is None and not pays:
        engine = _layerwise_engine(model, loss, like)
    return engine or LoopEngine(model, loss)


def can_be_closed(model: nn.Module, loss: PerRecord, named: bool) -> bool:
    """Return whether there is a closed form, as for linear classifiers with cross-entropy."""
    return loss is cross_entropy and not named and linear_layer(model) is not None


def _layerwise_engine(model: nn.Module, loss: PerRecord, like: Records) -> LayerwiseEngine | None:
    """Return an engine that is right for the model; None if there is none."""
    return next(
        (
            LayerwiseEngine(model, loss, repeats=repeats)
            for repeats in (True, False)
            if _is_right_layer_by_layer(model, loss, like, repeats)
        ),
        None,
    )


def _is_right_layer_by_layer(model: nn.Module, loss: PerRecord, like: Records, repeats: bool) -> bool:
    """Return whether sums layer by layer are those of a backward pass for each of some made-up records.

    Six and five records are tried: a tensor that has six rows by chance has not five. What a record draws by chance is
    the same in all passes; see `RowDraws`. A model that orders records by values is never right; see `moves_rows`.
    """
    probe = perturbed(model)
    inputs, targets = _made_up(probe, like)
    try:
        with torch.random.fork_rng(devices=[]):
            device = next(probe.parameters()).device
            engine, mode = LayerwiseEngine(probe, loss, repeats=repeats), RowDraws(device)
            if moves_rows(lambda n: call(probe, _rows(inputs, targets, slice(n))[0]), length(inputs)):
                return False
            with mode if draws(lambda: call(probe, each(Tensor.clone, inputs)), device) else nullcontext():
                together = [_in_pieces(engine, inputs, targets, mode) for _ in range(2)]
                _in_pieces(engine, *_rows(inputs, targets, slice(length(inputs) - 1)), mode)
                expected = _one_by_one(probe, loss, inputs, targets, mode)
    except Exception:  # whatever a model raises at a pass that is not its own
        return False
    size = torch.cat([part.flatten() for part in expected]).norm()
    return 0 < size < torch.inf and all(
        torch.cat([(a - b).flatten() for a, b in zip(sums, expected, strict=True)]).norm() <= _TOLERANCE * size
        for sums in together
    )


def _runs_by_vmap(model: nn.Module, loss: PerRecord, like: Records) -> bool:
    """Return whether vmap can take the model on made-up records, twice: a model may store what it computed once."""
    probe = copied(model)
    inputs, targets = _made_up(probe, like)
    try:
        with torch.random.fork_rng(devices=[]):
            for _ in range(2):
                VmapEngine(probe, loss).clipped_sum(inputs, targets, AutoS())
    except Exception:  # whatever a model raises at a pass that is not its own
        return False
    return True


def _made_up(model: nn.Module, like: Records) -> tuple[Tensors, Tensors]:
    """Return made-up inputs, and targets of zeros."""
    inputs, first = made_up(model, like.inputs), next(model.parameters())
    rows = length(inputs)
    return inputs, each(
        lambda tensor: converted(tensor.new_zeros((rows, *tensor.shape[1:])), first.device, first.dtype), like.targets
    )


def _in_pieces(engine: LayerwiseEngine, inputs: Tensors, targets: Tensors, mode: RowDraws) -> list[Tensor]:
    """Return the engine's sum of gradients clipped by AUTO-S, telling the mode the numbers of its records."""
    total: list[Tensor] = []
    for row in range(0, length(inputs), rows := engine.rows(inputs, targets)):
        x, y = _rows(inputs, targets, slice(row, row + rows))
        mode.records = range(row, row + length(x))
        sums = engine.clipped_sum(x, y, AutoS())
        total = [a + b for a, b in zip(total, sums, strict=True)] if total else sums
    return total


def _rows(inputs: Tensors, targets: Tensors, rows: slice) -> tuple[Tensors, Tensors]:
    x, y = (each(lambda tensor: gathered(tensor, rows), part) for part in (inputs, targets))
    return x, y


def _one_by_one(model: nn.Module, loss: PerRecord, inputs: Tensors, targets: Tensors, mode: RowDraws) -> list[Tensor]:
    """Return the sum of gradients clipped by AUTO-S, from a backward pass for each record."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter, dtype=torch.float64, requires_grad=False) for parameter in parameters]
    for row in range(length(inputs)):
        mode.records = [row]
        x, y = _rows(inputs, targets, slice(row, row + 1))
        losses = loss(call(model, x), y)
        gradients = torch.autograd.grad(losses.sum(), parameters, allow_unused=True, materialize_grads=True)
        norm = torch.cat([gradient.flatten().double() for gradient in gradients]).norm()
        if norm.isfinite():
            torch._foreach_add_(total, [AutoS().factors(norm[None]) * gradient for gradient in gradients])
    return total
