"""Noise of the mechanisms: Gaussian on sums, Laplace on comparisons; correlated noise; Poisson samples.

*Secure noise.* Floating-point noise has gaps, which depend on the value that it was added to, so all bits of a release
can rule values out (Mironov 2012). Here values are rounded to a public grid of spacing g, a power of two, and noise is
a whole number of grid steps. OpenDP draws it exactly from OpenSSL's generator, which the operating system seeds.

Two differences from the mechanism of the accountant are paid for, with proofs in docs/accounting.md (secure noise):

1. *Rounding.* The L2 sensitivity of d rounded coordinates is at most Δ + g √d. The noise grows with it, so the noise
   multiplier that was charged stays the same.
2. *Discrete instead of rounded.* Rounding a Gaussian is post-processing. The discrete Gaussian of standard deviation
   s ≥ 2^48 grid steps differs from the rounded one by less than 1/(8 s²) ≤ 2^-99 in total variation.

Two things remain: sums are rounded to float64, and the time of a draw depends on its value.

*Correlated noise* of the steps of a training is C⁻¹z of white noise z, for a banded matrix C.
C is a Toeplitz matrix of b bands whose columns are scaled to norm 1, so that noise of a step takes back some of the
noise of the b − 1 steps before (Choquette-Choo et al. 2023, arXiv:2306.08153; docs/accounting.md, correlated noise).
"""

import hashlib
import math
from collections.abc import Sequence
from importlib import metadata
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dphpo_bench.base.checks import number
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
        # The difference of two standard exponentials. `exponential_` draws in (0, ∞).
        draws = torch.empty(2, count, dtype=torch.float64, device=self._generator.device)
        draws.exponential_(generator=self._generator)
        noise: list[float] = (factor * self._scale * (draws[0] - draws[1])).tolist()
        return noise

    def _placed(self, value: float) -> float:
        """Return the value; with a secure generator, the nearest whole number of grid steps."""
        return round(math.ldexp(value, -self._exponent)) if isinstance(self._generator, SecureGenerator) else value


class BandedNoise:
    """State of the noise of one training.

    Step t wants the sum G_t. White noise is added to `mixed(G_t)`, and `separated` turns the result into G_t plus row t
    of C⁻¹z. With one band this is G_t + z_t.

    Args:
        coefficients: c₀, ..., c_(b−1); column t of C is (c₀, c₁, ...) from row t on, scaled to norm 1.
        steps: number of rows T. The last columns end with the last row, and are scaled to norm 1, too.
    """

    def __init__(self, coefficients: Sequence[float], steps: int) -> None:
        exact = [number("coefficient", value, low=0, high=1e9) for value in coefficients]
        if not exact or exact[0] < 1e-9 or sorted(exact, reverse=True) != exact:
            raise InvalidValueError(
                f"Expected coefficients that fall from a positive number, such as (1, 0.5), got {tuple(exact)[:9]}."
            )
        self.step, self.steps, self.bands = 0, steps, len(exact)
        self._coefficients = tuple(exact)
        self._norms = tuple(math.sqrt(square) for square in accumulate(value * value for value in exact))
        self._noise: list[list[Tensor]] = []  # of the last b − 1 steps, the latest first

    def entry(self, row: int, column: int) -> float:
        """Return C[row, column], rows and columns from 0 to T − 1."""
        if not 0 <= row - column < self.bands:
            return 0.0
        return self._coefficients[row - column] / self._norms[min(self.bands, self.steps - column) - 1]

    def mixed(self, total: Sequence[Tensor]) -> list[Tensor]:
        """Return C[t, t] G_t − Σ C[t, s] N_s over earlier steps s, where N_s is the noise of step s: private."""
        t = self.step
        if self._noise and [part.shape for part in total] != [part.shape for part in self._noise[0]]:
            raise InvalidValueError("Expected the same model in all steps, whose noises belong together, got another.")
        values = [part * self.entry(t, t) for part in total]
        for back, noise in enumerate(self._noise, 1):
            torch._foreach_sub_(values, noise, alpha=self.entry(t, t - back))
        return values

    def separated(self, released: Sequence[Tensor], total: Sequence[Tensor]) -> list[Tensor]:
        """Return the sum with correlated noise, made of released values only, and go on to the next step.

        Args:
            released: `mixed(total)` with white noise.
            total: G_t; becomes the noise of this step, which stays secret.
        """
        noisy = [part / self.entry(self.step, self.step) for part in released]
        for part, value in zip(total, noisy, strict=True):
            torch.sub(value, part, out=part)
        self.step += 1
        self._noise.insert(0, list(total))
        needed = self.bands - 1 if self.step < self.steps else 0
        for noise in self._noise[needed:]:  # freed memory keeps its numbers
            torch._foreach_zero_(noise)
        del self._noise[needed:]
        return noisy


def uniform(count: int, generator: AnyGenerator) -> Tensor:
    """Draw uniform numbers in [0, 1): shape (count,), float64, on the generator's device."""
    if isinstance(generator, SecureGenerator):
        return generator.uniform(count)
    return torch.rand(count, dtype=torch.float64, generator=generator, device=generator.device)


_MANY = 2**19
"""From so many records on, drawing 64 bits for each takes longer than a step of a linear model."""


def poisson_sample(n_records: int, rate: float, generator: AnyGenerator) -> Tensor:
    """Draw indices of a Poisson sample, ascending, int64 on the generator's device; there may be none.

    Each of `n_records` records enters with probability `rate`, from 0 to 1; 1 gives every record and draws nothing.
    """
    if rate == 1:
        return torch.arange(n_records, device=generator.device)
    if isinstance(generator, SecureGenerator):
        return generator.bernoulli(n_records, rate).nonzero().squeeze(1)
    # Uniform float32 numbers are multiples of 2^-24: the true rate would be up to 6e-8 above the one that is
    # accounted for, which is 0.6 % of a rate of 1e-5. In float64 the excess is below 2^-53.
    if n_records < _MANY or rate > 2.0**-8:
        return (uniform(n_records, generator) < rate).nonzero().squeeze(1)
    # Eight bits of 0 let a record pass to the second draw, at 2^8 times the rate, which is exact.
    words = torch.empty(-(-n_records // 8), dtype=torch.int64, device=generator.device)
    words.random_(-(2**63), None, generator=generator)
    passed = (words.view(torch.uint8)[:n_records] == 0).nonzero().squeeze(1)
    return passed[uniform(len(passed), generator) < rate * 2.0**8]
