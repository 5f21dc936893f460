"""Parts of a training that Opacus makes private.

Opacus is never imported: its classes are known by their attributes.
"""

import inspect
import secrets
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.external.processes import place_in_group

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
