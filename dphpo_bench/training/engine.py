"""Base of the gradient engines: batches in micro-batches, and sums of clipped gradients.

Micro-batches bound memory. No result depends on how a batch is cut, beyond rounding.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import compress
from operator import not_
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, converted, each, gathered, take
from dphpo_bench.training.alone import Alone
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.evaluation import cut, lengths_at, only_reads, pieces_of, rows_at_once, says_lengths
from dphpo_bench.training.layers import Dense, Gradients
from dphpo_bench.training.local_steps import local_update
from dphpo_bench.training.losses import PerRecord
from dphpo_bench.training.norms import row_norms
from dphpo_bench.training.units import Units

MEMORY_BYTES = 2**30
"""Limit of a micro-batch's memory on a CPU, unless one record needs more: per-sample gradients, and layer by layer
also tensors that wait for the backward pass."""

_CACHE_BYTES = 2**24
_GPU_MEMORY_BYTES = 2**32
_GPU_MEMORY_SHARE = 1 / 16
EFFICIENT_ROWS = 32
_SMALL = 2**12
"""Gradients of so many numbers take less time than the operations on them take to start, and are joined."""

_GPU_SMALL = 2**13
"""The same on a GPU, where convolutions are joined, too. How many records there are must not decide: one would then
change the rounding of all others."""


class GradientEngine(ABC):
    """Clipped gradient sums of one model.

    A batch is given as `inputs` and `targets`, each a tensor of any floating dtype or integers with n rows, or several
    by name; or as a whole dataset and the `indices` of the batch in it, int64 of shape (k,). The second form gathers
    one micro-batch at a time, so that a dataset in bfloat16 is never converted as a whole. All results are on the
    device of the model. The model is used in the mode it is in (training or not), at its current weights.
    """

    class_weights: Callable[[Tensors], Tensor] | None = None
    """(targets) → a weight in [0, 1] of each record's clipped gradient, shape (n,); None: 1."""

    def __init__(self, model: nn.Module, loss: PerRecord) -> None:
        self.model = model
        self.loss = loss
        self.parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InvalidValueError(
                "Expected a model with at least one parameter that requires a gradient, got all frozen. Unfreeze some "
                "by requires_grad_(True)."
            )
        for name, parameter in model.named_parameters():
            if parameter.dtype not in (torch.float32, torch.float64):
                raise InvalidValueError(
                    f"Expected float32 or float64 parameters, got {parameter.dtype} in {name!r}. Convert them "
                    "by model.float(); a complex one is two parameters."
                )
        self._device = self.parameters[0].device
        self._dtype = self.parameters[0].dtype
        self._size = sum(parameter.nbytes for parameter in self.parameters)
        self._rows = per_sample_rows(self._size, self._device)  # in a micro-batch
        refuse_statistics(model)

    def clipped_sum(
        self, inputs: Tensors, targets: Tensors, clipping: Clipping, indices: Tensor | None = None
    ) -> list[Tensor]:
        """Return the sum of factor(‖g_i‖) · g_i over the batch, a tensor for each trainable parameter, without noise.

        The sum is in float64: in less, one record would move the rounding of all others by more than its clipped
        gradient. A record whose gradient is not finite adds exactly zero.
        """
        refuse_statistics(self.model)
        sizes = [parameter.numel() for parameter in self.parameters]
        flat = torch.zeros(sum(sizes), dtype=torch.float64, device=self._device)
        total = [part.view(p.shape) for part, p in zip(torch.split(flat, sizes), self.parameters, strict=True)]
        # Copies, to which the model and the loss may write, except for inputs that only torch's code sees.
        copy = not only_reads(self.model)
        for _, some in pieces_of(self.model, Records(inputs, targets), indices, self._rows, copy=copy):
            gradients = self._gradients(some.inputs, some.targets)
            _add_clipped(gradients, clipping, self.weights_of(some.targets), total)
        return total

    def weights_of(self, targets: Tensors) -> Tensor | None:
        """Return a weight for each record's clipped gradient; above 1 it would break the sensitivity."""
        return None if self.class_weights is None else self.class_weights(targets).double().clamp(0, 1)

    def clipped_unit_sum(self, inputs: Tensors, targets: Tensors, clipping: Clipping, units: Units) -> list[Tensor]:
        """Return the sum of factor(‖m_u‖) · m_u over units, where m_u is the mean gradient of unit u's records.

        `inputs` and `targets` are a whole dataset. Means, norms and the sum are in float64. A unit whose mean is not
        finite adds exactly zero. Memory is bounded however many records a unit has. Its class weight is their mean.
        """
        members = [*units.by_similar_size()]
        alone = members.pop(0)[0][:, 0] if members and members[0][0].shape[1] == 1 else units.rows[:0]
        total = self.clipped_sum(inputs, targets, clipping, alone)
        for rows, sizes, length_ in self._units_by_length(inputs, targets, members):
            at_once = rows_at_once(self.model, self._unit_rows)
            n = max(1, at_once // rows.shape[1])
            for some, counts in zip(torch.split(rows, n), torch.split(sizes, n), strict=True):
                sums = [torch.zeros(len(some), s.numel(), dtype=torch.float64, device=s.device) for s in total]
                for start in range(0, some.shape[1], at_once):  # a unit may be larger than a micro-batch
                    x, y = self._cut(inputs, targets, some[:, start : start + at_once].flatten(), length_)
                    with torch.no_grad():
                        for parameter, sum_, uses in zip(self.parameters, sums, self._gradients(x, y), strict=True):
                            for part in uses:
                                part.add_by_unit(sum_, counts - start, parameter.shape)
                means = [[Dense(s.div_(counts[:, None].to(s)))] for s in sums]
                _add_clipped(means, clipping, self._unit_weights(targets, some, counts), total)
        return total

    def clipped_update_sum(
        self, inputs: Tensors, targets: Tensors, clipping: Clipping, units: Units, local: tuple[int, float]
    ) -> list[Tensor]:
        """Return the sum of factor(‖u‖) · u over units, where u is the `local_update` of a unit's records.

        At one step it is `clipped_unit_sum`, up to rounding. All else is as there, but for memory: a unit's records
        are in one pass. Units start at the same weights and are kept apart by `Alone`.
        """
        steps, rate = local
        update = Alone(partial(local_update, loss=self.loss, steps=steps, rate=rate), self.model)
        total = [torch.zeros(part.shape, dtype=torch.float64, device=self._device) for part in self.parameters]
        for rows, sizes in units.by_power_of_two():
            n = max(1, min(EFFICIENT_ROWS, self._unit_rows // rows.shape[1]))
            for some, counts in zip(torch.split(rows, n), torch.split(sizes, n), strict=True):
                filled = torch.arange(n).clamp(max=len(some) - 1)  # shapes depend on no other unit
                in_units = partial(Tensor.unflatten, dim=0, sizes=(n, some.shape[1]))
                x, y = (each(in_units, part) for part in self._cut(inputs, targets, some[filled].flatten(), None))
                shares = (torch.arange(some.shape[1]) < counts[:, None]).double() / counts[:, None]
                updates = update(x, y, shares[filled].to(self._device, self._dtype)).values()
                means = [[Dense(part[: len(some)].double().reshape(len(some), -1))] for part in updates]
                _add_clipped(means, clipping, self._unit_weights(targets, some, counts), total)
        return total

    def _unit_weights(self, targets: Tensors, rows: Tensor, sizes: Tensor) -> Tensor | None:
        """Return the mean class weight of each unit's records; see `Units.by_similar_size`."""
        weights = self.weights_of(each(partial(take, rows=rows.flatten()), targets))
        if weights is None:
            return None
        counted = torch.arange(rows.shape[1]) < sizes[:, None]
        return torch.where(counted, weights.cpu().view_as(rows), 0.0).sum(1) / sizes

    @abstractmethod
    def _gradients(self, inputs: Tensors, targets: Tensors) -> Sequence[Sequence[Gradients]]:
        """Return the gradients of at least one record, on the device: for each parameter a part for each use of it."""

    @property
    def _unit_rows(self) -> int:
        """Records in a micro-batch for sums by unit, which are in float64, beside all numbers of the gradients."""
        return min(self._rows, per_sample_rows(2 * self._size, self._device))

    def _units_by_length(
        self, inputs: Tensors, targets: Tensors, members: list[tuple[Tensor, Tensor]]
    ) -> Iterator[tuple[Tensor, Tensor, int | None]]:
        """Yield rows and sizes of units, and the length of their records: that of the longest record of a unit."""
        for rows, sizes in members:
            if not says_lengths(self.model, inputs):
                yield rows, sizes, None
                continue
            lengths = lengths_at(self.model, inputs, targets, rows.flatten()).view_as(rows).amax(1)
            for length_ in torch.unique(lengths).tolist():
                yield rows[lengths == length_], sizes[lengths == length_], length_

    def _cut(self, inputs: Tensors, targets: Tensors, rows: Tensor, length_: int | None) -> tuple[Any, Any]:
        if length_ is None:
            return self._gather(inputs, rows), self._gather(targets, rows)
        # Features stored in half precision are converted here, record by record, which changes no sensitivity. A
        # product in half precision would round the *sum*, and the bound on one record's share would be lost.
        convert = partial(converted, device=self._device, dtype=self._dtype)
        x, y = cut(inputs, targets, rows, length_)
        return each(convert, x), each(convert, y)

    def _gather(self, data: Tensors, rows: slice | Tensor) -> Any:
        return each(partial(gathered, rows=rows, device=self._device, dtype=self._dtype, copy=False), data)


def refuse_statistics(model: nn.Module) -> None:
    """Reject a model with layers that compute statistics of a batch."""
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.modules.batchnorm._NormBase):
            continue
        is_instance_norm = isinstance(layer, nn.modules.instancenorm._InstanceNorm)
        learns_statistics = layer.training and layer.track_running_stats
        mixes = not is_instance_norm and (layer.training or layer.running_mean is None)
        if mixes or learns_statistics:
            # The groups of Opacus have a single value each where a channel has one.
            way = "GroupNorm, as ModuleValidator.fix(model) of Opacus does"
            if isinstance(layer, nn.BatchNorm1d):
                way = f"nn.GroupNorm(1, {layer.num_features})"
            raise InvalidValueError(
                f"Expected layers that treat each record alone; {name!r} ({type(layer).__name__}) "
                f"computes statistics of the batch. Use {way} instead, or freeze it with eval()."
            )


def _add_clipped(
    gradients: Sequence[Sequence[Gradients]], clipping: Clipping, weights: Tensor | None, total: list[Tensor]
) -> None:
    """Clip gradients, see `GradientEngine._gradients`, and add them, times their weights, to a contiguous total."""
    with torch.no_grad():
        parts = [
            (uses[0] if len(uses) == 1 else Dense(torch.stack([use.dense(sum_.shape) for use in uses]).sum(0)), sum_)
            for uses, sum_ in zip(gradients, total, strict=True)
            if uses
        ]
        is_small = [_is_small(sum_.device.type, part, sum_) for part, sum_ in parts]
        small = [*compress(parts, is_small)]
        if len(small) > 1:
            joined = torch.cat([part.dense(sum_.shape) for part, sum_ in small], dim=1)
            summed = torch.zeros(joined.shape[1], dtype=torch.float64, device=joined.device)
            parts = [*compress(parts, map(not_, is_small)), (Dense(joined), summed)]
        if not parts:
            return
        of_parts = [part.norms for part, _ in parts]
        norms = of_parts[0] if len(parts) == 1 else row_norms(torch.stack(of_parts, dim=1))
        factors, finite = clipping.factors(norms), norms < math.inf
        if weights is not None:
            factors = factors * weights.to(factors)
        counted_rows = None if finite.all() else finite
        for part, sum_ in parts:
            part.add_to(sum_, factors, counted_rows)
        if len(small) > 1:
            sums = [sum_ for _, sum_ in small]
            added = torch.split(summed, [sum_.numel() for sum_ in sums])
            torch._foreach_add_(sums, [part.view_as(sum_) for part, sum_ in zip(added, sums, strict=True)])


def _is_small(device: str, part: Gradients, total: Tensor) -> bool:
    if device == "cpu":
        return type(part) is Dense and total.numel() <= _SMALL
    return isinstance(part, Dense) and total.numel() <= _GPU_SMALL


def per_sample_rows(size: float, device: torch.device, efficient: int = EFFICIENT_ROWS) -> int:
    """Return the number of records of `size` bytes in a micro-batch.

    On a CPU as many as fit in cache, at least as many as keep the products efficient, if they fit in `MEMORY_BYTES`.
    On a GPU few large micro-batches are fastest, but several runs may share its memory.
    """
    if device.type != "cpu":
        memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
        return max(1, min(int(max(_GPU_MEMORY_BYTES, memory * _GPU_MEMORY_SHARE) / size), 4096))
    cached = min(int(_CACHE_BYTES / size), 1024)
    return max(1, cached, min(efficient, int(MEMORY_BYTES / size)))
