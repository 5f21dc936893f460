"""Per-record gradients of any module by a backward pass for each record: the last resort, since no pass is shared."""

import torch
from torch import Tensor

from dphpo_bench.base.tensors import Tensors, call, each, length, take
from dphpo_bench.training.losses import check_one_each
from dphpo_bench.training.vmap import VmapEngine


class LoopEngine(VmapEngine):
    """Per-record gradients by a loop. See `GradientEngine`.

    It takes what vmap does not: compiled modules, and code that looks at values, as `item()` does.
    """

    def _gradients(self, inputs: Tensors, targets: Tensors) -> list[Tensor]:
        records = [self._gradient(inputs, targets, slice(row, row + 1)) for row in range(length(inputs))]
        return [torch.stack(of_parameter).reshape(len(records), -1) for of_parameter in zip(*records, strict=True)]

    def _gradient(self, inputs: Tensors, targets: Tensors, row: slice) -> tuple[Tensor, ...]:
        x, y = (each(lambda tensor: take(tensor, row), part) for part in (inputs, targets))
        with torch.enable_grad():
            losses = self.loss(call(self.model, x), y)
            check_one_each(losses, 1, "loss")
            gradients = torch.autograd.grad(losses.sum(), self.parameters, allow_unused=True, materialize_grads=True)
        return tuple(gradient.detach() for gradient in gradients)
