"""Weights and scores of rare classes, by declared shares."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor, nn

from dphpo_bench.base.tensors import Records
from dphpo_bench.training.clipping import Abadi, AutoS, Clipping
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.losses import Objective, PerRecord, cross_entropy
from dphpo_bench.training.rare_classes import ClassWeighted, balanced_probability, balanced_right, class_weights
from dphpo_bench.training.units import Units
from dphpo_bench.training.values import Query, total_score

SHARES = (0.62, 0.31, 0.07)
SCORES = {
    "right": balanced_right,
    "probability": balanced_probability,
    "probability, weighted losses": lambda shares: balanced_probability(shares, weighted_losses=True),
}
FORMS = ("classes", "margins", "column of margins")


def some(form: str, n: int, size: float, seed: int) -> tuple[Tensor, Tensor, tuple[float, ...]]:
    """Outputs, some of them not finite, and targets of n records, with the shares."""
    generator = torch.Generator().manual_seed(seed)
    k = 3 if form == "classes" else 2
    shape = {"classes": (n, 3), "margins": (n,), "column of margins": (n, 1)}[form]
    outputs = size * torch.randn(shape, generator=generator)
    outputs[torch.rand(shape, generator=generator) < 0.05] = [math.inf, -math.inf, math.nan][seed % 3]
    targets = torch.randint(k, (n,), generator=generator)
    return outputs, targets if form == "classes" else targets.float(), SHARES if k == 3 else (0.93, 0.07)


class Passes(nn.Module):
    """A model that puts out its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 30), size=st.sampled_from([0.01, 1.0, 100.0, 1e30]), seed=st.integers(0, 10**6))
def test_scores_are_of_one_record_each_and_a_neighbour_moves_their_sum_by_at_most_one(
    score: str, form: str, n: int, size: float, seed: int
) -> None:
    outputs, targets, shares = some(form, n, size, seed)
    scores: PerRecord = SCORES[score](shares)
    values = scores(outputs, targets)
    assert values.shape == (n,)
    finite = values.nan_to_num(nan=0.0)
    assert bool(((finite >= 0) & (finite <= 1)).all())
    place = seed % n
    alone = scores(outputs[place : place + 1], targets[place : place + 1])
    torch.testing.assert_close(alone, values[place : place + 1], equal_nan=True)
    others = torch.arange(n) != place
    both = [total_score(Passes(), scores, Records(outputs[rows], targets[rows])) for rows in (others | True, others)]
    assert -1e-9 <= both[0] - both[1] <= 1 + 1e-9
    replaced = targets.clone()
    replaced[place] = 1 - targets[place] if form != "classes" else (targets[place] + 1) % 3
    other = total_score(Passes(), scores, Records(outputs, replaced))
    assert abs(other - both[0]) <= 1 + 1e-9


def test_the_mean_is_balanced_accuracy_on_a_known_scale() -> None:
    targets = torch.tensor([0] * 62 + [1] * 31 + [2] * 7)
    outputs = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    mean = float(balanced_right(SHARES)(outputs, targets).mean())
    expected = 3 * 0.07 * balanced_accuracy_score(targets.numpy(), outputs.argmax(1).numpy())
    assert mean == pytest.approx(expected)


@pytest.mark.parametrize("form", ["margins", "two classes"])
@pytest.mark.parametrize("weighted_losses", [False, True])
def test_the_probability_is_balanced_accuracy_averaged_over_all_thresholds(form: str, weighted_losses: bool) -> None:
    shares = (0.9, 0.1)
    margins = 2 * torch.randn(50, generator=torch.Generator().manual_seed(1))
    targets = (torch.arange(50) % 5 == 0).long()
    outputs = margins if form == "margins" else torch.stack([torch.zeros(50), margins], 1)
    labels = targets.float() if form == "margins" else targets
    score = float(balanced_probability(shares, weighted_losses=weighted_losses)(outputs, labels).mean())
    shift = 0.0 if weighted_losses else math.log(0.9 / 0.1)
    thresholds = (torch.arange(20_000).double() + 0.5) / 20_000
    said = (margins.double() + shift).sigmoid()[:, None] > thresholds
    right = (said == (targets == 1)[:, None]).double().mean(1)
    weights = torch.tensor(class_weights(shares), dtype=torch.float64)[targets]
    assert score == pytest.approx(float((weights * right).mean()), abs=1e-4)


NETWORKS = [nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))]
GENERATOR = torch.Generator().manual_seed(2)
INPUTS, TARGETS = torch.randn(12, 4, generator=GENERATOR), torch.arange(12) % 3


def gradient_of(network: nn.Module, rows: list[int]) -> Tensor:
    """The gradient of the mean loss of some records, flat."""
    loss = cross_entropy(network(INPUTS[rows]), TARGETS[rows]).mean()
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, [*network.parameters()])]).double()


def engines(network: nn.Module) -> list[GradientEngine]:
    several = [gradient_engine(network, ClassWeighted(cross_entropy, SHARES), like=like) for like in (RECORDS, None)]
    other = ClassWeighted(lambda outputs, targets: cross_entropy(outputs, targets), SHARES)
    return [*several, gradient_engine(network, other, like=RECORDS)]


RECORDS = Records(INPUTS, TARGETS)
WEIGHTS = torch.tensor(class_weights(SHARES), dtype=torch.float64)[TARGETS]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rule", [Abadi(0.5), AutoS()])
def test_weights_are_those_of_clipped_gradients_in_every_engine(network: nn.Module, rule: Clipping) -> None:
    clipped = [rule.factors(g.norm()[None]) * g for g in (gradient_of(network, [row]) for row in range(12))]
    assert all(
        float((w * g).norm()) <= float(g.norm()) <= rule.sensitivity * (1 + 1e-6)
        for w, g in zip(WEIGHTS, clipped, strict=True)
    )
    expected = sum(w * g for w, g in zip(WEIGHTS, clipped, strict=True))
    for engine in engines(network):
        sums = engine.clipped_sum(INPUTS, TARGETS, rule)
        torch.testing.assert_close(torch.cat([part.flatten() for part in sums]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("network", NETWORKS)
def test_losses_have_the_weights_too(network: nn.Module) -> None:
    weighted = cross_entropy(network(INPUTS), TARGETS) * WEIGHTS.float()
    objective = Objective(ClassWeighted(cross_entropy, SHARES), cross_entropy)
    total = Query(lambda model, x, y: model.losses(x, y), 100.0).total(network, objective, RECORDS)
    torch.testing.assert_close(total[0], weighted.double().sum(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_unit_has_the_mean_weight_of_its_records(network: nn.Module) -> None:
    members = [[0], [1, 2, 3], [4, 5, 6, 7, 8], [9, 10], [11]]
    rule, ids = Abadi(0.3), torch.tensor([unit for unit, rows in enumerate(members) for _ in rows])
    expected = torch.zeros(sum(p.numel() for p in network.parameters()), dtype=torch.float64)
    for rows in members:
        mean = gradient_of(network, rows)
        expected += WEIGHTS[rows].mean() * rule.factors(mean.norm()[None]) * mean
    for engine in engines(network):
        sums = engine.clipped_unit_sum(INPUTS, TARGETS, rule, Units.of(ids))
        torch.testing.assert_close(torch.cat([part.flatten() for part in sums]), expected, rtol=1e-5, atol=1e-6)
