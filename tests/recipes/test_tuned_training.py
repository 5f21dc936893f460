"""The steps of `hyfreedp` 13: one rate from the first step on, and the scale of the last layer."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.recipes import tuned_training
from dphpo_bench.recipes.noise_law import Looked, dummy_weights
from dphpo_bench.recipes.tuned_training import TunedTraining
from dphpo_bench.training.optimizers import UpdateRule
from tests.conftest import TinyTask, session_on

STEPS, NOISE = 100, 0.5
PLANNED = Looked(0.1, STEPS, 30.0, 600, 0.8, 1e-6, 8, False, "SGD")


def training_on(task: TinyTask, planned: Looked, momentum: float = 0.9) -> TunedTraining:
    session = session_on(task, task.load_train(bench.DataSource.resolve()))
    model = session.build_model()
    update, alike = (
        UpdateRule("SGD", weights, {"momentum": momentum}) for weights in (model.parameters(), dummy_weights(model))
    )
    return TunedTraining(planned, session, model, update, alike, NOISE)


def weights_of(training: TunedTraining) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in training.model.parameters()]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_rate_is_found_once_from_noise_and_pace(momentum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of a whole run is that of a thousand numbers, good to 2.2 %; the pace is exact."""
    asked: list[float] = []

    def first_rate(*arguments: Any) -> float:
        asked.extend(arguments[3:])
        return 0.25

    monkeypatch.setattr(tuned_training, "first_rate", first_rate)
    training = training_on(TinyTask(), PLANNED, momentum)
    assert math.isnan(training.learning_rate)
    start = weights_of(training)
    for _ in range(2):
        training.step([torch.ones_like(weight) for weight in start])
    for before, after in zip(start, weights_of(training), strict=True):
        torch.testing.assert_close(before - after, torch.full_like(before, 0.25 * (2 + momentum)))
    assert training.learning_rate == 0.25
    gains = [(1 - momentum**k) / (1 - momentum) for k in range(1, STEPS + 1)]
    clipped = NOISE * PLANNED.batch_size / PLANNED.noise_multiplier
    assert asked[0] == pytest.approx(NOISE * math.sqrt(sum(gain**2 for gain in gains)), rel=0.1)
    assert asked[1:] == [pytest.approx(clipped * gains[-1], rel=1e-3)]


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
    scale = training._scaled()
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
    scale = training._scaled()
    assert (scale > 1) == moves
    for start, end in zip(before, weights_of(training), strict=True):
        torch.testing.assert_close(end, start * scale, rtol=1e-4, atol=1e-6)


def test_a_regression_is_not_scaled() -> None:
    assert "scale" not in training_on(TinyTask(), replace(PLANNED, regression=True, scalings=0)).results()
