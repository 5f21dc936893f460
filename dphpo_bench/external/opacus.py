"""The optimiser of a caller's loop, bare or in a DPOptimizer of Opacus, and mistakes with it.

Opacus is never imported: its classes are known by their attributes.
"""

import inspect
import math
import secrets
import warnings
from typing import Any

import torch
from dp_accounting.dp_event import DpEvent, SelfComposedDpEvent
from torch import Tensor, distributed, nn, optim
from torch.utils.data import BatchSampler

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.privacy.event_trees import opened
from dphpo_bench.recipes.noise_law import Looked
from dphpo_bench.training.optimizers import OptimizerFactory, UpdateRule


def note(accountant: Any, kind: DpEvent) -> None:
    """Take one batch of queries or gradients, Poisson(q; k × Gaussian σ), into an accountant of Opacus, if any.

    k sums of sensitivity 1 each, with independent noise of deviation σ, are one release of the vector of all k. Its
    sensitivity is √k, so it is a Gaussian of multiplier σ/√k, and both ways of sampling first and releasing then are
    the same mechanism (docs/own_loop.md).
    """
    if accountant is not None:
        rate, contents = opened(kind)
        count, sum_ = (contents.count, contents.event) if isinstance(contents, SelfComposedDpEvent) else (1, contents)
        accountant.step(noise_multiplier=sum_.noise_multiplier / math.sqrt(count), sample_rate=rate)


GRADIENTS = frozenset({"grad_sample", "summed_grad"})
"""Attributes of weights by which Opacus keeps gradients of records; None: there is none."""

CAPTURED = frozenset({"activations", "max_batch_len", "_current_grad_sample", "_norm_sample", "norm_sample"})
"""Attributes that the hooks of Opacus leave on layers and weights."""

_WRAPPERS = 8


def refuse_several_processes() -> None:
    """Reject a group of several processes (torch.distributed): each would draw, release and charge by itself."""
    if distributed.is_available() and distributed.is_initialized() and (size := distributed.get_world_size()) > 1:
        raise InvalidValueError(
            f"Expected a training in one process, got a group of {size}: each would draw its own batches and noise, "
            "and release gradients that the budget does not cover. Start one process."
        )


def refuse_other_releases(private: Any) -> None:
    """Reject an optimizer of Opacus that releases more than its noise multiplier says."""
    if any("FastGradientClipping" in kind.__name__ for kind in type(private).__mro__):
        raise InvalidValueError(
            "Opacus' ghost clipping clips only in the backward of its own loss: after that of another loss, gradients "
            "are not clipped at all. Use grad_sample_mode='hooks'."
        )
    if hasattr(private, "unclipped_num_std") or hasattr(private, "_adjusted_noise_multiplier"):
        raise InvalidValueError(
            "Opacus' adaptive clipping releases more than its accountant records: it counts a noisy number of clipped "
            "gradients as half as sensitive as it is. Use clipping='flat'."
        )


def accountant_of(optimizer: Any) -> Any:
    """Return the accountant that Opacus' engine attached to its optimizer; None if there is none or it is unknown."""
    try:
        return inspect.getclosurevars(optimizer.step_hook).nonlocals.get("self")
    except (TypeError, ValueError):
        return None


def poisson_sampler(loader: Any) -> Any:
    """Return the sampler of a loader's Poisson batches, in whatever wrappers; it has a `sample_rate`.

    Raises:
        InvalidValueError: if none of the loader's samplers has one: its batches may have a fixed size.
    """
    sampler: Any = getattr(loader, "batch_sampler", None)
    for _ in range(_WRAPPERS):
        if hasattr(sampler, "sample_rate"):
            return sampler
        inner = None if type(sampler) is BatchSampler else getattr(sampler, "sampler", None)  # as Opacus splits batches
        sampler = getattr(sampler, "batch_sampler", inner)
    raise InvalidValueError(
        f"Expected Poisson batches, on which ε relies, got batches of a fixed size from a {type(loader).__name__}. "
        "Train from the loader that PrivacyEngine.make_private returns, or from DPDataLoader.from_data_loader(loader). "
        "A batch sampler of your own that draws each record by itself says so by an attribute sample_rate."
    )


def forget_records(model: Any) -> None:
    """Remove the inputs and gradients of records that Opacus leaves on a module; saving it would publish them."""
    if not isinstance(model, nn.Module):
        return
    for part in (*model.modules(), *model.parameters()):
        for name in CAPTURED & vars(part).keys():
            delattr(part, name)
        for name in GRADIENTS & vars(part).keys():
            setattr(part, name, None)


