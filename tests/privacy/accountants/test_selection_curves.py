"""Bounds of private selection against the exact privacy of finite mechanisms, which must never exceed them."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import norm

from dphpo_bench.privacy.accountants import profiles as selection
from dphpo_bench.privacy.accountants import rdp as renyi
from dphpo_bench.privacy.accountants.profiles import Curve, Profile
from dphpo_bench.privacy.run_counts import (
    Binomial,
    CappedGeometric,
    Poisson,
    RunCount,
    TruncatedNegativeBinomial,
    UniformCount,
    geometric,
)
from tests.privacy import brute_force
from tests.privacy.brute_force import Array, Pair

EPSILONS = np.linspace(0, 5, 26)
ROUNDING = 1e-12  # of sums and differences of probabilities

RUNS = [
    TruncatedNegativeBinomial(6, 0),
    TruncatedNegativeBinomial(6, 0.5),
    geometric(6),
    geometric(200),
    TruncatedNegativeBinomial(6, 2.0),
    Poisson(4),
    Binomial(4, 8),
    Binomial(11.5, 12),
    UniformCount(1, 9),
    UniformCount(3, 7),
    CappedGeometric(6, 10),
]
KNOWN = [runs for runs in RUNS if isinstance(runs, TruncatedNegativeBinomial | Poisson)]
COINS = [runs for runs in RUNS if isinstance(runs, Binomial)]


def label(runs: RunCount) -> str:
    return runs.describe()


def height_of(
    bound: Callable[[Profile], Curve], select: Callable[[Array], Array], epsilons: Array
) -> Callable[[Pair], float]:
    """The greatest ratio of the exact δ to the bound; above 1 the bound is wrong."""

    def height(pair: Pair) -> float:
        limits = bound(brute_force.profile(pair))(epsilons)
        selected = pair.map(select)
        exact = np.array([brute_force.delta(selected, epsilon) for epsilon in epsilons])
        assert np.all(exact <= limits * (1 + 1e-9) + ROUNDING)
        return float(np.max(np.where(exact > 1e-8, exact / np.maximum(limits, 1e-300), 0)))

    return height


def search(height: Callable[[Pair], float], seed: int, starts: int, steps: int) -> float:
    """The greatest ratio found from several random pairs."""
    rng = np.random.default_rng(seed)
    return max(
        brute_force.climb(rng, brute_force.random_pair(rng, int(rng.integers(2, 7))), height, steps)[1]
        for _ in range(starts)
    )


def profile_bound(runs: RunCount, low: float = 1.0, high: float = 1.0) -> Callable[[Profile], Curve]:
    def bound(base: Profile) -> Curve:
        if isinstance(runs, Binomial):
            return selection.best_of_coins_profile(base, runs)
        assert isinstance(runs, TruncatedNegativeBinomial | Poisson)
        return selection.best_of_profile(base, runs, low, high)

    return bound


def layer_cake_bound(runs: RunCount) -> Callable[[Profile], Curve]:
    return lambda base: selection.best_of_layer_cake(base, runs, 200)


class TestBestOf:
    @pytest.mark.parametrize("runs", [*KNOWN, *COINS], ids=label)
    def test_profile_bound_is_never_exceeded(self, runs: RunCount) -> None:
        search(height_of(profile_bound(runs), brute_force.best_of(runs), EPSILONS), 1, starts=8, steps=20)

    @pytest.mark.parametrize("runs", RUNS, ids=label)
    @pytest.mark.parametrize(("starts", "steps"), [(6, 20), pytest.param(60, 150, marks=pytest.mark.slow)])
    def test_layer_cake_bound_is_never_exceeded(self, runs: RunCount, starts: int, steps: int) -> None:
        """It is nearly attained: the ratio comes close to 1, so that a bound wrong by more would be noticed."""
        bound = layer_cake_bound(runs)
        assert search(height_of(bound, brute_force.best_of(runs), EPSILONS[::3]), 2, starts, steps) > 0.85

    @pytest.mark.parametrize("runs", KNOWN, ids=label)
    def test_renyi_bound_is_never_exceeded(self, runs: RunCount) -> None:
        rng = np.random.default_rng(4)
        orders = np.array([1.5, 2, 3, 5, 8, 16, 32, 64])
        for _ in range(150):
            pair = brute_force.random_pair(rng, 5)
            if min(pair.with_record.min(), pair.without.min()) == 0:
                continue
            base = np.array([brute_force.renyi(pair, order) for order in orders])
            bound = renyi.best_of(base, orders, runs)
            exact = pair.map(brute_force.best_of(runs))
            if exact.with_record[0] == 0:  # no output for K = 0
                exact = Pair(exact.with_record[1:], exact.without[1:])
            assert all(
                brute_force.renyi(exact, order) <= limit * (1 + 1e-9) + 1e-9
                for order, limit in zip(orders, bound, strict=True)
            )

    def test_pure_mechanisms_reach_three_times_epsilon(self) -> None:
        # A rare output whose betters and itself change in opposite directions, each by a factor e.
        runs = geometric(1e4)
        better, rare = 0.05, 1e-6
        p = np.array([1 - better - rare, rare, better])
        q = np.array([1 - better * math.e - rare / math.e, rare / math.e, better * math.e])
        selected = Pair(p, q).map(brute_force.best_of(runs))
        ratio = math.log(selected.with_record[2] / selected.without[2])
        assert 2.99 < ratio <= 3
        base = brute_force.profile(Pair(p, q))
        assert selection.first_epsilon(profile_bound(runs)(base), 1e-12, 100) == pytest.approx(3, abs=1e-3)

    @pytest.mark.parametrize("runs", [*KNOWN, *COINS], ids=label)
    def test_sharp_bound_is_below_the_published_one(self, runs: RunCount) -> None:
        rng = np.random.default_rng(5)
        for _ in range(10):
            base = brute_force.profile(brute_force.random_pair(rng, 5))
            layers = selection.best_of_layer_cake(base, runs, 2000)(EPSILONS)
            published = profile_bound(runs)(base)(EPSILONS - 2e-2)  # what the cells may add
            assert np.all(layers <= published * 1.02 + ROUNDING)

    @pytest.mark.parametrize("runs", [Binomial(2, 3), Binomial(0.5, 4), Binomial(2.9, 3), Binomial(1, 5)], ids=label)
    def test_bounds_of_coins_hold_when_every_coin_is_enumerated(self, runs: Binomial) -> None:
        """Without generating functions: each coin is a run with one of four outputs, or none."""
        rng = np.random.default_rng(14)
        coins = np.array(list(itertools.product(range(5), repeat=runs.cap)))
        best = coins.max(axis=1)  # 0: no run, so the default

        def select(q: Array) -> Array:
            each = np.r_[1 - runs.mean / runs.cap, runs.mean / runs.cap * q]
            return np.bincount(best, weights=each[coins].prod(axis=1), minlength=5)

        keep = math.e / (1 + math.e)
        response = np.array([keep, 1 - keep])
        pairs = [Pair(np.r_[response, response] / 2, np.r_[response, response[::-1]] / 2)]  # of randomised response
        cuts = norm.cdf([-0.6, 0.0, 0.9]), norm.cdf([-1.4, -0.8, 0.1])
        pairs += [Pair(*(np.diff(np.r_[0, cut, 1]) for cut in cuts))]  # of a Gaussian utility in four classes
        for pair in (*pairs, *(brute_force.random_pair(rng, 4) for _ in range(40))):
            if len(pair.with_record) != 4:
                continue
            limits = selection.best_of_coins_profile(brute_force.profile(pair), runs)(EPSILONS)
            for order in itertools.permutations(range(4)):
                scored = pair.map(lambda q, order=order: q[list(order)])  # type: ignore[misc]
                exact = scored.map(select)
                assert exact.without == pytest.approx(brute_force.best_of(runs)(scored.without), abs=1e-12)
                deltas = np.array([brute_force.delta(exact, epsilon) for epsilon in EPSILONS])
                assert np.all(deltas <= limits + ROUNDING)

    def test_many_coins_cost_what_a_poisson_number_costs(self) -> None:
        base = brute_force.profile(Pair(np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.2, 0.4])))
        for bound in (profile_bound, layer_cake_bound):
            coins, poisson = (bound(runs)(base)(EPSILONS) for runs in (Binomial(4, 10_000), Poisson(4)))
            assert coins == pytest.approx(poisson, rel=2e-3, abs=2e-4)


class TestAdaptive:
    """Two hyperparameters, of which each run draws one by a policy that depends on the best score so far."""

    @pytest.mark.parametrize(
        "runs",
        [geometric(5), TruncatedNegativeBinomial(5, 0), TruncatedNegativeBinomial(5, 2.0), Poisson(4)],
        ids=label,
    )
    @pytest.mark.parametrize("lean", [0.05, 0.3])
    def test_bounds_are_never_exceeded(self, runs: RunCount, lean: float) -> None:
        rng = np.random.default_rng(7)
        low, high = 1 - 2 * lean, 1 + 2 * lean
        orders = np.array([1.5, 2, 4, 8, 32])
        top = 0.0
        for _ in range(80):
            pairs = [brute_force.random_pair(rng, 4) for _ in range(2)]
            if any(len(pair.with_record) != 4 for pair in pairs):
                continue
            policy = 0.5 + lean * rng.choice([-1, 1], size=5)
            base = Pair(*(0.5 * (getattr(pairs[0], side) + getattr(pairs[1], side)) for side in SIDES))
            exact = Pair(*(self.best(runs, policy, [getattr(pair, side) for pair in pairs]) for side in SIDES))
            limits = profile_bound(runs, low, high)(brute_force.profile(base))(EPSILONS)
            deltas = np.array([brute_force.delta(exact, epsilon) for epsilon in EPSILONS])
            assert np.all(deltas <= limits + 1e-9)  # what the sum over K leaves out
            top = max(top, float(np.max(np.where(deltas > 1e-8, deltas / np.maximum(limits, 1e-300), 0))))
            if isinstance(runs, TruncatedNegativeBinomial):
                curve = renyi.best_of(
                    np.array([brute_force.renyi(base, order) for order in orders]), orders, runs, low, high
                )
                found = [brute_force.renyi(exact, order) for order in orders]
                assert all(value <= limit + 1e-6 for value, limit in zip(found, curve, strict=True))
        assert top > 0.2

    @staticmethod
    def best(runs: RunCount, policy: Array, outputs: list[Array]) -> Array:
        """Distribution of the best of K runs. State 0 is before the first run, state i + 1 has best output i."""
        step = np.zeros((5, 5))
        for state in range(5):
            drawn = policy[state] * outputs[0] + (1 - policy[state]) * outputs[1]
            for output in range(4):
                step[state, max(state, output + 1)] += drawn[output]
        reached, total = np.eye(5)[0], np.zeros(5)
        for probability in runs.probability(np.arange(200)):
            total += probability * reached
            reached = reached @ step
        return total if runs.smallest == 0 else total[1:]


SIDES = ("with_record", "without")


class TestFirstAbove:
    @pytest.mark.parametrize("stop", [0.5, pytest.param(0.1, marks=pytest.mark.slow), 0.01])
    @pytest.mark.parametrize("threshold", [pytest.param(1, marks=pytest.mark.slow), 2])
    def test_bounds_are_never_exceeded(self, stop: float, threshold: int) -> None:
        select = brute_force.threshold_search(stop, threshold)
        published = height_of(lambda base: selection.first_above_profile(base, stop), select, EPSILONS)
        sharp = height_of(lambda base: selection.first_above_layer_cake(base, stop, 200), select, EPSILONS[::3])
        assert search(published, 9, starts=10, steps=40) > 0.1
        assert search(sharp, 10, starts=15, steps=40) > 0.8

    @pytest.mark.parametrize("stop", [0.5, 0.1, 0.01])
    def test_renyi_bound_is_never_exceeded(self, stop: float) -> None:
        rng = np.random.default_rng(11)
        orders = np.array([2.5, 3, 5, 8, 16, 32])
        for _ in range(150):
            pair = brute_force.random_pair(rng, 5)
            if min(pair.with_record.min(), pair.without.min()) == 0:
                continue
            base, below = (np.array([brute_force.renyi(pair, order - k) for order in orders]) for k in (0, 1))
            bound = renyi.threshold_search(base, below, orders, stop)
            selected = pair.map(brute_force.threshold_search(stop, 2))
            exact = np.array([brute_force.renyi(selected, order) for order in orders])
            assert np.all(exact <= bound + 1e-9)

    def test_pure_mechanisms_reach_twice_epsilon(self) -> None:
        stop, rare = 1e-6, 1e-3
        # The rare output of two that pass changes against the probability to pass.
        p = np.array([1 - rare - rare**2, rare, rare**2])
        q = np.array([1 - rare * math.e - rare**2 / math.e, rare * math.e, rare**2 / math.e])
        selected = Pair(p, q).map(brute_force.threshold_search(stop, 1))
        assert 1.99 < math.log(selected.with_record[1] / selected.without[1]) <= 2
