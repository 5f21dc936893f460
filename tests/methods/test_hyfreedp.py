"""HyFreeDP with votes: what it releases, where it starts, and how its rule follows exact parabolas."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dphpo_bench as bench
from dphpo_bench.methods.hyfreedp import HyFreeDP
from dphpo_bench.recipes.optimizing import UpdateRule
from dphpo_bench.recipes.voted_training import VotedTraining, bearable
from dphpo_bench.recipes.voting import (
    BOLD,
    FALLBACK,
    HEAD,
    LARGEST,
    LEAST,
    LOOKS,
    QUIETEST,
    SMALLEST,
    WARM,
    VotingRule,
)
from tests.conftest import TinyTask, session_on

LIMITS = (1e-3, 1.0)


@pytest.mark.parametrize("probe_size", [1, 20])
def test_a_handful_of_voters_leaves_a_plan_and_takes_little(probe_size: int) -> None:
    """Whatever it does to their mean, the noise on a sum has to hide each of them; the looks ask more and see well."""
    checked = bench.plan(HyFreeDP(probe_size=probe_size), "digits", bench.PrivacyBudget(3, 1e-5))
    planned = checked.plan.parameters
    assert 0 < checked.tuning_share < 0.02
    assert planned.noise(planned.vote_rate) == pytest.approx(QUIETEST)
    assert planned.blur(planned.vote_rate) == pytest.approx(QUIETEST / probe_size)
    assert planned.blur(planned.look_rate) == planned.deviation < 0.05


def test_it_learns_where_the_untuned_rate_does_not(plain_run) -> None:
    tuned = plain_run(HyFreeDP()).record.metrics["accuracy"]
    untuned = plain_run(bench.make_method("auto_clipping", {"learning_rate": "1e-4"})).record.metrics["accuracy"]
    assert tuned > 0.75 > untuned


@pytest.mark.parametrize("best", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("wanted", [1.0, 2.0, 8.0])
def test_the_rate_goes_only_as_far_as_it_must(best: float, wanted: float) -> None:
    """After many probes of stretches whose best multiple is best / (learning rate)."""
    rule = VotingRule(0.1, LIMITS, 1e-6)
    for _ in range(200):
        curvature = 0.8 * rule.learning_rate / best
        rule.observe(0.8 + curvature / 2, 0.8 - curvature / 2, 8 / (8 + wanted))
    assert rule.learning_rate == pytest.approx(bench.recipes.clamp((best / wanted, best / LEAST), 0.1), rel=0.02)


@pytest.mark.parametrize(
    ("deviation", "last", "following", "done", "onward", "factor"),
    [
        (0.03, -0.3, -0.6, 0.5, 0.0, 1 / math.sqrt(2)),  # harm
        (0.03, 0.3, 0.29, 0.3, 0.0, math.sqrt(3)),  # a straight way down
        (0.03, -0.3, -0.6, 0.99 * WARM, 0.0, 1 / math.sqrt(2)),  # steps are smaller than the rate: it may fall only
        (0.03, 0.3, 0.29, 0.99 * WARM, 0.0, 1.0),
        # The best place lies at least 3.5 stretches ahead, and one is enough: what is found in the noise counts.
        (0.09, 0.9, 0.9, 0.9, 0.0, math.sqrt(0.9 / (2 * math.sqrt(2) * 0.09))),
        # The direction was wrong and not the length: one class is rare, or a run goes astray, and gradients point back.
        (0.02, -0.6, -0.7, 0.5, 1.0, 1.0),
        (0.02, -0.9, -1.0, 0.5, -9.0, 1.0),
        (0.02, -0.6, -0.7, 0.5, 3.0, math.sqrt(BOLD)),  # most lose, but the gradients point on
        (0.02, -0.6, -0.7, 0.99 * WARM, 3.0, 1.0),
    ],
)
def test_one_probe(deviation: float, last: float, following: float, done: float, onward: float, factor: float) -> None:
    rule = VotingRule(0.1, LIMITS, deviation)
    rule.observe(last, following, done, onward)
    assert rule.learning_rate == pytest.approx(0.1 * factor)


def looked_for(threshold: float, wrong: int | None = None) -> float:
    """What the looks find where the loss rises too much above a threshold; one of them may be told the contrary."""
    looks = iter(range(LOOKS))
    return bearable(lambda size: float((size > threshold) != (next(looks) == wrong)), 0.5)


@given(st.floats(1e-4, 20))
def test_looks_find_the_noise_that_weights_can_bear(threshold: float) -> None:
    assert abs(math.log(looked_for(threshold) / threshold)) < 0.31


@given(st.floats(2e-3, 1.5), st.integers(0, LOOKS - 1))
def test_no_look_decides_alone(threshold: float, wrong: int) -> None:
    assert abs(math.log(looked_for(threshold, wrong) / threshold)) < 0.75


@given(
    probes=st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50), st.floats(0.001, 0.999)), max_size=60),
    deviation=st.floats(1e-6, 10),
)
def test_no_released_value_leads_out_of_the_limits(probes: list[tuple[float, float, float]], deviation: float) -> None:
    rule = VotingRule(0.1, LIMITS, deviation)
    for last, following, done in probes:
        rule.observe(last, following, done)
        assert LIMITS[0] <= rule.learning_rate <= LIMITS[1]


class Scaled(nn.Module):
    """A linear model whose weights count `scale` times as much."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.scale = scale

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(inputs) * self.scale


