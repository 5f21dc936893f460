"""Optimisers as maps from a gradient to an update, so that a step can be probed before it is taken."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.optimizer_names import check_optimizer, published

OptimizerFactory = Callable[..., torch.optim.Optimizer]

# Their update is proportional to the learning rate and, without weight decay, does not depend on the weights.
_WEIGHT_FREE = {"adadelta", "adagrad", "adam", "adamax", "adamw", "nadam", "radam", "rmsprop", "sgd"}
_DEFAULTS: dict[str, dict[str, object]] = {"sgd": {"momentum": 0.9}}


class UpdateRule:
    """An optimiser that proposes a direction and leaves the step size to the caller.

    `direction` followed by `apply(direction, lr)` at each step is the trajectory of the optimiser at that learning
    rate. The state of the optimiser (momentum and the like) advances with `direction`.

    Args:
        optimizer: name of a `torch.optim` class, in any case; or a callable that takes a list of tensors and `lr` and
            returns an optimiser whose step is proportional to `lr`.
        parameters: the tensors that `apply` moves.
        options: keyword arguments of the optimiser except `lr`. SGD gets momentum 0.9 unless they say otherwise.

    Raises:
        UnknownNameError: if there is no optimiser of that name.
        InvalidValueError: if it cannot serve as a map from gradient to update, or refuses an option.
    """

    def __init__(
        self,
        optimizer: str | OptimizerFactory,
        parameters: Iterable[Tensor],
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.parameters = list(parameters)
        factory, key = optimizer, ""
        if isinstance(factory, str):
            check_optimizer(factory)
            key = factory.lower()
            published_class: Any = published()[key]
            # Without the wrappers that import PyTorch's compiler, for over a second: they matter to compiled steps and
            # to gradients of steps. A step here is neither, and runs under `no_grad`.
            plain = {method: inspect.unwrap(getattr(published_class, method)) for method in ("add_param_group", "step")}
            factory = type(published_class.__name__, (published_class,), plain)
        keywords = {**_DEFAULTS.get(key, {}), **(options or {})}
        default = inspect.signature(factory).parameters.get("weight_decay")
        weight_decay = keywords.get("weight_decay", default.default if default else None)
        self._weight_free = key in _WEIGHT_FREE and not weight_decay
        # The optimiser steps on stand-ins. Where the weights do not matter they start each step at 0, which makes the
        # step exact. Elsewhere they are float64 copies: a difference of nearby float32 weights is mostly rounding.
        dtype = None if self._weight_free else torch.float64
        self._stand_ins = [torch.zeros_like(parameter, dtype=dtype) for parameter in self.parameters]
        try:
            self._optimizer = factory(self._stand_ins, lr=1.0, **keywords)
        except (TypeError, ValueError) as error:
            raise InvalidValueError(f"Optimiser {optimizer!r} refuses options {keywords!r}: {error}") from error

    @torch.no_grad()
    def direction(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the update at learning rate 1, weights before minus weights after, as new tensors; move no weights.

        Args:
            gradients: a tensor for each parameter, of its shape.
        """
        for stand_in, parameter, gradient in zip(self._stand_ins, self.parameters, gradients, strict=True):
            if self._weight_free:
                stand_in.zero_()
            else:
                stand_in.copy_(parameter)
            stand_in.grad = gradient.to(stand_in.dtype, copy=True)
        self._optimizer.step()
        if self._weight_free:
            return [-stand_in for stand_in in self._stand_ins]
        return [
            (parameter - stand_in).to(parameter.dtype)
            for parameter, stand_in in zip(self.parameters, self._stand_ins, strict=True)
        ]

    @torch.no_grad()
    def apply(self, direction: Sequence[Tensor], step_size: float) -> None:
        """Move the weights in place: w ← w - step_size · direction."""
        torch._foreach_add_(self.parameters, list(direction), alpha=-step_size)


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
