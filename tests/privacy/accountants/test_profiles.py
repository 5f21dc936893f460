"""Curves of finite mechanisms through every conversion and combinator: exact, or never below."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from dphpo_bench.privacy.accountants import profiles
from tests.privacy import brute_force
from tests.privacy.brute_force import Array, Pair

EPSILONS = np.linspace(0, 4, 41)


def pairs(seed: int, count: int) -> list[Pair]:
    rng = np.random.default_rng(seed)
    return [brute_force.random_pair(rng, int(rng.integers(2, 7))) for _ in range(count)]


def exact(pair: Pair, epsilons: Array) -> Array:
    return np.array([brute_force.delta(pair, epsilon) for epsilon in epsilons])


def product(first: Pair, second: Pair) -> Pair:
    return Pair(
        np.outer(first.with_record, second.with_record).ravel(), np.outer(first.without, second.without).ravel()
    )


class TestCurves:
    def test_points_are_joined_by_lines_in_the_exponential(self) -> None:
        curve = profiles.Points(np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.2, 0.1]))
        at = math.log((1 + math.e) / 2)
        assert curve(np.array([0, at, 1, 2, 5])) == pytest.approx([0.5, 0.35, 0.2, 0.1, 0.1])

    @pytest.mark.parametrize("pair", pairs(1, 10))
    def test_values_at_negative_epsilon(self, pair: Pair) -> None:
        base = brute_force.profile(pair)
        for epsilon in (-2.0, -0.3, 0.0, 0.7):
            expected = brute_force.hockey_stick(pair.with_record, pair.without, epsilon)
            assert float(base.one_way(epsilon, removal=True)) == pytest.approx(expected, abs=1e-14)


class TestDistributions:
    @pytest.mark.parametrize("pair", pairs(2, 30))
    def test_there_and_back_never_loses(self, pair: Pair) -> None:
        made = profiles.to_distribution(brute_force.profile(pair), 1e-3, negligible=1e-12, size=5000)
        found = made.get_delta_for_epsilon(EPSILONS)
        assert np.all(found >= exact(pair, EPSILONS) - 1e-14)
        assert found == pytest.approx(exact(pair, EPSILONS), abs=2e-3)
        back = profiles.from_distribution(made, 0.0).delta(EPSILONS)
        assert back == pytest.approx(found, abs=1e-13)

    @pytest.mark.parametrize(("first", "second"), list(zip(pairs(3, 15), pairs(4, 15), strict=True)))
    def test_compositions_never_cost_less_than_they_do(self, first: Pair, second: Pair) -> None:
        one, two = (
            profiles.to_distribution(brute_force.profile(pair), 1e-3, negligible=1e-12, size=5000)
            for pair in (first, second)
        )
        found = one.compose(two).compose(one).get_delta_for_epsilon(EPSILONS)
        truth = exact(product(product(first, second), first), EPSILONS)
        assert np.all(found >= truth - 1e-13)
        assert found == pytest.approx(truth, abs=5e-3)

    @pytest.mark.parametrize(("epsilon", "count"), [(0.1, 7), (0.123456, 20), (1.0, 50), (3.0, 1)])
    def test_pure_mechanisms_compose_as_the_worst_ones(self, epsilon: float, count: int) -> None:
        # Kairouz, Oh and Viswanath (2015), Theorem 3.3, at ε between its steps as well.
        made = profiles.pure_distribution(epsilon, 1e-4).self_compose(count)
        losses = epsilon * (2 * np.arange(count + 1) - count)
        logs = np.array(
            [math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(count + 1)]
        )
        p = np.exp(logs + np.arange(count + 1) * epsilon - count * np.logaddexp(0, epsilon))
        for at in np.linspace(0, epsilon * count * 0.9, 7):
            truth = float(np.sum(p * np.maximum(-np.expm1(at - losses), 0)))
            assert truth - 1e-13 <= made.get_delta_for_epsilon(at) <= truth * (1 + 1e-3) + 1e-6


class TestSampling:
    @pytest.mark.parametrize("pair", pairs(6, 25))
    @pytest.mark.parametrize("rate", [0.01, 0.3, 0.99])
    def test_both_directions_are_exact(self, pair: Pair, rate: float) -> None:
        found = profiles.poisson_sampled(brute_force.profile(pair), rate)
        mixture = (1 - rate) * pair.without + rate * pair.with_record
        removal = [brute_force.hockey_stick(mixture, pair.without, epsilon) for epsilon in EPSILONS]
        addition = [brute_force.hockey_stick(pair.without, mixture, epsilon) for epsilon in EPSILONS]
        assert found.removal(EPSILONS) == pytest.approx(removal, abs=1e-14)
        assert found.addition(EPSILONS) == pytest.approx(addition, abs=1e-14)

    def test_agrees_with_the_rule_for_gaussians(self) -> None:
        # The library has its own rule for a sampled Gaussian.
        base = privacy_loss_distribution.from_gaussian_mechanism(1.3, value_discretization_interval=1e-4)
        theirs = privacy_loss_distribution.from_gaussian_mechanism(
            1.3, value_discretization_interval=1e-4, sampling_prob=0.1
        )
        ours = profiles.poisson_sampled(profiles.from_distribution(base, 0.0), 0.1)
        made = profiles.to_distribution(ours, 1e-4, negligible=1e-12, size=40_000)
        for count in (1, 50):
            composed = [one.self_compose(count).get_epsilon_for_delta(1e-5) for one in (made, theirs)]
            assert composed[0] == pytest.approx(composed[1], rel=1e-3)
