"""The engine's copy of a model: it takes the numbers of a method's model, and runs none of its code.

A method may exchange a layer of its model, change `forward`, or add hooks. Only the copy, which the task made, sees
private records.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, plain
from dphpo_bench.base.text import shown
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.engine import GradientEngine, refuse_statistics
from dphpo_bench.training.evaluation import refuse_wrong_lengths, rows_at_once
from dphpo_bench.training.functional import copied
from dphpo_bench.training.gradients import LoopEngine, gradient_engine
from dphpo_bench.training.linear import linear_layer
from dphpo_bench.training.losses import Objective
from dphpo_bench.training.model_checks import (
    differs_in_batches,
    made_up,
    outputs_alone,
    refuse_keeping,
    refuse_unfit,
    refuse_watchers,
    tried,
    try_values,
)
from dphpo_bench.training.structure import content, named_tensors
from dphpo_bench.training.units import Units
from dphpo_bench.training.values import SCORES, Query

_MOST_ENGINES = 4


class OwnModel:
    """A model that the task made for the engine.

    Args:
        build: returns it.
        records: only names, shapes and types are used.
        example: inputs of public records, for a model that fails on made-up ones; see `Task.example`.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        records: Records,
        objective: Objective,
        example: Tensors | None = None,
    ) -> None:
        refuse_watchers()  # also of what is built
        self.model = build()
        refuse_unfit(self.model)
        self._initial = [parameter.detach().clone() for parameter in self.model.parameters()]
        self._records = records
        self._objective = objective
        self._example = example
        # By all that decides how a model computes but its weights.
        self._engines: dict[tuple[object, ...], GradientEngine] = {}
        self._checked: set[tuple[object, ...]] = set()
        self._buffers: dict[str, bytes] = {}  # their contents, hashed
        self._tried_queries: set[tuple[object, int]] = set()
        self._tried_updates: set[GradientEngine] = set()

    def like(self, theirs: nn.Module) -> nn.Module:
        """Return the model with the weights, buffers, modes and trained parameters of a method's model."""
        self._take(theirs)
        self._check()
        return self.model

    def engine(self, theirs: nn.Module) -> GradientEngine:
        """Return an engine for the model at these weights; the last few engines are cached.

        Each choice of trained parameters, modes and contents of buffers has an engine.
        """
        self._take(theirs)
        trained = tuple(parameter.requires_grad for parameter in self.model.parameters())
        kind = (*trained, *self._state())
        if kind not in self._engines:
            # A model that does not work at all fails here, where an exception reveals nothing of the private records.
            with self._tried(), torch.random.fork_rng(devices=[]):
                self._check()
                some = self._made_up()
                try_values(self._objective.losses, "loss", self._outputs(some), some.targets)
                engine = gradient_engine(self.model, self._objective.losses, like=some)
                engine.clipped_sum(some.inputs, some.targets, AutoS())
            if len(self._engines) == _MOST_ENGINES:
                del self._engines[next(iter(self._engines))]
            self._engines[kind] = engine
        self._check()
        return self._engines[kind]

    def engine_of_updates(self, theirs: nn.Module, local: tuple[int, float]) -> GradientEngine:
        """Return `engine`; reject a model that cannot take several records of a client, or several steps."""
        engine = self.engine(theirs)
        if engine not in self._tried_updates:
            with self._tried(), torch.random.fork_rng(devices=[]):
                some = self._made_up()
                units = Units.of(torch.arange(len(some)) // 2)
                engine.clipped_update_sum(some.inputs, some.targets, AutoS(), units, local)
            self._tried_updates.add(engine)
        return engine

    def check(self, *, scores: bool) -> None:
        """Reject, by made-up records, a model or losses that no private training can use; and scores, on request."""
        engine = self.engine(self.model)
        with self._tried():
            some = self._made_up()
            losses = try_values(self._objective.losses, "loss", self._outputs(some), some.targets)
            sums = engine.clipped_sum(some.inputs, some.targets, AutoS())
        if not losses.isfinite().any():
            raise InvalidValueError(
                "Expected losses that are finite, got none on made-up records. Correct the model or the losses, or "
                "give inputs of a public record that suits them: example=."
            )
        if not any(bool(part.any()) for part in sums):
            raise InvalidValueError(
                "Expected losses that depend on the weights that are trained, got gradients of 0 on made-up records. "
                "Does the model detach() its outputs, or round them?"
            )
        if scores:
            self.asked(self.model, SCORES)

    def asked(self, theirs: nn.Module, query: Query) -> nn.Module:
        """Return `like` of a model; reject a query that fails on made-up records."""
        model = self.like(theirs)
        code = getattr(query.values, "__code__", type(query.values)), query.count
        if code not in self._tried_queries:
            with self._tried(), torch.random.fork_rng(devices=[]):
                some = self._made_up()
                if query.values is SCORES.values:  # says more of them
                    try_values(self._objective.scores, "score", self._outputs(some), some.targets)
                query.total(model, self._objective, some)
            self._tried_queries.add(code)
        return model

    @property
    def takes_batches(self) -> bool:
        """True if a caller's loop may pass whole batches: vmap takes the model, and made-up records do not mix."""
        if rows_at_once(self.model, 2) == 1 or isinstance(self.engine(self.model), LoopEngine):
            return False
        return not differs_in_batches(self.model, self._made_up().inputs)

    def _state(self) -> tuple[object, ...]:
        """Return the modes of all modules and the contents of all buffers."""
        return (*(module.training for module in self.model.modules()), *self._buffers.values())

    def _check(self) -> None:
        if linear_layer(self.model) is None and (state := self._state()) not in self._checked:
            refuse_statistics(self.model)
            with self._tried():
                inputs = self._made_up().inputs
                refuse_keeping(self.model, inputs)
                refuse_wrong_lengths(copied(self.model), inputs)
                if way := differs_in_batches(self.model, inputs):
                    warnings.warn(
                        "The model's outputs for a record change with the others of a batch. Here it gets each record "
                        f"alone. {way}",
                        stacklevel=2,
                    )
            self._checked.add(state)

    def _made_up(self) -> Records:
        return made_up(self.model, self._records, self._example)

    def _outputs(self, some: Records) -> Tensors:
        """Return outputs of made-up records, as losses and scores get them."""
        return outputs_alone(copied(self.model), some.inputs)

    @contextmanager
    def _tried(self) -> Iterator[None]:
        """Run code of the task on made-up records, at its initial weights; raise what it raises in one line.

        At a method's weights, such as NaN or zeros, a check may see nothing.
        """
        parameters: list[Tensor] = [*self.model.parameters()]
        theirs = [parameter.detach().clone() for parameter in parameters]
        try:
            with torch.no_grad():
                torch._foreach_copy_(parameters, self._initial)
            with tried(self._records.inputs, asks_for_example=self._example is None):
                yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(parameters, theirs)

    def _take(self, theirs: nn.Module) -> None:
        refuse_watchers(self.model)
        ours, values = dict(named_tensors(self.model)), {name: plain(tensor) for name, tensor in named_tensors(theirs)}
        expected, structure = (
            {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors.items()}
            for tensors in (ours, values)
        )
        if structure != expected:
            raise InvalidValueError(
                f"Expected a model as the task builds it, {shown(expected, 200)}, got {shown(structure, 200)}. Ask "
                "about one of the session's build_model(): its weights may change, and which of them are trained."
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
