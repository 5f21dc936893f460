"""What is done faster than in `dp_accounting` says the same, or no less."""

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import rdp
from dp_accounting.dp_event import DpEvent
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from dphpo_bench.privacy.accountants import rdp as renyi
from dphpo_bench.privacy.accountants.long_compositions import (
    RenyiAccountant,
    composed_often,
    sampled_gaussian,
    self_composed,
)
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.events import best_of, compose, gaussian, laplace, one_of, poisson_sampled, pure_dp, repeat
from dphpo_bench.privacy.run_counts import geometric


def steps(noise: float, rate: float, interval: float) -> PrivacyLossDistribution:
    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval, use_connect_dots=True
    )


def both(distribution: PrivacyLossDistribution) -> tuple[Any, Any]:
    return distribution._pmf_remove, distribution._pmf_add


def dense(distribution: PrivacyLossDistribution) -> PrivacyLossDistribution:
    return PrivacyLossDistribution(distribution._pmf_remove.to_dense_pmf(), distribution._pmf_add.to_dense_pmf())


@pytest.mark.parametrize(
    ("noise", "rate", "interval"),
    [
        (1.0, 0.02, 4e-4),
        (120.0, 0.35, 5e-6),
        (5.0, 1e-100, 1e-4),
        (0.7, 1.0, 3e-3),
        (90.0, 1.0, 3e-5),
    ],
)
def test_sampled_gaussians_are_the_librarys_to_the_last_bit(noise: float, rate: float, interval: float) -> None:
    ours, theirs = sampled_gaussian(noise, rate, interval), steps(noise, rate, interval)
    for count in (1, 2, 112):
        for side in ("_pmf_remove", "_pmf_add"):
            one, other = (
                getattr(composed, side).to_dense_pmf()
                for composed in (self_composed(ours, count), theirs.self_compose(count))
            )
            assert (one._lower_loss, one._infinity_mass) == (other._lower_loss, other._infinity_mass)
            np.testing.assert_array_equal(one._probs, other._probs)


@pytest.mark.parametrize("delta", [1e-15, pytest.param(1e-5, marks=pytest.mark.slow), 0.4])
@pytest.mark.parametrize("orders", [renyi.ORDERS, renyi.ROUGH_ORDERS])
@pytest.mark.parametrize(
    "event",
    [
        repeat(poisson_sampled(0.356, gaussian(4.43)), 112),
        repeat(poisson_sampled(0.001, gaussian(0.3)), 10),
        repeat(poisson_sampled(0.02, gaussian(0.05)), 500),
        repeat(poisson_sampled(1e-6, gaussian(1.0)), 100),
        compose(repeat(poisson_sampled(0.1, gaussian(100.0)), 10), laplace(9.0), pure_dp(0.01)),
        one_of([gaussian(1.0), repeat(poisson_sampled(0.2, gaussian(1.5)), 9)]),
        compose(one_of([pure_dp(0.1), gaussian(3.0)], [0.4, 0.6]), gaussian(2.0)),
    ],
)
def test_renyi_orders_that_are_left_out_would_not_have_given_the_least(
    event: DpEvent, orders: tuple[float, ...], delta: float
) -> None:
    with renyi._quiet_absl():
        at = np.array(orders, dtype=float)
        assert renyi.epsilon(event, delta, orders) == renyi._least_epsilon(at, renyi._curve(event, at), delta)


@pytest.mark.parametrize(("noise", "rate", "count"), [(8.0, 0.1, 300), (2.0, 0.01, 1000), (120.0, 0.35, 100_000)])
def test_many_releases_have_the_epsilon_of_the_slow_way(noise: float, rate: float, count: int) -> None:
    one = dense(steps(noise, rate, 1e-4))
    fast, slow = composed_often(one, count), one.self_compose(count)
    assert fast._pmf_remove.size < 1.1 * slow._pmf_remove.size
    for delta in (1e-6, 1e-3):
        # What rounding may take of δ is charged on top of either; see `pld.epsilon`.
        rounding = 2.2e-16 * (50 + count)
        assert fast.get_epsilon_for_delta(delta - rounding) >= slow.get_epsilon_for_delta(delta)
        for one, other in zip(both(fast), both(slow), strict=True):
            assert one.get_epsilon_for_delta(delta) == pytest.approx(other.get_epsilon_for_delta(delta), rel=1e-5)


@pytest.mark.parametrize(("count", "finer"), [(200_000, 4.3773423039), (3_000_000, 4.3778762227)])
def test_millions_of_releases_against_another_transform(count: int, finer: float) -> None:
    """The known values are of an exponentially tilted transform, with far smaller rounding errors and a finer grid."""
    noise = 0.35 * math.sqrt(count)
    event = repeat(poisson_sampled(0.35, gaussian(noise)), count)
    assert finer <= epsilon(event, 1e-5).by_accountant["pld"] <= 1.03 * finer


@pytest.mark.parametrize(("noise", "count"), [(1.0, 8000), (100.0, 8_000_000)])
@pytest.mark.parametrize("coarseness", [1.0, 8.0])
def test_a_selection_whose_losses_are_all_infinite_is_composed(noise: float, count: int, coarseness: float) -> None:
    """Nothing is left to compose then; the library asked for its first point."""
    trial = repeat(poisson_sampled(0.35, gaussian(noise)), count)
    event = compose(best_of(trial, geometric(10)), gaussian(2.0))
    found = epsilon(event, 1e-5, coarseness=coarseness).by_accountant
    assert found["layer_cake"] > 100
    assert found["rdp"] > 100


@pytest.mark.parametrize("noise", [0.02, 0.4, 1.0, 7.3, 300.0])
@pytest.mark.parametrize("rate", [1e-7, 0.013, 0.5, 0.97, 1.0])
def test_moments_of_sampled_gaussians_are_the_librarys_to_the_last_bit(rate: float, noise: float) -> None:
    """Among them series that do not converge."""
    orders = (1.01, 1.5, 2, 2.7, 7.3, 32, 63.9, 64, 300, 1536)
    ours, theirs = RenyiAccountant(orders), rdp.RdpAccountant(orders)
    for accountant in (ours, theirs):
        accountant.compose(compose(gaussian(3), repeat(poisson_sampled(rate, gaussian(noise)), 17), laplace(5)))
    assert ours.rdp.tolist() == theirs.rdp.tolist()
