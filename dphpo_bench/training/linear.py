"""Linear classifiers with cross-entropy, one or several: clipped sums in closed form, by two matrix products.

The second product sums over records and is taken in float64 (see `norms`).

The gradient of record i is (p_i - e_i) ⊗ (x_i, 1), with p_i the predicted probabilities and e_i the one-hot
target. Its norm is ‖p_i - e_i‖ · √(‖x_i‖² + 1), so it is never formed.
"""

import math
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Tensors, length, single, take
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.layers import Dense, Gradients, Outer
from dphpo_bench.training.losses import PerRecord, binary_cross_entropy, cross_entropy
from dphpo_bench.training.norms import add_product, row_norms

# A micro-batch that is gathered or converted is read twice more, so its copy should stay in cache. Where
# nothing is copied, larger ones save overhead.
_COPY_BYTES = 2**23
_CPU_BYTES = 2**25
_GPU_BYTES = 2**28
_FLOAT_BYTES = 4

NOT_LINEAR = (
    "Expected a linear classifier, a Linear or a Flatten and a Linear with all weights trained, and the ready-made "
    "loss of a classification, or of a binary task with one output"
)
"""The beginning of the refusal of other models."""


def linear_layer(model: nn.Module) -> nn.Linear | None:
    """Return the layer of a linear classifier (Linear, or Flatten and Linear in a row); None for other models."""
    if any("forward" in vars(module) or module._forward_pre_hooks for module in model.modules()):
        return None
    layers = list(model) if type(model) is nn.Sequential else [model]
    if len(layers) == 2 and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
        layers = layers[1:]
    if len(layers) != 1 or type(layers[0]) is not nn.Linear or "forward" in vars(layers[0]):
        return None
    names = {name for name, _ in layers[0].named_parameters(recurse=False)}
    return layers[0] if names in ({"weight"}, {"weight", "bias"}) else None  # a hook may make the weight of others


def convex_layer(model: nn.Module, losses: PerRecord) -> nn.Linear | None:
    """Return the layer of a linear classifier whose ready-made loss is convex, all weights trained; else None.

    That is the cross-entropy of several outputs, or the logistic loss of a single one.
    """
    layer = linear_layer(model)
    if layer is None or not all(parameter.requires_grad for parameter in model.parameters()):
        return None
    return layer if losses is (binary_cross_entropy if layer.out_features == 1 else cross_entropy) else None


class _RowMemory:
    """Memory for rows of a dataset, which the next rows overwrite.

    To return megabytes to the system and to fetch them anew for each micro-batch can cost as much as its products.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def of(self, tensor: Tensor, rows: slice | Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return some rows, converted as by `base.tensors.converted`."""
        n = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        dtype = dtype if tensor.is_floating_point() else tensor.dtype
        if len(self._memory) < n or (self._memory.shape[1:], self._memory.dtype) != (tensor.shape[1:], dtype):
            with torch.inference_mode(False):  # else it could not be written outside of that mode later
                self._memory = torch.empty(n, *tensor.shape[1:], dtype=dtype, device=device)
        memory = self._memory[:n]
        if isinstance(rows, slice) or dtype != tensor.dtype or tensor.device != memory.device:
            return memory.copy_(take(tensor, rows))
        return torch.index_select(tensor, 0, rows.to(tensor.device), out=memory)


