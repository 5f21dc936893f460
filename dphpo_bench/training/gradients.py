"""The way in: the right engine for a model.

Measured on one CPU core with sums in float32 (ratio to a step without privacy): a linear head costs 1.1 in closed form
and 26 by Opacus' hooks; small convolutional networks and transformers cost 1.2 to 2 by vmap. Sums in float64 take
1.1 to 1.4 times as long (docs/accounting.md, sums over records). Ghost clipping pays only where the per-sample
gradients of a small micro-batch do not fit in memory.
"""

from typing import Literal

from torch import nn

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.text import unknown_name_message
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.linear import LinearEngine, linear_layer
from dphpo_bench.training.losses import PerRecord, cross_entropy
from dphpo_bench.training.vmap import MEMORY_BYTES, VmapEngine

__all__ = ["Backend", "GradientEngine", "gradient_engine"]

Backend = Literal["auto", "linear", "vmap", "opacus_hooks", "opacus_ghost"]

_BACKENDS = ("auto", "linear", "vmap", "opacus_hooks", "opacus_ghost")
_SMALLEST_VMAP_BATCH = 16


def gradient_engine(
    model: nn.Module,
    loss: PerRecord = cross_entropy,
    backend: Backend = "auto",
    micro_batch_size: int | None = None,
    *,
    named: bool = False,
) -> GradientEngine:
    """An engine for sums of clipped gradients of a model.

    Args:
        model: any module whose layers treat each record alone.
        loss: per-sample loss: (outputs, targets) → shape (n,).
        backend: "linear" (closed form, linear classifiers with cross-entropy only), "vmap", "opacus_hooks",
            "opacus_ghost", or "auto": the first that fits.
        micro_batch_size: number of records whose gradients are computed at once; None: chosen by the
            back-end.
        named: whether inputs or targets are several by name, for which there is no closed form.

    Raises:
        UnknownNameError: if there is no such back-end.
        InvalidValueError: if the model cannot be trained privately, or not by this back-end.
    """
    if backend not in _BACKENDS:
        raise UnknownNameError(unknown_name_message("backend", backend, _BACKENDS))
    chosen = _choose(model, loss, named) if backend == "auto" else backend
    if chosen == "linear":
        if loss is not cross_entropy:
            raise InvalidValueError("Expected the default loss with backend='linear'. Use backend='auto'.")
        return LinearEngine(model, micro_batch_size)
    if chosen == "vmap":
        return VmapEngine(model, loss, micro_batch_size)

    from dphpo_bench.training.opacus_backend import GhostEngine, HooksEngine  # takes seconds to import

    engine = HooksEngine if chosen == "opacus_hooks" else GhostEngine
    return engine(model, loss, micro_batch_size)


def can_be_closed(model: nn.Module, loss: PerRecord, named: bool) -> bool:
    """Whether there is a closed form: for linear classifiers with cross-entropy; see `gradient_engine`."""
    return loss is cross_entropy and not named and linear_layer(model) is not None


def _choose(model: nn.Module, loss: PerRecord, named: bool) -> Backend:
    if can_be_closed(model, loss, named):
        return "linear"
    record_bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    if record_bytes * _SMALLEST_VMAP_BATCH <= MEMORY_BYTES:
        return "vmap"

    from dphpo_bench.training.opacus_backend import ghost_pays

    return "opacus_ghost" if ghost_pays(model) else "opacus_hooks"