def first_rule(model: nn.Module, deviation: float, kind: str = "classification") -> VotingRule:
    class Task(TinyTask):
        @property
        def facts(self) -> bench.TaskFacts:
            return replace(super().facts, kind=kind, error_bound=1.0 if kind == "regression" else None)

        def build_model(self) -> nn.Module:
            return model

    method, task = HyFreeDP(), Task()
    planned = replace(method.plan(task.facts, bench.PrivacyBudget(8.0, 1e-4)).parameters, deviation=deviation)
    session = session_on(task, task.load_train(bench.DataSource.resolve()))
    built = session.build_model()
    direction = [torch.ones_like(weight) for weight in built.parameters()]
    update = UpdateRule("AdamW", built.parameters())
    training = VotedTraining(planned, session, built, update, 1.0, is_regression=kind == "regression")
    return training.first_rule(direction)


def test_the_first_rate_is_what_the_initial_weights_bear() -> None:
    """Weights that count ten times as much bear a tenth of the noise."""
    once, ten_times = (first_rule(Scaled(scale), 1e-4).learning_rate for scale in (1.0, 10.0))
    assert once / ten_times == pytest.approx(10, rel=0.25)


@pytest.mark.parametrize(
    ("model", "kind", "first"),
    [
        (Scaled(1.0), "classification", HEAD),
        (Scaled(1.0), "regression", 1.0),
        (nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)), "classification", 1.0),
    ],
)
def test_where_the_budget_buys_no_look_the_rate_is_a_public_one(model: nn.Module, kind: str, first: float) -> None:
    rule = first_rule(model, 1e2, kind)
    assert rule.learning_rate == first * FALLBACK
    for _ in range(100):
        rule.observe(-1e6, -2e6, 0.5)
    assert rule.learning_rate == SMALLEST * FALLBACK
    for _ in range(200):
        rule.observe(1e6, 1e6, 0.5)
    assert rule.learning_rate == LARGEST * FALLBACK


class TwoLayers(TinyTask):
    """The blobs, by a network that first copies its inputs."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3))


def scaled(sure: float, deviation: float) -> float:
    """The scale that is found for the Bayes-optimal classifier with margins so many times too large."""
    method, task = HyFreeDP(), TwoLayers()
    planned = replace(method.plan(task.facts, bench.PrivacyBudget(8.0, 1e-4)).parameters, deviation=deviation)
    session = session_on(task, task.load_train(bench.DataSource.resolve()))
    model = session.build_model()
    copied, last = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
    with torch.no_grad():
        copied.weight.copy_(torch.eye(5))
        last.weight.copy_(2 * sure * torch.eye(3, 5))  # the difference of two centres: they have unit covariance
        copied.bias.zero_()
        last.bias.zero_()
    scale = VotedTraining(planned, session, model, UpdateRule("AdamW", model.parameters()), 1.0).scaled()
    assert torch.equal(copied.weight, torch.eye(5))
    assert last.weight[0, 0].item() == pytest.approx(2 * sure * scale, rel=1e-4)
    return scale


@pytest.mark.parametrize("sure", [0.3, 20.0])
def test_the_last_layer_is_scaled_until_it_is_as_sure_as_it_is_right(sure: float) -> None:
    assert abs(math.log(scaled(sure, 1e-4) * sure)) < 0.35


def test_where_the_budget_buys_no_look_it_is_not_scaled() -> None:
    assert scaled(20.0, 1e2) == 1