class LinearEngine(GradientEngine):
    """Closed form for linear classifiers; it rejects other models. See `GradientEngine`.

    From the second call with the same tensor on, the norms of a dataset's rows are cached. Like autograd, the cache
    trusts the version counter of the tensor: do not change a dataset in place behind torch's back.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, cross_entropy)
        layer = linear_layer(model)
        if layer is None:
            raise InvalidValueError(
                f"Expected a Linear, or a Sequential of Flatten and Linear, got a {type(model).__name__}."
            )
        self._layer, self._memory = layer, _RowMemory()
        self._seen: tuple[weakref.ref[Tensor], int] | None = None
        self._norms: Tensor | None = None

    def clipped_sum(
        self, inputs: Tensors, targets: Tensors, clipping: Clipping, indices: Tensor | None = None
    ) -> list[Tensor]:
        """See `GradientEngine.clipped_sum`."""
        (gradients,) = clipped_sums([self], single(inputs), single(targets), [clipping], indices)
        return gradients

    @property
    def _unit_rows(self) -> int:
        size = _CPU_BYTES if self._device.type == "cpu" else _GPU_BYTES
        return max(1, size // (8 * self._layer.weight.numel()))  # sums of units of one record, in float64

    def _gradients(self, inputs: Tensors, targets: Tensors) -> list[list[Gradients]]:
        x, layer = single(inputs).flatten(1), self._layer
        with torch.no_grad():
            residuals = _residuals(x, layer.weight, layer.bias, single(targets))[0].t()
        return [[Outer(residuals, x) if weight is layer.weight else Dense(residuals)] for weight in self.parameters]

    def _rows_at_once(self, inputs: Tensor, indices: Tensor | None, trials: int = 1) -> int:
        copied = indices is not None or inputs.dtype != self._dtype
        size = (_COPY_BYTES if copied else _CPU_BYTES) if self._device.type == "cpu" else _GPU_BYTES
        width = max(self._layer.in_features, trials * self._layer.out_features)
        return max(32, size // (_FLOAT_BYTES * width))

    def _micro_batches(self, inputs: Tensors, indices: Tensor | None, rows: int) -> Iterator[slice | Tensor]:
        """Yield the batch in pieces, each a slice of `inputs` or a tensor of indices into it."""
        n = length(inputs) if indices is None else len(indices)
        for start in range(0, n, rows):
            piece = slice(start, min(start + rows, n))
            yield piece if indices is None else indices[piece]

    def _flat(self, inputs: Tensor, rows: slice | Tensor) -> Tensor:
        """Return some records as a matrix, which the next call overwrites unless it is a part of `inputs`."""
        copied = inputs.dtype != self._dtype or not isinstance(rows, slice)
        if copied and inputs.is_floating_point() and inputs.device.type == self._device.type == "cpu":
            return self._memory.of(inputs, rows, self._device, self._dtype).flatten(1)
        gathered: Tensor = self._gather(inputs, rows)
        return gathered.flatten(1)

    def _known_norms(self, inputs: Tensor) -> Tensor | None:
        """Return the norms of all rows of a dataset, from its second use on: they would cost a fifth of a step.

        A tensor that is used once may be a batch that was gathered for one call.
        """
        if inputs.is_inference():  # has no version counter
            return None
        if self._seen is None or self._seen[0]() is not inputs or self._seen[1] != inputs._version:
            self._seen, self._norms = (weakref.ref(inputs), inputs._version), None
            return None
        if self._norms is None:
            pieces = self._micro_batches(inputs, None, self._rows_at_once(inputs, None))
            norms = [row_norms(self._flat(inputs, rows)) for rows in pieces]
            self._norms = torch.cat(norms) if norms else torch.empty(0, dtype=self._dtype, device=self._device)
        return self._norms


def clipped_sums(
    engines: Sequence[LinearEngine],
    inputs: Tensor,
    targets: Tensor,
    clippings: Sequence[Clipping],
    indices: Tensor | None = None,
) -> list[list[Tensor]]:
    """Return `GradientEngine.clipped_sum` of M linear classifiers, which read the batch once for all of them.

    With a single model of few classes a core mostly waits for memory. Stacking is for full batches: Poisson batches of
    rate q gain nothing below q ≈ 1/3, since all models would read their union, 1 - (1 - q)^M of the records. No
    accountant of repeated runs allows a common batch. A trial that diverges disturbs no other.

    Args:
        engines: their layers have the same shape, dtype, device and trained parameters, which decide the norms.
    """
    reader, trials = engines[0], len(engines)
    layers = [engine._layer for engine in engines]
    with torch.no_grad():
        weights: Tensor = layers[0].weight
        biases: Tensor | None = layers[0].bias
        if trials > 1:
            weights = torch.cat([layer.weight for layer in layers])
            biases = None if biases is None else torch.cat([layer.bias for layer in layers])
        weight_sums = torch.zeros_like(weights, dtype=torch.float64)
        bias_sums = torch.zeros_like(weight_sums[:, 0])
        known = reader._known_norms(inputs)
        for rows in reader._micro_batches(inputs, indices, reader._rows_at_once(inputs, indices, trials)):
            x, y = reader._flat(inputs, rows), reader._gather(targets, rows)
            norms = row_norms(x) if known is None else take(known, rows)
            residuals = _residuals(x, weights, biases, y, trials)
            x, residuals = _clip(x, residuals, norms, layers[0], clippings, reader.weights_of(y))
            add_product(weight_sums, residuals.flatten(0, 1), x)
            bias_sums += residuals.sum(2).flatten()
    gradients = []
    for engine, weight, bias in zip(engines, weight_sums.chunk(trials), bias_sums.chunk(trials), strict=True):
        sums = {engine._layer.weight: weight, engine._layer.bias: bias}
        gradients.append([sums[parameter] for parameter in engine.parameters])
    return gradients


def _clip(
    x: Tensor,
    residuals: Tensor,
    norms: Tensor,
    layer: nn.Linear,
    clippings: Sequence[Clipping],
    weights: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return inputs (n, d) and residuals (trials, classes, n), float64, whose products are the clipped sums.

    A clipped gradient is residual · factor ⊗ input, rounded to float64 only. Norms are combined in float64 too: in
    float32 the square of a residual below 1e-23 underflows, and that record would pass unclipped however large its
    input.

    A record of bad inputs is silenced in both factors, since 0 · inf is not 0. A record of bad residuals alone, as in a
    trial that diverged, is silenced in that trial's residuals only; other trials are not affected.
    """
    squared = norms.square() if layer.weight.requires_grad else torch.zeros_like(norms)
    if layer.bias is not None and layer.bias.requires_grad:
        squared = squared + 1
    residuals = residuals.double()
    # Not `vector_norm`, which is ten times slower along this dimension. What underflows is added, as in `row_norms`.
    lost = residuals.shape[1] * 2.0**-1020
    gradient_norms = (squared * residuals.square().sum(1).add_(lost)).sqrt_()
    factors = torch.stack([rule.factors(trial) for rule, trial in zip(clippings, gradient_norms, strict=True)])
    factors = (factors if weights is None else factors * weights).unsqueeze(1)
    usable = norms < math.inf
    finite = (gradient_norms < math.inf) & usable
    if finite.all():
        return x, residuals.mul_(factors)
    if not usable.all():
        x = x.masked_fill(~usable[:, None], 0.0)
    return x, torch.where(finite.unsqueeze(1), residuals * factors, 0.0)


def _residuals(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, trials: int = 1) -> Tensor:
    """Return probabilities minus one-hot targets, shape (trials, classes, n).

    Sums over classes are thus vectorised over records. The product is taken as (n, d) · (d, classes): W · xᵀ is half as
    fast for few classes.
    """
    logits = functional.linear(x, weight, bias).t().contiguous().view(trials, -1, len(x))
    target = targets.expand(len(logits), 1, -1)
    exponentials = logits.sub_(logits.amax(1, keepdim=True)).exp_()
    exponential_at_target = exponentials.gather(1, target)
    # Not p - 1, which cancels where the prediction is sure: minus the probability of all other classes.
    others = exponentials.scatter_(1, target, 0.0).sum(1, keepdim=True)
    total = others + exponential_at_target
    return exponentials.scatter_(1, target, -others).div_(total)
