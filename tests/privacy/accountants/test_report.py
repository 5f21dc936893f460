"""The accountants: a conformance suite over (event × accountant), and agreement with other libraries."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from autodp.mechanism_zoo import SubsampleGaussianMechanism
from dp_accounting import dp_event, pld, rdp
from dp_accounting.dp_event import DpEvent
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant
from opacus.accountants.analysis import rdp as opacus_rdp
from scipy.stats import norm

from dphpo_bench.base.errors import UnsupportedEventError
from dphpo_bench.privacy.accountants import pld as distributions
from dphpo_bench.privacy.accountants.rdp import ORDERS as RDP_ORDERS
from dphpo_bench.privacy.accountants.report import epsilon, epsilon_by
from dphpo_bench.privacy.events import (
    best_of,
    compose,
    gaussian,
    laplace,
    no_op,
    non_private,
    on_part,
    one_of,
    poisson_sampled,
    pure_dp,
    repeat,
    threshold_search,
)
from dphpo_bench.privacy.risk import risk
from dphpo_bench.privacy.run_counts import (
    Binomial,
    CappedGeometric,
    Poisson,
    TruncatedNegativeBinomial,
    UniformCount,
    geometric,
)
from tests.privacy import contour

DELTA = 1e-5


def sgd(noise: float, rate: float, steps: int) -> DpEvent:
    return repeat(poisson_sampled(rate, gaussian(noise)), steps)


def sampled(noise: float) -> DpEvent:
    return repeat(poisson_sampled(0.1, gaussian(noise)), 10)


Leaf = Callable[[float], DpEvent]
LIBRARY: list[tuple[str, Leaf]] = [
    ("pld", gaussian),
    ("pld", laplace),
    ("pld", lambda s: poisson_sampled(0.1, gaussian(s))),
    ("pld", lambda s: poisson_sampled(0.1, laplace(s))),
    ("rdp", gaussian),
    ("rdp", laplace),
    ("rdp", lambda s: poisson_sampled(0.1, gaussian(s))),
    ("rdp", lambda s: dp_event.RepeatAndSelectDpEvent(poisson_sampled(0.1, gaussian(float(s))), 10, 1)),
    ("rdp", lambda s: dp_event.RepeatAndSelectDpEvent(gaussian(s), 10, math.inf)),
]
SELECTION: list[tuple[str, Leaf]] = [
    ("profile", lambda s: best_of(sampled(s), geometric(10))),
    ("profile", lambda s: best_of(gaussian(s), Poisson(3))),
    ("profile", lambda s: best_of(sampled(s), Binomial(4, 8))),
    ("profile", lambda s: best_of(sampled(s), TruncatedNegativeBinomial(5, 0), 0.9, 1.2)),
    ("profile", lambda s: threshold_search(compose(sampled(s), laplace(s)), 0.1)),
    ("profile", lambda s: poisson_sampled(0.2, best_of(gaussian(s), geometric(5)))),
    ("layer_cake", lambda s: best_of(sampled(s), geometric(10))),
    ("layer_cake", lambda s: best_of(gaussian(s), UniformCount(1, 10))),
    ("layer_cake", lambda s: best_of(gaussian(s), Binomial(9, 10))),
    ("layer_cake", lambda s: best_of(best_of(gaussian(2 * s), geometric(3)), CappedGeometric(5, 40))),
    ("layer_cake", lambda s: threshold_search(sampled(s), 0.1)),
    ("layer_cake", lambda s: poisson_sampled(0.2, best_of(gaussian(s), geometric(5)))),
]


def bound(accountant: str, event: DpEvent, coarseness: float = 4.0) -> float:
    return epsilon(event, DELTA, accountant=accountant, coarseness=coarseness).epsilon


@pytest.mark.parametrize(("name", "leaf"), [*LIBRARY, *SELECTION])
class TestEveryAccountant:
    """What holds for every accountant and every event it supports."""

    def test_less_noise_and_more_releases_cost_more(self, name: str, leaf: Leaf) -> None:
        for events in (
            [repeat(leaf(noise), 5) for noise in (6.0, 1.5, 0.8)],
            [repeat(leaf(2.0), count) for count in (1, 2, 50)],
        ):
            costs = [bound(name, event) for event in events]
            assert costs == sorted(set(costs))
            assert len(costs) == 3

    def test_nothing_adds_nothing_and_raw_access_adds_everything(self, name: str, leaf: Leaf) -> None:
        event = repeat(leaf(2.0), 3)
        assert bound(name, event) == bound(name, repeat(leaf(2), 3))  # whole numbers lost releases
        assert bound(name, compose(event, no_op(), repeat(leaf(1.0), 0))) == bound(name, event)
        assert bound(name, compose(event, non_private())) == math.inf

    def test_a_coarser_grid_costs_hardly_less(self, name: str, leaf: Leaf) -> None:
        """No theorem orders grids that are not nested. Each bound is above the truth, here less than 0.1 % below."""
        event = repeat(leaf(2.0), 30)
        assert bound(name, event, coarseness=10) >= bound(name, event, coarseness=1) * (1 - 1e-3)


@pytest.mark.parametrize(("name", "leaf"), LIBRARY)
def test_a_count_is_as_much_as_a_list(name: str, leaf: Leaf) -> None:
    """One by one through the library. The two differ by the grid and by the allowances for rounding."""
    fine = pld.PLDAccountant(value_discretization_interval=1e-4)
    one_by_one = fine if name == "pld" else rdp.RdpAccountant(RDP_ORDERS)
    for _ in range(6):
        one_by_one.compose(leaf(2.0))
    counted = bound(name, repeat(repeat(leaf(2.0), 2), 3), coarseness=1)
    assert counted == pytest.approx(one_by_one.get_epsilon(DELTA), rel=2e-3)
    assert counted == bound(name, compose(*[leaf(2.0)] * 6), coarseness=1)


@pytest.mark.parametrize("noise", [0.0099, 0.005, 1e-4, 1e-6])
@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_little_noise_has_a_finite_cost(noise: float, rate: float) -> None:
    """A Gaussian's loss is normal about 1/(2σ²); a sample at rate q costs ε of δ/q, less ln(1/q) up to 1e-9."""
    mu = 1 / noise
    exact = mu**2 / 2 + mu * norm.isf(DELTA / rate) + math.log(rate)
    event = poisson_sampled(rate, compose(gaussian(noise * math.sqrt(2)), gaussian(noise * math.sqrt(2))))
    assert exact * (1 - 1e-4) <= epsilon(event, DELTA).epsilon <= 1.11 * exact
    assert risk(event, DELTA).advantage <= 1


