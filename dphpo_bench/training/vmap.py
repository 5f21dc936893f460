"""Per-sample gradients of any module by `torch.func`, vectorised over records.

Each record is a batch of its own, so nothing in the model can mix records.
"""

from torch import Tensor, nn
from torch.func import grad, vmap

from dphpo_bench.base.tensors import Tensors, each, length
from dphpo_bench.training.alone import only_torch
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.engine import GradientEngine, add_clipped, per_sample_rows
from dphpo_bench.training.functional import call_with
from dphpo_bench.training.losses import PerRecord, of_one
from dphpo_bench.training.norms import add_by_unit
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
