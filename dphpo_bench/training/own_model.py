"""The engine's copy of a model: it takes the numbers of a method's model, and runs none of its code.

A method may exchange a layer of its model, change `forward`, or add hooks. Only the copy, which the task made, sees
private records.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, call, converted, each, length, plain, take
from dphpo_bench.base.text import shown
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.evaluation import evaluating, rows_at_once
from dphpo_bench.training.failures import tried
from dphpo_bench.training.functional import copied
from dphpo_bench.training.gradients import can_be_closed, gradient_engine
from dphpo_bench.training.linear import linear_layer
from dphpo_bench.training.losses import Objective, PerRecord, tensors_of
from dphpo_bench.training.model_checks import (
    made_up,
    refuse_mixing,
    refuse_mixing_values,
    refuse_watchers,
    zeros_and_ones,
)
from dphpo_bench.training.structure import content, named_tensors
from dphpo_bench.training.unfit import refuse_unfit
from dphpo_bench.training.value_reads import reads_numbers

_MOST_ENGINES = 4


class OwnModel:
    """A model that the task made for the engine. Of `records` only names, shapes, types and the device are used."""

    def __init__(self, build: Callable[[], nn.Module], records: Records, objective: Objective) -> None:
        refuse_watchers()  # also of what is built
        self.model = build()
        refuse_unfit(self.model)
        self._initial = [parameter.detach().clone() for parameter in self.model.parameters()]
        self._records = records
        self._objective = objective
        # By all that decides how a model computes but its weights: making an engine checks that it mixes no records.
        self._engines: dict[tuple[object, ...], GradientEngine] = {}
        self._checked: set[tuple[object, ...]] = set()
        self._buffers: dict[str, bytes] = {}  # their contents, hashed
        self._scores: PerRecord | None = None

    @property
    def has_closed_form(self) -> bool:
        """True if gradients have a closed form, so that several such models can be stacked."""
        return can_be_closed(self.model, self._objective.losses, self._records.are_named)

    def like(self, theirs: nn.Module) -> nn.Module:
        """Return the model with the weights, buffers, modes and trained parameters of a method's model.

        Raises:
            InvalidValueError: if the method's model has another structure, or the task's is unfit for private records.
        """
        self._take(theirs)
        self._check()
        return self.model

    def engine(self, theirs: nn.Module) -> GradientEngine:
        """Return an engine for the model at these weights; the last few engines are cached.

        Each choice of trained parameters, modes and contents of buffers has an engine.

        Raises:
            InvalidValueError: as in `like`, or if there is no engine for the model.
        """
        self._take(theirs)
        trained = tuple(parameter.requires_grad for parameter in self.model.parameters())
        kind = (*trained, *self._state())
        if kind not in self._engines:
            losses, records = self._objective.losses, self._records
            # A model that does not work at all fails here, where an exception reveals nothing of the private records.
            with tried(records.inputs), self._initial_weights(), torch.random.fork_rng(devices=[]):
                refuse_mixing_values(losses, "loss", copied(self.model), records)
                if reads_numbers("loss", _with_gradients(losses), *self._made_up_pairs()):
                    self.model.rows_at_once = 1  # type: ignore[assignment]
                engine = gradient_engine(self.model, losses, like=records)
                self._check()  # before the model's first use: it may keep something of that
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
        """Reject, by made-up records, a model or losses that no private training can use; and scores, on request.

        Raises:
            InvalidValueError: as in `engine` and `scored`, or if no loss is finite, or no gradient differs from 0.
        """
        engine, inputs = self.engine(self.model), made_up(self.model, self._records.inputs)
        targets = each(zeros_and_ones, self._records.targets)
        with tried(self._records.inputs):
            losses, sums = engine.losses(inputs, targets), engine.clipped_sum(inputs, targets, AutoS())
        if not losses.isfinite().any():
            raise InvalidValueError(
                "Expected losses that are finite, got none on made-up records. Correct the model or the losses."
            )
        if not any(bool(part.any()) for part in sums):
            raise InvalidValueError(
                "Expected losses that depend on the weights that are trained, got gradients of 0 on made-up records. "
                "Does the model detach() its outputs, or round them?"
            )
        if scores:
            self.scored(self.model)

    def scored(self, theirs: nn.Module) -> nn.Module:
        """Return `like` of a model whose scores are checked: one for each record, and of that record alone."""
        model = self.like(theirs)
        if self._scores is None:
            scores = self._objective.scores
            refuse_mixing_values(scores, "score", model, self._records)
            reads = reads_numbers("score", scores, *self._made_up_pairs())
            self._scores = partial(one_by_one, scores) if reads else scores
        return model

    @property
    def scores(self) -> PerRecord:
        """The scores of the task, once `scored` has checked them: each of a record alone, if they read numbers."""
        return self._scores or self._objective.scores

    def _state(self) -> tuple[object, ...]:
        """Return the modes of all modules and the contents of all buffers."""
        return (*(module.training for module in self.model.modules()), *self._buffers.values())

    def _check(self) -> None:
        if (state := self._state()) not in self._checked:
            with tried(self._records.inputs), self._initial_weights():
                refuse_mixing(self.model, self._records.inputs)
                self._take_alone_if_it_reads()
            self._checked.add(state)

    def _take_alone_if_it_reads(self) -> None:
        """Let a model that reads numbers of a batch, in any mode, take one record at once."""
        if linear_layer(self.model) is not None or rows_at_once(self.model, 2) == 1:
            return
        probe = copied(getattr(self.model, "_orig_mod", self.model))
        inputs = made_up(probe, self._records.inputs)
        for mode in (torch.enable_grad(), torch.no_grad(), evaluating(probe)):
            with mode:
                if reads_numbers("model", partial(call, probe), inputs):
                    self.model.rows_at_once = 1  # type: ignore[assignment]
                    return

    def _made_up_pairs(self) -> tuple[Tensors, Tensors]:
        """Return outputs and targets of made-up records, as losses and scores get them."""
        probe = copied(self.model)
        like = next(probe.parameters())
        with evaluating(probe):
            outputs = tensors_of(call(probe, made_up(probe, self._records.inputs)))
        targets = each(lambda some: converted(zeros_and_ones(some), like.device, like.dtype), self._records.targets)
        return outputs, targets

    @contextmanager
    def _initial_weights(self) -> Iterator[None]:
        """Use the weights that the task gave: at a method's weights, such as NaN or zeros, a check may see nothing."""
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
        ours, values = dict(named_tensors(self.model)), {name: plain(tensor) for name, tensor in named_tensors(theirs)}
        if _structure(ours) != _structure(values):
            raise InvalidValueError(
                f"Expected a model as the task builds it, {shown(_structure(ours), 200)}, got "
                f"{shown(_structure(values), 200)}. Ask about one of the session's build_model(): its weights may "
                "change, and which of them are trained."
            )
        with torch.no_grad():
            for name, tensor in ours.items():
                if isinstance(tensor, nn.Parameter):
                    tensor.copy_(values[name])
                    tensor.requires_grad_(values[name].requires_grad)
                elif name not in self._buffers or not torch.equal(tensor, values[name].to(tensor.device)):
                    tensor.copy_(values[name])
                    self._buffers[name] = hashlib.sha256(content(tensor)).digest()
        modes = {name: module.training is True for name, module in theirs.named_modules()}
        for name, module in self.model.named_modules():
            module.training = modes.get(name, module.training)


def one_by_one(values: PerRecord, outputs: Tensors, targets: Tensors) -> Tensor:
    """Return losses or scores of records, each computed without the others."""
    rows = [slice(row, row + 1) for row in range(length(targets))]
    return torch.cat([values(*(each(partial(take, rows=row), part) for part in (outputs, targets))) for row in rows])


def _with_gradients(losses: PerRecord) -> PerRecord:
    """Return the losses of outputs that want gradients, as in training."""
    return lambda outputs, targets: losses(each(lambda some: some.requires_grad_(), outputs), targets)


def _structure(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors.items()}
