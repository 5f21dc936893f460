"""The steps of `hyfreedp` 12: how long they may be, when the rate grows, and the scale of the last layer."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.recipes import tuned_training
from dphpo_bench.recipes.noise_law import Looked, dummy_weights
from dphpo_bench.recipes.tuned_training import FASTEST, FASTEST_REGRESSION, GROWTH, LIMIT, TIMES, TunedTraining, descent
from dphpo_bench.training.optimizers import UpdateRule
from tests.conftest import TinyTask, session_on

STEPS, RATE, NOISE = 100, 0.1, 0.5
PLANNED = Looked(0.1, STEPS, 30.0, 600, 0.8, 1e-6, 8, False, "SGD")


def training_on(task: TinyTask, planned: Looked, momentum: float = 0.9) -> TunedTraining:
    session = session_on(task, task.load_train(bench.DataSource.resolve()))
    model = session.build_model()
    update, alike = (
        UpdateRule("SGD", weights, {"momentum": momentum}) for weights in (model.parameters(), dummy_weights(model))
    )
    return TunedTraining(planned, session, model, update, alike, NOISE)


@pytest.fixture
def at_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_training, "first_rate", lambda *_: RATE)


def weights_of(training: TunedTraining) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in training.model.parameters()]


@pytest.mark.usefixtures("at_a_rate")
@pytest.mark.parametrize(("size", "moved"), [(1e6, LIMIT * NOISE), (LIMIT * NOISE / 2, LIMIT * NOISE / 2)])
def test_a_step_is_no_longer_than_some_of_pure_noise(size: float, moved: float) -> None:
    """The length of a step of noise is that of a thousand numbers, good to 2.2 %; no limit touches an ordinary one."""
    training = training_on(TinyTask(), PLANNED, momentum=0.0)
    before = weights_of(training)
    training.step(0, [torch.full_like(weight, size) for weight in before])
    tolerance = 0.1 if size > 1e5 else 1e-4
    for start, end in zip(before, weights_of(training), strict=True):
        torch.testing.assert_close(start - end, torch.full_like(start, RATE * moved), rtol=tolerance, atol=1e-6)


class Network(TinyTask):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("task", "regression", "longest"),
    [
        (Network(), False, FASTEST),
        (Network(), True, FASTEST_REGRESSION),
        (TinyTask(), True, FASTEST_REGRESSION),
        (TinyTask(), False, math.inf),
    ],
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_first_rate_has_a_limit_but_for_linear_classifiers(
    task: TinyTask, regression: bool, longest: float, momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit, clipped gradients that all point the same way move the weights by so much in the last step."""
    monkeypatch.setattr(tuned_training, "first_rate", lambda *_: 100.0)
    planned = replace(PLANNED, regression=regression, scalings=0)
    training = training_on(task, planned, momentum)
    training.step(0, [torch.zeros_like(weight) for weight in weights_of(training)])
    clipped = NOISE * planned.batch_size / planned.noise_multiplier
    gain = (1 - momentum**STEPS) / (1 - momentum)
    assert training.learning_rate == pytest.approx(min(100.0, longest / (clipped * gain)), rel=1e-3)


def rates(gradients: float, *, regression: bool) -> list[float]:
    """Return the rate after each step of gradients that always point the same way, so long."""
    training = training_on(TinyTask(), replace(PLANNED, regression=regression, scalings=0))
    after = []
    for step in range(STEPS):
        training.step(step, [torch.full_like(weight, gradients) for weight in weights_of(training)])
        after.append(training.learning_rate)
    return after


@pytest.mark.usefixtures("at_a_rate")
def test_in_a_regression_the_rate_grows_where_gradients_point_on() -> None:
    after = rates(-10 * NOISE, regression=True)
    factors = [later / before for before, later in pairwise(after) if later != before]
    assert factors == pytest.approx([GROWTH] * (TIMES - 1))
    assert after[-1] == pytest.approx(RATE * GROWTH ** (TIMES - 1))


@pytest.mark.usefixtures("at_a_rate")
@pytest.mark.parametrize(("size", "regression"), [(0.01 * NOISE, True), (10 * NOISE, False)])
def test_the_rate_stays_where_they_are_not_heard_and_in_a_classification(size: float, regression: bool) -> None:
    assert set(rates(-size, regression=regression)) == {RATE}


@pytest.mark.usefixtures("at_a_rate")
def test_the_rate_never_falls() -> None:
    """Gradients that point back at the average of the weights, by far more than their noise, in each step."""
    training = training_on(TinyTask(), replace(PLANNED, regression=True, scalings=0))
    for step in range(STEPS):
        training.step(step, [10 * NOISE * (-1) ** step * torch.ones_like(weight) for weight in weights_of(training)])
    heard = [line["onward"] for line in training.path]
    assert min(heard) < -tuned_training.HEARD
    assert training.learning_rate >= RATE
    grown = [RATE, *(line["learning_rate"] for line in training.path)]
    assert grown == sorted(grown)


def test_descent_is_along_a_path_of_length_one() -> None:
    gradient, way = [torch.tensor([3.0, 1.0]), torch.tensor([2.0])], [torch.tensor([0.0, -3.0]), torch.tensor([4.0])]
    assert descent(gradient, way) == pytest.approx((1 * 3 - 2 * 4) / 5)
    assert descent(gradient, [torch.zeros(2), torch.zeros(1)]) == 0


class TwoLayers(TinyTask):
    """The blobs, by a network that first copies its inputs."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3))


def scaled(sure: float, look_noise: float) -> float:
    """The scale that is found for the Bayes-optimal classifier with margins so many times too large."""
    training: Any = training_on(TwoLayers(), replace(PLANNED, look_noise=look_noise))
    copied, last = training.model
    with torch.no_grad():
        copied.weight.copy_(torch.eye(5))
        last.weight.copy_(2 * sure * torch.eye(3, 5))  # the difference of two centres: they have unit covariance
        copied.bias.zero_()
        last.bias.zero_()
    scale = training.scaled()
    assert torch.equal(copied.weight, torch.eye(5))
    assert last.weight[0, 0].item() == pytest.approx(2 * sure * scale, rel=1e-4)
    return float(scale)


@pytest.mark.parametrize("sure", [0.3, 5.0])
def test_the_last_layer_is_scaled_until_it_is_as_sure_as_it_is_right(sure: float) -> None:
    assert abs(math.log(scaled(sure, 1e-4) * sure)) < 0.35


@pytest.mark.parametrize(("deviations", "moves"), [(1.9, False), (2.1, True)])
def test_a_change_within_two_deviations_of_the_noise_does_not_scale(
    deviations: float, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = replace(PLANNED, look_noise=3.0)
    change = deviations * tuned_training.BOUND * planned.deviation
    monkeypatch.setattr(tuned_training, "mean_loss_changes", lambda *_: [change])
    training = training_on(TinyTask(), planned)
    before = weights_of(training)
    scale = training.scaled()
    assert (scale > 1) == moves
    for start, end in zip(before, weights_of(training), strict=True):
        torch.testing.assert_close(end, start * scale, rtol=1e-4, atol=1e-6)


def test_a_regression_is_not_scaled() -> None:
    assert training_on(TinyTask(), replace(PLANNED, regression=True, scalings=0)).scaled() == 1
