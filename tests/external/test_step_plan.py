import math
from collections import Counter

import dp_accounting as dpa
import pytest
from dp_accounting import pld
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from dphpo_bench.base.errors import BudgetTooSmallError, InvalidValueError
from dphpo_bench.external import step_plan
from dphpo_bench.external.step_plan import MAX_LEVELS, NoiseSchedule, event_of, most_steps
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import dp_sgd_event


def pld_epsilon(event: dpa.DpEvent, delta: float) -> float:
    return float(pld.PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon(delta))


@pytest.mark.parametrize(
    ("rate", "noise", "budget"),
    [(0.02, 1.0, 2.7734), (0.25, 1.0, 8.0), (0.25, 2.0, 3.0), (1.0, 10.0, 2.0), (0.004, 1.1, 1.0), (0.001, 0.8, 2.5)],
)
def test_the_last_step_that_fits_is_taken_and_the_next_is_not(rate: float, noise: float, budget: float) -> None:
    most = most_steps(lambda steps: dp_sgd_event(rate, steps, noise), PrivacyBudget(budget, 1e-5), 10**9)
    within, beyond = (pld_epsilon(dp_sgd_event(rate, steps, noise), 1e-5) for steps in (most, math.ceil(1.01 * most)))
    assert within <= budget + 1e-3 < beyond + 2e-3  # two discretizations
    assert epsilon(dp_sgd_event(rate, most, noise), 1e-5).epsilon <= budget
    assert epsilon(dp_sgd_event(rate, most + 1, noise), 1e-5).epsilon > budget


@settings(max_examples=15, deadline=None)
@given(st.floats(0.001, 1.0), st.floats(0.4, 8.0), st.floats(0.1, 10.0), st.integers(1, 10**6))
def test_any_budget_is_kept_and_spent(rate: float, noise: float, target: float, limit: int) -> None:
    budget = PrivacyBudget(target, 1e-5)

    def spent(steps: int) -> float:
        return epsilon(dp_sgd_event(rate, steps, noise), budget.delta).epsilon

    try:
        most = most_steps(lambda steps: dp_sgd_event(rate, steps, noise), budget, limit)
    except BudgetTooSmallError:
        assert spent(1) > target
    else:
        assert 1 <= most <= limit
        assert spent(most) <= target
        assert most == limit or spent(most + 1) > target


@settings(max_examples=12, deadline=None)
@given(st.floats(0.01, 1.0), st.floats(0.4, 4.0), st.floats(0.01, 1.0), st.floats(1.0, 3.0), st.integers(1, 8))
def test_more_noise_and_smaller_batches_are_covered_at_every_delta(
    rate: float, noise: float, share: float, factor: float, others: int
) -> None:
    def curve(rate: float, noise: float) -> privacy_loss_distribution.PrivacyLossDistribution:
        one = privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=1e-3
        )
        return one.compose(beside)

    beside = privacy_loss_distribution.from_gaussian_mechanism(
        2.0, sampling_prob=0.5, value_discretization_interval=1e-3
    ).self_compose(others)
    epsilons = [0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0]
    covered, planned = curve(rate * share, noise * factor), curve(rate, noise)
    for less, more in zip(
        covered.get_delta_for_epsilon(epsilons), planned.get_delta_for_epsilon(epsilons), strict=True
    ):
        assert less <= more + 1e-6  # rounding of the grids


def test_epsilon_is_computed_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def event(steps: int) -> dpa.DpEvent:
        asked.append(steps)
        return dp_sgd_event(0.001, steps, 0.8)

    slow = 0

    def counted(event: dpa.DpEvent, delta: float, **how: object) -> object:
        nonlocal slow
        slow += how.get("accountant") is None
        return epsilon(event, delta, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(step_plan, "epsilon", counted)
    most_steps(event, PrivacyBudget(2.5, 1e-5), 10**9)
    assert slow <= 12


def test_a_single_step_beyond_the_budget_is_refused() -> None:
    with pytest.raises(BudgetTooSmallError, match=r"No step fits epsilon=0\.01 .* 1 step it is"):
        most_steps(lambda steps: dp_sgd_event(0.25, steps, 0.5), PrivacyBudget(0.01, 1e-5), 100)


def test_a_schedule_is_composed_step_by_step() -> None:
    schedule = NoiseSchedule(lambda step: 2.0 if step < 10 else 1.0, 30)
    assert list(schedule.first(5, 0.1).values()) == [5]
    assert list(schedule.first(25, 0.1).values()) == [10, 15]
    assert [schedule.at(step) for step in (0, 9, 10, 29, 99)] == pytest.approx([2.0, 2.0, 1.0, 1.0, 1.0], rel=1e-8)
    assert schedule.at(0) < 2.0  # a scheduler may round otherwise
    event = event_of(schedule.first(25, 0.1))
    exact = pld_epsilon(
        dpa.ComposedDpEvent([dp_sgd_event(0.1, 10, 2.0), dp_sgd_event(0.1, 15, 1.0)]),
        1e-5,
    )
    assert epsilon(event, 1e-5).epsilon == pytest.approx(exact, abs=2e-3)


def test_a_schedule_refuses_no_noise_and_too_many_levels() -> None:
    for noise in (0, -1.0, math.nan, True, "1"):
        with pytest.raises(InvalidValueError, match=r"noise_multiplier > 0, got noise_multiplier="):
            NoiseSchedule(noise, 10)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match=r"noise_multiplier\(3\)=0"):
        NoiseSchedule(lambda step: float(step != 3), 10)
    with pytest.raises(InvalidValueError, match="Declare a staircase"):
        NoiseSchedule(lambda step: 1 + step / 1000, MAX_LEVELS + 1)
    with pytest.raises(InvalidValueError, match="max_steps"):
        NoiseSchedule(lambda _: 1.0, 10**9)


def test_the_event_does_not_depend_on_the_order() -> None:
    pairs = [((0.1, 1.0), 3), ((0.2, 1.0), 4), ((0.1, 2.0), 5)]
    assert event_of(Counter(dict(pairs))) == event_of(Counter(dict(reversed(pairs))))
