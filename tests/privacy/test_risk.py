"""Risk of events against closed forms, other libraries and attacks on finite mechanisms."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from gdpnum import PLDConverter
from riskcal.analysis import get_advantage_from_pld, get_beta_from_pld
from scipy.stats import norm

from dphpo_bench.base.errors import InvalidValueError, UnsupportedEventError
from dphpo_bench.privacy import events
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.risk import Risk, risk, risk_of_point, worst
from dphpo_bench.privacy.run_counts import Binomial, Poisson, TruncatedNegativeBinomial, UniformCount, geometric
from tests.privacy import brute_force
from tests.privacy.brute_force import Pair
from tests.privacy.test_tradeoff import most_hits

DELTA = 1e-5
TRAINING = events.repeat(events.poisson_sampled(0.02, events.gaussian(1.8786)), 500)  # ε = 1


def gaussian_risk(mu: float) -> Risk:
    hits = [float(norm.sf(norm.isf(alarms) - mu)) for alarms in (0.01, 0.001)]
    return Risk(2 * float(norm.cdf(mu / 2)) - 1, *hits, mu, 0.0)


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 2.5, 6.0])
def test_a_gaussian_has_the_closed_form(mu: float) -> None:
    found = risk(events.gaussian(1 / mu), DELTA)
    assert astuple(found) == pytest.approx(astuple(gaussian_risk(mu)), abs=1e-6)
    assert all(one >= exact - 1e-12 for one, exact in zip(astuple(found), astuple(gaussian_risk(mu)), strict=True))


@pytest.mark.parametrize("size", [0.1, 1.0, 3.0])
def test_pure_dp_has_the_closed_form(size: float) -> None:
    found = risk(events.pure_dp(size), DELTA)
    assert found.advantage == pytest.approx(math.tanh(size / 2), abs=1e-6)
    assert found.tpr_at_1pct == pytest.approx(0.01 * math.exp(size), abs=1e-6)
    assert found.tpr_at_01pct == pytest.approx(0.001 * math.exp(size), abs=1e-6)
    # Randomised response has one vertex, on the diagonal of equal errors.
    assert found.mu == pytest.approx(2 * norm.isf(1 / (1 + math.exp(size))), rel=1e-4)


SAMPLED = [(0.02, 1.8786, 500), (0.1258, 1.2, 159), (0.001, 0.7, 1000), (1.0, 20.0, 100)]


def distribution_of(rate: float, noise: float, steps: int, interval: float) -> PrivacyLossDistribution:
    accountant = PLDAccountant(value_discretization_interval=interval)
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    return accountant._pld


def sampled_risk(rate: float, noise: float, steps: int) -> Risk:
    return risk(events.repeat(events.poisson_sampled(rate, events.gaussian(noise)), steps), DELTA)


@pytest.mark.parametrize(("rate", "noise", "steps"), SAMPLED)
def test_agrees_with_gdpnum_and_riskcal(rate: float, noise: float, steps: int) -> None:
    # On finer grids than 1e-3 both lose tails, and tell fewer hits than there are; below 1e-5 fewer than by chance.
    distribution = distribution_of(rate, noise, steps, 1e-3)
    converter, found = PLDConverter(distribution), sampled_risk(rate, noise, steps)
    assert found.advantage == pytest.approx(get_advantage_from_pld(distribution), rel=2e-2)
    theirs = 1 - np.asarray(get_beta_from_pld(distribution, alpha=np.array([0.001, 0.01])))
    assert found.tpr_at_01pct == pytest.approx(theirs[0], rel=2e-3)
    assert found.tpr_at_1pct == pytest.approx(theirs[1], rel=2e-3)
    assert found.tpr_at_1pct == pytest.approx(1 - converter.get_beta(0.01), rel=2e-3)
    mu, fit = converter.get_mu_and_regret(err=DELTA)  # of breakpoints alone, the last of which is well within δ
    assert mu * 0.999 <= found.mu <= mu * 1.03
    assert found.mu_fit == pytest.approx(fit, abs=2e-3)


@pytest.mark.parametrize(
    "runs", [TruncatedNegativeBinomial(6, 0), geometric(20), Poisson(4), Binomial(4, 8), UniformCount(1, 9)]
)
@pytest.mark.parametrize("size", [0.2, 1.0])
def test_no_attack_on_the_best_of_several_runs_exceeds_its_risk(
    size: float, runs: TruncatedNegativeBinomial | Poisson | Binomial | UniformCount
) -> None:
    keep = math.exp(size) / (1 + math.exp(size))
    base = Pair(np.array([1 - keep, keep]), np.array([keep, 1 - keep]))
    select = brute_force.best_of(runs)
    found = risk(events.best_of(events.pure_dp(size), runs), DELTA)
    fine = np.linspace(0, 1, 1001)
    for pair in (base.map(select), base.map(select).reversed()):
        assert np.max(most_hits(pair, fine) - fine) <= found.advantage + 1e-12
        hits = most_hits(pair, np.array([0.001, 0.01]))
        assert hits[0] <= found.tpr_at_01pct + 1e-12
        assert hits[1] <= found.tpr_at_1pct + 1e-12


@pytest.mark.parametrize(
    "event",
    [
        events.best_of(TRAINING, TruncatedNegativeBinomial(10, 0)),
        events.best_of(TRAINING, Poisson(10)),
        events.threshold_search(TRAINING, 0.1),
        events.compose(events.best_of(TRAINING, geometric(10)), events.gaussian(5.0)),
        events.poisson_sampled(0.2, events.best_of(events.gaussian(2.0), geometric(10))),
        events.one_of([TRAINING, events.gaussian(3.0)]),
        TRAINING,
    ],
)
def test_the_curve_is_at_least_as_good_as_every_quoted_point(event: dp_event.DpEvent) -> None:
    found = risk(event, DELTA)
    for bound in epsilon(event, DELTA).by_accountant.values():
        point = risk_of_point(bound, DELTA)
        assert found.advantage <= point.advantage
        assert found.tpr_at_1pct <= point.tpr_at_1pct
        assert found.tpr_at_01pct <= point.tpr_at_01pct
        assert found.mu <= point.mu * (1 + 1e-6)


def test_the_worst_part_counts() -> None:
    less, more = events.gaussian(3.0), events.gaussian(1.5)
    both = events.compose(events.on_part("split", "valid", less), events.on_part("split", "train", more))
    assert risk(both, DELTA) == risk(more, DELTA)
    assert worst([risk(less, DELTA), risk(more, DELTA)]) == risk(more, DELTA)


def test_nothing_released_and_nothing_kept_secret() -> None:
    assert risk(events.no_op(), DELTA) == Risk(0.0, 0.01, 0.001, 0.0, 0.0)
    assert risk(events.compose(TRAINING, events.non_private()), DELTA) == Risk(1.0, 1.0, 1.0, math.inf, 0.0)


def test_delta_far_below_rounding_is_still_bounded() -> None:
    found = risk(TRAINING, 1e-18)
    usual = risk(TRAINING, DELTA)
    assert (found.advantage, found.tpr_at_1pct) == pytest.approx((usual.advantage, usual.tpr_at_1pct), rel=1e-3)
    assert usual.mu < found.mu < math.inf


def test_what_no_accountant_bounds_is_refused() -> None:
    with pytest.raises(UnsupportedEventError):
        risk(dp_event.UnsupportedDpEvent(), DELTA)
    with pytest.raises(InvalidValueError):
        risk(TRAINING, 1.0)
