"""Privacy curves of objective perturbation. Theorem and proof are in docs/accounting.md."""

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

if TYPE_CHECKING:
    from dphpo_bench.privacy.events import ObjectivePerturbationDpEvent

Array = NDArray[np.float64]

_ROUNDING = 1e-15

NO_GRID = (
    "Expected noise of real numbers, got secure noise: the proof of objective perturbation needs a density, and noise "
    "on a grid has none. Use another method, or no secure noise."
)
"""The refusal of secure noise."""


def log_determinant(event: "ObjectivePerturbationDpEvent") -> float:
    """Return κ, the most that one record adds to the logarithm of the objective's determinant.

    (K − 1) ln(1 + 1/(Kλ)) for K outputs; ln(1 + 1/(4λ)) for a single one.
    """
    if event.outputs == 1:
        return math.log1p(1 / (4 * event.regularisation))
    return (event.outputs - 1) * math.log1p(1 / (event.outputs * event.regularisation))


def _directions(event: "ObjectivePerturbationDpEvent") -> int:
    """Return the number of corners other than 0 of the set of a record's gradients."""
    return max(1, event.outputs - 1)


def deltas(event: "ObjectivePerturbationDpEvent", epsilons: Array) -> Array:
    """Return a bound of δ at each ε ≥ 0, in either direction, shape (n,)."""
    # With one direction, from 1/λ or 2/λ on, a loss of that size comes from a gradient that the curvature adds nothing
    # to.
    is_free = (event.outputs <= 2) & (epsilons >= event.outputs / event.regularisation)
    left = np.where(is_free, epsilons, epsilons - log_determinant(event))
    above = np.maximum(left, 0.0)
    # δ of the Gaussian mechanism of sensitivity / noise ratio μ.
    ratio = 1 / event.noise_multiplier
    gaussian = ndtr(ratio / 2 - above / ratio) - np.exp(above + log_ndtr(-ratio / 2 - above / ratio))
    bound = np.minimum(_directions(event) * (np.maximum(gaussian, 0.0) + _ROUNDING), 1.0)
    below = np.minimum(left, 0.0)
    return np.asarray(-np.expm1(below) + np.exp(below) * bound)


def divergences(event: "ObjectivePerturbationDpEvent", orders: Array) -> Array:
    """Return a bound of the Rényi divergence at each order α > 1, in either direction, shape (n,)."""
    ratio = 1 / event.noise_multiplier
    # The moment is at most 1 + m (e^(α(α−1)μ²/2) Φ(μ(α − ½)) − Φ(μ/2)); the last term is left out where it is small.
    grown = orders * (orders - 1) * ratio**2 / 2 + log_ndtr(ratio * (orders - 0.5))
    small = np.minimum(grown, 1.0)
    near = np.log1p(_directions(event) * np.maximum(np.exp(small) - ndtr(ratio / 2) + _ROUNDING, 0.0))
    far = np.logaddexp(0.0, math.log(_directions(event)) + grown)
    moments = np.where(grown <= 1.0, near, far)
    return np.asarray(log_determinant(event) + moments / (orders - 1))
