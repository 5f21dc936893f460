"""ε of Gaussians and Poisson-sampled Gaussians at any δ, by Fourier transform under an exponential tilt.

A plain Fourier transform misplaces about 1e-16 of probability, which is all there is at δ = 1e-15. Here the
distribution of the privacy loss L of one release is first tilted: its mass at l becomes e^(θl − K(θ)) times what it
was, K(θ) = ln E[e^(θL)]. With θ at the saddle point, the tail that δ asks for is in the middle of the tilted
distribution, and rounding errors are relative to it. The composition is tilted back at the end.

ε is an upper bound; docs/accounting.md has the reasons. In short: the distribution of one release is discretised as
in Connect the Dots, with errors of the Gaussian distribution function added to its masses. Mass that the circular
transform brings into the window from outside only adds to δ, and mass above the window is bounded by Chernoff. The
rounding error of the transforms is bounded and added to every point.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, ndtr, ndtri

from dphpo_bench.privacy import event_rules

Array = NDArray[np.float64]

_UNIT = 2.0**-53
_NDTR = 1e-13
"""Relative error of SciPy's `ndtr`, below 6e-14 down to probabilities of 1e-300 by its authors' tables."""
_FOURIER = 8 * _UNIT
"""Relative error of a Fourier transform of size N in the Euclidean norm, for each of its log₂ N stages (Higham 2002,
Theorem 24.2, with twiddle factors right to one unit)."""
_BEYOND = 1e-6
"""Share of δ that may be moved to an infinite loss."""
_LARGEST_SIZE = 2**20
_MOST_SIZES = 32
"""With more distinct releases than this, each has a coarser grid, lest all of them together need gigabytes."""


@dataclass(frozen=True)
class _Losses:
    """Masses of one release's privacy loss at the multiples `first`, `first` + 1, ... of an interval, from above.

    They add up to slightly more than 1 with the mass of an infinite loss. The release is composed `count` times.
    """

    first: int
    masses: Array
    infinite: float
    count: int

    def at(self, interval: float) -> Array:
        """Return the losses, shape (n,)."""
        return np.asarray((self.first + np.arange(len(self.masses))) * interval, dtype=float)

    def log_moment(self, tilt: float, interval: float) -> float:
        """Return K(θ) = ln Σ masses e^(θ loss)."""
        return float(logsumexp(tilt * self.at(interval), b=self.masses))

    def tilted(self, tilt: float, interval: float) -> Array:
        """Return the masses under the tilt, shape (n,), of sum 1."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.exp(np.log(self.masses) + tilt * self.at(interval) - self.log_moment(tilt, interval)))


def supports(event: DpEvent) -> bool:
    """Return whether a simplified tree consists of Gaussians and Poisson-sampled Gaussians, at least one."""
    parts = event_rules.multiset(event)
    inner = [part.event if isinstance(part, dp_event.PoissonSampledDpEvent) else part for part in parts]
    return bool(inner) and all(isinstance(part, dp_event.GaussianDpEvent) for part in inner)


def epsilon(event: DpEvent, delta: float, coarseness: float = 1.0) -> float:
    """Return ε of a tree that `supports` accepts, at any δ in (0, 1) down to 1e-250 or so."""
    return max(_one_way(event, delta, coarseness, removal=removal) for removal in (True, False))


