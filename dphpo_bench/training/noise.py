"""Noise of the mechanisms: Gaussian on sums, Laplace on comparisons."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dphpo_bench.errors import InvalidValueError
from dphpo_bench.training.secure_noise import (
    AnyGenerator,
    SecureGenerator,
    add_discrete_gaussian,
    discrete_first_above,
)


def add_gaussian_noise(
    gradients: Sequence[Tensor], noise_multiplier: float, sensitivity: float, generator: AnyGenerator
) -> list[Tensor]:
    """Gradients plus independent Gaussian noise, added in float64, as new tensors.

    One vector is drawn for all tensors, so the noise depends on the generator and the total size only. With a
    torch generator this is not safe against an adversary who sees the low bits of floating point numbers; with a
    secure one it is (see `secure_noise`).

    Args:
        gradients: tensors of any shapes.
        noise_multiplier: standard deviation of each coordinate's noise / sensitivity; 0 adds none.
        sensitivity: L2 sensitivity of all tensors together.
        generator: source of randomness; the noise is drawn on its device.

    Returns:
        Tensors of the shapes, dtypes and devices of `gradients`.

    Raises:
        InvalidValueError: if the standard deviation is negative or not finite, or, with a secure generator, far
            out of the range of numbers.
    """
    std = noise_multiplier * sensitivity
    if not (math.isfinite(std) and noise_multiplier >= 0 and sensitivity >= 0):
        raise InvalidValueError(
            f"Expected a finite noise_multiplier={noise_multiplier} >= 0 and sensitivity={sensitivity} >= 0."
        )
    if isinstance(generator, SecureGenerator):
        if std == 0:
            return [gradient.clone() for gradient in gradients]
        return add_discrete_gaussian(gradients, noise_multiplier, sensitivity)
    sizes = [gradient.numel() for gradient in gradients]
    # Drawn in float64: Box-Muller on 24-bit uniforms never goes beyond 5.8 standard deviations.
    noise = torch.randn(sum(sizes), dtype=torch.float64, generator=generator, device=generator.device)
    noise.mul_(std)
    return [
        (gradient + part.view_as(gradient).to(gradient.device)).to(gradient.dtype)
        for gradient, part in zip(gradients, torch.split(noise, sizes), strict=True)
    ]


def first_above(
    values: Sequence[float], threshold: float, sensitivity: float, epsilon: float, generator: AnyGenerator
) -> int | None:
    """The first value whose noisy version reaches a noisy threshold (AboveThreshold); ε-DP.

    Noise Laplace(2Δ/ε) on the threshold and Laplace(4Δ/ε) on each value, for one answer to queries that need not
    be monotone (Dwork and Roth 2014, Theorem 3.23).

    Args:
        values: private, each of this sensitivity.
        threshold: public.
        sensitivity: Δ > 0, of each value.
        epsilon: ε > 0.
        generator: source of randomness.

    Returns:
        The index of that value, or None if there is none.

    Raises:
        InvalidValueError: with a secure generator, if a value is out of its range.
    """
    if isinstance(generator, SecureGenerator):
        return discrete_first_above(values, threshold, sensitivity, epsilon)
    noise = _laplace_noise(1 + len(values), generator)
    scale = sensitivity / epsilon
    noisy_threshold = threshold + 2 * scale * noise[0].item()
    for index, value in enumerate(values):
        if value + 4 * scale * noise[1 + index].item() >= noisy_threshold:
            return index
    return None


def _laplace_noise(size: int, generator: torch.Generator) -> Tensor:
    """Independent Laplace noise of scale 1: shape (size,), float64."""
    # The difference of two standard exponentials. `exponential_` draws in (0, ∞).
    draws = torch.empty(2, size, dtype=torch.float64, device=generator.device).exponential_(generator=generator)
    return draws[0] - draws[1]
