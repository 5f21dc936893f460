"""Exact noise on a grid. What OpenDP draws cannot be seeded: each statistical test states its false-alarm rate."""

import math
from fractions import Fraction
from importlib import metadata

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training import noise as mechanisms
from dphpo_bench.training.noise import (
    AboveThreshold,
    SecureGenerator,
    add_discrete_gaussian,
    add_gaussian_noise,
    gaussian_grid,
    poisson_sample,
)

FALSE_ALARM = 1e-7


def generator(name: bytes = b"[]") -> SecureGenerator:
    return SecureGenerator(name)


def chi_square(drawn: "list[int]", probabilities: "np.ndarray", support: "np.ndarray") -> float:
    """The p-value; values expected less than 20 times count as one."""
    expected = probabilities * len(drawn)
    observed = np.bincount(np.array(drawn) - support[0], minlength=len(support))[: len(support)]
    common = expected >= 20
    rest = len(drawn) - expected[common].sum(), len(drawn) - observed[common].sum()
    return float(stats.chisquare([*observed[common], rest[1]], [*expected[common], rest[0]]).pvalue)


class TestNoise:
    def test_integers_have_their_probabilities(self):
        # 2.5 is where OpenDP 0.14 fails, with a p-value of 1e-242 for 200,000 draws (OpenDP, issue 2638).
        scale, support = 2.5, np.arange(-400, 401)
        gaussian, laplace = np.exp(-(support**2) / (2 * scale**2)), np.exp(-np.abs(support) / scale)
        for draw, weights in ((mechanisms.discrete_gaussian, gaussian), (mechanisms.discrete_laplace, laplace)):
            assert chi_square(draw(20_000, scale), weights / weights.sum(), support) > FALSE_ALARM

    def test_noise_on_the_grid_is_gaussian_of_the_stated_standard_deviation(self):
        values = [torch.full((100, 80), 2.0), torch.full((8_000,), -1.0)]
        noisy = add_gaussian_noise([value.clone() for value in values], 1.5, 2.0, generator())
        assert [tuple(part.shape) for part in noisy] == [(100, 80), (8_000,)]
        assert all(part.dtype == torch.float32 for part in noisy)
        noise = torch.cat([(a - b).flatten() for a, b in zip(noisy, values, strict=True)]).double() / 3.0
        low, high = stats.chi2.interval(1 - FALSE_ALARM, len(noise))
        assert low <= float(noise.square().sum()) <= high
        assert abs(float(noise.mean())) <= stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(len(noise))
        assert stats.kstest(noise.numpy(), "norm").pvalue > FALSE_ALARM
        # Neighbours are independent: the mean of products of two has standard deviation 1/√n.
        pairs = float((noise[1:] * noise[:-1]).mean()) * math.sqrt(len(noise))
        assert abs(pairs) < 6  # false alarm below 1e-8

    @given(
        st.floats(1e-3, 1e3),
        st.floats(1e-6, 1e6),
        st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 5e-324]), max_size=3),
    )
    def test_every_output_is_on_the_grid(self, noise_multiplier, sensitivity, values):
        values = [torch.tensor(values, dtype=torch.float64), torch.tensor([0.1, -1e30], dtype=torch.float64)]
        exponent, _ = gaussian_grid(noise_multiplier, sensitivity, sum(value.numel() for value in values))
        for part in add_gaussian_noise(values, noise_multiplier, sensitivity, generator()):
            for number in part.tolist():
                assert (Fraction(number) / Fraction(2) ** exponent).denominator == 1

    @pytest.mark.parametrize("secure", [False, True])
    def test_low_bits_tell_zero_from_one_unless_noise_is_secure(self, secure):
        """Mironov (2012): 1 plus any float64 noise is a multiple of 2^-53, and a quarter of noisy zeros is not."""
        source = generator() if secure else torch.Generator().manual_seed(0)
        finer = {}
        for value in (0.0, 1.0):
            (noisy,) = add_gaussian_noise([torch.full((4000,), value, dtype=torch.float64)], 1.0, 1.0, source)
            scaled = noisy * 2.0**53
            finer[value] = float((scaled != scaled.round()).double().mean())
        assert finer[1.0] == 0.0
        assert finer[0.0] == 0.0 if secure else finer[0.0] > 0.2

    def test_what_is_added_does_not_depend_on_the_value(self, monkeypatch):
        drawn = [3, -(2**52) - 1, 2**49, 0, 5, 7]
        monkeypatch.setattr(mechanisms, "discrete_gaussian", lambda *_: drawn)
        exponent, _ = gaussian_grid(1.0, 1.0, 6)
        grid = Fraction(2) ** exponent
        steps = [0.0, -7.0, 2.0**40, 0.0, math.nan, -math.inf]
        values = torch.tensor([s * float(grid) for s in steps], dtype=torch.float64)
        values[3] = 1.49 * float(grid)  # rounded to the grid first
        (noisy,) = add_discrete_gaussian([values], 1.0, 1.0)
        found = [Fraction(number) / grid for number in noisy.tolist()]
        assert found[:5] == [3, -(2**52) - 8, 2**49 + 2**40, 1, 5]
        assert found[5] == -(2**200)  # a bound, and finite

    @pytest.mark.parametrize(("noise_multiplier", "sensitivity"), [(-1, 1), (math.nan, 1), (1, math.inf), (1, -1)])
    def test_bad_values_are_refused(self, noise_multiplier, sensitivity):
        for source in (generator(), torch.Generator()):
            with pytest.raises(InvalidValueError):
                add_gaussian_noise([torch.zeros(2)], noise_multiplier, sensitivity, source)

    @pytest.mark.parametrize("std", [1e-250, 1e250])
    def test_noise_without_a_grid_is_refused(self, std):
        with pytest.raises(InvalidValueError, match="from 1e-200 to 1e\\+200"):
            add_gaussian_noise([torch.zeros(2)], std, 1.0, generator())


