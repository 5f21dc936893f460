"""Per-sample gradients layer by layer, from one forward and one backward pass of a whole micro-batch.

A step costs hardly more than one without privacy, since no gradient of a batch is computed. Records that share a pass
must not mix: `gradient_engine` compares this engine with passes of single records.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import grad, vmap
from torch.nn import functional

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Tensors, call, each, length
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.evaluation import rows_at_once
from dphpo_bench.training.functional import call_module, call_with
from dphpo_bench.training.layer_calls import Calls
from dphpo_bench.training.layers import Arena, ByName, Dense, Gradients, Rule, rule_for
from dphpo_bench.training.losses import PerRecord, check_one_each
from dphpo_bench.training.norms import row_norms
from dphpo_bench.training.recurrent import Affine, by_steps, is_recurrent
from dphpo_bench.training.vmap import EFFICIENT_ROWS, per_sample_rows

_SHARE = 0.9
_RECURRENT_ROWS = 256
"""A step of a sequence starts a dozen small operations, each of which takes longer than a few records do."""


@dataclass(frozen=True)
class _Site:
    """A module with parameters that are trained: a layer with a rule, or one that is differentiated as a whole.

    Attributes:
        module: of the engine's model.
        rule: None if there is none for the module.
        recurrent: True for a recurrent layer: its products with weights take part in a pass, not its outputs.
        trained: names of trained parameters in the module → their places in `GradientEngine.parameters`.
    """

    module: nn.Module
    rule: Rule | None
    trained: Mapping[str, int]
    recurrent: bool = False


class LayerwiseEngine(GradientEngine):
    """Per-sample gradients layer by layer. See `GradientEngine`.

    A module with parameters of its own and without a rule is differentiated by vmap, with all that is inside of it.

    Args:
        model: see `GradientEngine`.
        loss: see `GradientEngine`.
        repeats: whether what a layer computes for all records at once gets a row for each, so that its gradients are
            known. Without, it has no gradients, as where adapters compute a norm that they detach.
    """

    def __init__(self, model: nn.Module, loss: PerRecord, *, repeats: bool = True) -> None:
        super().__init__(model, loss)
        self._repeats = repeats
        self._rows, self._unmeasured = 1, True
        self._sites = sites(model)
        self._calls = Calls()
        self._arena = Arena()

    def clipped_sum(
        self, inputs: Tensors, targets: Tensors, clipping: Clipping, indices: Tensor | None = None
    ) -> list[Tensor]:
        """See `GradientEngine.clipped_sum`."""
        for rows in self._micro_batches(inputs, indices, 1) if self._unmeasured else ():
            self._measure(self._gather(inputs, rows), self._gather(targets, rows))
            break
        return super().clipped_sum(inputs, targets, clipping, indices)

    def _add_clipped(self, inputs: Tensors, targets: Tensors, clipping: Clipping, total: list[Tensor]) -> None:
        gradients = self._gradients(inputs, targets)
        with torch.no_grad():
            parts = [
                (uses[0] if len(uses) == 1 else _added(uses, sum_.shape), sum_)
                for uses, sum_ in zip(gradients, total, strict=True)
                if uses
            ]
            if not parts:
                return
            norms = row_norms(torch.stack([part.norms for part, _ in parts], dim=1))
            factors, finite = clipping.factors(norms), norms.isfinite()
            for part, sum_ in parts:
                part.add_to(sum_, factors, None if finite.all() else finite)

    @property
    def _unit_rows(self) -> int:
        size = 2 * sum(parameter.nbytes for parameter in self.parameters)  # of all numbers, and of sums in float64
        return min(self._rows, per_sample_rows(size, self._device))

    def _add_unit_sums(self, inputs: Tensors, targets: Tensors, sizes: Tensor, sums: list[Tensor]) -> None:
        gradients = self._gradients(inputs, targets)
        with torch.no_grad():
            for parameter, sum_, uses in zip(self.parameters, sums, gradients, strict=True):
                for part in uses:
                    part.add_by_unit(sum_, sizes, parameter.shape)

    def _gradients(self, inputs: Tensors, targets: Tensors) -> list[list[Gradients]]:
        """Return the records' gradients with respect to each parameter, a part for each use of it."""
        self.rows(inputs, targets)
        return self._pass(inputs, targets).gradients

    def rows(self, inputs: Tensors, targets: Tensors) -> int:
        """Return the number of records in a micro-batch, from the memory that one such record takes."""
        if self._unmeasured:
            self._measure(*(each(lambda tensor: tensor[:1], part) for part in (inputs, targets)))
        return self._rows

    def _measure(self, inputs: Tensors, targets: Tensors) -> None:
        """Measure the memory that a record takes, and see which layers compute something for all records at once."""
        self._calls = Calls()
        for n in range(1, 1 + rows_at_once(self.model, 2)):
            self._calls.begin()
            with torch.no_grad(), self._attached(lambda _: self._calls.see, with_kwargs=False):
                call(self.model, each(lambda tensor: torch.cat([tensor] * n), inputs))  # noqa: B023 - used at once
        one_pass = self._pass(*(each(Tensor.clone, part) for part in (inputs, targets)))
        rows = _RECURRENT_ROWS if one_pass.products else EFFICIENT_ROWS
        self._rows = per_sample_rows(one_pass.bytes_beside(self.model.parameters()), self._device, rows)
        self._unmeasured = False

    def _pass(self, inputs: Tensors, targets: Tensors) -> "_Pass":
        self._arena.clear()
        self._calls.begin()
        weights = {name: tensor.detach() for name, tensor in self.model.named_parameters()}
        one_pass = _Pass(
            length(inputs),
            [[] for _ in self.parameters],
            self._arena,
            self._calls,
            self._repeats,
            self._products(weights),
        )
        counting = one_pass.measured() if self._unmeasured else nullcontext()
        with torch.enable_grad():
            with self._attached(lambda site: partial(one_pass.note, site), one_pass.product), counting:
                losses = self.loss(call_with(self.model, weights, self._fast_layout(inputs)), targets)
            check_one_each(losses, length(inputs), "loss")
            ends = [use.outputs for use in one_pass.uses] + one_pass.starts
            if losses.requires_grad and ends:
                one_pass.add_uses(torch.autograd.grad(losses.sum(), ends, allow_unused=True))
        return one_pass

    def _products(self, weights: Mapping[str, Tensor]) -> dict[int, int]:
        """Return places of the recurrent layers' trained parameters, by the identity of the tensors in their stead."""
        places = {place for site in self._sites if site.recurrent for place in site.trained.values()}
        names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        return {id(weights[names[place]]): place for place in places}

    @contextmanager
    def _attached(
        self, hook_of: Callable[["_Site"], Any], affine: Affine | None = None, with_kwargs: bool = True
    ) -> Iterator[None]:
        """Let the layers take part in a pass, by a forward hook each, and recurrent ones by their products."""
        handles = [
            site.module.register_forward_hook(hook_of(site), with_kwargs=with_kwargs)
            for site in self._sites
            if not site.recurrent
        ]
        try:
            with by_steps(self.model, affine):
                yield
        finally:
            for handle in handles:
                handle.remove()


