"""The right engine for a model.

Measured on one CPU core with sums in float32 (ratio to a step without privacy): a linear head costs 1.1 in closed form;
small convolutional networks and transformers cost 1.2 to 2 by vmap. Sums in float64 take 1.1 to 1.4 times as long
(docs/accounting.md, sums over records). Ghost clipping pays only where the per-sample gradients of a small micro-batch
do not fit in memory: it is ten times faster than vmap on a perceptron of 10 million weights.
"""

from torch import nn

from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.linear import LinearEngine, linear_layer
from dphpo_bench.training.losses import PerRecord, cross_entropy
from dphpo_bench.training.vmap import MEMORY_BYTES, VmapEngine

_SMALLEST_VMAP_BATCH = 16


def gradient_engine(model: nn.Module, loss: PerRecord = cross_entropy, *, named: bool = False) -> GradientEngine:
    """An engine for sums of clipped gradients of a model whose layers treat each record alone; others are refused.

    The loss is per sample: (outputs, targets) → shape (n,). There is no closed form for inputs or targets by name.
    """
    if can_be_closed(model, loss, named):
        return LinearEngine(model)
    record_bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    if record_bytes * _SMALLEST_VMAP_BATCH > MEMORY_BYTES:
        from dphpo_bench.training.ghost import GhostEngine, ghost_pays  # takes seconds to import

        if ghost_pays(model):
            return GhostEngine(model, loss)
    return VmapEngine(model, loss)


def can_be_closed(model: nn.Module, loss: PerRecord, named: bool) -> bool:
    """Whether there is a closed form: for linear classifiers with cross-entropy; see `gradient_engine`."""
    return loss is cross_entropy and not named and linear_layer(model) is not None