@pytest.mark.parametrize(
    ("event", "largest"),
    [
        (laplace(1e-3), 1e3),
        (repeat(pure_dp(300.0), 10), 3e3),
        (poisson_sampled(0.1, laplace(1e-3)), 1e3),
        (compose(gaussian(0.1), pure_dp(2e5)), 2.1e5),
    ],
)
def test_large_losses_have_a_finite_cost(event: DpEvent, largest: float) -> None:
    assert 0.9 * largest < epsilon(event, DELTA).epsilon <= largest * (1 + 1e-5)


@pytest.mark.parametrize("accountant", ["rdp", "profile", "layer_cake"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda e: best_of(e, geometric(10)),
        lambda e: threshold_search(e, 0.1),
        lambda e: on_part("a", "b", best_of(e, geometric(10))),
    ],
)
def test_integer_multipliers_in_a_selection_are_not_lost(accountant: str, wrap: Callable[[DpEvent], DpEvent]) -> None:
    raw = dp_event.PoissonSampledDpEvent(
        0.02, dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(1), dp_event.GaussianDpEvent(1)])
    )
    joint = poisson_sampled(0.02, gaussian(math.sqrt(0.5)))
    assert bound(accountant, wrap(raw), 1) == pytest.approx(bound(accountant, wrap(joint), 1))


