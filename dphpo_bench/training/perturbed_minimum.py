"""The minimum of a linear classifier's regularised loss plus a linear term, to a stated tolerance.

Newton's method, whose steps SciPy's conjugate gradients solve for. All is float64.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import expit, softmax

Array = NDArray[np.float64]

_BLOCK = 4096
"""Rows that are summed at once: sums of few terms round less."""

_ROUNDOFF = 2.0**-53
_MOST_STEPS = 200
_MOST_HALVINGS = 50


class NotConvergedError(ArithmeticError):
    """The tolerance was not reached, which exact arithmetic excludes."""


def unit_inputs(inputs: Array, *, constant: bool) -> Array:
    """Return inputs of norm 1, each a function of its own record: 0 stays 0, and values that are not finite become 0.

    Args:
        inputs: shape (n, d).
        constant: whether each record gets an entry of 1 behind the others first, for the bias.
    """
    columns = np.where(np.isfinite(inputs), inputs, 0.0).astype(np.float64)
    if constant:
        columns = np.hstack([columns, np.ones((len(columns), 1))])
    # Scaled exactly, to a largest entry in [½, 1): squares of float64 under- and overflow.
    _, exponents = np.frexp(np.max(np.abs(columns), axis=1, keepdims=True, initial=0.0))
    columns = np.ldexp(columns, -exponents)
    norms = np.linalg.norm(columns, axis=1, keepdims=True)
    # The factor keeps them at or below 1 whatever the division rounds.
    return np.asarray(columns / np.maximum(norms * (1 + 1e-12), 1e-300))


def reachable_tolerance(n: float, shape: tuple[int, int], regularisation: float, deviation: float) -> float:
    """Return a tolerance that rounding cannot keep the solver from reaching, whatever the records are.

    F is no larger at its minimum than at 0, so λ/2 ‖W‖² ≤ n ln K + ‖B‖ ‖W‖ there.

    Args:
        n: expected number of records, public; twice as many and 1,000 more are covered.
        shape: of W, (outputs, d).
        regularisation: λ.
        deviation: standard deviation of B's coordinates.
    """
    most, linear = 2 * n + 1000, deviation * (math.sqrt(math.prod(shape)) + 10)
    size = 2 * linear / regularisation + math.sqrt(2 * most * math.log(max(shape[0], 2)) / regularisation)
    return 2 * _rounding(most, shape, regularisation, size, linear)


def _rounding(n: float, shape: tuple[int, int], regularisation: float, size: float, linear: float) -> float:
    """Bound the norm of the gradient's error from rounding, to first order, by the norms of W and B."""
    each = 2 * (_BLOCK + n / _BLOCK) + shape[1] * size + shape[0] + 50
    return _ROUNDOFF * (n * each + 4 * (regularisation * size + linear))


@dataclass(frozen=True)
class PerturbedLoss:
    """F(W) = Σ loss(W x, y) + λ/2 ‖W‖² + ⟨B, W⟩, with the logistic loss of one output or cross-entropy of several."""

    inputs: Array  # shape (n, d), of norms up to 1
    labels: NDArray[np.int64]  # shape (n,): 0 or 1 for a single output, else the class; int64
    linear: Array  # B, shape (outputs, d)
    regularisation: float  # λ > 0

    def _blocks(self) -> Iterator[slice]:
        return (slice(start, start + _BLOCK) for start in range(0, len(self.inputs), _BLOCK))

    def gradient(self, weights: Array) -> tuple[Array, Array]:
        """Return the gradient at W, of its shape, and the predicted probabilities, shape (n, outputs)."""
        total = self.regularisation * weights + self.linear
        probabilities = np.empty((len(self.inputs), len(weights)))
        for block in self._blocks():
            inputs, labels = self.inputs[block], self.labels[block]
            logits = inputs @ weights.T
            probabilities[block] = expit(logits) if len(weights) == 1 else softmax(logits, axis=1)
            residuals = probabilities[block].copy()
            if len(weights) == 1:
                residuals[:, 0] -= labels
            else:
                residuals[np.arange(len(labels)), labels] -= 1
            total += residuals.T @ inputs
        return total, probabilities

    def curved(self, probabilities: Array, direction: Array) -> Array:
        """Return the Hessian at these probabilities times a direction of W's shape."""
        total = self.regularisation * direction
        for block in self._blocks():
            inputs, p = self.inputs[block], probabilities[block]
            along = p * (inputs @ direction.T)
            along = along * (1 - p) if p.shape[1] == 1 else along - p * along.sum(axis=1, keepdims=True)
            total += along.T @ inputs
        return total

    def rounding(self, weights: Array) -> float:
        """Bound the norm of the gradient's error from rounding at W."""
        norms = float(np.linalg.norm(weights)), float(np.linalg.norm(self.linear))
        return _rounding(len(self.inputs), weights.shape, self.regularisation, *norms)

    def minimum(self, tolerance: float) -> Array:
        """Return W at which the norm of the gradient, rounding included, is at most the tolerance.

        Freed memory keeps its numbers, so whatever came near the minimum is overwritten.

        The norm falls in each step, and F is strongly convex, so in exact arithmetic any tolerance is reached.

        Raises:
            NotConvergedError: if this one was not.
        """
        weights = -self.linear / (self.regularisation + len(self.inputs) / 4)
        gradient, probabilities = self.gradient(weights)
        size = float(np.linalg.norm(gradient))
        for _ in range(_MOST_STEPS):
            if size + self.rounding(weights) <= tolerance:
                return weights
            step = self._step(gradient, probabilities, min(0.1, size))
            for halving in range(_MOST_HALVINGS):
                share = 0.5**halving
                candidate = weights + share * step
                gradient, probabilities = self.gradient(candidate)
                if float(np.linalg.norm(gradient)) <= (1 - 1e-4 * share) * size:
                    break
                candidate.fill(0.0)
            else:
                break
            weights.fill(0.0)
            step.fill(0.0)
            weights, size = candidate, float(np.linalg.norm(gradient))
        weights.fill(0.0)
        raise NotConvergedError(f"Expected a gradient of norm {tolerance:.3g} or less, got {size:.3g}.")

    def _step(self, gradient: Array, probabilities: Array, accuracy: float) -> Array:
        """Return a step by Newton's method, up to a residual of a share of the gradient's norm."""

        def product(direction: Array) -> Array:
            return self.curved(probabilities, direction.reshape(gradient.shape)).ravel()

        operator = LinearOperator((gradient.size, gradient.size), matvec=product, dtype=np.float64)
        solution, _ = cg(operator, -gradient.ravel(), rtol=accuracy, maxiter=gradient.size)
        return np.asarray(solution).reshape(gradient.shape)
