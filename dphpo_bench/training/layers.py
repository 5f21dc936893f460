"""Gradients of each record in one layer, from the layer's inputs and the gradients of its outputs.

Source: Goodfellow, "Efficient per-example gradient computations", 2015; Rochette et al., "Efficient per-example
gradient computations in convolutional neural networks", 2019.
"""

import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dphpo_bench.training.alone import joined_batches
from dphpo_bench.training.norms import add_product, norm_bounds, row_norms

_CACHED = 2**18
"""Numbers that the cache of a processor core holds."""


class Gradients(ABC):
    """Gradients of n records with respect to one parameter. See `norms` on what is in float64."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes in memory."""

    @property
    @abstractmethod
    def norms(self) -> Tensor:
        """L2 norm of each gradient, or a bound hardly above, shape (n,), float64; not finite where a number is not."""

    @abstractmethod
    def add_to(self, total: Tensor, factors: Tensor, counted_rows: Tensor | None) -> None:
        """Add the records' gradients times their factors to a total, in place.

        Args:
            total: of the parameter's shape, float64, contiguous.
            factors: shape (n,), float64.
            counted_rows: records that count, shape (n,), bool; the others' gradients need not be finite. None: all.
        """

    @abstractmethod
    def dense(self, shape: torch.Size) -> Tensor:
        """Return all numbers, shape (n, numel), for a parameter of this shape."""

    def add_by_unit(self, sums: Tensor, sizes: Tensor, shape: torch.Size) -> None:
        """Add them to float64 sums by unit, in place.

        Args:
            sums: shape (units, numel).
            sizes: number of records of each unit that count, ascending, int64 of shape (units,), on the CPU. Each unit
                has n / units records in turn, of which the first count.
        """
        rows = self.dense(shape)
        for place, part in enumerate(rows.reshape(len(sums), -1, rows.shape[1]).unbind(1)):
            first = int((sizes <= place).sum())
            sums[first:] += part[first:]


@dataclass(frozen=True)
class Dense(Gradients):
    """All numbers of every gradient, shape (n, numel)."""

    rows: Tensor

    @property
    def size(self) -> int:
        return self.rows.nbytes

    @property
    def norms(self) -> Tensor:
        return norm_bounds(self.rows)

    def add_to(self, total: Tensor, factors: Tensor, counted_rows: Tensor | None) -> None:
        add_product(total.view(1, -1), factors[None], _zero_unless(counted_rows, self.rows))

    def dense(self, shape: torch.Size) -> Tensor:
        del shape
        return self.rows


@dataclass(frozen=True)
class ChannelsLast(Dense):
    """Numbers for a convolution's weight, shape (n, d_out · height · width · d_in): input channels come last."""

    def add_to(self, total: Tensor, factors: Tensor, counted_rows: Tensor | None) -> None:
        d_out, d_in, *kernel = total.shape
        added = total.new_zeros(d_out, *kernel, d_in)
        super().add_to(added, factors, counted_rows)
        total += added.permute(0, 3, 1, 2)

    def dense(self, shape: torch.Size) -> Tensor:
        d_out, d_in, *kernel = shape
        return self.rows.view(-1, d_out, *kernel, d_in).permute(0, 1, 4, 2, 3).flatten(1)


@dataclass(frozen=True)
class Outer(Gradients):
    """Outer products of gradients of outputs, shape (n, d_out), with inputs, shape (n, d_in)."""

    gradients: Tensor
    inputs: Tensor

    @property
    def size(self) -> int:
        return self.gradients.nbytes + self.inputs.nbytes

    @property
    def norms(self) -> Tensor:
        return row_norms(self.gradients) * row_norms(self.inputs)

    def add_to(self, total: Tensor, factors: Tensor, counted_rows: Tensor | None) -> None:
        inputs, gradients = (_zero_unless(counted_rows, rows) for rows in (self.inputs, self.gradients))
        add_product(total, (gradients * factors[:, None]).t(), inputs)

    def dense(self, shape: torch.Size) -> Tensor:
        del shape
        return (self.gradients[:, :, None] * self.inputs[:, None, :]).flatten(1)

    def add_by_unit(self, sums: Tensor, sizes: Tensor, shape: torch.Size) -> None:
        gradients, inputs = (rows.double().view(len(sums), -1, rows.shape[1]) for rows in (self.gradients, self.inputs))
        gradients = gradients * (torch.arange(gradients.shape[1]) < sizes[:, None]).to(gradients)[..., None]
        sums.view(-1, *shape).baddbmm_(gradients.transpose(1, 2), inputs)


