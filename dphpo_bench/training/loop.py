"""Per-record gradients of any module by a backward pass for each record: the last resort, since no pass is shared."""

from functools import partial

import torch
from torch import Tensor

from dphpo_bench.base.tensors import Tensors, call, each, length, take
from dphpo_bench.training.alone import by_loop
from dphpo_bench.training.functional import copied
from dphpo_bench.training.losses import of_one
from dphpo_bench.training.vmap import VmapEngine


class LoopEngine(VmapEngine):
    """Per-record gradients by a loop. See `GradientEngine`.

    It takes what vmap does not: compiled modules, and code that looks at values, as `item()` does. Each record gets a
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

    def _plain_losses(self, inputs: Tensors, targets: Tensors) -> Tensor:
        loss = of_one(self.loss, "loss")
        losses: Tensor = by_loop(lambda x, y: loss(call(copied(self.model), x), y))(inputs, targets)
        return losses
