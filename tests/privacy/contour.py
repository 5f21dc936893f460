"""A third opinion on subsampled Gaussians, with no code and no method in common with the accountants.

δ(ε) is the hockey-stick divergence of the dominating pair, which has the inverse Laplace transform

    δ(ε) = 1/(2πi) ∫ M(z) exp(-zε) / (z (z+1)) dz    over a vertical line Re z = c > 0,

where M(z) = Π_t E[exp(z L_t)] is the moment generating function of the composed privacy loss. The integral is
evaluated by the trapezoidal rule on a line near the saddle point. It has no discretisation of the loss, so it
has none of its pessimism either.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

Step = tuple[float, float, int]
"""Noise multiplier, sampling rate and number of steps."""


def _log_mgf(z: NDArray[np.complex128], sigma: float, q: float, remove: bool) -> NDArray[np.complex128]:
    """log E[exp(z L)] of one step, for each z on one vertical line.

    The loss is ±log(1 - q + q exp((2x-1)/(2σ²))), with x from N(0, σ²) after the change of measure that turns
    the exponent z into z+1 in the direction of removal.
    """
    exponent = z + 1 if remove else -z
    top = float(exponent[0].real)
    low, high = min(0.0, top) - 11 * sigma, max(0.0, top) + 11 * sigma
    x = np.linspace(low, high, int(max(2000, (high - low) / (sigma * min(sigma, 1.0)) * 60)))
    loss = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / (2 * sigma**2)) if q < 1 else (x - 0.5) / sigma**2
    log_density = -(x**2) / (2 * sigma**2) - np.log(sigma * np.sqrt(2 * np.pi)) + np.log(x[1] - x[0])
    log_weight = log_density + top * loss
    peak = log_weight.max()
    weight = np.exp(log_weight - peak)
    keep = weight > 1e-20
    phases = np.exp(1j * np.outer(exponent.imag, loss[keep]))
    return np.log(phases @ weight[keep]) + peak


def delta(steps: Sequence[Step], epsilon: float) -> float:
    """δ(ε) of the composition, the larger of the two directions."""
    return max(_delta_one_way(steps, epsilon, remove) for remove in (True, False))


def epsilon(steps: Sequence[Step], target_delta: float, low: float = 1e-3, high: float = 200.0) -> float:
    """ε(δ) of the composition."""
    return float(brentq(lambda eps: np.log(delta(steps, eps)) - np.log(target_delta), low, high, xtol=1e-7))


def _delta_one_way(steps: Sequence[Step], epsilon: float, remove: bool) -> float:
    def log_integrand(z: NDArray[np.complex128]) -> NDArray[np.complex128]:
        total = sum(count * _log_mgf(z, sigma, q, remove) for sigma, q, count in steps)
        return total - z * epsilon - np.log(z) - np.log(z + 1)

    def height(log_c: float) -> float:
        return float(log_integrand(np.array([np.exp(log_c)], dtype=complex))[0].real)

    c = float(np.exp(minimize_scalar(height, bounds=(-3.0, 7.0), method="bounded").x))
    reach = 1.0
    peak = log_integrand(np.array([c + 0j]))[0].real
    while log_integrand(np.array([c + 1j * reach]))[0].real > peak - 36:
        reach *= 1.3
        if reach > 1e6:
            raise ValueError("the loss is too nearly discrete for this formula")
    y = np.linspace(0, reach, 1200)
    values = np.exp(log_integrand(c + 1j * y) - peak).real
    return float(np.exp(peak) * (y[1] - y[0]) * (values.sum() - values[0] / 2) / np.pi)
