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

from dphpo_bench.errors import InvalidValueError, UnsupportedEventError
from dphpo_bench.privacy.accountants import RDP_ORDERS, epsilon
from dphpo_bench.privacy.events import (
    compose,
    gaussian,
    laplace,
    no_op,
    non_private,
    poisson_sampled,
    repeat,
    repeat_and_select,
)

from . import contour

DELTA = 1e-5


def sgd(noise: float, rate: float, steps: int) -> DpEvent:
    return repeat(poisson_sampled(rate, gaussian(noise)), steps)


class Conformance:
    """What holds for every accountant and every event it supports."""

    accountant: str
    fresh: Callable[[], pld.PLDAccountant | rdp.RdpAccountant]

    def bound(self, event: DpEvent, coarseness: float = 4.0) -> float:
        return epsilon(event, DELTA, coarseness=coarseness).by_accountant[self.accountant]

    def test_a_count_is_as_much_as_a_list(self, leaf: Callable[[float], DpEvent]) -> None:
        # One by one through the library, since our own rewriting turns lists into counts. The two differ by
        # the grid and by the allowances for rounding.
        one_by_one = self.fresh()
        for _ in range(6):
            one_by_one.compose(leaf(2.0))
        counted = self.bound(repeat(repeat(leaf(2.0), 2), 3), coarseness=1)
        assert counted == pytest.approx(one_by_one.get_epsilon(DELTA), rel=2e-3)
        assert counted == self.bound(compose(*[leaf(2.0)] * 6), coarseness=1)

    def test_more_noise_costs_less(self, leaf: Callable[[float], DpEvent]) -> None:
        costs = [self.bound(repeat(leaf(noise), 5)) for noise in (0.8, 1.5, 6.0)]
        assert costs == sorted(costs, reverse=True)
        assert len(set(costs)) == len(costs)

    def test_more_releases_cost_more(self, leaf: Callable[[float], DpEvent]) -> None:
        costs = [self.bound(repeat(leaf(2.0), count)) for count in (1, 2, 50)]
        assert costs == sorted(costs)
        assert len(set(costs)) == len(costs)

    def test_integers_cost_the_same_as_floats(self, leaf: Callable[[float], DpEvent]) -> None:
        assert self.bound(leaf(2)) == self.bound(leaf(2.0))

    def test_nothing_adds_nothing_and_raw_access_adds_everything(self, leaf: Callable[[float], DpEvent]) -> None:
        event = repeat(leaf(2.0), 3)
        assert self.bound(compose(event, no_op(), repeat(leaf(1.0), 0))) == self.bound(event)
        assert self.bound(compose(event, non_private())) == math.inf

    def test_a_coarser_grid_never_costs_less(self, leaf: Callable[[float], DpEvent]) -> None:
        event = repeat(leaf(2.0), 30)
        assert self.bound(event, coarseness=10) >= self.bound(event, coarseness=1) * (1 - 1e-6)


class TestPld(Conformance):
    accountant = "pld"

    @staticmethod
    def fresh() -> pld.PLDAccountant:
        return pld.PLDAccountant(value_discretization_interval=1e-4)

    @pytest.fixture(
        params=[
            gaussian,
            laplace,
            lambda s: poisson_sampled(0.1, gaussian(s)),
            lambda s: poisson_sampled(0.1, laplace(s)),
        ],
        ids=["gaussian", "laplace", "sampled gaussian", "sampled laplace"],
    )
    def leaf(self, request: pytest.FixtureRequest) -> Callable[[float], DpEvent]:
        return request.param  # type: ignore[no-any-return]

    @pytest.mark.parametrize(
        ("event", "name"),
        [
            (repeat_and_select(gaussian(1), 10, 1), "RepeatAndSelectDpEvent of GaussianDpEvent"),
            (dp_event.RandomizedResponseDpEvent(0.5, 2), "RandomizedResponseDpEvent"),
        ],
    )
    def test_refuses_by_name(self, event: DpEvent, name: str) -> None:
        # Together with a Gaussian, so that the question is not settled by another rule.
        try:
            refused = epsilon(compose(event, gaussian(1)), DELTA).refused["pld"]
        except UnsupportedEventError as error:
            refused = str(error)
        assert f"does not support {name}" in refused

    def test_refuses_a_delta_it_cannot_resolve(self) -> None:
        report = epsilon(sgd(1.8786, 0.02, 500), 1e-14)
        assert "not accurate at delta=1e-14" in report.refused["pld"]
        assert report.quoted == "rdp"


