"""Hardened randomness, `--secure-noise`: exact noise on a grid, draws from cryptographic generators.

Floating-point noise has gaps, which depend on the value that it was added to, so all bits of a release can rule values
out (Mironov 2012). Here values are rounded to a public grid of spacing g, a power of two, and noise is a whole number
of grid steps. OpenDP draws it exactly from OpenSSL's generator, which the operating system seeds.

Two differences from the mechanism of the accountant are paid for, with proofs in docs/accounting.md (secure noise):

1. *Rounding.* The L2 sensitivity of d rounded coordinates is at most Δ + g √d. The noise grows with it, so the noise
   multiplier that was charged stays the same.
2. *Discrete instead of rounded.* Rounding a Gaussian is post-processing. The discrete Gaussian of standard deviation
   s ≥ 2^48 grid steps differs from the rounded one by less than 1/(8 s²) ≤ 2^-99 in total variation.

Two things remain: sums are rounded to float64, and the time of a draw depends on its value.
"""

import hashlib
import math
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError

if TYPE_CHECKING:
    from opendp.mod import Domain, Measurement

# Discrete Gaussians have a standard deviation of 2^48 to 2^49 grid steps: with 16 of them below 2^53, what is
# drawn is exact in float64.
_GAUSSIAN_BITS = 48
# Laplace noise has heavier tails and is kept in integers; at ε >= MIN_EPSILON its scale is below 2^53 steps.
_LAPLACE_BITS = 30
MIN_EPSILON = 1e-6
# No overflow and no subnormal numbers between these.
MIN_STD, MAX_STD = 1e-200, 1e200
_MAX_STEPS = 2.0**200
_LARGEST_SCALE = 2.0**59  # sixteen standard deviations are below 2^63
# Samplers of earlier versions divide rational numbers wrongly, so their noise is biased (OpenDP, issue 2638).
_OLDEST = (0, 15)


class SecureGenerator:
    """Uniform draws of a stream: SHAKE-256 of its name, which holds the run's secret of 256 bits.

    A name always gives the same draws, so that the parts of a partition fit together and a number of trials is drawn
    once. Noise comes from OpenDP instead and is never the same again.
    """

    device = torch.device("cpu")

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._calls = 0

    def uniform(self, count: int) -> Tensor:
        """Draw uniform numbers in [0, 1), multiples of 2^-53: shape (count,), float64."""
        return torch.from_numpy((self._words(count) >> np.uint64(11)) * 2.0**-53)

    def bernoulli(self, count: int, probability: float) -> Tensor:
        """Flip independent coins of a probability in [0, 1), shape (count,), bool.

        The probability is rounded down to a multiple of 2^-64: a smaller sampling rate is never less private.
        """
        return torch.from_numpy(self._words(count) < np.uint64(int(math.ldexp(probability, 64))))

    def _words(self, count: int) -> NDArray[np.uint64]:
        # The counter has a fixed length, so no two calls hash the same text.
        text = self._name + self._calls.to_bytes(8, "big")
        self._calls += 1
        return np.frombuffer(hashlib.shake_256(text).digest(8 * count), dtype="<u8").astype(np.uint64)


# Generators of mechanisms.
AnyGenerator: TypeAlias = torch.Generator | SecureGenerator


def require_opendp() -> str:
    """Return the version of OpenDP; reject a missing one, or one whose noise is biased."""
    try:
        import opendp.measurements  # noqa: F401

        version = metadata.version("opendp")
    except ImportError:  # also what `metadata` raises
        raise InvalidValueError("Secure noise needs OpenDP: pip install 'dphpo-bench[secure]'.") from None
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise InvalidValueError(
            f"Expected OpenDP 0.15 or newer, got {version}, whose noise is biased: pip install 'dphpo-bench[secure]'."
        )
    return version


def gaussian_grid(noise_multiplier: float, sensitivity: float, size: int) -> tuple[int, float]:
    """Return the grid for a Gaussian mechanism, and the standard deviation that pays for rounding to it.

    Rounded sums of neighbouring datasets differ by ‖r(x) − r(x')‖₂ ≤ Δ + g √d. Noise of standard deviation σ (Δ + g √d)
    on r(x) is thus a Gaussian mechanism of multiplier at least σ, which is charged.

    Returns:
        The exponent of g = 2^exponent, with g ≤ 2^-48 σ Δ; and σ (Δ + g √d)/g, rounded up.

    Raises:
        InvalidValueError: if σ Δ is not from 1e-200 to 1e200, or if σ √d is so large that the noise overflows.
    """
    std = noise_multiplier * sensitivity
    if not MIN_STD <= std <= MAX_STD:
        raise InvalidValueError(f"Expected a standard deviation from {MIN_STD:g} to {MAX_STD:g}, got {std:g}.")
    exponent = math.frexp(std)[1] - 1 - _GAUSSIAN_BITS
    # Five roundings, each by a factor of at most 1 + 2^-53, are paid by one of 1 + 2^-50.
    scale = (math.ldexp(std, -exponent) + noise_multiplier * math.sqrt(size)) * (1 + 2.0**-50)
    if scale > _LARGEST_SCALE:
        raise InvalidValueError(
            f"Expected a noise multiplier · √coordinates below 2^59, got {noise_multiplier:g} · √{size}: OpenDP counts "
            "the steps of its noise with 64 bits."
        )
    return exponent, scale


