"""Per-sample gradients layer by layer, from one forward and one backward pass of a whole micro-batch.

No gradient of a batch is computed on the way, so a step costs hardly more than one without privacy. Records that share
a pass must not meet in it: `gradient_engine` compares this engine with one that takes each record alone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
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
from dphpo_bench.training.evaluation import check_one_each
from dphpo_bench.training.layers import Arena, Dense, Found, Gradients, Rule, rule_for
from dphpo_bench.training.losses import PerRecord
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
        self._rows, self._unknown, self._size = 1, True, 0  # until the first micro-batch, of one record, is measured
        self._sites = sites(model)
        self._arena = Arena()

    def _clipped_sum(self, inputs: Tensors, targets: Tensors, clipping: Clipping) -> list[Tensor]:
        with self._measured(length(inputs)) if self._unknown else nullcontext():
            found = self._gradients(inputs, targets)
        with torch.no_grad():
            return self._clipped(found, clipping)

    @contextmanager
    def _measured(self, n: int) -> Iterator[None]:
        """Choose the size of micro-batches by what `n` records keep in memory meanwhile, for the backward pass too."""
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            yield
        weights = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        activations = sum(size for place, size in kept.items() if place not in weights)
        self._rows = per_sample_rows((activations + self._size) / n, self._device)
        self._unknown = False

    def _gradients(self, inputs: Tensors, targets: Tensors) -> list[list[Gradients]]:
        """The records' gradients with respect to each parameter, as one part for each use of it."""
        self._arena.clear()
        found: list[list[Gradients]] = [[] for _ in self.parameters]
        weights = {name: tensor.detach() for name, tensor in self.model.named_parameters()}
        named = isinstance(inputs, Mapping)
        given = self._fast_layout(inputs)
        with torch.enable_grad():
            with self._attached(length(inputs), found) as starts:
                outputs = functional_call(self.model, weights, () if named else (given,), dict(given) if named else {})
            losses = self.loss(outputs, targets)
            check_one_each(losses, length(inputs), "loss")
            if starts and losses.requires_grad:
                torch.autograd.grad(losses.sum(), starts, allow_unused=True)
        self._size = sum(one.size for own in found for one in own)
        return found

    def _clipped(self, found: list[list[Gradients]], clipping: Clipping) -> list[Tensor]:
        total = [torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in self.parameters]
        shapes = [parameter.shape for parameter in self.parameters]
        parts = [
            (own[0] if len(own) == 1 else _added(own, shape), sum_)
            for own, shape, sum_ in zip(found, shapes, total, strict=True)
            if own
        ]
        if not parts:
            return total
        norms = row_norms(torch.stack([one.norms for one, _ in parts], dim=1))
        factors, kept = clipping.factors(norms), norms.isfinite()
        for one, sum_ in parts:
            one.add_to(sum_, factors, kept)
        return total

    @contextmanager
    def _attached(self, n: int, found: list[list[Gradients]]) -> Iterator[list[Tensor]]:
        """While this lasts, layers note the gradients of `n` records. Yields where the backward pass has to arrive."""
        starts: list[Tensor] = []
        handles = [
            site.module.register_forward_hook(_noting(site, n, found, starts, self._arena), with_kwargs=True)
            for site in self._sites
        ]
        try:
            yield starts
        finally:
            for handle in handles:
                handle.remove()


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


def _noting(
    site: _Site, n: int, found: list[list[Gradients]], starts: list[Tensor], arena: Arena
) -> Callable[..., Tensor]:
    """A forward hook of the module at a site."""

    def after_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> Tensor:
        del module
        if not isinstance(outputs, Tensor) or len(outputs) != n:
            raise InvalidValueError(f"Expected one output for each record of {type(site.module).__name__}.")
        if not outputs.requires_grad:
            # Not `requires_grad_`: a layer that follows may work in place.
            starts.append(torch.zeros((), dtype=outputs.dtype, device=outputs.device, requires_grad=True))
            outputs = outputs + starts[-1]
        given = [*args, *kwargs.values()]
        versions = [one._version for one in given if isinstance(one, Tensor)]

        def after_backward(gradients: Tensor) -> None:
            with torch.no_grad():
                if versions != [one._version for one in given if isinstance(one, Tensor)]:
                    raise InvalidValueError(f"The inputs of {type(site.module).__name__} were changed in place.")
                if site.rule is None:
                    own = _by_vmap(site, args, kwargs, gradients)
                elif len(given) == 1 and len(given[0]) == n:
                    own = site.rule(site.module, given[0].detach(), gradients, arena)
                else:
                    raise InvalidValueError(f"Expected one input for each record of {type(site.module).__name__}.")
                for name, place in site.trained.items():
                    found[place].append(own[name]())

        outputs.register_hook(after_backward)
        noted: Tensor = outputs
        return noted

    return after_forward


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
    """Which arguments have a row for each record."""
    return tuple(0 if isinstance(one, Tensor) and one.dim() and len(one) == n else None for one in given)


def _added(several: list[Gradients], shape: torch.Size) -> Gradients:
    """Gradients of a parameter that several layers share, or that one layer uses several times."""
    return Dense(torch.stack([one.dense(shape) for one in several]).sum(0))
