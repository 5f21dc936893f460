"""Ghost clipping by Opacus, for large models.

Opacus hangs hooks and attributes on a model. They stay there for one call only, so the user's model remains a plain
module. Clipping, accumulation over micro-batches and noise are this package's own.
"""

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from opacus.grad_sample import GradSampleHooks, GradSampleHooksFastGradientClipping
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Tensors, each, length
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.norms import row_norms

_SHARE = 0.9


class _ContiguousHooks(GradSampleHooks):  # type: ignore[misc]
    """Opacus' hooks, made right for any memory layout.

    Its rule for convolutions (1.6.0) takes tensors with channels last for contiguous ones, and silently returns wrong
    gradients: 39 % off on a small network.
    """

    def rearrange_grad_samples(
        self, *, module: nn.Module, backprops: Tensor, loss_reduction: str, batch_first: bool
    ) -> tuple[list[Tensor], Tensor]:
        activations, backprops = super().rearrange_grad_samples(
            module=module, backprops=backprops, loss_reduction=loss_reduction, batch_first=batch_first
        )
        return [activation.contiguous() for activation in activations], backprops.contiguous()


def _linear_norms(layer: nn.Linear, activations: list[Tensor], backprops: Tensor) -> dict[Tensor, Tensor]:
    """Norm of each record's gradient of a Linear on inputs (n, ..., d), as Opacus' norm samplers return them.

    Opacus multiplies sums of squares. In float32 these underflow below 1e-45, and a record with tiny backpropagated
    gradients and huge activations would pass unclipped; so both are scaled to 1 first.
    """
    inputs = activations[0].to(backprops.dtype).flatten(1, -2) if backprops.dim() > 2 else activations[0].unsqueeze(1)
    outer = backprops.flatten(1, -2) if backprops.dim() > 2 else backprops.unsqueeze(1)
    a, a_scale = _scaled(inputs)
    g, g_scale = _scaled(outer)
    norms: dict[Tensor, Tensor] = {}
    if layer.weight.requires_grad:
        if a.shape[1] == 1:
            squared = row_norms(a[:, 0]).square() * row_norms(g[:, 0]).square()
        else:
            squared = ((a @ a.mT) * (g @ g.mT)).sum((1, 2), dtype=torch.float64).clamp(min=0)
        norms[layer.weight] = squared.sqrt() * a_scale * g_scale
    if layer.bias is not None and layer.bias.requires_grad:
        norms[layer.bias] = row_norms(g.sum(1)) * g_scale
    return norms


def _scaled(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Each record of (n, t, d) divided by its largest entry, and those entries (n,) in float64; 0 stays 0."""
    largest = tensor.abs().amax((1, 2))
    return tensor / torch.where(largest == 0, 1.0, largest)[:, None, None], largest.double()


class _GhostHooks(_ContiguousHooks, GradSampleHooksFastGradientClipping):  # type: ignore[misc]
    NORM_SAMPLERS: ClassVar = {**GradSampleHooksFastGradientClipping.NORM_SAMPLERS, nn.Linear: _linear_norms}


class GhostEngine(GradientEngine):
    """Ghost clipping: norms in a first backward pass, the clipped sum in a second. See `GradientEngine`.

    The second pass adds records up inside of layers, in the dtype of the model. So both passes are made on a copy of
    the model in float64, which takes twice the time of float32 and twice the memory of the model.

    Layers for which Opacus has no norm rule, such as convolutions, get per-sample gradients for a moment.
    """

    _rows = 256

    def clipped_sum(
        self, inputs: Tensors, targets: Tensors, clipping: Clipping, indices: Tensor | None = None
    ) -> list[Tensor]:
        """See `GradientEngine.clipped_sum`."""
        if all(parameter.dtype == torch.float64 for parameter in self.parameters):
            return super().clipped_sum(inputs, targets, clipping, indices)
        twin = type(self)(copy.deepcopy(self.model).double(), self.loss)
        return twin.clipped_sum(inputs, targets, clipping, indices)

    def _clipped_sum(self, inputs: Tensors, targets: Tensors, clipping: Clipping) -> list[Tensor]:
        with warnings.catch_warnings(), torch.enable_grad(), self._attached() as hooks:
            # Inputs need no gradient here; the hooks of the first layer fire all the same.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            return self._clip_with(hooks, self._fast_layout(inputs), targets, clipping)

    def _clip_with(self, hooks: GradSampleHooks, inputs: Tensors, targets: Tensors, clipping: Clipping) -> list[Tensor]:
        losses = self._per_sample_loss(inputs, targets)
        torch.autograd.grad(losses.sum(), self.parameters, retain_graph=True, allow_unused=True)
        with torch.no_grad():
            norms = row_norms(torch.stack(self._collected(), dim=1))
            finite = norms.isfinite()
        if not finite.all():
            # A factor of 0 does not silence nan in a backward pass, so those records are left out. Norms
            # are taken anew: with dropout, another forward pass has other gradients. The clipping rule has not
            # been asked yet: rules may count records, and each must come by once.
            x, y = (each(lambda tensor: tensor[finite], tensors) for tensors in (inputs, targets))
            return self._clip_with(hooks, x, y, clipping) if length(x) else self._zeros()
        with torch.no_grad():
            factors = clipping.factors(norms).to(losses.dtype)
        hooks.disable_hooks()
        return list(torch.autograd.grad((factors * losses).sum(), self.parameters))

    @contextmanager
    def _attached(self) -> Iterator[GradSampleHooks]:
        for name, module in self.model.named_modules():
            if not module.training and any(p.requires_grad for p in module.parameters(recurse=False)):
                raise InvalidValueError(
                    f"Expected trainable layers in training mode, got {name!r} in evaluation mode. Call "
                    "model.train(), or freeze its parameters."
                )
        try:
            hooks = _GhostHooks(self.model, loss_reduction="sum", strict=True)
        except NotImplementedError as error:
            reason = " ".join(str(error).split())
            raise InvalidValueError(f"Opacus refuses this model: {reason}") from error
        try:
            yield hooks
        finally:
            hooks.cleanup()
            for module in self.model.modules():  # what a failed call leaves behind
                for attribute in ("activations", "max_batch_len"):
                    module.__dict__.pop(attribute, None)

    def _collected(self) -> list[Tensor]:
        """The norms that Opacus left on every parameter. One without a norm would be trained unclipped."""
        found = {n: getattr(p, "_norm_sample", None) for n, p in self.model.named_parameters() if p.requires_grad}
        for name, norms in found.items():
            if norms is None:
                raise InvalidValueError(
                    f"Opacus has no per-sample gradient of {name!r}: its layer is not called in the forward pass. "
                    "Freeze it."
                )
        return [norms for norms in found.values() if norms is not None]


def ghost_pays(model: nn.Module) -> bool:
    """Whether ghost clipping keeps nearly all per-sample gradients out of memory.

    True if layers with a norm rule hold 90 % of the trainable parameters, none of them shared, and every other one sits
    in
    a leaf layer: Opacus treats a container with parameters of its own as one layer.
    """
    ruled, total = 0, 0
    for module in model.modules():
        sizes = [p.numel() for p in module.parameters(recurse=False) if p.requires_grad]
        total += sum(sizes)
        if sizes and next(module.children(), None) is not None:
            return False
        if type(module) in _GhostHooks.NORM_SAMPLERS:
            ruled += sum(sizes)
    distinct = math.fsum(p.numel() for p in model.parameters() if p.requires_grad)
    return total == distinct and ruled >= _SHARE * total
