"""The engine's own copy of a model: it takes the numbers of a method's model, and runs none of its code.

A method may do anything to its model: exchange a layer, give it another `forward`, hang hooks on it. Private records
are seen by the copy alone, which the task made and no method has ever held.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, each, length, plain
from dphpo_bench.base.text import shown
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.gradients import can_be_closed, gradient_engine
from dphpo_bench.training.losses import Objective
from dphpo_bench.training.model_checks import (
    made_up,
    refuse_mixing,
    refuse_mixing_values,
    refuse_watchers,
    zeros_and_ones,
)

_MOST_ENGINES = 4


class OwnModel:
    """A model that the task made for the engine.

    Of `records`, names, shapes, types and the device are used, not the values.
    """

    def __init__(self, build: Callable[[], nn.Module], records: Records, objective: Objective) -> None:
        refuse_watchers()  # also of what is built
        self.model = build()
        self._initial = [parameter.detach().clone() for parameter in self.model.parameters()]
        self._records = records
        self._objective = objective
        # By what decides how a model computes, but for its weights: whether it mixes records, backwards, too, is found
        # out as an engine is made.
        self._engines: dict[tuple[object, ...], GradientEngine] = {}
        self._checked: set[tuple[object, ...]] = set()
        self._buffers: dict[str, bytes] = {}  # their contents, hashed
        self._scores = False

    @property
    def has_closed_form(self) -> bool:
        """Whether gradients are computed in closed form, so that several such models can be stacked."""
        return can_be_closed(self.model, self._objective.losses, self._records.are_named)

    def like(self, theirs: nn.Module) -> nn.Module:
        """The model with the weights, the buffers, the modes and the trained parameters of a method's model.

        Refused if the method's model has another structure, or the task's is unfit for private records.
        """
        self._take(theirs)
        self._check()
        return self.model

    def engine(self, theirs: nn.Module) -> GradientEngine:
        """An engine for the model at these weights; refused as in `like`, and if there is none for the model.

        It keeps what it has measured of the records. One is made for each choice of trained parameters, modes and
        contents of buffers; the last few are kept.
        """
        self._take(theirs)
        trained = tuple(parameter.requires_grad for parameter in self.model.parameters())
        kind = (*trained, *self._state())
        if kind not in self._engines:
            losses, records = self._objective.losses, self._records
            # What does not work at all is found out here, where an exception tells nothing of the private records.
            with self._initial_weights(), torch.random.fork_rng(devices=[]):
                refuse_mixing_values(losses, "loss", self.model, records)
                engine = gradient_engine(self.model, losses, like=records)
                inputs = made_up(self.model, records.inputs)
                rows = length(inputs)
                targets = each(lambda tensor: tensor.new_zeros((rows, *tensor.shape[1:])), records.targets)
                engine.clipped_sum(inputs, targets, AutoS())
            if len(self._engines) == _MOST_ENGINES:
                del self._engines[next(iter(self._engines))]
            self._engines[kind] = engine
        self._check()
        return self._engines[kind]

    def check(self, *, scores: bool) -> None:
        """Refuse, by made-up records, a model or losses that no private training can use; scores, too, if asked for.

        Raises:
            InvalidValueError: as in `engine` and `scored`, or if no loss is finite.
        """
        engine, inputs = self.engine(self.model), made_up(self.model, self._records.inputs)
        if not engine.losses(inputs, each(zeros_and_ones, self._records.targets)).isfinite().any():
            raise InvalidValueError(
                "Expected losses that are finite, got none on made-up records. Correct the model or the losses."
            )
        if scores:
            self.scored(self.model)

    def scored(self, theirs: nn.Module) -> nn.Module:
        """`like`, for a model whose scores have been checked: one for each record, and of that record alone."""
        model = self.like(theirs)
        if not self._scores:
            refuse_mixing_values(self._objective.scores, "score", model, self._records)
            self._scores = True
        return model

    def _state(self) -> tuple[object, ...]:
        """The modes of all modules and the contents of all buffers."""
        return (*(module.training for module in self.model.modules()), *self._buffers.values())

    def _check(self) -> None:
        if (state := self._state()) not in self._checked:
            with self._initial_weights():
                refuse_mixing(self.model, self._records.inputs)
            self._checked.add(state)

    @contextmanager
    def _initial_weights(self) -> Iterator[None]:
        """The weights that the task gave: at those of a method, such as NaN or zeros, nothing could be seen.

        What is found out at them holds for all.
        """
        parameters: list[Tensor] = [*self.model.parameters()]
        theirs = [parameter.detach().clone() for parameter in parameters]
        try:
            with torch.no_grad():
                torch._foreach_copy_(parameters, self._initial)
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(parameters, theirs)

    def _take(self, theirs: nn.Module) -> None:
        refuse_watchers(self.model)
        own, given = _tensors(self.model), {name: plain(tensor) for name, tensor in _tensors(theirs).items()}
        if _structure(own) != _structure(given):
            raise InvalidValueError(
                f"Expected a model as the task builds it, {shown(_told(own), 200)}, got "
                f"{shown(_told(given), 200)}. Ask about one of the session's build_model(): its weights may change, "
                "and which of them are trained."
            )
        with torch.no_grad():
            for name, tensor in own.items():
                if isinstance(tensor, nn.Parameter):
                    tensor.copy_(given[name])
                    tensor.requires_grad_(given[name].requires_grad)
                elif name not in self._buffers or not torch.equal(tensor, given[name].to(tensor.device)):
                    tensor.copy_(given[name])
                    self._buffers[name] = _content(tensor)
        modes = {name: module.training is True for name, module in theirs.named_modules()}
        for name, module in self.model.named_modules():
            module.training = modes.get(name, module.training)


def _content(tensor: Tensor) -> bytes:
    """A hash of the numbers."""
    return hashlib.sha256(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()).digest()


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(chain(model.named_parameters(), model.named_buffers()))


def _structure(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _told(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors.items()}
