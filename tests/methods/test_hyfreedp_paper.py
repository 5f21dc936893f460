"""HyFreeDP as published: what it costs, against published analysis; how its rules behave, against exact parabolas."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dphpo_bench as bench
from dphpo_bench.methods.hyfreedp_paper import HyFreeDPPaper
from dphpo_bench.recipes.probed_training import Probed
from tests.conftest import TinyTask, session_on

RULES = HyFreeDPPaper.rules


# The setting of the table in docs/accounting.md.
FACTS = bench.TaskFacts(
    "table", "none", 50_000, bench.recipes.Input((1,)), 1000, 10, "SGD", learning_rate=1.0, n_classes=2
)


@pytest.mark.parametrize(
    ("epsilon", "interval", "loss_batch", "loss_noise"),
    [
        (3, 5, "same", 5.592),
        pytest.param(1, 10, "fresh", 5.983, marks=pytest.mark.slow),
        (8, 5, "fresh", 1.397),
    ],
)
def test_loss_noise_of_the_joint_analysis(epsilon: float, interval: int, loss_batch: str, loss_noise: float) -> None:
    """Computed beforehand with another accountant, for γ = 1.01.

    What is left for the losses is 1 % of the noise of the gradients, so an error of 1e-4 in that noise, which is
    calibrated roughly, becomes 1 % here.
    """
    method = HyFreeDPPaper(update_interval=interval, loss_batch=loss_batch, noise_inflation=1.01)  # type: ignore[arg-type]
    plan = method.plan(FACTS, bench.PrivacyBudget(epsilon, 1e-5))
    assert FACTS.steps == 500
    assert plan.parameters.probes == 500 // interval
    assert plan.parameters.loss_noise_multiplier == pytest.approx(loss_noise, rel=0.02)


@pytest.mark.parametrize(
    ("model", "set_rate", "first"),
    [
        ("linear", {}, 1e-4),
        ("lora", {}, 1e-3),
        ("gpt2_lora", {}, 1e-3),
        ("explorations", {}, 1e-4),
        ("lora", {"initial_learning_rate": 3e-4}, 3e-4),
    ],
)
def test_the_default_first_rate_is_ten_times_higher_on_lora(
    model: str, set_rate: dict[str, float], first: float
) -> None:
    """Section 5.2 of the paper."""
    assert HyFreeDPPaper(**set_rate).first_rate(replace(FACTS, model=model)) == pytest.approx(first)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rule", "interval"), [("paper", 1), ("paper", 2), ("gen", 2)])
def test_the_paper_is_algorithm_1(rule: str, interval: int) -> None:
    """Against its lines, written down again, on full batches and without noise."""
    # Not from 1e-4: second differences of losses in float32 would be rounding.
    start_rate = 0.05
    method = HyFreeDPPaper(rule=rule, update_interval=interval, initial_learning_rate=start_rate)  # type: ignore[arg-type]
    task = TinyTask()
    records, steps = task.load_train(None), 6  # type: ignore[arg-type]
    planned = Probed(1.0, steps, 0.0, 0.0, 1.01, 3, "AdamW")
    event, budget = bench.recipes.dp_sgd_event(1.0, steps, 0.0), bench.PrivacyBudget(3, 1e-4)
    outcome = method.run(
        bench.Plan(budget, event, event, planned, (), bench.Cost(1, 6, 1.0)), session_on(task, records)
    )

    start = session_on(task, records).build_model()
    x = torch.cat([records.inputs, torch.ones(600, 1)], dim=1).double()
    y = torch.nn.functional.one_hot(records.targets, 3).double()
    w = torch.cat([start.weight, start.bias[:, None]], dim=1).detach().double()
    first = second = torch.zeros_like(w)
    eta, bound = start_rate, 1.0
    for t in range(steps):
        per_record = torch.einsum("nc,nd->ncd", torch.softmax(x @ w.T, 1) - y, x)
        factor = 1 / (per_record.flatten(1).norm(dim=1) + 0.01)
        g = torch.einsum("n,ncd->cd", factor, per_record) / 600
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
        away = (first / (1 - 0.9 ** (t + 1))) / ((second / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8)
        direction = away + 0.01 * w
        if t % interval == 0:
            behind, here, ahead = (
                float((-(y * torch.log_softmax(x @ (w - h * direction).T, 1)).sum(1)).clamp(0, bound).mean())
                for h in (-eta, 0.0, eta)
            )
            slope, curvature = (behind - ahead) / (2 * eta), (behind + ahead - 2 * here) / eta**2
            if slope > 0 and curvature > 0:
                best = slope / curvature
                eta = best if rule == "paper" else 0.9 * eta + 0.1 * min(max(best, eta / 2), 2 * eta)
            bound = behind + here + ahead
        w = w - eta * direction
    end = torch.cat([outcome.model.weight, outcome.model.bias[:, None]], dim=1).detach().double()
    assert outcome.released["learning_rate"] == pytest.approx(eta, rel=1e-3)
    assert torch.allclose(end, w, atol=1e-3 * float(w.abs().max()))


@pytest.mark.parametrize("name", list(RULES))
@given(
    probes=st.lists(st.tuples(*[st.floats(-20, 20)] * 3), max_size=40),
    deviation=st.floats(1e-6, 10),
)
def test_no_released_value_breaks_a_rule(name: str, probes: list[tuple[float, ...]], deviation: float) -> None:
    rule = RULES[name](1e-4, 1.0)
    for values in probes:
        rule.observe(values[: len(rule.offsets)], deviation)
        assert 0 < rule.learning_rate < math.inf
        assert 0 < rule.radius < math.inf
        assert 0.05 <= rule.bound <= 100
