"""Engines by vmap and by a loop, and the choice of the engine for a model.

Measured on one core, as ratios to a step without privacy (docs/accounting.md): a linear head costs 1.1 in closed form.
Layer by layer, networks cost 1.0 to 1.4, perceptrons 2 to 3. A loop over records takes any model, and as long as single
records do. In each of them, no record can affect what is computed for another; see `alone`.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from dphpo_bench.base.tensors import Records, Tensors, call, each, length, take
from dphpo_bench.training.alone import only_torch, warn_of_loop, why_not_by_vmap
from dphpo_bench.training.clipping import AutoS, Clipping
from dphpo_bench.training.engine import GradientEngine, add_clipped, per_sample_rows
from dphpo_bench.training.functional import call_with, copied
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.linear import LinearEngine, linear_layer
from dphpo_bench.training.losses import PerRecord, cross_entropy, of_one
from dphpo_bench.training.norms import add_by_unit
from dphpo_bench.training.rare_classes import ClassWeighted
from dphpo_bench.training.recurrent import by_steps


class VmapEngine(GradientEngine):
    """Per-sample gradients by vmap. See `GradientEngine`. Dropout draws a mask for each record."""

    def __init__(self, model: nn.Module, loss: PerRecord) -> None:
        super().__init__(model, loss)
        size = sum(parameter.numel() * parameter.element_size() for parameter in self.parameters)
        self._rows = per_sample_rows(size, self._device)
        self._names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._per_sample = vmap(grad(self._loss_of_one), in_dims=(None, None, 0, 0), randomness="different")

    @property
    def _unit_rows(self) -> int:
        return max(1, self._rows // 2)  # sums by unit are in float64

    def _add_clipped(self, inputs: Tensors, targets: Tensors, clipping: Clipping, total: list[Tensor]) -> None:
        add_clipped(self._gradients(inputs, targets), clipping, total)

    def _add_unit_sums(self, inputs: Tensors, targets: Tensors, sizes: Tensor, sums: list[Tensor]) -> None:
        for sum_, part in zip(sums, self._gradients(inputs, targets), strict=True):
            add_by_unit(sum_, part, sizes)

    def _gradients(self, inputs: Tensors, targets: Tensors) -> list[Tensor]:
        """Return the records' gradients with respect to each parameter, shape (n, numel)."""
        weights = {name: p.detach() for name, p in zip(self._names, self.parameters, strict=True)}
        constants = {name: t.detach() for name, t in self.model.named_parameters() if not t.requires_grad}
        constants.update(self.model.named_buffers())
        with by_steps(self.model), only_torch():
            gradients = self._per_sample(weights, constants, inputs, targets)
        return [gradients[name].detach().reshape(length(inputs), -1) for name in self._names]

    def _loss_of_one(
        self, weights: dict[str, Tensor], constants: dict[str, Tensor], record: Tensors, target: Tensors
    ) -> Tensor:
        inputs, targets = (each(lambda tensor: tensor[None], tensors) for tensors in (record, target))
        outputs = call_with(self.model, {**weights, **constants}, inputs)
        return of_one(self.loss, "loss")(outputs, targets).squeeze(0)


class LoopEngine(VmapEngine):
    """Per-record gradients by a loop. See `GradientEngine`.

    It takes what vmap does not: compiled modules, and code that reads values, as `item()` does. Each record gets a
    copy of the model, so that nothing that one record leaves behind reaches the next.
    """

    def _gradients(self, inputs: Tensors, targets: Tensors) -> list[Tensor]:
        records = [self._gradient(inputs, targets, slice(row, row + 1)) for row in range(length(inputs))]
        return [torch.stack(of_parameter).reshape(len(records), -1) for of_parameter in zip(*records, strict=True)]

    def _gradient(self, inputs: Tensors, targets: Tensors, row: slice) -> tuple[Tensor, ...]:
        x, y = (each(partial(take, rows=row), part) for part in (inputs, targets))
        with torch.enable_grad():
            model = copied(self.model)
            named = dict(model.named_parameters())
            weights = [named[name] for name in self._names]
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
            Without, the engine is that of vmap.
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
    for kind in (LayerwiseEngine, VmapEngine):
        engine = kind(copied(model), loss)
        reason = why_not_by_vmap(partial(engine.clipped_sum, like.inputs, like.targets, AutoS()))
        if not reason:
            return kind(model, loss)
    LoopEngine(copied(model), loss).clipped_sum(like.inputs, like.targets, AutoS())  # raises what the model raises
    warn_of_loop("model, or its loss,", reason)
    return LoopEngine(model, loss)


def can_be_closed(model: nn.Module, loss: PerRecord, named: bool) -> bool:
    """Return whether there is a closed form, as for linear classifiers with cross-entropy."""
    return loss is cross_entropy and not named and linear_layer(model) is not None
