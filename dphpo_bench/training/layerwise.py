"""Per-sample gradients layer by layer, from one forward and one backward pass of a whole micro-batch.

No gradient of a batch is computed on the way, so a step costs hardly more than one without privacy. Records that share
a pass must not meet in it: `gradient_engine` compares this engine with one that takes each record alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, grad, vmap

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Tensors, length
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.layers import Arena, Dense, Found, Gradients, Rule, rule_for
from dphpo_bench.training.losses import PerRecord, check_one_each
from dphpo_bench.training.norms import row_norms
from dphpo_bench.training.vmap import per_sample_rows

_SHARE = 0.9


@dataclass(frozen=True)
class _Site:
    """A module with parameters that are trained: a layer with a rule, or one that is differentiated as a whole.

    Attributes:
        module: of the engine's model.
        rule: None if there is none for the module.
        trained: names of trained parameters in the module → their places in `GradientEngine.parameters`.
    """

    module: nn.Module
    rule: Rule | None
    trained: Mapping[str, int]


class LayerwiseEngine(GradientEngine):
    """Per-sample gradients layer by layer. See `GradientEngine`.

    A module with parameters of its own and without a rule is differentiated by vmap, with all that is inside of it.
    """

    def __init__(self, model: nn.Module, loss: PerRecord) -> None:
        super().__init__(model, loss)
        self._rows, self._unmeasured = 1, True
        self._sites = sites(model)
        self._arena = Arena()

    def clipped_sum(
        self, inputs: Tensors, targets: Tensors, clipping: Clipping, indices: Tensor | None = None
    ) -> list[Tensor]:
        """See `GradientEngine.clipped_sum`."""
        for rows in self._micro_batches(inputs, indices, 1) if self._unmeasured else ():
            self._gradients(self._gather(inputs, rows, copy=True), self._gather(targets, rows, copy=True))
            break
        return super().clipped_sum(inputs, targets, clipping, indices)

    def _add_clipped(self, inputs: Tensors, targets: Tensors, clipping: Clipping, total: list[Tensor]) -> None:
        found = self._gradients(inputs, targets)
        with torch.no_grad():
            parts = [
                (own[0] if len(own) == 1 else _added(own, sum_.shape), sum_)
                for own, sum_ in zip(found, total, strict=True)
                if own
            ]
            if not parts:
                return
            norms = row_norms(torch.stack([one.norms for one, _ in parts], dim=1))
            factors, kept = clipping.factors(norms), norms.isfinite()
            for one, sum_ in parts:
                one.add_to(sum_, factors, None if kept.all() else kept)

    @property
    def _unit_rows(self) -> int:
        size = 2 * sum(parameter.nbytes for parameter in self.parameters)  # of all numbers, and of sums in float64
        return min(self._rows, per_sample_rows(size, self._device))

    def _add_unit_sums(self, inputs: Tensors, targets: Tensors, sizes: Tensor, sums: list[Tensor]) -> None:
        found = self._gradients(inputs, targets)
        with torch.no_grad():
            for parameter, sum_, parts in zip(self.parameters, sums, found, strict=True):
                for one in parts:
                    one.add_by_unit(sum_, sizes, parameter.shape)

    def _gradients(self, inputs: Tensors, targets: Tensors) -> list[list[Gradients]]:
        """The records' gradients with respect to each parameter, as one part for each use of it."""
        self._arena.clear()
        weights = {name: tensor.detach() for name, tensor in self.model.named_parameters()}
        named, given = isinstance(inputs, Mapping), self._fast_layout(inputs)
        one_pass = _Pass(length(inputs), [[] for _ in self.parameters], self._arena)
        with torch.enable_grad():
            with self._attached(one_pass), one_pass.measured() if self._unmeasured else nullcontext():
                outputs = functional_call(self.model, weights, () if named else (given,), dict(given) if named else {})
                losses = self.loss(outputs, targets)
            check_one_each(losses, length(inputs), "loss")
            if one_pass.starts and losses.requires_grad:
                torch.autograd.grad(losses.sum(), one_pass.starts, allow_unused=True)
        if self._unmeasured:
            self._rows = per_sample_rows(one_pass.bytes_beside(weights.values()) / length(inputs), self._device)
            self._unmeasured = False
        return one_pass.found

    @contextmanager
    def _attached(self, one_pass: "_Pass") -> Iterator[None]:
        """While this lasts, the layers take part in a pass."""
        handles = [
            site.module.register_forward_hook(partial(one_pass.note, site), with_kwargs=True) for site in self._sites
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@dataclass(frozen=True)
class _Pass:
    """One forward and one backward pass.

    Attributes:
        n: number of records.
        found: the gradients with respect to each parameter.
        arena: memory for them.
        starts: where the backward pass has to arrive.
        kept: bytes that wait for the backward pass, by their place in memory.
    """

    n: int
    found: list[list[Gradients]]
    arena: Arena
    starts: list[Tensor] = field(default_factory=list)
    kept: dict[int, int] = field(default_factory=dict)

    def note(
        self, site: _Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any
    ) -> Tensor:
        """A forward hook of the module at a site."""
        if not isinstance(outputs, Tensor) or len(outputs) != self.n:
            raise InvalidValueError(f"Expected one output for each record of {type(module).__name__}.")
        if not outputs.requires_grad:
            # Not `requires_grad_`: a layer that follows may work in place.
            self.starts.append(torch.zeros((), dtype=outputs.dtype, device=outputs.device, requires_grad=True))
            outputs = outputs + self.starts[-1]
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        versions = [one._version for one in given]
        for one in given:
            self._keep(one)

        def after_backward(gradients: Tensor) -> None:
            with torch.no_grad():
                if versions != [one._version for one in given]:
                    raise InvalidValueError(f"The inputs of {type(module).__name__} were changed in place.")
                if site.rule is None:
                    own = _by_vmap(site, args, kwargs, gradients)
                elif len(given) == len(args) + len(kwargs) == 1 and len(given[0]) == self.n:
                    own = site.rule(module, given[0].detach(), gradients, self.arena)
                else:
                    raise InvalidValueError(f"Expected one input for each record of {type(module).__name__}.")
                for name, place in site.trained.items():
                    self.found[place].append(own[name]())

        noted: Tensor = outputs
        noted.register_hook(after_backward)  # type: ignore[no-untyped-call]
        return noted

    def measured(self) -> saved_tensors_hooks:
        """While this lasts, what autograd keeps is counted."""
        return saved_tensors_hooks(self._keep, lambda tensor: tensor)

    def bytes_beside(self, weights: Iterable[Tensor]) -> float:
        """Bytes of the gradients, and of what waited for the backward pass but the weights; at least 1."""
        ours = {weight.data_ptr() for weight in weights}
        waited = sum(size for place, size in self.kept.items() if place not in ours)
        return max(1, waited + sum(one.size for own in self.found for one in own))

    def _keep(self, tensor: Tensor) -> Tensor:
        self.kept[tensor.data_ptr()] = min(tensor.nbytes, tensor.untyped_storage().nbytes())
        return tensor


def sites(model: nn.Module) -> list[_Site]:
    """Where the trained parameters of a model are; one that is shared has several places."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    places = {id(parameter): place for place, parameter in enumerate(trained)}

    def below(module: nn.Module) -> Iterator[_Site]:
        rule = rule_for(module)
        if not any(p.requires_grad for p in module.parameters(recurse=False)):
            for child in module.children():
                yield from below(child)
            return
        named = module.named_parameters(recurse=rule is None)
        yield _Site(module, rule, {name: places[id(p)] for name, p in named if p.requires_grad})

    return list({id(site.module): site for site in below(model)}.values())


def layerwise_pays(model: nn.Module) -> bool:
    """Whether layers with a rule hold 90 % of the trained parameters."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ruled = {place for site in sites(model) if site.rule for place in site.trained.values()}
    return sum(trained[place].numel() for place in ruled) >= _SHARE * sum(parameter.numel() for parameter in trained)


def _by_vmap(site: _Site, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: Tensor) -> Found:
    """Gradients of whatever a module computes from tensors with one row for each record."""
    given, dims = [*args, *kwargs.values()], (None, None, 0, *_mapped([*args, *kwargs.values()], len(gradients)))
    weights = {name: weight.detach() for name, weight in site.module.named_parameters()}
    constants = {name: weights.pop(name) for name in list(weights) if name not in site.trained}
    constants.update(site.module.named_buffers())

    def product(weights: dict[str, Tensor], constants: dict[str, Tensor], gradient: Tensor, *record: Any) -> Tensor:
        rows = [one if dim is None else one[None] for one, dim in zip(record, dims[3:], strict=True)]
        positional, by_name = tuple(rows[: len(args)]), dict(zip(kwargs, rows[len(args) :], strict=True))
        outputs: Tensor = functional_call(site.module, (weights, constants), positional, by_name)
        return (outputs[0] * gradient).sum()

    own = vmap(grad(product), dims)(weights, constants, gradients, *given)
    return {name: partial(Dense, rows.flatten(1)) for name, rows in own.items()}


def _mapped(given: list[Any], n: int) -> tuple[int | None, ...]:
    """Which arguments have a row for each record: all tensors but numbers.

    A table of eight rows would be taken for that as soon as eight records meet, so there must be none.
    """
    tables = [tuple(one.shape) for one in given if isinstance(one, Tensor) and one.dim() and len(one) != n]
    if tables:
        raise InvalidValueError(f"Expected arguments with a row for each of {n} records, got one of shape {tables[0]}.")
    return tuple(0 if isinstance(one, Tensor) and one.dim() else None for one in given)


def _added(several: list[Gradients], shape: torch.Size) -> Gradients:
    """Gradients of a parameter that several layers share, or that one layer uses several times."""
    return Dense(torch.stack([one.dense(shape) for one in several]).sum(0))
