"""Exponential moving average of weights: it costs no privacy, since released weights are all that it needs."""

from collections.abc import Iterable

import torch
from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError


class WeightAverage:
    """An exponential moving average with a warm-up.

    Update t = 0, 1, ... uses the decay min(decay, (1 + t) / (10 + t)) (as De et al. 2022, arXiv:2204.13650). The window
    grows to a tenth of the updates so far, so even a short run forgets its poor first weights. With the usual bias
    correction a short run would average all weights. The first update replaces the average.

    Args:
        parameters: the tensors to follow; they are only read.
        decay: from 0 to below 1.

    Raises:
        InvalidValueError: if `decay` is out of range.
    """

    def __init__(self, parameters: Iterable[Tensor], decay: float) -> None:
        if not 0 <= decay < 1:
            raise InvalidValueError(f"Expected decay={decay} from 0 to below 1.")
        self.decay = decay
        self.updates = 0
        self._parameters = list(parameters)
        self.average = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights."""
        t = self.updates
        decay = min(self.decay, (1 + t) / (10 + t)) if t else 0.0
        torch._foreach_lerp_(self.average, self._parameters, 1 - decay)
        self.updates += 1

    @torch.no_grad()
    def copy_to(self, parameters: Iterable[Tensor]) -> None:
        """Write the average into tensors of the same shapes, such as those of the model to hand over."""
        torch._foreach_copy_(list(parameters), self.average)