@dataclass(frozen=True)
class Lookups(Gradients):
    """Gradients of the rows of a table that were looked up: their indices (n, length) and gradients (n, length, d)."""

    ids: Tensor
    gradients: Tensor

    @property
    def size(self) -> int:
        return self.ids.nbytes + 3 * self.gradients.nbytes  # and their sums by index, in float64

    @property
    def norms(self) -> Tensor:
        # Gradients of equal indices are added up at the first of them.
        n, length = self.ids.shape
        first = (self.ids[:, :, None] == self.ids[:, None, :]).byte().argmax(-1)
        place = (first + length * torch.arange(n, device=first.device)[:, None]).flatten()
        rows = self.gradients.flatten(0, 1)
        return row_norms(
            rows.new_zeros(rows.shape, dtype=torch.float64).index_add_(0, place, rows.double()).view(n, -1)
        )

    def add_to(self, total: Tensor, factors: Tensor, counted_rows: Tensor | None) -> None:
        rows = _zero_unless(counted_rows, self.gradients) * factors[:, None, None]
        total.index_add_(0, self.ids.flatten(), rows.flatten(0, 1))

    def dense(self, shape: torch.Size) -> Tensor:
        n = len(self.ids)
        place = (self.ids + shape[0] * torch.arange(n, device=self.ids.device)[:, None]).flatten()
        rows = self.gradients.flatten(0, 1)
        return rows.new_zeros(n * shape[0], shape[1]).index_add_(0, place, rows).view(n, -1)


class Arena:
    """Memory for the gradients of one micro-batch, which the next one uses again.

    Fresh memory costs a tenth of a step: the system clears every page of it.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0)
        self._used = 0

    def clear(self) -> None:
        """Take back all memory, and have as much in one piece the next time."""
        if self._used > len(self._memory):
            self._memory = _in_huge_pages(self._used, self._memory)
        self._used = 0

    def empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a tensor that is not initialised, with the dtype and the device of `like`."""
        start, self._used = self._used, self._used + math.prod(shape)
        if (self._memory.dtype, self._memory.device) != (like.dtype, like.device):
            self._memory = like.new_empty(0)
        if self._used > len(self._memory):
            return like.new_empty(shape)
        return self._memory[start : self._used].view(shape)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return `torch.bmm(a, b)`."""
        return torch.bmm(a, b, out=self.empty((a.shape[0], a.shape[1], b.shape[2]), a))


ByName = Mapping[str, Callable[[], Gradients]]
"""Functions that compute the gradients of a layer's parameters, by name."""

Rule = Callable[[Any, Tensor, Tensor, Arena], ByName]
"""(layer, its inputs, gradients of its outputs, memory for the result) → gradients.

Inputs and gradients have a first dimension for records; then come the dimensions that the layer sees.
"""


def _linear(layer: nn.Module, inputs: Tensor, gradients: Tensor, arena: Arena) -> ByName:
    del layer
    x, g = _places(inputs), _places(gradients)

    def weight() -> Gradients:
        return Outer(g[:, 0], x[:, 0]) if x.shape[1] == 1 else Dense(arena.product(g.mT, x).flatten(1))

    return {"weight": weight, "bias": lambda: Dense(g[:, 0] if g.shape[1] == 1 else g.sum(1))}


def _transposed_linear(layer: nn.Module, inputs: Tensor, gradients: Tensor, arena: Arena) -> ByName:
    """Return gradients for a weight of shape (d_in, d_out)."""
    weight = _linear(layer, gradients, inputs, arena)["weight"]
    return {"weight": weight, "bias": lambda: Dense(_places(gradients).sum(1))}


def _places(rows: Tensor) -> Tensor:
    """Return vectors of each record, shape (n, places, d), of rows with any number of dimensions."""
    return rows.reshape(len(rows), -1, rows.shape[-1])


def _of_pictures(rule: Rule, dimensions: int) -> Rule:
    """Return a rule for records that are batches of inputs with so many dimensions each, or single inputs."""

    def of_records(layer: nn.Module, inputs: Tensor, gradients: Tensor, arena: Arena) -> ByName:
        n, several = len(inputs), inputs.dim() > dimensions + 1 and inputs.shape[1] > 1
        x, g = (joined_batches(part) if part.dim() > dimensions + 1 else part for part in (inputs, gradients))
        by_name = rule(layer, x, g, arena)

        def summed(make: Callable[[], Gradients]) -> Gradients:
            part = make()
            assert isinstance(part, Dense)
            return type(part)(part.rows.view(n, -1, part.rows.shape[1]).sum(1))

        return {name: partial(summed, make) for name, make in by_name.items()} if several else by_name

    return of_records