def test_a_delta_that_pld_cannot_resolve_is_left_to_rdp() -> None:
    report = epsilon(compose(sgd(1.8786, 0.02, 500), laplace(10)), 1e-14)
    assert "not accurate at delta=1e-14" in report.refused["pld"]
    assert report.quoted == "rdp"


@pytest.mark.parametrize(
    ("name", "event", "refusal"),
    [
        ("rdp", poisson_sampled(0.1, compose(gaussian(1), laplace(1))), "support PoissonSampledDpEvent of .*Laplace"),
        ("pld", compose(best_of(gaussian(1), geometric(10)), gaussian(1)), r"BestOfDpEvent \(geometric, mean 10\) of"),
        ("profile", best_of(gaussian(2), UniformCount(1, 20)), r"BestOfDpEvent \(uniform"),
        ("rdp", best_of(gaussian(2), Binomial(4, 8)), r"BestOfDpEvent \(binomial, mean 4, at most 8\)"),
        ("layer_cake", best_of(gaussian(2), geometric(10), 0.9, 1.1), "does not support .*adaptive"),
    ],
)
def test_what_an_accountant_does_not_support_it_refuses_by_name(name: str, event: DpEvent, refusal: str) -> None:
    with pytest.raises(UnsupportedEventError, match=f"{name} .*{refusal}"):
        epsilon(event, DELTA, accountant=name)


class TestParts:
    TRAIN = repeat(poisson_sampled(0.02, gaussian(1.5)), 100)
    VALID = gaussian(5)

    def test_a_record_pays_the_larger_part_not_the_sum(self) -> None:
        tree = compose(on_part("split", "train", self.TRAIN), on_part("split", "valid", self.VALID))
        apart = [epsilon(event, DELTA).epsilon for event in (self.TRAIN, self.VALID)]
        assert epsilon(tree, DELTA).epsilon == pytest.approx(max(apart))
        assert epsilon(compose(self.TRAIN, self.VALID), DELTA).epsilon > 1.1 * max(apart)

    def test_inside_a_selection(self) -> None:
        run = compose(on_part("split", "train", self.TRAIN), on_part("split", "valid", self.VALID))
        report = epsilon(best_of(run, geometric(10)), DELTA)
        apart = [epsilon(best_of(event, geometric(10)), DELTA) for event in (self.TRAIN, self.VALID)]
        for name in ("rdp", "profile", "layer_cake"):
            assert report.by_accountant[name] == pytest.approx(max(one.by_accountant[name] for one in apart))

    def test_raw_access_to_one_part_is_raw_access(self) -> None:
        assert epsilon(compose(on_part("split", "a", non_private()), self.VALID), DELTA).epsilon == math.inf


class TestAgainstTheLibrary:
    @pytest.mark.parametrize(("mean", "shape"), [(10, 0.0), (10, 0.5), (30, 1.0), (100, 2.0), (10, math.inf)])
    def test_renyi_bounds_of_selection(self, mean: float, shape: float) -> None:
        event = dp_event.RepeatAndSelectDpEvent(sgd(2.0, 0.02, 100), mean, shape)
        theirs = rdp.RdpAccountant(RDP_ORDERS).compose(event).get_epsilon(DELTA)
        assert epsilon(event, DELTA).by_accountant["rdp"] == pytest.approx(theirs, rel=1e-6)