@dataclass(frozen=True)
class _Use:
    """A product with a weight in a recurrent layer.

    Attributes:
        place: of the weight and of the bias; None if it is not trained.
        inputs: shape (length · n, d_in).
        outputs: shape (length · n, d_out).
        version: of the inputs, which must not change before the backward pass has ended.
    """

    place: tuple[int | None, int | None]
    inputs: Tensor
    outputs: Tensor
    version: int


@dataclass(frozen=True)
class _Pass:
    """One forward and one backward pass.

    Attributes:
        n: number of records.
        gradients: by parameter, a part for each use.
        arena: memory for the gradients.
        calls: of the layers.
        repeats: see `LayerwiseEngine`.
        products: places of parameters of recurrent layers, by the identity of the tensors in their stead.
        uses: products with them.
        starts: where the backward pass has to arrive.
        waiting: bytes that wait for the backward pass, by their place in memory.
    """

    n: int
    gradients: list[list[Gradients]]
    arena: Arena
    calls: Calls
    repeats: bool
    products: Mapping[int, int]
    uses: list[_Use] = field(default_factory=list)
    starts: list[Tensor] = field(default_factory=list)
    waiting: dict[int, int] = field(default_factory=dict)

    def note(
        self, site: _Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any
    ) -> Tensor:
        """Take part in the pass, as a forward hook of the module at a site."""
        if not isinstance(outputs, Tensor) or not outputs.dim():
            raise InvalidValueError(f"Expected a tensor with one output for each record of {type(module).__name__}.")
        rows_each = self.calls.rows_each(module, self.n, outputs)
        if rows_each < 1 and not self.repeats:
            return outputs
        if rows_each < 1:
            outputs, *arguments = (
                self._repeated(value, rows_each == 0) for value in (outputs, *args, *kwargs.values())
            )
            args, kwargs = tuple(arguments[: len(args)]), dict(zip(kwargs, arguments[len(args) :], strict=True))
        if not outputs.requires_grad:
            # Not `requires_grad_`: a layer that follows may work in place.
            self.starts.append(torch.zeros((), dtype=outputs.dtype, device=outputs.device, requires_grad=True))
            outputs = outputs + self.starts[-1]
        inputs = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, Tensor)]
        versions = [tensor._version for tensor in inputs]
        for tensor in inputs:
            self._count(tensor)

        def after_backward(gradients: Tensor) -> None:
            with torch.no_grad():
                if versions != [tensor._version for tensor in inputs]:
                    raise InvalidValueError(f"The inputs of {type(module).__name__} were changed in place.")
                if site.rule is None:
                    by_name = _by_vmap(site, args, kwargs, gradients, max(1, rows_each))
                elif len(inputs) == len(args) + len(kwargs) == 1 and len(inputs[0]) == len(gradients):
                    x, g = (_by_record(t, self.n) if rows_each > 1 else t for t in (inputs[0].detach(), gradients))
                    by_name = site.rule(module, x, g, self.arena)
                else:
                    raise InvalidValueError(f"Expected one input for each record of {type(module).__name__}.")
                for name, place in site.trained.items():
                    self.gradients[place].append(by_name[name]())

        noted: Tensor = outputs
        noted.register_hook(after_backward)  # type: ignore[no-untyped-call]
        return noted

    def _repeated(self, value: Any, has_place: bool) -> Any:
        """Return a tensor that all records share with a row for each."""
        if not isinstance(value, Tensor) or not value.dim():
            return value
        return value.expand(self.n, *value.shape[1:] if has_place else value.shape)

    def product(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return a product in a recurrent layer, and note it if its weight or bias is trained; see `Affine`."""
        place = self.products.get(id(weight)), self.products.get(id(bias))
        if place == (None, None):
            return functional.linear(inputs, weight, bias)
        if inputs.shape[-2] != self.n:
            raise InvalidValueError(f"Expected {self.n} sequences, one for each record, got {inputs.shape[-2]}.")
        rows = inputs.flatten(0, -2)
        start = (rows.new_zeros(len(weight)) if bias is None else bias.detach()).requires_grad_()
        outputs = torch.addmm(start, rows, weight.t())
        self.uses.append(_Use(place, self._count(rows).detach(), self._count(outputs), rows._version))
        return outputs.view(*inputs.shape[:-1], -1)

    def add_uses(self, gradients: Iterable[Tensor | None]) -> None:
        """Add the records' gradients in recurrent layers, from those of the outputs of `uses`; None: no effect."""
        by_place: dict[tuple[int | None, int | None], list[tuple[Tensor, Tensor]]] = {}
        for use, gradient in zip(self.uses, gradients, strict=False):
            if use.inputs._version != use.version:
                raise InvalidValueError("The inputs of a recurrent layer were changed in place.")
            if gradient is not None:
                pair = gradient.view(-1, self.n, gradient.shape[1]), use.inputs.view(-1, self.n, use.inputs.shape[1])
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

    def bytes_beside(self, weights: Iterable[Tensor]) -> float:
        """Return bytes of the gradients, and of all that waited for the backward pass but the weights; at least 1."""
        ours = {weight.data_ptr() for weight in weights}
        waited = sum(size for place, size in self.waiting.items() if place not in ours)
        return max(1, waited + sum(part.size for uses in self.gradients for part in uses))

    def _count(self, tensor: Tensor) -> Tensor:
        self.waiting[tensor.data_ptr()] = min(tensor.nbytes, tensor.untyped_storage().nbytes())
        return tensor


def sites(model: nn.Module) -> list[_Site]:
    """Return the modules that hold the trained parameters of a model; a shared parameter has several."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    places = {id(parameter): place for place, parameter in enumerate(trained)}

    def below(module: nn.Module) -> Iterator[_Site]:
        rule = rule_for(module)
        if not any(p.requires_grad for p in module.parameters(recurse=False)):
            for child in module.children():
                yield from below(child)
            return
        named = module.named_parameters(recurse=rule is None)
        trained = {name: places[id(p)] for name, p in named if p.requires_grad}
        yield _Site(module, rule, trained, is_recurrent(module))

    return list({id(site.module): site for site in below(model)}.values())


def layerwise_pays(model: nn.Module) -> bool:
    """Return whether layers with a rule hold 90 % of the trained parameters."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ruled = {place for site in sites(model) if site.rule or site.recurrent for place in site.trained.values()}
    return sum(trained[place].numel() for place in ruled) >= _SHARE * sum(parameter.numel() for parameter in trained)


def _by_record(rows: Tensor, n: int) -> Tensor:
    """Return rows with a dimension for n records before that for the rows of each."""
    return rows.reshape(n, -1, *rows.shape[1:])


def _by_vmap(site: _Site, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: Tensor, rows_each: int) -> ByName:
    """Return gradients of any module that computes from tensors with as many rows for each record."""
    arguments = [*args, *kwargs.values()]
    mapped = _mapped(arguments, len(gradients))
    n = len(gradients) // rows_each
    records = [value if dim is None else _by_record(value, n) for value, dim in zip(arguments, mapped, strict=True)]
    weights = {name: weight.detach() for name, weight in site.module.named_parameters()}
    constants = {name: weights.pop(name) for name in list(weights) if name not in site.trained}
    constants.update(site.module.named_buffers())

    def product(weights: dict[str, Tensor], constants: dict[str, Tensor], gradient: Tensor, *record: Any) -> Tensor:
        positional, by_name = tuple(record[: len(args)]), dict(zip(kwargs, record[len(args) :], strict=True))
        outputs: Tensor = call_module(site.module, {**weights, **constants}, positional, by_name)
        return (outputs.reshape(gradient.shape) * gradient).sum()

    of_records = vmap(grad(product), (None, None, 0, *mapped))
    with by_steps(site.module):
        by_name = of_records(weights, constants, _by_record(gradients, n), *records)
    return {name: partial(Dense, rows.flatten(1)) for name, rows in by_name.items()}


def _mapped(arguments: list[Any], n: int) -> tuple[int | None, ...]:
    """Return 0 for arguments with n rows, which are all tensors but numbers; None for others.

    Reject tables: a table of eight rows would look like eight records.
    """
    tensors = [argument for argument in arguments if isinstance(argument, Tensor) and argument.dim()]
    tables = [tuple(tensor.shape) for tensor in tensors if len(tensor) != n]
    if tables:
        raise InvalidValueError(f"Expected arguments with {n} rows, as the outputs have, got one of shape {tables[0]}.")
    return tuple(0 if isinstance(argument, Tensor) and argument.dim() else None for argument in arguments)


def _added(several: list[Gradients], shape: torch.Size) -> Gradients:
    """Return the gradients of a parameter with several uses."""
    return Dense(torch.stack([part.dense(shape) for part in several]).sum(0))