def draw_secretly(optimizer: Any, sampler: Any) -> None:
    """Give Opacus' noise and batches generators of their own, if they have none, with seeds of the operating system.

    Otherwise both come from torch's generator, which trainers seed: by 42 in `transformers.TrainingArguments`, and
    again after a checkpoint. Whoever knows the seed can subtract the noise.
    """
    devices = {weight.device for weight in optimizer.params}
    if optimizer.generator is None and len(devices) == 1:
        optimizer.generator = torch.Generator(devices.pop()).manual_seed(secrets.randbits(63))
    elif optimizer.generator is None:
        warnings.warn(
            "The weights are on several devices, so Opacus draws noise from torch's generators. Whoever knows their "
            "seeds can subtract it. Give the trainer a seed that is secret.",
            stacklevel=5,
        )
    if getattr(sampler, "generator", 0) is None:
        sampler.generator = torch.Generator().manual_seed(secrets.randbits(63))


_ROUNDING = 1e-9

_SIZE = 0.02
"""Opacus rounds: of some loaders, as of 93 batches, its own has a batch less."""

_KNOWN = (optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.RMSprop, optim.SGD)
"""Optimisers whose step is their rate times a direction that follows from gradients alone, but for weight decay."""


class CallersOptimizer:
    """The caller's optimiser: its rule gives directions, and a DPOptimizer of Opacus gradients with noise.

    Args:
        loader: of a DPOptimizer.
        accountant: which takes in gradients too, if the DPOptimizer tells none of them.
        weights: of the caller's model, that are trained.
        takes_batches: whether that model takes whole batches.

    Raises:
        InvalidValueError: if one of them does not do what is planned, or is missing. The optimiser is then as it was.
    """

    def __init__(
        self,
        optimizer: Any,
        loader: Any,
        accountant: Any,
        weights: list[Tensor],
        planned: Looked,
        *,
        takes_batches: bool,
    ) -> None:
        self.outer, self.planned, self._weights = optimizer, planned, weights
        self.is_private = hasattr(optimizer, "pre_step") and hasattr(optimizer, "original_optimizer")
        self.inner: optim.Optimizer = optimizer.original_optimizer if self.is_private else optimizer
        if type(self.inner) not in _KNOWN or any(group["maximize"] for group in self.inner.param_groups):
            names = ", ".join(kind.__name__ for kind in _KNOWN)
            raise InvalidValueError(
                f"Expected an optimizer of torch ({names}) without maximize, or Opacus' DPOptimizer around one, got "
                f"{shown(self.inner, 100, form=repr)}: directions of others do not follow from gradients alone."
            )
        moved = [weight for group in self.inner.param_groups for weight in group["params"] if weight.requires_grad]
        if {id(weight) for weight in moved} != {id(weight) for weight in self._weights}:
            raise InvalidValueError(
                "Expected an optimizer of the model's trained weights, all and no others; this one has "
                f"{len(moved)} tensors, the model {len(self._weights)}. Make it of the tuner's model: "
                "AdamW(model.parameters())."
            )
        rates = [float(group["lr"]) for group in self.inner.param_groups]
        self._rates = [rate / rates[0] for rate in rates]
        self._anew: OptimizerFactory = type(self.inner)
        is_known = hasattr(accountant, "step") and hasattr(accountant, "get_epsilon")
        if accountant is not None and (not is_known or accountant.mechanism() == "gdp"):  # that takes equal releases
            raise InvalidValueError(
                "Expected an accountant of Opacus that takes several noise multipliers and sample rates, such as that "
                f"of PrivacyEngine(accountant='rdp') or 'prv', got {type(accountant).__name__}. For one of "
                "dp_accounting call accountant.compose(tuner.event)."
            )
        if self.is_private:
            self._check_parts(loader, accountant, takes_batches)
        optimizer.step = self._refuse_step  # a method, which schedulers expect

    def _check_parts(self, loader: Any, accountant: Any, takes_batches: bool) -> None:
        """Reject a DPOptimizer, its loader or its accountant, if they do not do what is planned."""
        if not takes_batches:
            raise InvalidValueError(
                "Expected a model for whole batches, which a loop with an optimizer of Opacus has; this one takes a "
                "record at once, reads values, or mixes records. Attach the optimizer of torch, for tuner.backward()."
            )
        self.check()
        if loader is None:
            raise InvalidValueError(
                "Expected the loader of make_private beside its optimizer: attach(optimizer, loader, "
                "engine.accountant)."
            )
        sampler = poisson_sampler(loader)
        if not math.isclose(sampler.sample_rate, self.planned.sample_rate, rel_tol=_ROUNDING):
            raise InvalidValueError(
                f"Expected a loader of sample_rate={self.planned.sample_rate:.6g}, as declared, got "
                f"{sampler.sample_rate:.6g}. Declare sample_rate=1/len(loader)."
            )
        size = self.outer.expected_batch_size
        if size is not None and abs(size - self.planned.batch_size) > 1 + _SIZE * self.planned.batch_size:
            raise InvalidValueError(
                f"Expected an optimizer for batches of {self.planned.batch_size:g} records, sample_rate · n, got one "
                f"for {size:g}: it is of another loader. Pass both as one make_private returns them."
            )
        if (n := len(loader.dataset)) != self.planned.records:
            raise InvalidValueError(
                f"Expected a loader of the tuner's {self.planned.records} records, got {n}. Pass data=loader.dataset."
            )
        if self.outer.step_hook is None:
            if accountant is not None:
                self.outer.attach_step_hook(lambda _: note(accountant, self.planned.step))
        elif accountant is None or accountant_of(self.outer) not in (None, accountant):
            raise InvalidValueError(
                "Expected the accountant of make_private, whose ε would lack the queries: "
                "attach(optimizer, loader, engine.accountant)."
            )
        draw_secretly(self.outer, sampler)

    def release(self) -> None:
        """Give the optimiser its `step` back."""
        vars(self.outer).pop("step", None)

    def _refuse_step(self, *_: Any, **__: Any) -> None:
        raise InvalidValueError(
            "Expected tuner.step() in place of optimizer.step(): the tuner sets the learning rate. Call one of them."
        )

    def update_rule(self) -> UpdateRule:
        """Return a rule with this optimiser's options and state; rates of groups are relative to the first."""

        def copied(dummies: list[Tensor], lr: float) -> optim.Optimizer:
            dummy_of = dict(zip(map(id, self._weights), dummies, strict=True))
            groups = [group["params"] for group in self.inner.param_groups]
            copy = self._anew([{"params": [dummy_of.get(id(weight), weight) for weight in group]} for group in groups])
            copy.load_state_dict(self.inner.state_dict())
            for group, rate in zip(copy.param_groups, self._rates, strict=True):
                group["lr"] = lr * rate
            return copy

        return UpdateRule(copied, self._weights)

    def rule_of(self, tensors: list[Tensor]) -> UpdateRule:
        """Return a rule for other tensors, in its first state.

        Options are those of the first group. The rate is the root mean square of all weights' rates, relative to the
        first group's. So noise moves these tensors as far as it moves the model's weights, in the root mean square.
        Weights of a group with a larger rate move farther than that, and those of one with a smaller rate less far.
        """
        groups = zip(self._rates, self.inner.param_groups, strict=True)
        sizes = [(rate, weight.numel()) for rate, group in groups for weight in group["params"] if weight.requires_grad]
        mean = math.sqrt(sum(rate**2 * size for rate, size in sizes) / sum(size for _, size in sizes))
        first, anew = self.inner.param_groups[0], self._anew
        return UpdateRule(lambda dummies, lr: anew([{**first, "params": dummies, "lr": lr * mean}]), tensors)

    # ------------------------------------------------------------------------------------------------- Opacus

    def check(self) -> None:
        """Reject a DPOptimizer that does not do what is planned."""
        refuse_other_releases(self.outer)
        if not self.outer.noise_multiplier >= self.planned.noise_multiplier * (1 - _ROUNDING):
            raise InvalidValueError(
                f"Expected noise_multiplier >= {self.planned.noise_multiplier:.6g} in the optimizer, got "
                f"{self.outer.noise_multiplier:.6g}. Pass noise_multiplier=tuner.noise_multiplier to make_private, "
                "and no noise scheduler."
            )

    def check_gradients(self) -> None:
        """Reject a step without gradients of the records, or with those of several batches."""
        if any(getattr(weight, "grad_sample", None) is None for weight in self._weights):
            raise InvalidValueError(
                "Expected gradients of the records, got none: call loss.backward() on the model of make_private, then "
                "tuner.step()."
            )
        if vars(self.outer)["_step_skip_queue"]:
            raise InvalidValueError(
                "Expected whole batches, got pieces of a BatchMemoryManager: pieces of two batches could be added up, "
                "and a record in both would count twice. Leave it out; declare a smaller sample_rate and more steps."
            )
        if self.outer.accumulated_iterations != 1:
            raise InvalidValueError(
                f"Expected one backward pass in each step, got {self.outer.accumulated_iterations}: their batches "
                "would be sampled at a larger rate. Raise sample_rate instead."
            )

    def noisy_gradient(self) -> list[Tensor]:
        """Return the gradient with noise that Opacus makes of those of the records.

        Gradients of a record that are not finite count 0: Opacus' clipping would make NaN of the whole sum.
        """
        samples = [sample for weight in self._weights if (sample := getattr(weight, "grad_sample", None)) is not None]
        finite = [sample.flatten(1).sum(1).isfinite() if sample.ndim > 1 else sample.isfinite() for sample in samples]
        if len({len(rows) for rows in finite}) == 1 and not torch.stack(finite).all():
            unbounded = ~torch.stack(finite).all(0)
            for sample in samples:
                sample[unbounded] = 0
        self.outer.pre_step()
        return [weight.grad.detach() for weight in self._weights if weight.grad is not None]

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on each coordinate of a gradient of Opacus."""
        norms = self.outer.max_grad_norm
        bound = math.hypot(*norms) if isinstance(norms, list | tuple) else float(norms)
        mean = self.outer.loss_reduction == "mean"
        return float(self.outer.noise_multiplier * bound / (self.outer.expected_batch_size if mean else 1.0))