def _one_way(event: DpEvent, delta: float, coarseness: float, *, removal: bool) -> float:
    parts = event_rules.multiset(event)
    releases = sum(parts.values())
    reach = -float(ndtri(_BEYOND * delta / releases))

    def losses(interval: float) -> list[_Losses]:
        return [_discretised(part, count, interval, reach, removal=removal) for part, count in parts.items()]

    # The tilt that gives the least Chernoff bound, from a coarse grid; any tilt gives a bound in the end.
    widest = max(loss for part in parts for loss in map(abs, _range(part, reach)))
    rough = widest / 2000
    roughly = losses(rough)
    tilt = _best_tilt(roughly, rough, delta)
    spread = math.sqrt(sum(part.count * _variance(part, tilt, rough) for part in roughly))
    half = max(12 * spread, 45 / tilt)
    # A grid adds up to a quarter of its square to the variance of each release.
    largest = _LARGEST_SIZE * min(1.0, _MOST_SIZES / len(parts))
    interval = max(coarseness * spread / math.sqrt(releases) / 128, 2 * max(half, widest) / largest)
    composed = losses(interval)
    size = 2 ** max(1, math.ceil(math.log2(2 * half / interval)))
    log_moment = sum(part.count * part.log_moment(tilt, interval) for part in composed)
    middle = (log_moment - math.log(delta)) / tilt
    start = math.floor(middle / interval) - size // 2
    masses = _composed(composed, tilt, interval, size)[(start + np.arange(size)) % size]
    at = (start + np.arange(size)) * interval
    # Rounding of the tilt, of log_moment and of the sums below.
    slack = sum(part.count * _of_tilt(part, tilt, interval) for part in composed)
    slack += 4 * _UNIT * (size + abs(log_moment) + tilt * max(abs(at[0]), abs(at[-1])))
    with np.errstate(over="ignore"):  # far below what is asked
        weights = masses * np.exp(log_moment + slack - tilt * at)
    above = math.exp(log_moment + slack - tilt * (at[-1] + interval))
    allowed = delta - above - sum(part.count * part.infinite for part in composed)

    def sums(index: int) -> tuple[float, float]:
        """Return A and B: δ at ε in the cell below at[index] is A − e^(ε − at[index]) B."""
        beyond = weights[index:]
        return float(beyond.sum()), float(np.exp(at[index] - at[index:]) @ beyond)

    def is_enough(index: int) -> bool:
        return float(-np.expm1(at[index] - at[index:]) @ weights[index:]) <= allowed

    first = int(np.searchsorted(at, 0.0))
    if first == size:
        return 0.0
    if not is_enough(size - 1):
        return math.inf
    index = bisect.bisect_left(range(first, size), True, key=is_enough) + first
    least = at[index - 1] if index > 0 else at[0]
    whole, discounted = sums(index)
    share = (whole - allowed) / discounted
    solution = at[index] + (math.log(share) if share > 0 else -math.inf)
    # Rounding: of the sums, then of the losses themselves.
    solution = min(max(solution, least) + 4 * _UNIT * size, at[index])
    return max(float(solution), 0.0) + 8 * _UNIT * releases * (1 + widest)


def _of(part: DpEvent) -> tuple[float, float]:
    """Return the sample rate and the noise multiplier."""
    if isinstance(part, dp_event.PoissonSampledDpEvent):
        return float(part.sampling_probability), float(part.event.noise_multiplier)
    return 1.0, float(part.noise_multiplier)


def _range(part: DpEvent, reach: float) -> tuple[float, float]:
    """Return the least and the greatest loss, for removal, over outputs that are not in the tails."""
    rate, noise = _of(part)
    outputs = np.array([-reach * noise, 1 + reach * noise])
    exponent = (2 * outputs - 1) / (2 * noise**2)
    low, high = np.logaddexp(math.log1p(-rate), math.log(rate) + exponent) if rate < 1 else exponent
    return float(low), float(high)


def _discretised(part: DpEvent, count: int, interval: float, reach: float, *, removal: bool) -> _Losses:
    """Return the privacy loss of one release: P = (1−q) N(0, σ²) + q N(1, σ²) and Q = N(0, σ²), or the other way round.

    Between two multiples of the interval, the masses of P and of Q are kept and moved to the two ends (Doroshenko et
    al. 2022, Connect the Dots). Below the least multiple, mass moves up to it; above the greatest, to infinity. Outputs
    are in the tails from `reach` standard deviations on. For `removal`, P has the record.
    """
    rate, noise = _of(part)
    least, greatest = (math.floor(end / interval) for end in _range(part, reach))
    edges = np.arange(least, greatest + 2) * interval
    # The outputs at which the loss equals an edge; an error here is like one of about a unit in the loss.
    with np.errstate(divide="ignore", invalid="ignore"):
        raised = np.log1p(np.maximum(-(1 - rate) * np.exp(-edges), -1.0)) if rate < 1 else 0.0
    outputs = np.r_[-np.inf, noise**2 * (edges + raised - math.log(rate)) + 0.5, np.inf]
    without, its_error = _between(outputs / noise)
    shifted, other_error = _between((outputs - 1) / noise)
    mixed, mixed_error = (1 - rate) * without + rate * shifted, (1 - rate) * its_error + rate * other_error
    p, p_error, q, q_error = mixed, mixed_error, without, its_error
    if not removal:  # losses change their sign
        p, p_error, q, q_error = (values[::-1] for values in (without, its_error, mixed, mixed_error))
        edges = -edges[::-1]
    p = p + p_error
    inner, low_end = p[1:-1], edges[:-1]
    growth = np.exp(np.minimum(low_end, 700.0))
    # The share of the upper end, (P − e^l Q)/(1 − e^−h), is made larger by the errors of both.
    error = 2 * p_error[1:-1] + growth * q_error[1:-1] + 8 * _UNIT * inner
    to_upper = np.clip((inner - growth * q[1:-1] + error) / -math.expm1(-interval), 0.0, inner)
    masses = np.zeros(len(edges))
    masses[1:] += to_upper
    masses[:-1] += inner - to_upper
    masses[0] += p[0]
    return _Losses(round(edges[0] / interval), masses, float(p[-1]), count)


