"""Gaussian noise on a sum of clipped gradients."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dphpo_bench.errors import InvalidValueError


def add_gaussian_noise(gradients: Sequence[Tensor], std: float, generator: torch.Generator) -> list[Tensor]:
    """Gradients plus independent Gaussian noise, as new tensors.

    One vector is drawn for all tensors, so the noise depends on the generator and the total size only. This
    is not safe against an adversary who sees the low bits of floating point numbers.

    Args:
        gradients: tensors of any shapes.
        std: standard deviation of each coordinate: noise multiplier times sensitivity.
        generator: source of randomness; the noise is drawn on its device.

    Returns:
        Tensors of the shapes, dtypes and devices of `gradients`.

    Raises:
        InvalidValueError: if `std` is negative or not finite.
    """
    if not (math.isfinite(std) and std >= 0):
        raise InvalidValueError(f"Expected std={std} >= 0 and finite.")
    sizes = [gradient.numel() for gradient in gradients]
    # Drawn in float64: Box-Muller on 24-bit uniforms never goes beyond 5.8 standard deviations.
    noise = torch.randn(sum(sizes), dtype=torch.float64, generator=generator, device=generator.device)
    noise.mul_(std)
    return [
        gradient + part.view_as(gradient).to(gradient)
        for gradient, part in zip(gradients, torch.split(noise, sizes), strict=True)
    ]


def laplace_noise(size: int, generator: torch.Generator) -> Tensor:
    """Independent Laplace noise of scale 1.

    Args:
        size: how many numbers.
        generator: source of randomness.

    Returns:
        Shape (size,), float64.
    """
    # The difference of two standard exponentials. `exponential_` draws in (0, ∞).
    draws = torch.empty(2, size, dtype=torch.float64, device=generator.device).exponential_(generator=generator)
    return draws[0] - draws[1]
