"""Several linear classifiers trained on the same records at once.

With one model of few classes a core mostly waits for memory: each record is read and then hardly used. The weights of
M models, one below the other, are one matrix of M · classes rows; each record is read, converted and multiplied once
for all of them.

This is for full batches. Where every trial draws its own Poisson batch at rate q, the union of the batches,
1 - (1 - q)^M of the records, would have to be multiplied with all models, instead of q with each: no gain below
q ≈ 1/3. One batch for all trials would correlate them, which no accountant of repeated runs allows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.linear import LinearEngine, clipped_sums, linear_layer


class StackedLinear:
    """Clipped gradient sums of M ≥ 1 linear classifiers (see `linear_layer`) over the same records.

    Weights are read at each call, so the models may be trained in between. Norms of the dataset's rows are kept as
    `LinearEngine` keeps them. Models that differ in shape, dtype, device, or in which parameters they have and train
    are refused.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        if not models:
            raise InvalidValueError("Expected at least one model to stack.")
        self.models = list(models)
        self._engines = [LinearEngine(model) for model in models]
        kinds = {_kind(model) for model in models}
        if len(kinds) > 1:
            raise InvalidValueError(
                "Expected models with the same shapes, dtype, device and trainable parameters, "
                f"got {len(kinds)} kinds. Train them one after the other."
            )

    def clipped_sums(
        self, inputs: Tensor, targets: Tensor, clippings: Sequence[Clipping], indices: Tensor | None = None
    ) -> list[list[Tensor]]:
        """`LinearEngine.clipped_sum` of each model, up to rounding, each with its own clipping rule.

        A trial that diverged disturbs no other. All models share the batch.
        """
        if len(clippings) != len(self._engines):
            raise InvalidValueError(
                f"Expected one clipping rule for each of {len(self._engines)} models, got {len(clippings)}."
            )
        return clipped_sums(self._engines, inputs, targets, clippings, indices)


def _kind(model: nn.Module) -> tuple[tuple[torch.Size, torch.dtype, torch.device, bool] | None, ...]:
    layer = linear_layer(model)
    return tuple(
        None if parameter is None else (parameter.shape, parameter.dtype, parameter.device, parameter.requires_grad)
        for parameter in ((layer.weight, layer.bias) if layer is not None else ())
    )