def _between(at: Array) -> tuple[Array, Array]:
    """Return standard normal probabilities between ascending points, and bounds of their errors: shape (n−1,)."""
    left, right = at[:-1], at[1:]
    mirrored = left + right > 0
    more, less = ndtr(np.where(mirrored, -left, right)), ndtr(np.where(mirrored, -right, left))
    return np.asarray(more - less), np.asarray(_NDTR * more)


def _best_tilt(parts: Sequence[_Losses], interval: float, delta: float) -> float:
    """Return the θ of the least Chernoff bound (Σ K(θ) − ln δ)/θ of ε."""

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        return (sum(part.count * part.log_moment(tilt, interval) for part in parts) - math.log(delta)) / tilt

    return math.exp(minimize_scalar(bound, bounds=(-10.0, 14.0), method="bounded").x)


def _variance(part: _Losses, tilt: float, interval: float) -> float:
    """Return the variance of the tilted loss."""
    masses, at = part.tilted(tilt, interval), part.at(interval)
    return float(masses @ (at - masses @ at) ** 2)


def _of_tilt(part: _Losses, tilt: float, interval: float) -> float:
    """Bound of the relative error of tilted masses: that of an exponential whose argument is a sum of three."""
    at = part.at(interval)
    smallest = -math.log(np.min(part.masses, where=part.masses > 0, initial=1.0))
    largest = tilt * float(np.max(np.abs(at))) + abs(part.log_moment(tilt, interval))
    return 8 * _UNIT * (4 + smallest + largest)


def _composed(parts: Sequence[_Losses], tilt: float, interval: float, size: int) -> Array:
    """Return upper bounds of the masses of the composed, tilted loss at multiples of the interval modulo `size`."""
    stages = _FOURIER * math.log2(size)
    frequencies = size // 2 + 1
    log_size, angle = np.zeros(frequencies), np.zeros(frequencies)
    log_bounds, errors = [], []
    for part in parts:
        positions = (part.first + np.arange(len(part.masses))) % size
        around = np.bincount(positions, part.tilted(tilt, interval), minlength=size)
        transform = np.fft.rfft(around)
        error = stages * math.sqrt(size) * float(np.linalg.norm(around))
        with np.errstate(divide="ignore"):
            log_size += part.count * np.log(np.abs(transform))
        angle += part.count * np.angle(transform)
        log_bounds.append(np.log(np.abs(transform) + error))
        errors.append(error)
    composed = np.fft.irfft(np.exp(log_size) * np.exp(1j * angle), size)
    # |(a + e)^n − a^n| ≤ n |e| b^(n−1) with b ≥ |a|, |a + e|; then Cauchy and Schwarz over frequencies. Each of the
    # half that is kept stands for two.
    log_bound = sum(part.count * log for part, log in zip(parts, log_bounds, strict=True))
    of_transforms = sum(
        part.count * error * math.sqrt(2) * float(np.linalg.norm(np.exp(log_bound - log)))
        for part, log, error in zip(parts, log_bounds, errors, strict=True)
    )
    of_powers = 2 * sum(
        16 * _UNIT * part.count * float(np.exp(log_bound) @ (4 + np.abs(log)))
        for part, log in zip(parts, log_bounds, strict=True)
    )
    of_inverse = stages * math.sqrt(2 * size) * float(np.linalg.norm(np.exp(log_bound)))
    return np.asarray(np.maximum(composed, 0.0) + (of_transforms + of_powers + of_inverse) / size)