def add_discrete_gaussian(values: Sequence[Tensor], noise_multiplier: float, sensitivity: float) -> list[Tensor]:
    """Round values to a grid and add discrete Gaussian noise (Canonne, Kamath and Steinke 2020).

    The sum of integers is exact; a sum of more than 53 bits is rounded once, which is post-processing. Coordinates that
    are not finite become 0 or a bound. The L2 sensitivity is that of all values together. Results are multiples of g
    before they are cast to the dtypes of `values`.
    """
    sizes = [value.numel() for value in values]
    exponent, scale = gaussian_grid(noise_multiplier, sensitivity, sum(sizes))
    flat = torch.cat([value.detach().flatten().to("cpu", torch.float64) for value in values])
    # Scaling by a power of two and rounding to an integer are exact. Clamping brings no two values further apart.
    steps = (flat * 2.0**-exponent).round().nan_to_num(nan=0.0).clamp(-_MAX_STEPS, _MAX_STEPS)
    noise = torch.tensor(discrete_gaussian(len(steps), scale), dtype=torch.int64).double()
    noisy = (steps + noise) * 2.0**exponent
    for freed in (flat, steps, noise):  # what is freed is handed out again as it is
        freed.zero_()
    return [part.view(value.shape).to(value) for value, part in zip(values, torch.split(noisy, sizes), strict=True)]


def laplace_grid(sensitivity: float, epsilon: float) -> tuple[int, float]:
    """Return the grid for an AboveThreshold (Dwork and Roth 2014, Theorem 3.23) in integers, ε-DP with no added δ.

    Discrete Laplace noise of scale b has probabilities that change by a factor of at most e^(k/b) under a shift by an
    integer k, so the theorem's proof holds for an integer Δ. In grid steps, values that differ by at most D differ by
    at most ⌊D⌋ + 1 once rounded. One step more pays for float64 arithmetic in the values.

    Returns:
        The exponent of the spacing g = 2^exponent ≤ 2^-30 Δ; and Δ/ε in steps, rounded up.

    Raises:
        InvalidValueError: if the sensitivity of each value is out of range, or ε < 1e-6.
    """
    if not epsilon >= MIN_EPSILON:
        raise InvalidValueError(f"Expected epsilon >= {MIN_EPSILON:g} with secure noise, got {epsilon:g}.")
    if not MIN_STD <= sensitivity <= MAX_STD:
        raise InvalidValueError(f"Expected a sensitivity from {MIN_STD:g} to {MAX_STD:g}, got {sensitivity:g}.")
    exponent = math.frexp(sensitivity)[1] - 1 - _LAPLACE_BITS
    steps = math.floor(math.ldexp(sensitivity, -exponent)) + 2
    return exponent, steps / epsilon * (1 + 2.0**-50)


def discrete_gaussian(count: int, scale: float) -> list[int]:
    """Draw independent integers k with probabilities ∝ e^(−k²/(2 s²)), exactly; s = `scale`, as a rational."""
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance

    return _drawn(make_gaussian(_integers(), l2_distance(T="i64"), scale=scale), count)


def discrete_laplace(count: int, scale: float) -> list[int]:
    """Draw independent integers k with probabilities ∝ e^(−|k|/b), exactly; b = `scale`, as a rational."""
    from opendp.measurements import make_laplace
    from opendp.metrics import l1_distance

    return _drawn(make_laplace(_integers(), l1_distance(T="i64"), scale=scale), count)


def _integers() -> "Domain":
    """Return vectors of 64-bit integers, after consent to OpenDP's samplers, which it calls experimental."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.mod import enable_features

    enable_features("contrib")
    return vector_domain(atom_domain(T="i64"))


def _drawn(measurement: "Measurement", count: int) -> list[int]:
    """Draw noise alone: the caller adds the values, since sums may exceed 64 bits, where OpenDP saturates."""
    return list(measurement([0] * count)) if count else []
