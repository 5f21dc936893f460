"""Objective and output perturbation as methods: λ, noise, what they refuse, and what their records leave out."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.methods.objective_perturbation import ObjectivePerturbation
from dphpo_bench.methods.output_perturbation import OutputPerturbation
from dphpo_bench.privacy import objective
from dphpo_bench.privacy.events import objective_perturbation
from tests.conftest import TinyTask, session_on

both = pytest.mark.parametrize("kind", [ObjectivePerturbation, OutputPerturbation])


@pytest.mark.parametrize(("task", "records", "squared_bound"), [("digits", 1438, 2), ("adult", 32561, 1)])
@pytest.mark.parametrize("epsilon", [0.1, 8.0])
def test_of_a_minimum_with_noise_one_gaussian_release_is_charged(
    task: str, records: int, squared_bound: int, epsilon: float
) -> None:
    """And λ³ is proportional to what the noise would cost at λ = 1."""
    budget = bench.PrivacyBudget(epsilon, 1e-5)
    plan = bench.plan("output_perturbation", task, budget).plan
    noise = bench.events.calibrate(bench.events.gaussian, budget)
    assert plan.event == plan.training_event == bench.events.gaussian(noise)
    assert plan.parameters.noise_multiplier == noise
    assert plan.parameters.regularisation**3 == pytest.approx(0.064 * records * squared_bound * noise**2)


@pytest.mark.parametrize("task", ["digits", "adult"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_determinant_takes_a_tenth_of_epsilon_by_default(task: str, epsilon: float) -> None:
    plan = bench.plan("objective_perturbation", task, bench.PrivacyBudget(epsilon, 1e-5)).plan
    outputs = 1 if task == "adult" else 10
    event: Any = objective_perturbation(plan.parameters.noise_multiplier, plan.parameters.regularisation, outputs)
    assert objective.log_determinant(event) == pytest.approx(epsilon / 10)
    assert plan.parameters.output_noise == 30 * plan.parameters.noise_multiplier


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_of_one_output_the_noise_is_that_of_one_gaussian_release(epsilon: float) -> None:
    """The noise on the weights aside, which takes a thousandth of μ²."""
    budget = bench.PrivacyBudget(epsilon, 1e-5)
    noise = bench.plan("objective_perturbation", "adult", budget).plan.parameters.noise_multiplier
    assert noise == pytest.approx(bench.events.calibrate(bench.events.gaussian, budget), rel=2e-3)


@both
def test_the_norm_of_inputs_scales_the_weights_and_nothing_else(kind: Any) -> None:
    records, budget = TinyTask()._split(600, 1), bench.PrivacyBudget(3, 1e-5)
    states = []
    for norm in (None, 1.0, 7.0):
        method = kind(input_norm=norm)
        outcome = method.run(method.plan(TinyTask().facts, budget), session_on(TinyTask(), records))
        states.append(torch.cat([value.flatten() for value in outcome.model.state_dict().values()]))
    assert states[0] * math.sqrt(6) == pytest.approx(states[1], rel=1e-5)
    assert states[2] * 7 == pytest.approx(states[1], rel=1e-5)


@both
@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("diabetes", "kind 'regression'"),
        (TinyTask("mlp"), "got model mlp of task tiny"),
    ],
)
def test_other_tasks_and_models_are_refused_before_data_are_read(task: Any, reason: str, kind: Any) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match=reason) as error:
        bench.plan(kind(), task, bench.PrivacyBudget(1, 1e-5))
    assert "\n" not in str(error.value)


@both
def test_units_of_several_records_are_refused(kind: Any) -> None:
    facts = replace(TinyTask().facts, unit="patient")
    with pytest.raises(bench.errors.InvalidValueError, match=f"unit 'patient': {kind.name} has"):
        kind().plan(facts, bench.PrivacyBudget(1, 1e-5))


def test_secure_noise_is_refused_before_data_are_read() -> None:
    with pytest.raises(bench.errors.InvalidValueError, match="noise on a grid has none"):
        bench.run(
            ObjectivePerturbation(),
            TinyTask(),
            bench.PrivacyBudget(1, 1e-5),
            execution=bench.ExecutionOptions(secure_noise=True),
        )


@both
def test_how_long_the_solver_took_is_not_in_the_record(kind: Any) -> None:
    """It depends on the records."""
    budget = bench.PrivacyBudget(3, 1e-5)
    record = bench.run(kind(), TinyTask(), budget).record
    assert "train" not in record.seconds
    assert record.peak_memory_bytes is None
    assert (record.created.hour, record.created.minute, record.created.second) == (0, 0, 0)
    assert "train" in bench.run(kind(), TinyTask(), budget, seed=0).record.seconds
    assert math.isfinite(record.metrics["accuracy"])
