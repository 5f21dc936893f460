"""Per-sample gradients layer by layer, from one forward and one backward pass of a whole micro-batch.

A step costs hardly more than one without privacy, since no gradient of a batch is computed. The forward pass runs by
vmap: the model computes with one record, and torch keeps the records of a micro-batch apart (see `alone`). The backward
pass follows what torch computed, so that it mixes no records either.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.func import vmap
from torch.nn import functional

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, each, length
from dphpo_bench.training.alone import by_vmap, only_torch
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.engine import EFFICIENT_ROWS, GradientEngine, per_sample_rows
from dphpo_bench.training.functional import Level, call_with, ours
from dphpo_bench.training.layers import Arena, Dense, Gradients, Rule, rule_for
from dphpo_bench.training.losses import PerRecord, of_one, tensors_of
from dphpo_bench.training.recurrent import by_steps

_RECURRENT_ROWS = 256
"""A step of a sequence starts a dozen small operations, each of which takes longer than a few records do."""


@dataclass(frozen=True)
class _Site:
    """A layer with a rule."""

    module: nn.Module
    rule: Rule
    trained: Mapping[str, int]  # names of its trained parameters → their places in `GradientEngine.parameters`


class LayerwiseEngine(GradientEngine):
    """Per-sample gradients layer by layer. See `GradientEngine`.

    The model runs by vmap, so that no record affects another. Each record has a copy of the weights, of which only
    those take memory that are used outside of a layer with a rule.
    """

    def __init__(self, model: nn.Module, loss: PerRecord) -> None:
        super().__init__(model, loss)
        self._rows, self._unmeasured = 1, True
        places = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        self._sites = [  # a shared parameter has several
            _Site(module, rule, trained)
            for module in model.modules()
            if (rule := rule_for(module))
            and (trained := {name: places[id(p)] for name, p in module._parameters.items() if id(p) in places})
        ]
        self._names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._arena = Arena()
        self._takes_channels_last: bool | None = None

    def clipped_sum(
        self, inputs: Tensors, targets: Tensors, clipping: Clipping, indices: Tensor | None = None
    ) -> list[Tensor]:
        """See `GradientEngine.clipped_sum`."""
        if self._unmeasured and length(inputs):
            # The number of records in a micro-batch follows from the memory that a record takes.
            some = Records(inputs, targets).rows(slice(1)).copied().to(self._device, self._dtype)
            one_pass = self._pass(some.inputs, some.targets)
            weights = {weight.data_ptr() for weight in self.model.parameters()}
            size = sum(size for place, size in one_pass.waiting.items() if place not in weights)
            size += sum(part.size for uses in one_pass.gradients for part in uses)
            rows = _RECURRENT_ROWS if one_pass.uses else EFFICIENT_ROWS
            self._rows = per_sample_rows(max(1, size), self._device, rows)
            self._unmeasured = False
        return super().clipped_sum(inputs, targets, clipping, indices)

    def _gradients(self, inputs: Tensors, targets: Tensors) -> list[list[Gradients]]:
        return self._pass(inputs, targets).gradients

    def _pass(self, inputs: Tensors, targets: Tensors) -> "_Pass":
        self._arena.clear()
        n = length(inputs)
        one_pass = _Pass(n, [[] for _ in self.parameters], self._arena, self.parameters)
        copies = {
            name: parameter.detach().expand(n, *parameter.shape).requires_grad_()
            for name, parameter in zip(self._names, self.parameters, strict=True)
        }

        def of_record(copies: dict[str, Tensor], record: Tensors, target: Tensors) -> Tensor:
            one_pass.begin(copies.values())
            inputs, targets = (each(lambda tensor: tensor[None], tensors) for tensors in (record, target))
            return of_one(self.loss, "loss")(call_with(self.model, copies, inputs), targets).squeeze(0)

        # Hooks of a model for what autograd saves would see all records; a single record is measured by such hooks.
        alone = disable_saved_tensors_hooks("It has hooks of saved tensors.")
        counting = one_pass.measured() if self._unmeasured else alone
        inputs = self._fast_layout(inputs)
        with torch.enable_grad():
            with self._attached(one_pass), only_torch(), counting:
                losses: Tensor = vmap(of_record, randomness="different")(copies, inputs, targets)
            if losses.requires_grad:
                one_pass.go_back(losses, [*copies.values()])
        return one_pass

    def _fast_layout(self, images: Tensors) -> Tensors:
        """Return images with channels last in memory, if the model can take them.

        On a CPU pooling is 3 to 8 times faster that way. A model that calls `view` on feature maps fails, so the first
        record is tried.
        """
        if not (isinstance(images, Tensor) and images.dim() == 4 and images.is_floating_point()):
            return images
        if images.device.type != "cpu":
            return images
        if self._takes_channels_last is None:
            try:
                with torch.no_grad():
                    by_vmap(lambda image: tensors_of(self.model(image)), self.model)(_channels_last(images[:1]))
                self._takes_channels_last = True
            except Exception:  # whatever a model raises
                self._takes_channels_last = False
        return _channels_last(images) if self._takes_channels_last else images

    @contextmanager
    def _attached(self, one_pass: "_Pass") -> Iterator[None]:
        """Let the layers take part in a pass, by hooks, and recurrent ones by their products."""
        handles = []
        for site in self._sites:
            handles.append(site.module.register_forward_pre_hook(partial(one_pass.enter, site)))
            handles.append(site.module.register_forward_hook(partial(one_pass.note, site), with_kwargs=True))
        try:
            with by_steps(self.model, one_pass):
                yield
        finally:
            for handle in handles:
                handle.remove()


def _channels_last(images: Tensor) -> Tensor:
    # Not `images.contiguous(...)`: that keeps the strides of one-channel images, and convolutions go by the
    # strides.
    return torch.empty_like(images, memory_format=torch.channels_last).copy_(images)


@dataclass(frozen=True)
class _Use:
    """A product with a weight in a recurrent layer."""

    place: tuple[int | None, ...]  # of the weight and of the bias; None if it is not trained
    inputs: Tensor  # shape (..., n, d_in)
    outputs: Tensor  # shape (..., n, d_out), or others that have the same gradient but for factors
    version: int  # of the inputs, which must not change before the backward pass has ended
    factors: Tensor | None = None  # of the outputs' gradient, of its shape. None: 1.


@dataclass
class _Pass:
    """One forward and one backward pass."""

    n: int
    gradients: list[list[Gradients]]  # by parameter, a part for each use
    arena: Arena
    weights: Sequence[Tensor]
    uses: list[_Use] = field(default_factory=list)  # products with weights of recurrent layers
    starts: list[Tensor] = field(default_factory=list)  # where the backward pass has to arrive
    # Bytes that wait for the backward pass, by their place in memory.
    waiting: dict[int, int] = field(default_factory=dict)
    level: Level = field(init=False)  # of the vmap that gives the model one record
    copies: list[Tensor] = field(default_factory=list)  # a record's copies of the trained parameters, within vmap

    def begin(self, copies: Iterable[Tensor]) -> None:
        """Begin the forward pass, inside of vmap, with a record's copies of the parameters."""
        self.copies = [*copies]
        level = Level.of(self.copies[:1])
        assert level is not None
        self.level = level

    @ours
    def enter(self, site: _Site, module: nn.Module, args: object) -> None:
        """Let a layer with a rule compute with its weights, not with a record's copies, as a hook before its call."""
        del args
        for name, place in site.trained.items():
            if module._parameters[name] is not self.copies[place]:
                raise InvalidValueError(f"Expected {type(module).__name__} with its own weights, got others.")
            module._parameters[name] = self.weights[place].detach()  # type: ignore[assignment]

    @ours
    def note(
        self, site: _Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Tensor
    ) -> Tensor | None:
        """Take part in the pass, as a hook after a layer's call."""
        for name, place in site.trained.items():
            module._parameters[name] = self.copies[place]  # type: ignore[assignment]
        (inputs,) = (*args, *kwargs.values())
        if not torch.is_grad_enabled():
            return None
        if Level.of([inputs, outputs, self.copies[0]]) != self.level:
            raise InvalidValueError(f"Expected {type(module).__name__} in no vmap of the model's own.")
        x, out = self.level.rows(inputs), self.level.rows(outputs)
        if not out.requires_grad:
            # Not `requires_grad_`: a layer that follows may work in place.
            self.starts.append(torch.zeros((), dtype=out.dtype, device=out.device, requires_grad=True))
            out = out + self.starts[-1]
        elif out._is_view():  # what changes a view in place would leave its hook out
            out = out.clone()
        version = x._version
        self._count(x)

        def after_backward(gradients: Tensor) -> None:
            with torch.no_grad():
                if version != x._version:
                    raise InvalidValueError(f"The inputs of {type(module).__name__} were changed in place.")
                by_name = site.rule(module, x.detach(), gradients, self.arena)
                for name, place in site.trained.items():
                    self.gradients[place].append(by_name[name]())

        out.register_hook(after_backward)  # type: ignore[no-untyped-call]
        return self.level.record(out)

    def weight(self, copy: Tensor) -> Tensor:
        """See `Products`."""
        return next((weight for weight, ours in zip(self.weights, self.copies, strict=True) if ours is copy), copy)

    def product(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See `Products`."""
        place = self._places(weight, bias)
        if place == (None, None):
            return functional.linear(inputs, weight, bias)
        rows = inputs.flatten(0, -2)
        start = (rows.new_zeros(len(weight)) if bias is None else bias).detach().requires_grad_()
        outputs = torch.addmm(start, rows, weight.detach().t())
        self.uses.append(_Use(place, self._count(rows).detach(), self._count(outputs), rows._version))
        return outputs.view(*inputs.shape[:-1], -1)

    def product_within(
        self,
        gates: Tensor,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        factors: Tensor | None,
        shared: Sequence[Tensor],
    ) -> None:
        """See `Products`."""
        for tensor in shared:
            self.waiting.pop(tensor.data_ptr(), None)
        place = self._places(weight, bias)
        if place != (None, None):
            factors = None if factors is None else self._count(factors)
            self.uses.append(_Use(place, self._count(inputs), gates, inputs._version, factors))

    def _places(self, *weights: Tensor | None) -> tuple[int | None, ...]:
        places = {id(weight): place for place, weight in enumerate(self.weights)}
        return tuple(places.get(id(weight)) for weight in weights)

    def go_back(self, losses: Tensor, copies: Sequence[Tensor]) -> None:
        """Add the records' gradients from copies of parameters, and from layers with a rule and recurrent ones."""
        ends = [*copies, *(use.outputs for use in self.uses), *self.starts]
        of_ends = torch.autograd.grad(losses.sum(), ends, allow_unused=True)
        for uses, gradient in zip(self.gradients, of_ends, strict=False):
            if gradient is not None:
                uses.append(Dense(gradient.reshape(self.n, -1)))
        by_place: dict[tuple[int | None, ...], list[tuple[Tensor, Tensor]]] = {}
        for use, gradient in zip(self.uses, of_ends[len(copies) :], strict=False):
            if use.inputs._version != use.version:
                raise InvalidValueError("The inputs of a recurrent layer were changed in place.")
            if gradient is not None:
                gradient = gradient if use.factors is None else gradient * use.factors
                inputs = use.inputs.view(-1, self.n, use.inputs.shape[-1])
                pair = gradient.reshape(-1, self.n, gradient.shape[-1]), inputs
                by_place.setdefault(use.place, []).append(pair)
        for (weight, bias), pairs in by_place.items():
            outputs, inputs = (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*pairs, strict=True))
            if weight is not None:
                product = self.arena.product(outputs.permute(1, 2, 0), inputs.transpose(0, 1))
                self.gradients[weight].append(Dense(product.flatten(1)))
            if bias is not None:
                self.gradients[bias].append(Dense(outputs.sum(0)))

    def measured(self) -> saved_tensors_hooks:
        """Count the tensors that autograd keeps."""
        return saved_tensors_hooks(self._count, lambda tensor: tensor)

    def _count(self, tensor: Tensor) -> Tensor:
        self.waiting[tensor.data_ptr()] = min(tensor.nbytes, tensor.untyped_storage().nbytes())
        return tensor