class TestRdp(Conformance):
    accountant = "rdp"

    @staticmethod
    def fresh() -> rdp.RdpAccountant:
        return rdp.RdpAccountant(RDP_ORDERS)

    @pytest.fixture(
        params=[
            gaussian,
            laplace,
            lambda s: poisson_sampled(0.1, gaussian(s)),
            lambda s: repeat_and_select(poisson_sampled(0.1, gaussian(s)), 10, 1),
            lambda s: repeat_and_select(gaussian(s), 10, math.inf),
        ],
        ids=["gaussian", "laplace", "sampled gaussian", "best of geometric", "best of Poisson"],
    )
    def leaf(self, request: pytest.FixtureRequest) -> Callable[[float], DpEvent]:
        return request.param  # type: ignore[no-any-return]

    def test_refuses_by_name(self) -> None:
        refused = epsilon(compose(gaussian(1), poisson_sampled(0.1, laplace(1))), DELTA).refused
        assert refused == {"rdp": "does not support PoissonSampledDpEvent of LaplaceDpEvent"}


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

    @pytest.mark.parametrize(
        ("event", "name"),
        [
            (
                poisson_sampled(0.1, compose(gaussian(1), laplace(1))),
                "PoissonSampledDpEvent of GaussianDpEvent; LaplaceDpEvent",
            ),
            (dp_event.ZCDpEvent(0.1), "ZCDpEvent"),
            (dp_event.RandomizedResponseDpEvent(0.5, 2), "RandomizedResponseDpEvent"),
            (dp_event.UnsupportedDpEvent(), "UnsupportedDpEvent"),
            (
                poisson_sampled(0.1, poisson_sampled(0.1, gaussian(1))),
                "PoissonSampledDpEvent of PoissonSampledDpEvent",
            ),
        ],
    )
    def test_what_nobody_supports_is_refused_by_name(self, event: DpEvent, name: str) -> None:
        with pytest.raises(UnsupportedEventError, match=name):
            epsilon(event, DELTA)

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
    def test_bad_delta_is_refused(self, delta: float) -> None:
        with pytest.raises(InvalidValueError, match="Expected 0 < delta < 1"):
            epsilon(gaussian(1), delta)

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
            repeat(poisson_sampled(1e-9, gaussian(1e3)), 10**5),
            poisson_sampled(1 - 1e-12, gaussian(0.01)),
            repeat(poisson_sampled(0.5, laplace(0.01)), 10**5),
            repeat(poisson_sampled(0.5, gaussian(0.01)), 10**5),
            poisson_sampled(1e-300, gaussian(1e100)),
            laplace(1e100),
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

    def test_laplace_stays_below_pure_composition(self) -> None:
        report = epsilon(repeat(laplace(10), 7), DELTA)
        assert max(report.by_accountant.values()) <= 0.7 + 1e-6
        assert report.epsilon == pytest.approx(0.6987, rel=2e-3)  # docs/accounting.md, composition of 0.1-DP


class TestContour:
    """Against the contour integral of `contour.py`, which has no grid of losses."""

    # Where a record is in few batches, its loss is nearly discrete and the integral converges too slowly.
    @settings(derandomize=True, max_examples=6, deadline=None, phases=[Phase.generate])
    @given(st.floats(0.8, 4), st.floats(0.02, 0.3), st.integers(250, 2000))
    def test_pld_is_just_above_the_exact_value(self, noise: float, rate: float, steps: int) -> None:
        value = epsilon(sgd(noise, rate, steps), DELTA).epsilon
        assert contour.delta([(noise, rate, steps)], value) <= DELTA * (1 + 1e-4)
        # 0.2 % is what the grid may add where single steps are much smaller than the whole.
        assert contour.delta([(noise, rate, steps)], value * (1 - 2e-3)) >= DELTA

    @pytest.mark.parametrize("delta", [1e-9, 1e-11, 1e-12])
    def test_pld_stays_above_it_at_small_delta(self, delta: float) -> None:
        # Without the allowance for rounding in the Fourier transform, PLD falls below from 1e-11 on.
        steps = [(8.0, 0.1638, 293), (20.0, 0.08, 73)]
        event = compose(*(sgd(noise, rate, count) for noise, rate, count in steps))
        value = epsilon(event, delta).by_accountant["pld"]
        assert contour.delta(steps, value) <= delta * (1 + 1e-6)
        assert contour.delta(steps, value * (1 - 5e-3)) >= delta


class TestOtherLibraries:
    CASES = ((1.0, 0.02, 500), (0.8, 0.02, 500), (2.0, 0.02, 500), (4.0, 0.2, 250), (1.1, 256 / 60000, 3000))

    @pytest.mark.parametrize(("noise", "rate", "steps"), CASES)
    def test_rdp_of_opacus(self, noise: float, rate: float, steps: int) -> None:
        # The same orders and the same conversion. dp_accounting sums absolute values at fractional orders, so
        # ours may be above by up to 0.1 % at the best order, and never below.
        curve = opacus_rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=list(RDP_ORDERS))
        theirs, _ = opacus_rdp.get_privacy_spent(orders=list(RDP_ORDERS), rdp=curve, delta=DELTA)
        ours = epsilon(sgd(noise, rate, steps), DELTA).by_accountant["rdp"]
        assert theirs * (1 - 1e-6) <= ours <= theirs * (1 + 1e-3)

    @pytest.mark.parametrize(("noise", "rate", "steps"), CASES[1:4])
    def test_prv_of_opacus(self, noise: float, rate: float, steps: int) -> None:
        # It returns an upper bound which exceeds the truth by at most twice its `eps_error`.
        accountant = PRVAccountant()
        accountant.history = [(noise, rate, steps)]
        upper = accountant.get_epsilon(DELTA, eps_error=2e-3)
        ours = epsilon(sgd(noise, rate, steps), DELTA).by_accountant["pld"]
        assert upper - 4.1e-3 <= ours <= upper + 1e-4

    def test_prv_of_opacus_on_two_kinds_of_steps(self) -> None:
        accountant = PRVAccountant()
        accountant.history = [(1.5, 0.05, 200), (3.0, 0.02, 300)]
        upper = accountant.get_epsilon(DELTA, eps_error=2e-3)
        ours = epsilon(compose(sgd(1.5, 0.05, 200), sgd(3.0, 0.02, 300)), DELTA).by_accountant["pld"]
        assert upper - 4.1e-3 <= ours <= upper + 1e-4

    def test_rdp_of_autodp(self) -> None:
        # autodp searches other orders: it was found 0.05 % above.
        mechanism = SubsampleGaussianMechanism({"prob": 0.02, "sigma": 1.0, "coeff": 500})
        ours = epsilon(sgd(1.0, 0.02, 500), DELTA).by_accountant["rdp"]
        assert mechanism.get_approxDP(DELTA) == pytest.approx(ours, rel=1e-3)