def _conv2d(layer: nn.Conv2d, inputs: Tensor, gradients: Tensor, arena: Arena) -> ByName:
    def weight() -> Gradients:
        patches = _patches(layer, inputs, gradients.shape[2:])
        n, groups, height, width, *seen = patches.shape
        places, size = height * width, math.prod(seen)
        g = gradients.permute(0, 2, 3, 1).reshape(n, places, groups, -1).permute(0, 2, 3, 1).flatten(0, 1)
        rows = arena.empty((n * groups, g.shape[1], size), g)
        # A few records at a time: their patches stay in the processor's cache, and need no memory for all.
        cached = _CACHED * torch.get_num_threads()
        at_once = max(1, cached // (groups * places * size)) if g.device.type == "cpu" else n
        for start in range(0, n, at_once):
            piece = patches[start : start + at_once].reshape(-1, places, size)
            part = slice(start * groups, start * groups + len(piece))
            torch.bmm(g[part], piece, out=rows[part])
        return ChannelsLast(rows.view(n, -1))

    return {"weight": weight, "bias": lambda: Dense(gradients.sum((2, 3)))}


def _patches(layer: nn.Conv2d, inputs: Tensor, places: torch.Size) -> Tensor:
    """Return the inputs of a convolution at each place, shape (n, groups, *places, *kernel_size, d_in): a view."""
    (down, right), (below, beside) = layer.stride, layer.dilation
    top, left = (int(size) for size in layer.padding)
    images = functional.pad(inputs.permute(0, 2, 3, 1), (0, 0, left, left, top, top)).contiguous()
    image, row, pixel, _ = images.stride()
    d_in = images.shape[3] // layer.groups  # not `pixel`: the stride of a side of one pixel may be anything
    return images.as_strided(
        (len(images), layer.groups, *places, *layer.kernel_size, d_in),
        (image, d_in, down * row, right * pixel, below * row, beside * pixel, 1),
    )


def _layer_norm(layer: nn.LayerNorm, inputs: Tensor, gradients: Tensor, arena: Arena) -> ByName:
    del arena
    between = tuple(range(1, inputs.dim() - len(layer.normalized_shape)))

    def added(tensor: Tensor) -> Gradients:
        return Dense((tensor.sum(between) if between else tensor).flatten(1))

    def weight() -> Gradients:
        return added(gradients * functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps))

    return {"weight": weight, "bias": lambda: added(gradients)}


def _group_norm(layer: nn.GroupNorm, inputs: Tensor, gradients: Tensor, arena: Arena) -> ByName:
    del arena
    rows = len(inputs)
    inputs, gradients = inputs.flatten(0, 1), gradients.flatten(0, 1)

    def weight() -> Gradients:
        standard = functional.group_norm(inputs, layer.num_groups, eps=layer.eps)
        return added(gradients * standard)

    def added(numbers: Tensor) -> Gradients:
        channels = numbers.flatten(2).sum(2) if numbers.dim() > 2 else numbers
        return Dense(channels.view(rows, -1, channels.shape[1]).sum(1))

    return {"weight": weight, "bias": lambda: added(gradients)}


def _embedding(layer: nn.Embedding, ids: Tensor, gradients: Tensor, arena: Arena) -> ByName:
    del arena

    def weight() -> Gradients:
        rows = _places(gradients)
        places = ids.reshape(len(ids), -1)
        if layer.padding_idx is not None:
            rows = torch.where((places == layer.padding_idx)[..., None], 0.0, rows)
        return Lookups(places, rows)

    return {"weight": weight}


_RULES: Mapping[type[nn.Module], Rule] = MappingProxyType(
    {
        nn.Linear: _linear,
        nn.Conv2d: _of_pictures(_conv2d, 3),
        nn.LayerNorm: _layer_norm,
        nn.GroupNorm: _group_norm,
        nn.Embedding: _embedding,
    }
)
_RULES_OF_OTHERS: Mapping[str, Rule] = MappingProxyType({"transformers.pytorch_utils.Conv1D": _transposed_linear})


def rule_for(layer: nn.Module) -> Rule | None:
    """Return the layer's rule; None if there is none for its class or its settings, or if hooks make its weights."""
    if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        return None
    if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse):
        return None
    if layer._forward_pre_hooks or "forward" in vars(layer):
        return None
    kind = type(layer)
    return _RULES.get(kind) or _RULES_OF_OTHERS.get(f"{kind.__module__}.{kind.__qualname__}")


def _in_huge_pages(numbers: int, like: Tensor) -> Tensor:
    """Return a vector that is not initialised; on a CPU in huge pages of memory, where the system has them.

    Gradients of a micro-batch take hundreds of megabytes. With pages of 4 KiB their look-up is a fifteenth of a step.
    """
    if like.device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(numbers)
    memory = mmap.mmap(-1, numbers * like.element_size(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=like.dtype)


def _zero_unless(counted_rows: Tensor | None, rows: Tensor) -> Tensor:
    """Return the records that count, and zeros for the others: a factor of 0 does not silence nan."""
    return rows if counted_rows is None else torch.where(counted_rows.view(-1, *[1] * (rows.dim() - 1)), rows, 0.0)
