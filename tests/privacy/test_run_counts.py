"""Distributions of the number of runs: their numbers, their inversion, and what they refuse."""

import math
from fractions import Fraction

import numpy as np
import pytest

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.privacy.run_counts import (
    Binomial,
    CappedGeometric,
    Poisson,
    RunCount,
    TruncatedNegativeBinomial,
    UniformCount,
    geometric,
)

from . import brute_force

ALL = [
    TruncatedNegativeBinomial(10, 0),
    TruncatedNegativeBinomial(7, 0.5),
    geometric(10),
    geometric(1.001),
    TruncatedNegativeBinomial(100, 2.0),
    TruncatedNegativeBinomial(20, 60.0),
    Poisson(0.5),
    Poisson(30),
    Binomial(4, 8),
    Binomial(0.5, 1),
    Binomial(29.9, 30),
    Binomial(300, 10_000),
    UniformCount(1, 20),
    UniformCount(5, 9),
    CappedGeometric(10, 15),
    CappedGeometric(3, 400),
]


@pytest.mark.parametrize("runs", ALL, ids=lambda runs: runs.describe())
class TestEvery:
    def test_probabilities_sum_to_one_and_give_the_mean(self, runs: RunCount) -> None:
        k = np.arange(50_000)
        assert runs.probability(k).sum() == pytest.approx(1, abs=1e-12)
        assert runs.probability(k) @ k == pytest.approx(runs.expected, rel=1e-12)
        assert np.all(runs.probability(k[: runs.smallest]) == 0)

    def test_derivative_of_the_generating_function(self, runs: RunCount) -> None:
        k = np.arange(1, 50_000)
        z = np.array([0.0, 0.3, 0.9, 0.999, 1.0])
        series = np.array([np.sum(runs.probability(k) * k * one ** (k - 1.0)) for one in z])
        assert runs.weight(1 - z) == pytest.approx(series, rel=1e-10)
        assert float(runs.weight(0.0)) == pytest.approx(runs.expected, rel=1e-12)
        f, h = brute_force.generating_function(runs), 1e-6
        assert (f(z[1:3] + h) - f(z[1:3] - h)) / (2 * h) == pytest.approx(runs.weight(1 - z[1:3]), rel=1e-4)

    def test_inversion(self, runs: RunCount) -> None:
        below = 0.0
        for k in range(int(min(runs.sample(0.99), 60)) + 1):
            above = below + float(runs.probability(k))
            if above - below > 1e-9:
                assert runs.sample((below + above) / 2) == k
            below = above
        assert runs.sample(0.0) == (runs.smallest if runs.probability(runs.smallest) > 0 else 1)
        assert runs.sample(1 - 2**-53) <= runs.largest
        uniform = np.random.default_rng(0).random(4000)
        drawn = np.array([runs.sample(float(u)) for u in uniform])
        assert drawn.mean() == pytest.approx(runs.expected, abs=5 * drawn.std() / math.sqrt(len(drawn)) + 1e-3)


class TestNegativeBinomial:
    def test_quantiles(self) -> None:
        # Medians and tails of published tables.
        assert [TruncatedNegativeBinomial(10, 0).sample(p) for p in (0.5, 0.9, 0.99)] == [4, 26, 81]
        assert [geometric(30).sample(p) for p in (0.5, 0.9, 0.99)] == [21, 68, 136]
        assert geometric(10).sample(0.999) == 66


class TestBinomial:
    @pytest.mark.parametrize(("mean", "cap"), [(10, 20), (0.25, 20), (19.9375, 20), (2**-19, 3)])
    def test_probabilities_are_exact(self, mean: float, cap: int) -> None:
        p = Fraction(mean) / cap
        exact = [float(math.comb(cap, k) * p**k * (1 - p) ** (cap - k)) for k in range(cap + 1)]
        assert Binomial(mean, cap).probability(np.arange(cap + 1)) == pytest.approx(exact, rel=1e-12, abs=1e-15)
        assert list(Binomial(mean, cap).probability([-1, 0.5, cap + 1])) == [0, 0, 0]

    def test_weight_keeps_its_digits_near_the_certain_loss(self) -> None:
        # 1 − pu at u = 1 is 1e-6/3, of which 1 − 0.9999... keeps only ten digits.
        runs = Binomial(3 - 1e-6, 3)
        tails = (3 - Fraction(runs.mean)) / 3
        assert float(runs.weight(1.0)) == pytest.approx(float(3 * (1 - tails) * tails**2), rel=1e-14)


class TestRefusals:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: TruncatedNegativeBinomial(1.0, 1.0),
            lambda: TruncatedNegativeBinomial(math.inf, 1.0),
            lambda: Poisson(0),
            lambda: Binomial(3.5, 3),
            lambda: UniformCount(0, 3),
            lambda: UniformCount(10, 10),
            lambda: UniformCount(1, 10**9),
            lambda: CappedGeometric(10, 1),
        ],
    )
    def test_values_out_of_range(self, make: object) -> None:
        with pytest.raises(InvalidValueError, match="Expected"):
            make()  # type: ignore[operator]
