"""Noise of the mechanisms: Gaussian on sums, Laplace on comparisons."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.secure_noise import (
    AnyGenerator,
    SecureGenerator,
    add_discrete_gaussian,
    discrete_laplace,
    laplace_grid,
)


def add_gaussian_noise(
    gradients: Sequence[Tensor], noise_multiplier: float, sensitivity: float, generator: AnyGenerator
) -> list[Tensor]:
    """Add independent Gaussian noise of deviation `noise_multiplier` · `sensitivity` to gradients, in place.

    Freed memory keeps its numbers, which `torch.empty` may hand out: neither the sums without noise nor the noise may
    stay there. A single vector is drawn for all tensors, in float64 and on the generator's device, so the noise depends
    on the generator and the total size only. With a torch generator the low bits of floating point numbers may reveal
    the noise; with a secure one they do not (see `secure_noise`).

    Args:
        gradients: tensors of any shapes; the noise is added in place.
        noise_multiplier: standard deviation of each coordinate's noise / sensitivity; 0 adds none.
        sensitivity: L2 sensitivity of all tensors together.
        generator: source of randomness.

    Raises:
        InvalidValueError: if the standard deviation is negative or not finite, or too small or large for a secure
            generator.
    """
    std = noise_multiplier * sensitivity
    if not (math.isfinite(std) and noise_multiplier >= 0 and sensitivity >= 0):
        raise InvalidValueError(
            f"Expected a finite noise_multiplier={noise_multiplier} >= 0 and sensitivity={sensitivity} >= 0."
        )
    if isinstance(generator, SecureGenerator):
        if std == 0:
            return list(gradients)
        noisy = add_discrete_gaussian(gradients, noise_multiplier, sensitivity)
        return [gradient.copy_(value) for gradient, value in zip(gradients, noisy, strict=True)]
    sizes = [gradient.numel() for gradient in gradients]
    # Drawn in float64: Box-Muller on 24-bit uniforms never goes beyond 5.8 standard deviations.
    noise = torch.randn(sum(sizes), dtype=torch.float64, generator=generator, device=generator.device)
    noise.mul_(std)
    noisy = [
        gradient.add_(part.view_as(gradient).to(gradient.device))
        for gradient, part in zip(gradients, torch.split(noise, sizes), strict=True)
    ]
    noise.zero_()
    return noisy


class AboveThreshold:
    """A run of AboveThreshold, ε-DP as a whole for any number of thresholds.

    Noise Laplace(2Δ/ε) on the threshold, drawn once, and fresh Laplace(4Δ/ε) on each value at each threshold, for
    values that need not be monotone (Dwork and Roth 2014, Theorem 3.23; a query there is a value minus a threshold that
    was chosen from earlier answers). An answer "none" costs nothing; the first index ends the instance.

    Args:
        sensitivity: Δ > 0, of each value.
        epsilon: ε > 0.
        generator: source of randomness.

    Raises:
        InvalidValueError: with a secure generator, if a number is out of its range; see `laplace_grid`.
    """

    def __init__(self, sensitivity: float, epsilon: float, generator: AnyGenerator) -> None:
        self._generator = generator
        self._exponent, self._scale = 0, sensitivity / epsilon
        if isinstance(generator, SecureGenerator):
            self._exponent, self._scale = laplace_grid(sensitivity, epsilon)
        (self._on_threshold,) = self._noise(1, 2.0)
        self._is_open = True

    def first(self, values: Sequence[float], threshold: float) -> int | None:
        """Return the index of the first value whose noisy version reaches the noisy threshold; None if none does.

        Args:
            values: private values, of the sensitivity each time.
            threshold: public.

        Raises:
            InvalidValueError: if an index was given before, or the threshold is not finite.
        """
        if not self._is_open:
            raise InvalidValueError(
                "Expected one index from each AboveThreshold, which this one has given. Open another, for its own ε."
            )
        if not math.isfinite(threshold):
            raise InvalidValueError(f"Expected a finite threshold, got {threshold}.")
        reached = self._placed(threshold) + self._on_threshold
        for index, (value, noise) in enumerate(zip(values, self._noise(len(values), 4.0), strict=True)):
            if self._placed(value) + noise >= reached:
                self._is_open = False
                return index
        return None

    def _noise(self, count: int, factor: float) -> Sequence[float]:
        """Draw independent Laplace noise of scale factor · Δ/ε; with a secure generator, whole numbers of steps."""
        if isinstance(self._generator, SecureGenerator):
            return discrete_laplace(count, factor * self._scale)
        draws: list[float] = (factor * self._scale * _laplace_noise(count, self._generator)).tolist()
        return draws

    def _placed(self, value: float) -> float:
        """Return the value; with a secure generator, the nearest whole number of grid steps."""
        return round(math.ldexp(value, -self._exponent)) if isinstance(self._generator, SecureGenerator) else value


def _laplace_noise(size: int, generator: torch.Generator) -> Tensor:
    """Draw independent Laplace noise of scale 1: shape (size,), float64."""
    # The difference of two standard exponentials. `exponential_` draws in (0, ∞).
    draws = torch.empty(2, size, dtype=torch.float64, device=generator.device).exponential_(generator=generator)
    return draws[0] - draws[1]
