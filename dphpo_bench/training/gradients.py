"""The engine that loops over records, and the choice of the engine for a model.

Measured on one core, as ratios to a step without privacy (docs/accounting.md): a linear head costs 1.1 in closed form.
Layer by layer, networks cost 1.0 to 1.4, perceptrons 2 to 3. A loop over records takes any model, and as long as single
records do. In each of them, no record can affect what is computed for another; see `alone`.
"""

import warnings
from functools import partial

import torch
from torch import Tensor, nn

from dphpo_bench.base.tensors import Records, Tensors, call, each, length, take
from dphpo_bench.training.alone import first_line
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.functional import copied
from dphpo_bench.training.layers import Dense, Gradients
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.linear import LinearEngine, linear_layer
from dphpo_bench.training.losses import PerRecord, cross_entropy, of_one
from dphpo_bench.training.rare_classes import ClassWeighted


class LoopEngine(GradientEngine):
    """Per-record gradients by a loop. See `GradientEngine`.

    It takes what vmap does not: compiled modules, and code that reads values, as `item()` does. Each record gets a
    copy of the model, so that nothing that one record leaves behind reaches the next.
    """

    def _gradients(self, inputs: Tensors, targets: Tensors) -> list[list[Gradients]]:
        records = [self._gradient(inputs, targets, slice(row, row + 1)) for row in range(length(inputs))]
        return [[Dense(torch.stack(rows).reshape(len(records), -1))] for rows in zip(*records, strict=True)]

    def _gradient(self, inputs: Tensors, targets: Tensors, row: slice) -> tuple[Tensor, ...]:
        x, y = (each(partial(take, rows=row), part) for part in (inputs, targets))
        with torch.enable_grad():
            model = copied(self.model)
            weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
            losses = of_one(self.loss, "loss")(call(model, x), y)
            gradients = torch.autograd.grad(losses.sum(), weights, allow_unused=True, materialize_grads=True)
        return tuple(gradient.detach() for gradient in gradients)


def gradient_engine(
    model: nn.Module, loss: PerRecord = cross_entropy, *, like: Records | None = None, named: bool = False
) -> GradientEngine:
    """Return an engine for a model; each of them gives the model one record at a time.

    Args:
        model: trained as its parameters say.
        loss: per sample: (outputs, targets) → shape (n,). Of a `ClassWeighted` loss gradients are weighed once clipped.
        like: a few made-up records, on the device of the model, on which the engines are tried.
            Without, it is that of `LayerwiseEngine`.
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
        return LayerwiseEngine(model, loss)
    trial = LayerwiseEngine(copied(model), loss)
    try:
        with torch.random.fork_rng(devices=[]):
            for _ in range(2):  # code may keep what it computed once
                trial.clipped_sum(like.inputs, like.targets, AutoS())
        return LayerwiseEngine(model, loss)
    except Exception as error:  # whatever a model raises at a pass that is not its own
        reason = first_line(error)
    LoopEngine(copied(model), loss).clipped_sum(like.inputs, like.targets, AutoS())  # raises what the model raises
    warnings.warn(
        f"The model, or its loss, gets each record in turn, which takes longer: torch's vmap refuses it ({reason}). "
        "Compute with tensors, by torch.where in place of if, without item() and custom autograd functions.",
        stacklevel=2,
    )
    return LoopEngine(model, loss)


def can_be_closed(model: nn.Module, loss: PerRecord, named: bool) -> bool:
    """Return whether there is a closed form, as for linear classifiers with cross-entropy."""
    return loss is cross_entropy and not named and linear_layer(model) is not None