class TestQuoting:
    def test_the_tighter_bound_is_quoted(self) -> None:
        report = epsilon(sgd(1.0, 0.02, 500), DELTA)
        assert report.quoted == "pld"
        assert report.epsilon == report.by_accountant["pld"] < report.by_accountant["rdp"]
        assert report.delta == DELTA
        assert not report.refused

    @pytest.mark.parametrize(("event", "value"), [(no_op(), 0.0), (non_private(), math.inf), (gaussian(0), math.inf)])
    def test_all_accountants_agree_on_the_extremes(self, event: DpEvent, value: float) -> None:
        assert epsilon(event, DELTA).by_accountant == {"pld": value, "rdp": value}

    def test_what_nobody_supports_is_refused_by_name(self) -> None:
        with pytest.raises(UnsupportedEventError, match=r"BestOfDpEvent .geometric, mean 10. of ZCDpEvent"):
            epsilon(best_of(dp_event.ZCDpEvent(0.1), geometric(10)), DELTA)

    def test_integer_multipliers_in_a_sample_are_not_lost(self) -> None:
        # The library alone answers 1.164 here, the cost of a single Gaussian.
        raw = dp_event.PoissonSampledDpEvent(
            0.02, dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(1), dp_event.GaussianDpEvent(1)])
        )
        assert rdp.RdpAccountant().compose(raw).get_epsilon(DELTA) == pytest.approx(1.164, abs=1e-3)
        assert epsilon(raw, DELTA).by_accountant["rdp"] == pytest.approx(2.504, abs=1e-3)

    @pytest.mark.parametrize(
        "event",
        [
            poisson_sampled(1 - 1e-12, gaussian(0.01)),
            repeat(poisson_sampled(0.5, laplace(0.01)), 10**5),
            poisson_sampled(1e-300, gaussian(1e100)),
        ],
    )
    def test_extreme_events_get_a_number(self, event: DpEvent) -> None:
        assert epsilon(event, DELTA).epsilon >= 0


class TestClosedForms:
    @pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 8.0])
    @pytest.mark.parametrize("delta", [1e-3, 1e-8, 1e-12])
    def test_gaussian(self, mu: float, delta: float) -> None:
        # Dong, Roth and Su 2022, Corollary 2.13; 16 releases at 4/μ are one at 1/μ.
        value = epsilon(repeat(gaussian(4 / mu), 16), delta).epsilon

        def exact(eps: float) -> float:
            return float(norm.cdf(-eps / mu + mu / 2) - np.exp(eps) * norm.cdf(-eps / mu - mu / 2))

        assert exact(value) <= delta * (1 + 1e-9)
        assert exact(max(0, value * (1 - 2e-3) - 1e-4)) >= delta or value == 0

    @pytest.mark.parametrize(("rate", "scale"), [(0.1, 0.5), (0.01, 0.2), (0.9, 1.0)])
    def test_sampled_laplace(self, rate: float, scale: float) -> None:
        # δ(ε) = q δ₀(log(1 + (e^ε - 1)/q)) with δ₀(ε) = 1 - exp((ε - 1/b)/2) (Balle, Barthe and Gaboardi
        # 2018).
        value = epsilon(poisson_sampled(rate, laplace(scale)), DELTA).epsilon
        unsampled = math.log1p(math.expm1(value) / rate)
        assert rate * -math.expm1((unsampled - 1 / scale) / 2) == pytest.approx(DELTA, rel=0.05)


class TestContour:
    """Against the contour integral of `contour.py`, which has no grid of losses."""

    # Where a record is in few batches, its loss is nearly discrete and the integral converges too slowly.
    @settings(derandomize=True, max_examples=4, deadline=None, phases=[Phase.generate])
    @given(st.floats(0.8, 4), st.floats(0.02, 0.3), st.integers(250, 2000))
    def test_pld_is_just_above_the_exact_value(self, noise: float, rate: float, steps: int) -> None:
        value = epsilon(sgd(noise, rate, steps), DELTA).epsilon
        assert contour.delta([(noise, rate, steps)], value) <= DELTA * (1 + 1e-4)
        # 0.2 % is what the grid may add where single steps are much smaller than the whole.
        assert contour.delta([(noise, rate, steps)], value * (1 - 2e-3)) >= DELTA

    @pytest.mark.parametrize(
        "steps",
        [
            [(0.7, 1e-4, 10**6)],
            [(0.7, 1e-4, 10**5)],
            [(0.6, 1e-5, 10**7)],
            [(1.6, 3e-5, 2 * 10**7), (2.0, 1.0, 1)],
        ],
    )
    def test_a_million_rare_steps_are_within_2_percent(self, steps: list[contour.Step]) -> None:
        """A grid of 2.5e4 points, wider than the losses of single steps, had 7 to 66 % more."""
        value = epsilon(compose(*(sgd(*step) for step in steps)), DELTA).epsilon
        assert contour.delta(steps, value) <= DELTA * (1 + 1e-4)
        assert contour.delta(steps, value * 0.98) >= DELTA

    @pytest.mark.parametrize("delta", [1e-9, 1e-11, 1e-12])
    def test_pld_stays_above_it_at_small_delta(self, delta: float) -> None:
        # Without the allowance for rounding in the Fourier transform, PLD falls below from 1e-11 on.
        steps = [(8.0, 0.1638, 293), (20.0, 0.08, 73)]
        event = compose(*(sgd(noise, rate, count) for noise, rate, count in steps))
        value = epsilon(event, delta).by_accountant["pld"]
        assert contour.delta(steps, value) <= delta * (1 + 1e-6)
        assert contour.delta(steps, value * (1 - 5e-3)) >= delta


