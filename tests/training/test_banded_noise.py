"""Correlated noise beside its matrix: exact sensitivity over all participations, and the recurrence beside C⁻¹z."""

import itertools
import math

import numpy as np
import pytest
import torch

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.noise import BandedNoise

STRATEGIES = [(1.0,), (2.0,), (1.0, 0.5), (1.0, 1.0, 0.2), (3.0, 1.5, 1.125, 0.9375)]


def dense(coefficients: tuple[float, ...], steps: int) -> np.ndarray:
    noise = BandedNoise(coefficients, steps)
    return np.array([[noise.entry(row, column) for column in range(steps)] for row in range(steps)])


@pytest.mark.parametrize("coefficients", STRATEGIES)
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_the_matrix_is_banded_with_columns_of_norm_one(coefficients: tuple[float, ...], steps: int) -> None:
    c = dense(coefficients, steps)
    for row, column in itertools.product(range(steps), repeat=2):
        inside = 0 <= row - column < len(coefficients)
        assert (c[row, column] > 0) == inside
        if inside:  # a Toeplitz matrix but for the scale of its columns
            assert c[row, column] / c[column, column] == pytest.approx(coefficients[row - column] / coefficients[0])
    np.testing.assert_allclose(np.linalg.norm(c, axis=0), 1, rtol=1e-14)


@pytest.mark.parametrize("coefficients", STRATEGIES)
@pytest.mark.parametrize("steps", [1, 4, 7])
def test_a_record_moves_it_by_the_root_of_its_number_of_batches(coefficients: tuple[float, ...], steps: int) -> None:
    """All patterns at least b steps apart, and all signs: the sensitivity is exact. Closer ones may exceed it."""
    c, bands = dense(coefficients, steps), len(coefficients)
    worst = 0.0
    for pattern in itertools.product([-1, 0, 1], repeat=steps):
        steps_of = [step for step, sign in enumerate(pattern) if sign]
        moved = float(np.linalg.norm(c @ np.array(pattern)))
        if all(later - earlier >= bands for earlier, later in itertools.pairwise(steps_of)):
            assert moved == pytest.approx(math.sqrt(len(steps_of)), rel=1e-12)
        else:
            worst = max(worst, moved / math.sqrt(len(steps_of)))
    assert (worst > 1.1) == (bands > 1 and steps > 1)


@pytest.mark.parametrize("coefficients", STRATEGIES)
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_the_recurrence_is_the_inverse_of_the_matrix(coefficients: tuple[float, ...], steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    totals = torch.randn(steps, 5, generator=generator, dtype=torch.float64) * 100
    white = torch.randn(steps, 5, generator=generator, dtype=torch.float64)
    expected = totals.numpy() + np.linalg.solve(dense(coefficients, steps), white.numpy())
    noise = BandedNoise(coefficients, steps)
    for step in range(steps):
        total = [totals[step, :2].clone(), totals[step, 2:].clone().view(3, 1)]
        mixed = noise.mixed(total)
        released = [mixed[0] + white[step, :2], mixed[1] + white[step, 2:].view(3, 1)]
        noisy = noise.separated(released, total)
        np.testing.assert_allclose(torch.cat([part.flatten() for part in noisy]), expected[step], atol=1e-11)
    assert noise.step == steps


@pytest.mark.parametrize("coefficients", [(), (0.0,), (1.0, 1.1), (1.0, -0.1), (1.0, math.nan), (math.inf,), (True,)])
def test_coefficients_that_do_not_fall_are_refused(coefficients: tuple[float, ...]) -> None:
    with pytest.raises(InvalidValueError, match="coefficient"):
        BandedNoise(coefficients, 4)
