"""The optimiser of a caller's loop, bare or in a DPOptimizer of Opacus, and mistakes with it.

Opacus is never imported: its classes are known by their attributes.
"""

import copy
import inspect
import math
import secrets
import warnings
from collections import defaultdict
from typing import Any

import torch
from dp_accounting.dp_event import DpEvent, SelfComposedDpEvent
from torch import Tensor, nn
from torch.utils.data import BatchSampler

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.external.callers_records import CallersRecords, place_in_group
from dphpo_bench.privacy.event_trees import opened
from dphpo_bench.privacy.events import gaussian, poisson_sampled
from dphpo_bench.recipes.dp_sgd import trainable
from dphpo_bench.recipes.noise_law import Looked
from dphpo_bench.training.optimizer_names import check_optimizer, published
from dphpo_bench.training.optimizers import OptimizerFactory, UpdateRule


class CallersAccountant:
    """The caller's accountant, of Opacus or of dp_accounting; or none.

    Both know batches with a single Gaussian sum. k sums of sensitivity 1 each, with independent noise of deviation
    σ, are one release of the vector of all k. Its sensitivity is √k, so it is a Gaussian of multiplier σ/√k, and both
    ways of sampling first and releasing then are the same mechanism (docs/own_loop.md).

    Args:
        accountant: with `step(noise_multiplier=, sample_rate=)`, or with `compose(event)`; None: there is none.

    Raises:
        InvalidValueError: if it is neither, or can only take equal releases.
    """

    def __init__(self, accountant: Any) -> None:
        self.accountant = accountant
        if getattr(accountant, "mechanism", lambda: "")() == "gdp":
            raise InvalidValueError(
                "Expected an accountant that takes several noise multipliers and sample rates, got Opacus' "
                "GaussianAccountant (gdp), which takes one. Use PrivacyEngine(accountant='rdp') or 'prv'."
            )
        is_known = hasattr(accountant, "get_epsilon") and (self._takes_events or hasattr(accountant, "step"))
        if accountant is not None and (isinstance(accountant, type) or not is_known):
            raise InvalidValueError(
                "Expected an accountant of Opacus (step) or dp_accounting (compose), got "
                f"{type(accountant).__name__}. Pass engine.accountant."
            )

    def note(self, kind: DpEvent) -> None:
        """Take in one batch: Poisson(q; k × Gaussian σ)."""
        if self.accountant is None:
            return
        noise_multiplier, rate = as_one_gaussian(kind)
        if self._takes_events:
            self.accountant.compose(poisson_sampled(rate, gaussian(noise_multiplier)))
        else:
            self.accountant.step(noise_multiplier=noise_multiplier, sample_rate=rate)

    @property
    def _takes_events(self) -> bool:
        return callable(getattr(self.accountant, "compose", None))


def as_one_gaussian(kind: DpEvent) -> tuple[float, float]:
    """Return noise multiplier and sample rate of the single Gaussian that Poisson(q; k × Gaussian σ) is."""
    rate, contents = opened(kind)
    count, sum_ = (contents.count, contents.event) if isinstance(contents, SelfComposedDpEvent) else (1, contents)
    return sum_.noise_multiplier / math.sqrt(count), rate


GRADIENTS = frozenset({"grad_sample", "summed_grad"})
"""Attributes of weights by which Opacus keeps gradients of records; None: there is none."""

CAPTURED = frozenset({"activations", "max_batch_len", "_current_grad_sample", "_norm_sample", "norm_sample"})
"""Attributes that the hooks of Opacus leave on layers and weights."""

_WRAPPERS = 8


