"""Statistical tests at fixed seeds. Each states the probability that a right implementation fails."""

import math

import pytest
import torch
from scipy import stats

from dphpo_bench.training import noise
from dphpo_bench.training.noise import add_gaussian_noise, poisson_sample


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def draws_twice(monkeypatch):
    """As of very many records."""
    monkeypatch.setattr(noise, "_MANY", 0)


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.7])
def test_size_of_a_poisson_sample_is_binomial(rate):
    n, rounds = 20_000, 200
    source = generator()
    total = sum(len(poisson_sample(n, rate, source)) for _ in range(rounds))
    # False alarm: 1e-7, by construction of the interval.
    low, high = stats.binom.interval(1 - 1e-7, n * rounds, rate)
    assert low <= total <= high


@pytest.mark.parametrize("rate", [0.001, 2.0**-8])
@pytest.mark.usefixtures("draws_twice")
def test_size_of_a_poisson_sample_of_many_records_is_binomial(rate):
    test_size_of_a_poisson_sample_is_binomial(rate)


@pytest.mark.usefixtures("draws_twice")
def test_every_one_of_many_records_is_drawn_at_the_same_rate_and_on_its_own():
    n, rounds, rate = 20, 100_000, 2.0**-8
    source = generator(1)
    drawn = torch.zeros(rounds, n, dtype=torch.float64)
    for row in drawn:
        row[poisson_sample(n, rate, source)] = 1
    # False alarm: of each of 20 records and 190 pairs below 1e-9, by their exact laws.
    single = stats.binom.interval(1 - 1e-9, rounds, rate)
    pair = stats.binom.isf(1e-9, rounds, rate**2)
    together = drawn.T @ drawn
    assert all(single[0] <= count <= single[1] for count in together.diagonal().tolist())
    assert together.triu(1).max() <= pair


def test_every_record_is_drawn_at_the_same_rate_and_on_its_own():
    n, rounds, rate = 50, 8_000, 0.3
    source = generator(1)
    drawn = torch.zeros(rounds, n, dtype=torch.float64)
    for row in drawn:
        row[poisson_sample(n, rate, source)] = 1
    deviations = (drawn.mean(0) - rate) / math.sqrt(rate * (1 - rate) / rounds)
    # False alarm: 50 two-sided normal tails beyond 6, below 1e-6 together (2e-9 each).
    assert deviations.abs().max() < 6
    correlations = torch.corrcoef(drawn.T) - torch.eye(n)
    # 1225 pairs with standard deviation 1/√rounds: 1225 · 2e-11 at 6.7 of them.
    assert correlations.abs().max() * math.sqrt(rounds) < 6.7


def test_poisson_sample_edges():
    assert poisson_sample(5, 1.0, generator()).tolist() == [0, 1, 2, 3, 4]
    assert len(poisson_sample(5, 0.0, generator())) == 0
    assert len(poisson_sample(0, 0.5, generator())) == 0
    one = poisson_sample(1000, 0.2, generator(7))
    assert one.dtype == torch.int64
    assert torch.equal(one, poisson_sample(1000, 0.2, generator(7)))
    assert torch.equal(one, one.sort().values)


def test_noise_is_gaussian_of_the_stated_standard_deviation():
    gradients = [torch.full((300, 100), 2.0), torch.full((10_000,), -1.0)]
    std = 3.0
    noisy = add_gaussian_noise([gradient.clone() for gradient in gradients], 1.5, 2.0, generator())
    noise = torch.cat([(a - b).flatten() for a, b in zip(noisy, gradients, strict=True)]).double()
    n = len(noise)
    # False alarm: 1e-7 each, from the exact laws of the sample's sum of squares and mean.
    low, high = stats.chi2.interval(1 - 1e-7, n)
    assert low <= float((noise / std).square().sum()) <= high
    assert abs(float(noise.mean())) <= stats.norm.isf(0.5e-7) * std / math.sqrt(n)
    assert stats.kstest((noise / std).numpy(), "norm").pvalue > 1e-7


def test_noise_is_added_before_anything_is_rounded():
    gradients = [torch.full((100,), 1000.1), torch.full((100,), 1000.1, dtype=torch.float64)]
    for gradient in gradients:
        (noisy,) = add_gaussian_noise([gradient.clone()], 1e-3, 1.0, generator(5))
        noise = 1e-3 * torch.randn(100, dtype=torch.float64, generator=generator(5))
        assert torch.equal(noisy, (gradient.double() + noise).to(gradient.dtype))