class TestOtherLibraries:
    CASES = ((1.0, 0.02, 500), (0.8, 0.02, 500), (4.0, 0.2, 250), (1.1, 256 / 60000, 3000))

    @pytest.mark.parametrize(("noise", "rate", "steps"), CASES)
    def test_rdp_of_opacus(self, noise: float, rate: float, steps: int) -> None:
        # The same orders and the same conversion. dp_accounting sums absolute values at fractional orders, so
        # ours may be above by up to 0.1 % at the best order, and never below.
        curve = opacus_rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=list(RDP_ORDERS))
        theirs, _ = opacus_rdp.get_privacy_spent(orders=list(RDP_ORDERS), rdp=curve, delta=DELTA)
        ours = epsilon(sgd(noise, rate, steps), DELTA).by_accountant["rdp"]
        assert theirs * (1 - 1e-6) <= ours <= theirs * (1 + 1e-3)

    @pytest.mark.parametrize(("noise", "rate", "steps"), CASES[1:3])
    def test_prv_of_opacus(self, noise: float, rate: float, steps: int) -> None:
        # It returns an upper bound which exceeds the truth by at most twice its `eps_error`.
        accountant = PRVAccountant()
        accountant.history = [(noise, rate, steps)]
        upper = accountant.get_epsilon(DELTA, eps_error=2e-3)
        ours = epsilon(sgd(noise, rate, steps), DELTA).by_accountant["pld"]
        assert upper - 4.1e-3 <= ours <= upper + 1e-4

    def test_rdp_of_autodp(self) -> None:
        # autodp searches other orders: it was found 0.05 % above.
        mechanism = SubsampleGaussianMechanism({"prob": 0.02, "sigma": 1.0, "coeff": 500})
        ours = epsilon(sgd(1.0, 0.02, 500), DELTA).by_accountant["rdp"]
        assert mechanism.get_approxDP(DELTA) == pytest.approx(ours, rel=1e-3)


@pytest.mark.parametrize(
    "event",
    [
        sgd(2.0, 0.1, 50),
        compose(gaussian(5), laplace(9)),
        best_of(sgd(2.0, 0.1, 20), geometric(10)),
        non_private(),
    ],
)
def test_one_accountant_says_what_it_says_among_all(event: DpEvent) -> None:
    """To the last bit: a published ε is held against this."""
    for name, value in epsilon(event, DELTA).by_accountant.items():
        assert epsilon_by(event, DELTA, name) == value


def test_epsilon_and_risk_of_a_joint_search_compute_each_distribution_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed, repeated = [], distributions._repeated
    monkeypatch.setattr(distributions, "_repeated", lambda *asked: computed.append(asked) or repeated(*asked))
    branches = [repeat(poisson_sampled(0.01, gaussian(2 + index / 10)), 20) for index in range(10)]
    search = best_of(one_of(branches, [0.1] * 10), geometric(3))
    epsilon_by(compose(search, gaussian(7)), DELTA, "layer_cake")
    risk(compose(search, gaussian(7)), DELTA)
    assert len({event for event, *_ in computed}) == 11
    assert len(computed) == len({(event, count, interval) for event, count, interval in computed})