def refuse_other_releases(private: Any, shared_by: str) -> None:
    """Reject an optimizer of Opacus that releases more than its noise multiplier says.

    Args:
        private: of Opacus.
        shared_by: the attribute that those of several processes have.
    """
    if hasattr(private, "unclipped_num_std") or hasattr(private, "_adjusted_noise_multiplier"):
        raise InvalidValueError(
            "Opacus' adaptive clipping releases more than its accountant records: it counts a noisy number of clipped "
            "gradients as half as sensitive as it is. Use clipping='flat'."
        )
    if (size := place_in_group()[1]) > 1 and not hasattr(private, shared_by):
        raise InvalidValueError(
            f"Expected Opacus' distributed optimizer in {size} processes, got a {type(private).__name__}, with which "
            "each process trains a model of its own. Wrap the model in DifferentiallyPrivateDistributedDataParallel "
            "before make_private."
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
_RATE, _STEPS = 0.5, 30
_SIZE = 0.02
"""Opacus rounds: of some loaders, as of 93 batches, its own has a batch less."""

STEP_BESIDE = "Expected tuner.step() in place of optimizer.step(): the tuner sets the learning rate. Call one of them."


class CallersOptimizer:
    """The caller's optimiser: its rule gives directions, and of a DPOptimizer gradients with noise.

    Args:
        optimizer: of torch; or a DPOptimizer of Opacus around one.
        model: whose trained weights it moves.

    Attributes:
        prefetched: number of batches that a loader draws before they are used.
        source: generator of batches alone, which moves with each; None if it is another's.

    Raises:
        InvalidValueError: if the optimiser moves other weights, or is none that can serve.
    """

    def __init__(self, optimizer: Any, model: nn.Module) -> None:
        weights = trainable(model)
        self.outer = optimizer
        self.is_private = hasattr(optimizer, "pre_step") and hasattr(optimizer, "original_optimizer")
        self.inner: torch.optim.Optimizer = optimizer.original_optimizer if self.is_private else optimizer
        if not isinstance(self.inner, torch.optim.Optimizer):
            raise InvalidValueError(
                f"Expected an optimizer of torch, or Opacus' DPOptimizer, got {shown(optimizer, form=repr)}."
            )
        moved = [weight for group in self.inner.param_groups for weight in group["params"] if weight.requires_grad]
        if {id(weight) for weight in moved} != {id(weight) for weight in weights}:
            raise InvalidValueError(
                "Expected an optimizer of the model's trained weights, all and no others; this one has "
                f"{len(moved)} tensors, the model {len(weights)}. Make it of the tuner's model: "
                "AdamW(model.parameters())."
            )
        if type(self.inner) in published().values():
            check_optimizer(type(self.inner).__name__)
        if not float(self.inner.param_groups[0]["lr"]) > 0:
            raise InvalidValueError(
                "Expected lr > 0 in the first group of the optimizer: those of others are relative."
            )
        self._weights, self.prefetched = weights, 0
        self._check_rule()
        self.source: torch.Generator | None = None
        self._partial: bytes | None = None  # the batch of which pieces are added up
        self._ghost: Any = None  # what clips in ghost clipping, which leaves the gradients of other losses as they are
        if "FastGradientClipping" in type(optimizer).__name__:
            hooks = [hook for part in model.modules() for hook in vars(part)["_forward_hooks"].values()]
            owners = (getattr(hook, "__self__", None) for hook in hooks)
            self._ghost = next((owner for owner in owners if hasattr(owner, "get_clipping_coef")), None)
        self._own_step = vars(optimizer).get("step")
        self.check_schedulers()
        self._refusing = self._refuse_step  # a method, which schedulers expect
        optimizer.step = self._refusing

    def release(self) -> None:
        """Give the optimiser its `step` back."""
        if vars(self.outer).get("step") is self._refusing:
            del self.outer.step
            if self._own_step is not None:
                self.outer.step = self._own_step

    def _refuse_step(self, *_: Any, **__: Any) -> None:
        raise InvalidValueError(STEP_BESIDE)

    def update_rule(self) -> UpdateRule:
        """Return a rule with this optimiser's options and state; rates of groups are relative to the first."""
        return UpdateRule(self._with_state, self._weights)

    def rule_of(self, tensors: list[Tensor]) -> UpdateRule:
        """Return a rule for other tensors, in its first state.

        Options are those of the first group. The rate is the root mean square of all weights' rates, relative to the
        first group's. So noise moves these tensors as far as it moves the model's weights, in the root mean square.
        Weights of a group with a larger rate move farther than that, and those of one with a smaller rate less far.
        """
        groups, first = self.inner.param_groups, float(self.inner.param_groups[0]["lr"])
        rates = [(float(group["lr"]) / first, weight) for group in groups for weight in group["params"]]
        squares = sum(rate**2 * weight.numel() for rate, weight in rates if weight.requires_grad)
        mean = math.sqrt(squares / sum(weight.numel() for weight in self._weights))
        return UpdateRule(lambda dummies, lr: self._fresh(dummies, lr * mean), tensors)

    def _check_rule(self) -> None:
        """Reject an optimiser whose step is not its rate times what gradients alone say, but for weight decay.

        The rate follows from such steps; see `noise_walk`. Tried on a few numbers, in moves and at rest.
        """
        numbers = torch.randn(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        numbers = numbers.to(self._weights[0].device)
        moved, rest, total = numbers.clone(), torch.zeros_like(numbers), torch.zeros_like(numbers)
        gradients = [numbers.roll(1) + numbers.roll(step) / 4 for step in range(_STEPS)]
        name = type(self.inner).__name__

        def at_rest(dummies: list[Tensor], lr: float) -> torch.optim.Optimizer:
            fresh = self._fresh(dummies, lr, decay=False)
            return _copied(self.inner, fresh.param_groups, fresh.state)  # a copy, as `_with_state` makes it

        try:
            moving, rule = self._fresh([moved], _RATE, decay=False), UpdateRule(at_rest, [rest])
            for gradient in gradients:
                moved.grad = gradient.clone()
                moving.step()
                total += rule.direction([gradient])[0]
        except Exception as error:  # of anybody's class
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise InvalidValueError(
                f"Expected an optimizer that can be made anew for other tensors; {name} fails ({reason}). Use AdamW or "
                "SGD."
            ) from error
        falls = bool((total * sum(gradients)).sum() > 0)
        if not (falls and torch.allclose(numbers - moved, _RATE * total, rtol=1e-6, atol=1e-12)):
            raise InvalidValueError(
                "Expected an optimizer whose step is its learning rate times a direction against gradients, which "
                f"follows from them alone; {name} has another. Use AdamW or SGD, without maximize."
            )

    def _fresh(self, dummies: list[Tensor], lr: float, *, decay: bool = True) -> torch.optim.Optimizer:
        """Return an optimiser of this class with the options of the first group, which has taken no step."""
        first, accepted = self.inner.param_groups[0], inspect.signature(type(self.inner)).parameters
        options = {name: first[name] for name in self.inner.defaults if name in first and name != "lr"}
        if "weight_decay" in options and not decay:
            options["weight_decay"] = 0.0
        named = {name: value for name, value in options.items() if name in accepted}
        factory: OptimizerFactory = type(self.inner)
        fresh = factory(dummies, lr=lr, **named)
        fresh.param_groups[0].update(options)
        vars(fresh).update(_attributes(self.inner))
        return fresh

    def _with_state(self, dummies: list[Tensor], lr: float) -> torch.optim.Optimizer:
        """Return a copy with a copy of the state."""
        dummy_of = {id(weight): tensor for weight, tensor in zip(self._weights, dummies, strict=True)}
        first, state = float(self.inner.param_groups[0]["lr"]), defaultdict[Any, Any](dict)
        groups = [
            {
                **group,
                "params": [dummy_of[id(weight)] for weight in group["params"] if id(weight) in dummy_of],
                "lr": lr * float(group["lr"]) / first,
            }
            for group in self.inner.param_groups
        ]
        for weight in self._weights:
            for name, value in self.inner.state.get(weight, {}).items():
                is_like = isinstance(value, Tensor) and value.shape == weight.shape and value.ndim > 0
                some = value.to(dummy_of[id(weight)].dtype, copy=True) if is_like else copy.deepcopy(value)
                state[dummy_of[id(weight)]][name] = some
        return _copied(self.inner, groups, state)

    # ------------------------------------------------------------------------------------------------- Opacus

    def check(self, planned: Looked) -> None:
        """Reject a DPOptimizer that does not do what is planned."""
        refuse_other_releases(self.outer, "reduce_gradients")
        if self._ghost and self._ghost.max_grad_norm > self.outer.max_grad_norm:
            raise InvalidValueError(
                f"Expected max_grad_norm={self._ghost.max_grad_norm:g} in the optimizer, by which ghost clipping clips,"
                f" got {self.outer.max_grad_norm:g}: its noise would be too small. Leave it as make_private sets it."
            )
        if not self.outer.noise_multiplier >= planned.noise_multiplier * (1 - _ROUNDING):
            raise InvalidValueError(
                f"Expected noise_multiplier >= {planned.noise_multiplier:.6g} in the optimizer, got "
                f"{self.outer.noise_multiplier:.6g}. Pass noise_multiplier=tuner.noise_multiplier to make_private, "
                "and no noise scheduler."
            )
        expected = planned.batch_size
        size = expected if self.outer.expected_batch_size is None else self._size
        if abs(size - expected) > 1 + _SIZE * expected:
            raise InvalidValueError(
                f"Expected batches of {expected:g} records, sample_rate · n, got an optimizer for {size:g}. Declare "
                "sample_rate=1/len(loader), and all records of the loader as data."
            )

    def check_schedulers(self) -> None:
        """Reject a scheduler of the learning rate, which would have no effect."""
        wrapped = any(getattr(o.step, "_wrapped_by_lr_sched", False) for o in (self.outer, self.inner))
        if wrapped or any("initial_lr" in group for group in self.inner.param_groups):
            raise InvalidValueError(
                "Expected an optimizer without a scheduler of its learning rate: the tuner sets the rate. "
                "Leave the scheduler out."
            )

    def check_gradients(self) -> None:
        """Reject a step without gradients of the records, or with those of several batches."""
        attribute = "grad" if "FastGradientClipping" in type(self.outer).__name__ else "grad_sample"
        if any(getattr(weight, attribute, None) is None for weight in self._weights):
            raise InvalidValueError(
                "Expected gradients of the records, got none: call loss.backward() on the model of make_private, then "
                "tuner.step()."
            )
        if self._ghost and not hasattr(self._ghost, "per_sample_gradient_norms"):
            raise InvalidValueError(
                "Expected gradients that ghost clipping has clipped, got none: call criterion(model(x), y).backward() "
                "with the criterion that make_private returns, then tuner.step()."
            )
        if self.outer.accumulated_iterations != 1:
            raise InvalidValueError(
                f"Expected one backward pass in each step, got {self.outer.accumulated_iterations}: their batches "
                "would be sampled at a larger rate. Use opacus.utils.batch_memory_manager."
            )
        is_late = len(vars(self.outer)["_step_skip_queue"]) > 1 + self.prefetched
        if is_late or self._partial not in (None, self._drawn):
            raise InvalidValueError(
                "Expected tuner.step() after each piece of a BatchMemoryManager; one was left out, so that pieces of "
                "two batches would be added up. Begin a training anew, which steps at each."
            )

    def noisy_gradient(self) -> list[Tensor] | None:
        """Return the gradient with noise that Opacus makes of those of the records; None after a virtual step."""
        self._leave_out_unbounded()
        if not self.outer.pre_step():
            self._partial = self._drawn
            return None
        self._partial = None
        if hasattr(self.outer, "reduce_gradients"):
            self.outer.reduce_gradients()
        return [weight.grad.detach() for weight in self._weights if weight.grad is not None]

    def _leave_out_unbounded(self) -> None:
        """Set gradients of a record that are not finite to 0: Opacus' clipping would make NaN of the whole sum.

        Ghost clipping has no gradients of records, only their sum.
        """
        samples = [sample for weight in self._weights if (sample := getattr(weight, "grad_sample", None)) is not None]
        finite = [sample.flatten(1).sum(1).isfinite() if sample.ndim > 1 else sample.isfinite() for sample in samples]
        if len({len(rows) for rows in finite}) == 1 and not torch.stack(finite).all():
            unbounded = ~torch.stack(finite).all(0)
            for sample in samples:
                sample[unbounded] = 0

    @property
    def _drawn(self) -> bytes:
        """State that tells the latest batch that was drawn from others; empty where it is not known."""
        return b"" if self.source is None or self.prefetched else self.source.get_state().numpy().tobytes()

    def clear(self) -> None:
        """Clear the gradients of a step, but for what a virtual step adds up."""
        self.outer.zero_grad()
        if self._ghost:
            self._ghost.per_sample_gradient_norms = None

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on each coordinate of a gradient of Opacus."""
        norms = self.outer.max_grad_norm
        bound = math.hypot(*norms) if isinstance(norms, list | tuple) else float(norms)
        mean = self.outer.loss_reduction == "mean"
        return float(self.outer.noise_multiplier * bound / (self._size if mean else 1.0))

    @property
    def _size(self) -> float:
        """Expected number of records of a batch, over all processes."""
        return float(self.outer.expected_batch_size * place_in_group()[1])


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return options that a class keeps beside those of its groups."""
    return {name: value for name, value in vars(optimizer).items() if isinstance(value, bool | int | float | str)}


def _copied(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], state: defaultdict[Any, Any]
) -> torch.optim.Optimizer:
    """Return a copy of an optimiser, without its hooks, that steps on other tensors."""
    copied = copy.copy(optimizer)  # torch leaves attributes out
    vars(copied).update(_attributes(optimizer))
    vars(copied).pop("step", None)
    copied.param_groups, copied.state = groups, state
    return copied


def attached(
    optimizer: Any, loader: Any, accountant: Any, records: CallersRecords, planned: Looked
) -> CallersOptimizer:
    """Return the caller's optimiser, after a check that it, its loader and its accountant do what is planned.

    Args:
        optimizer: see `Tuner.attach`, as the next two.
        loader: of a DPOptimizer.
        accountant: which takes in gradients too, if the DPOptimizer tells none of them.
        records: with the caller's model.
        planned: the plan.

    Raises:
        InvalidValueError: if one of them does not, or is missing. The optimiser is then as it was.
    """
    if hasattr(optimizer, "pre_step") and not records.own_model().takes_batches:
        raise InvalidValueError(
            "Expected a model for whole batches, which a loop with an optimizer of Opacus has; this one takes a record "
            "at once, reads values, or mixes records. Attach the optimizer of torch, for tuner.backward()."
        )
    ours = CallersOptimizer(optimizer, records.whole)
    try:
        theirs = CallersAccountant(accountant)
        if ours.is_private:
            ours.check(planned)
            if loader is None:
                raise InvalidValueError(
                    "Expected the loader of make_private beside its optimizer: attach(optimizer, loader, "
                    "engine.accountant)."
                )
            sampler = check_loader(loader, planned)
            if loader.num_workers:  # whose batches are drawn before they are used
                ours.prefetched = loader.num_workers * loader.prefetch_factor
            is_theirs = getattr(sampler, "generator", 0) is not None
            if optimizer.step_hook is None:
                optimizer.attach_step_hook(lambda _: theirs.note(planned.step))
            elif accountant is None or accountant_of(optimizer) not in (None, accountant):
                raise InvalidValueError(
                    "Expected the accountant of make_private, whose ε would lack the queries: "
                    "attach(optimizer, loader, engine.accountant)."
                )
            draw_secretly(optimizer, sampler)
            ours.source = None if is_theirs else sampler.generator
    except DphpoBenchError:
        ours.release()
        raise
    return ours


def check_loader(loader: Any, planned: Looked) -> Any:
    """Return the sampler of a loader; reject it if its batches are no Poisson samples at the declared rate."""
    sampler = poisson_sampler(loader)
    rate = sampler.sample_rate
    if not math.isclose(rate, planned.sample_rate, rel_tol=_ROUNDING):
        raise InvalidValueError(
            f"Expected a loader of sample_rate={planned.sample_rate:.6g}, as declared, got {rate:.6g}. Declare "
            "sample_rate=1/len(loader)."
        )
    if (n := len(loader.dataset)) != planned.records:
        raise InvalidValueError(
            f"Expected a loader of the tuner's {planned.records} records, got {n}. Pass data=loader.dataset."
        )
    return sampler
