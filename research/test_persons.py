"""The noise of research/persons.py: one record a person is the sampled Gaussian; two, by a sum over a fine grid."""

import numpy as np
import pytest
from scipy.stats import binom, norm

import dphpo_bench as bench
from research.persons import by_record, noise_by_record


def test_a_person_with_one_record_has_the_event_of_the_harness() -> None:
    budget = bench.PrivacyBudget(3.0, 1e-4)
    event = bench.recipes.dp_sgd_event(0.25, 48, noise := noise_by_record(budget, 1, 0.25, 48))
    assert bench.events.epsilon(event, budget.delta).epsilon == pytest.approx(budget.epsilon, rel=2e-3)
    assert by_record(noise, 1, 0.25, 48).get_epsilon_for_delta(budget.delta) <= budget.epsilon


@pytest.mark.parametrize(("noise", "most", "rate"), [(1.3, 2, 0.25), (2.0, 3, 0.5)])
@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_a_step_by_integration(noise: float, most: int, rate: float, epsilon: float) -> None:
    x = np.linspace(-12 * noise, most + 12 * noise, 400_001)
    chances = binom.pmf(range(most + 1), most, rate)
    there = sum(chance * norm.pdf(x, moved, noise) for moved, chance in enumerate(chances))
    without = norm.pdf(x, 0, noise)
    ways = [np.maximum(p - np.exp(epsilon) * q, 0).sum() for p, q in ((there, without), (without, there))]
    delta = max(ways) * (x[1] - x[0])
    assert delta * (1 - 1e-7) <= by_record(noise, most, rate, 1).get_delta_for_epsilon(epsilon) <= delta * 1.001
