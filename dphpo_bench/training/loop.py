"""Per-record gradients of any module by a backward pass for each record: the last resort, since no pass is shared."""

from functools import partial

import torch
from torch import Tensor

from dphpo_bench.base.tensors import Tensors, call, each, length, take
from dphpo_bench.training.alone import by_loop
from dphpo_bench.training.functional import stateless
from dphpo_bench.training.losses import check_one_each
from dphpo_bench.training.vmap import VmapEngine


class LoopEngine(VmapEngine):
    """Per-record gradients by a loop. See `GradientEngine`.

    It takes what vmap does not: compiled modules, and code that looks at values, as `item()` does. Each record gets a
    copy of the model, with the same parameters, so that nothing that one record leaves behind reaches the next.
    """

    def _gradients(self, inputs: Tensors, targets: Tensors) -> list[Tensor]:
        records = [self._gradient(inputs, targets, slice(row, row + 1)) for row in range(length(inputs))]
        return [torch.stack(of_parameter).reshape(len(records), -1) for of_parameter in zip(*records, strict=True)]

    def _gradient(self, inputs: Tensors, targets: Tensors, row: slice) -> tuple[Tensor, ...]:
        x, y = (each(partial(take, rows=row), part) for part in (inputs, targets))
        with torch.enable_grad():
            losses = self._loss_of_record(x, y)
            gradients = torch.autograd.grad(losses.sum(), self.parameters, allow_unused=True, materialize_grads=True)
        return tuple(gradient.detach() for gradient in gradients)

    def _plain_losses(self, inputs: Tensors, targets: Tensors) -> Tensor:
        losses: Tensor = by_loop(self._loss_of_record)(inputs, targets)
        return losses

    def _loss_of_record(self, inputs: Tensors, targets: Tensors) -> Tensor:
        losses = self.loss(call(stateless(self.model), inputs), targets)
        check_one_each(losses, 1, "loss")
        return losses
