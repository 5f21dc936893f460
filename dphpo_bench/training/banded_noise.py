"""Noise that is correlated between the steps of a training: C⁻¹z of white noise z, for a banded matrix C.

C is a Toeplitz matrix of b bands whose columns are scaled to norm 1, so that noise of a step takes back some of the
noise of the b − 1 steps before (Choquette-Choo et al. 2023, arXiv:2306.08153; docs/accounting.md, correlated noise).
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from dphpo_bench.base.checks import number
from dphpo_bench.base.errors import InvalidValueError


class BandedNoise:
    """State of the noise of one training.

    Step t wants the sum G_t. White noise is added to `mixed(G_t)`, and `separated` turns the result into G_t plus row t
    of C⁻¹z. With one band this is G_t + z_t.

    Args:
        coefficients: c₀, ..., c_(b−1); column t of C is (c₀, c₁, ...) from row t on, scaled to norm 1.
        steps: number of rows T. The last columns end with the last row, and are scaled to norm 1, too.

    Raises:
        InvalidValueError: if the coefficients do not fall from a positive number to one that is not negative: the noise
            of others may grow exponentially.
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
        """Return C[t, t] G_t − Σ C[t, s] N_s over earlier steps s, where N_s is the noise of step s: private.

        Raises:
            InvalidValueError: if the shapes are not those of the step before.
        """
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