class TestRounding:
    @given(st.floats(1e-3, 1e3), st.floats(1e-6, 1e6), st.integers(1, 10**9))
    def test_noise_pays_for_rounding(self, noise_multiplier, sensitivity, size):
        """σ (Δ + g √d), in exact arithmetic: the noise is never below, and hardly above."""
        exponent, scale = gaussian_grid(noise_multiplier, sensitivity, size)
        grid = Fraction(2) ** exponent
        # (s g / σ − Δ)² ≥ g² d, without a root.
        excess = Fraction(scale) * grid / Fraction(noise_multiplier) - Fraction(sensitivity)
        assert excess > 0
        assert excess**2 >= grid**2 * size
        std = Fraction(noise_multiplier) * Fraction(sensitivity)
        assert grid * 2**48 <= std * (1 + Fraction(1, 2**50))
        assert Fraction(scale) * grid <= std * (1 + Fraction(math.sqrt(size) * noise_multiplier + 1) / 2**45)
        assert scale >= 2.0**48


class TestAboveThreshold:
    def test_goes_on_after_none_and_ends_with_the_first_index_that_is_above(self):
        for source in (generator(), torch.Generator().manual_seed(0)):
            assert AboveThreshold(0.0005, 1.0, source).first([], 0.5) is None
            test = AboveThreshold(0.0005, 1.0, source)  # false alarm below e^-90
            assert [test.first([0.1, 0.9, 1.0], threshold) for threshold in (3.0, 2.0, 0.5)] == [None, None, 1]
            with pytest.raises(InvalidValueError, match="one index from each AboveThreshold"):
                test.first([0.1, 0.9], 3.0)

    def test_noise_has_the_scales_of_the_theorem_and_is_drawn_once_for_the_threshold(self, monkeypatch):
        scales = []
        monkeypatch.setattr(
            mechanisms, "discrete_laplace", lambda count, scale: scales.append((count, scale)) or [0] * count
        )
        test = AboveThreshold(0.1, 0.25, generator())
        assert test.first([0.2, 0.3, 0.4], 0.5) is None
        assert test.first([0.2, 0.5, 0.9], 0.5) == 1
        assert [count for count, _ in scales] == [1, 3, 3]
        step = 2.0 ** (math.frexp(0.1)[1] - 31)
        for (_, scale), factor in zip(scales, (2, 4, 4), strict=True):
            assert factor * (0.1 + step) / 0.25 <= scale * step <= factor * 0.1 / 0.25 * (1 + 1e-8)


class TestSecureGenerator:
    def test_streams_repeat_and_differ_by_name_and_call(self):
        first = generator(b"a")
        one, two = first.uniform(1000), first.uniform(1000)
        assert not torch.equal(one, two)
        assert torch.equal(one, generator(b"a").uniform(1000))
        assert not torch.equal(one, generator(b"b").uniform(1000))

    @pytest.mark.parametrize("rate", [0.001, 0.7])
    def test_size_of_a_poisson_sample_is_binomial(self, rate):
        n, rounds = 20_000, 50
        source = generator(str(rate).encode())
        total = sum(len(poisson_sample(n, rate, source)) for _ in range(rounds))
        low, high = stats.binom.interval(1 - FALSE_ALARM, n * rounds, rate)
        assert low <= total <= high

    def test_poisson_sample_edges(self):
        assert poisson_sample(5, 1.0, generator()).tolist() == [0, 1, 2, 3, 4]
        assert len(poisson_sample(1000, 0.0, generator())) == 0
        assert len(poisson_sample(1000, 1e-300, generator())) == 0
        assert len(poisson_sample(1000, math.nextafter(1, 0), generator())) == 1000  # false alarm 1e-13
        assert len(poisson_sample(0, 0.5, generator())) == 0
        sample = poisson_sample(1000, 0.2, generator())
        assert sample.dtype == torch.int64
        assert torch.equal(sample, sample.sort().values)


class TestOpendp:
    def test_version_whose_noise_is_biased(self, monkeypatch):
        monkeypatch.setattr(metadata, "version", lambda _: "0.14.1")
        with pytest.raises(InvalidValueError, match=r"0\.14\.1, whose noise is biased"):
            mechanisms.require_opendp()
