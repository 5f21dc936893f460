"""One of several events, against finite mechanisms: what anybody may choose, and what is drawn by fixed weights.

Branches are made of randomised response, which attains what is known of a pure release. So the exact curve of each tree
below is a finite sum, for every rule that chooses.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from dp_accounting.dp_event import DpEvent
from scipy.stats import norm

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.privacy.accountants import profiles
from dphpo_bench.privacy.accountants import rdp as renyi
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.event_trees import exposures, simplify
from dphpo_bench.privacy.events import (
    MAX_BRANCHES,
    best_of,
    compose,
    gaussian,
    no_op,
    non_private,
    on_part,
    one_of,
    poisson_sampled,
    pure_dp,
    repeat,
    threshold_search,
)
from dphpo_bench.privacy.run_counts import (
    Binomial,
    Poisson,
    RunCount,
    TruncatedNegativeBinomial,
    UniformCount,
    geometric,
)
from tests.privacy import brute_force
from tests.privacy.brute_force import Array, Pair

EPSILONS = np.linspace(0, 4, 41)
DELTAS = (1e-6, 1e-3, 0.03, 0.2)
WEIGHTS = (0.2, 0.5, 0.3)


def response(epsilon: float) -> Pair:
    share = np.exp(epsilon) / (1 + np.exp(epsilon))
    return Pair(np.array([share, 1 - share]), np.array([1 - share, share]))


def product(*pairs: Pair) -> Pair:
    def outer(side: str) -> Array:
        found = np.ones(1)
        for pair in pairs:
            found = np.outer(found, getattr(pair, side)).ravel()
        return found

    return Pair(outer("with_record"), outer("without"))


def sampled(pair: Pair, rate: float) -> Pair:
    return Pair(rate * pair.with_record + (1 - rate) * pair.without, pair.without)


def mixed(pairs: Sequence[Pair], weights: Sequence[float]) -> Pair:
    """The output of a random branch, which says what branch it is of."""
    return Pair(
        np.concatenate([weight * pair.with_record for pair, weight in zip(pairs, weights, strict=True)]),
        np.concatenate([weight * pair.without for pair, weight in zip(pairs, weights, strict=True)]),
    )


def scored(pair: Pair, rng: np.random.Generator) -> list[Pair]:
    """Orders of the outputs, which are those of their scores: random ones, and those by how much an output tells."""
    tells = np.argsort(pair.with_record / np.maximum(pair.without, 1e-300))
    orders = [tells, tells[::-1], *(rng.permutation(len(tells)) for _ in range(20))]
    return [Pair(pair.with_record[order], pair.without[order]) for order in orders]


EVENTS: list[DpEvent] = [pure_dp(1.0), repeat(pure_dp(0.4), 3), poisson_sampled(0.3, pure_dp(2.0))]
PAIRS = [response(1.0), product(*[response(0.4)] * 3), sampled(response(2.0), 0.3)]
PLAIN: list[DpEvent] = [*EVENTS[:2], pure_dp(0.2)]  # which RDP has a rule for too


def check(event: DpEvent, truths: Sequence[Pair]) -> float:
    """No truth exceeds what an accountant claims; returns the greatest share of δ that one attains."""
    top = 0.0
    for delta in DELTAS:
        for claimed in epsilon(event, delta).by_accountant.values():
            for truth in truths:
                exact = brute_force.delta(truth, claimed)
                assert exact <= delta * (1 + 1e-6) + 1e-12
                top = max(top, exact / delta)
    return top


class TestCurves:
    def test_of_random_mechanisms_by_weights_they_are_exact(self) -> None:
        rng = np.random.default_rng(1)
        for _ in range(40):
            pairs = [brute_force.random_pair(rng, int(rng.integers(2, 6))) for _ in range(3)]
            weights = rng.dirichlet(np.ones(3)).tolist()
            found = profiles.one_of([brute_force.profile(pair) for pair in pairs], weights)
            truth = mixed(pairs, weights)
            for at in (-1.5, -0.2, *EPSILONS):
                expected = brute_force.hockey_stick(truth.with_record, truth.without, at)
                assert float(found.one_way(at, removal=True)) == pytest.approx(expected, abs=1e-13)
                expected = brute_force.hockey_stick(truth.without, truth.with_record, at)
                assert float(found.one_way(at, removal=False)) == pytest.approx(expected, abs=1e-13)

    def test_of_random_mechanisms_with_a_free_choice_they_hold_for_each_and_no_more(self) -> None:
        rng = np.random.default_rng(2)
        for _ in range(40):
            pairs = [brute_force.random_pair(rng, int(rng.integers(2, 6))) for _ in range(3)]
            found = profiles.one_of([brute_force.profile(pair) for pair in pairs], None)
            for at in EPSILONS:
                expected = max(brute_force.delta(pair, at) for pair in pairs)
                assert float(found.delta(at)) == pytest.approx(expected, abs=1e-13)

    @pytest.mark.parametrize("weights", [None, [0.1, 0.6, 0.3]])
    def test_renyi_curves_are_exact(self, weights: list[float] | None) -> None:
        rng = np.random.default_rng(3)
        orders = np.array([1.2, 2, 5, 20])
        checked = 0
        while checked < 30:
            pairs = [brute_force.random_pair(rng, 4) for _ in range(3)]
            if any(np.min(np.r_[pair.with_record, pair.without]) == 0 for pair in pairs):
                continue
            checked += 1
            curves = [np.array([brute_force.renyi(pair, order) for order in orders]) for pair in pairs]
            found = renyi.one_of(curves, orders, weights)
            if weights is None:
                assert found == pytest.approx(np.max(curves, axis=0))
                continue
            truth = [brute_force.renyi(mixed(pairs, weights), order) for order in orders]
            assert np.all(truth <= found + 1e-12)

    def test_points_of_all_branches_give_points_that_are_never_below(self) -> None:
        rng = np.random.default_rng(4)
        for weights in (None, [0.4, 0.6]):
            pairs = [brute_force.random_pair(rng, 5) for _ in range(2)]
            made = [
                profiles.from_distribution(
                    profiles.to_distribution(brute_force.profile(pair), 1e-3, negligible=1e-12, size=5000), 0.0
                )
                for pair in pairs
            ]
            found = profiles.one_of(made, weights)
            assert isinstance(found.removal, profiles.Points)
            exact = profiles.one_of([brute_force.profile(pair) for pair in pairs], weights)
            assert np.all(found.delta(EPSILONS) >= exact.delta(EPSILONS) - 1e-13)
            assert found.delta(EPSILONS) == pytest.approx(exact.delta(EPSILONS), abs=2e-3)


class TestTrees:
    def test_all_accountants_hold(self) -> None:
        pairs = [*PAIRS[:2], response(0.2)]
        for weights, truths in ((WEIGHTS, [mixed(pairs, WEIGHTS)]), (None, pairs)):
            event = one_of(PLAIN, weights)
            check(event, truths)
            assert epsilon(event, 1e-5).by_accountant.keys() == {"pld", "rdp"}
            selected = [pair.map(brute_force.best_of(geometric(5))) for pair in truths]
            check(best_of(event, geometric(5)), selected)
            assert epsilon(best_of(event, geometric(5)), 1e-5).by_accountant.keys() == {"rdp", "profile", "layer_cake"}
            check(threshold_search(event, 0.1), [pair.map(brute_force.threshold_search(0.1, 1)) for pair in truths])
            check(repeat(event, 2), [product(pair, pair) for pair in truths])

    def test_a_draw_costs_the_average_and_a_free_choice_the_largest(self) -> None:
        assert check(one_of(EVENTS, WEIGHTS), [mixed(PAIRS, WEIGHTS)]) > 0.999
        assert check(one_of(EVENTS), PAIRS) > 0.999
        for delta in DELTAS:
            assert epsilon(one_of(EVENTS, WEIGHTS), delta).epsilon < epsilon(one_of(EVENTS), delta).epsilon

    def test_a_choice_by_an_earlier_release_holds_for_every_rule(self) -> None:
        first = response(0.7)
        truths = []
        for chosen in itertools.product(range(3), repeat=2):  # what is chosen after each output of the first release
            seen = [product(Pair(first.with_record[[i]], first.without[[i]]), PAIRS[chosen[i]]) for i in range(2)]
            truths.append(
                Pair(*(np.concatenate([getattr(one, side) for one in seen]) for side in ("with_record", "without")))
            )
        assert check(compose(pure_dp(0.7), one_of(EVENTS)), truths) > 0.95

    def test_in_a_sample(self) -> None:
        assert check(poisson_sampled(0.2, one_of(EVENTS, WEIGHTS)), [sampled(mixed(PAIRS, WEIGHTS), 0.2)]) > 0.95
        assert check(poisson_sampled(0.2, one_of(EVENTS)), [sampled(pair, 0.2) for pair in PAIRS]) > 0.95

    @pytest.mark.parametrize(
        "runs", [geometric(5), TruncatedNegativeBinomial(5, 0), Poisson(4), Binomial(4, 8), UniformCount(1, 9)], ids=str
    )
    @pytest.mark.parametrize("weights", [WEIGHTS, None], ids=["drawn", "free"])
    def test_in_the_best_of_a_random_number_of_runs(self, runs: RunCount, weights: tuple[float, ...] | None) -> None:
        rng = np.random.default_rng(5)
        # A free choice may be any fixed rule: one branch always, or a draw by weights that nobody wrote down.
        rules = [WEIGHTS] if weights else [(1, 0, 0), (0, 1, 0), (0, 0, 1), *rng.dirichlet(np.ones(3), 4).tolist()]
        truths = [one.map(brute_force.best_of(runs)) for rule in rules for one in scored(mixed(PAIRS, rule), rng)]
        check(best_of(one_of(EVENTS, weights), runs), truths)
        # They would notice if the selection were not charged.
        alone = epsilon(one_of(EVENTS, weights), 0.2).epsilon
        assert max(brute_force.delta(truth, alone) for truth in truths) > 0.2

    def test_in_the_first_run_above_a_threshold(self) -> None:
        rng = np.random.default_rng(6)
        runs = scored(mixed(PAIRS, WEIGHTS), rng)
        truths = [one.map(brute_force.threshold_search(0.1, threshold)) for threshold in (3, 8) for one in runs]
        check(threshold_search(one_of(EVENTS, WEIGHTS), 0.1), truths)

    def test_a_record_pays_for_the_branches_of_its_own_part(self) -> None:
        trial = compose(on_part("split", "a", one_of(EVENTS, WEIGHTS)), on_part("split", "b", pure_dp(0.9)))
        event = best_of(trial, geometric(5))
        apart = [best_of(one_of(EVENTS, WEIGHTS), geometric(5)), best_of(pure_dp(0.9), geometric(5))]
        for delta in DELTAS:
            assert epsilon(event, delta).epsilon == max(epsilon(one, delta).epsilon for one in apart)
        inside = one_of([on_part("split", "a", pure_dp(1)), on_part("split", "b", pure_dp(0.3))])
        assert set(exposures(inside)) == {one_of([pure_dp(1.0), no_op()]), one_of([no_op(), pure_dp(0.3)])}
        assert epsilon(inside, 1e-5).epsilon == pytest.approx(1.0, rel=1e-4)


class TestRules:
    def test_weights_are_probabilities(self) -> None:
        assert one_of(EVENTS, (2, 5, 3)) == one_of(EVENTS, WEIGHTS)

    @pytest.mark.parametrize(
        ("events", "weights"),
        [
            ([pure_dp(1)] * (MAX_BRANCHES + 1), None),
            ([pure_dp(1), pure_dp(2)], (0, 1)),
            ([pure_dp(1), pure_dp(2)], (float("nan"), 1)),
        ],
    )
    def test_anything_else_is_refused(self, events: object, weights: object) -> None:
        with pytest.raises(InvalidValueError, match="Expected"):
            one_of(events, weights)  # type: ignore[arg-type]

    def test_simpler_forms(self) -> None:
        assert simplify(one_of([gaussian(2), gaussian(2)])) == gaussian(2.0)
        assert simplify(one_of([gaussian(2)], [3])) == gaussian(2.0)
        assert simplify(one_of([gaussian(2), non_private()], [1, 1])) == non_private()
        assert simplify(one_of([pure_dp(1), pure_dp(2), pure_dp(1)])) == one_of([pure_dp(1), pure_dp(2)])
        assert simplify(one_of([no_op(), compose()])) == no_op()

    def test_of_several_gaussians_the_least_noise_counts(self) -> None:
        """Against the exact curve of a Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""

        def delta(noise: float) -> Array:
            mean, tail = 1 / (2 * noise), EPSILONS * noise
            return np.asarray(norm.cdf(mean - tail) - np.exp(EPSILONS) * norm.cdf(-mean - tail))

        choice = one_of([gaussian(3), repeat(gaussian(4), 4), gaussian(2.5)])
        assert simplify(choice) == gaussian(2.0)
        for least, known in zip(EPSILONS[1::8], delta(2.0)[1::8], strict=True):
            assert least * (1 - 1e-9) <= epsilon(choice, known).epsilon <= least * 1.001
        assert simplify(one_of([gaussian(3), pure_dp(1), gaussian(2)])) == one_of([gaussian(2.0), pure_dp(1.0)])
        assert simplify(one_of([gaussian(3), no_op(), gaussian(2)])) == one_of([gaussian(2.0), no_op()])
        apart = one_of([on_part("split", "a", gaussian(3)), on_part("split", "b", gaussian(2))])
        assert set(exposures(apart)) == {one_of([gaussian(3.0), no_op()]), one_of([no_op(), gaussian(2.0)])}
        drawn = one_of([gaussian(3), gaussian(2)], [1, 1])
        assert simplify(drawn) == drawn
