"""Models stacked in one product, against each model alone."""

import pytest
import torch
from torch import Tensor, nn

from dphpo_bench.training.clipping import Abadi, AutoS, AutoV, Clipping
from dphpo_bench.training.linear import LinearEngine, clipped_sums
from tests.training.models import cut, flat, vectors

RULES = (Abadi(1.0), AutoS(), AutoV(), Abadi(0.1), AutoS(1.0))


def layers(n: int, bias: bool = True, frozen: str = "", dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    torch.manual_seed(0)
    models: list[nn.Module] = [nn.Linear(20, 5, bias=bias, dtype=dtype) for _ in range(n)]
    for model in models:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name != frozen)
    return models


def alone(
    models: list[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    rules: list[Clipping],
    indices: Tensor | None = None,
) -> list[list[Tensor]]:
    return [
        LinearEngine(model).clipped_sum(inputs, targets, rule, indices)
        for model, rule in zip(models, rules, strict=True)
    ]


def stack_of(models: list[nn.Module], micro_batch_size: int | None = None) -> list[LinearEngine]:
    return [cut(LinearEngine(model), micro_batch_size) for model in models]


def assert_same(actual: list[list[Tensor]], expected: list[list[Tensor]], tolerance: float = 1e-6) -> None:
    assert len(actual) == len(expected)
    for own, other in zip(actual, expected, strict=True):
        assert [(g.shape, g.dtype) for g in own] == [(g.shape, g.dtype) for g in other]
        assert (flat(own) - flat(other)).norm() <= tolerance * flat(other).norm()


@pytest.mark.parametrize("micro_batch_size", [None, 3])
@pytest.mark.parametrize(
    "kind", [{}, {"bias": False}, {"frozen": "bias"}, {"frozen": "weight"}, {"dtype": torch.float64}], ids=str
)
@pytest.mark.parametrize("n", [1, 5])
def test_each_sum_is_that_of_the_model_alone(n, kind, micro_batch_size):
    models, rules = layers(n, **kind), list(RULES[:n])
    inputs, targets = vectors(30)
    indices = torch.tensor([0, 3, 4, 11, 12, 13, 20, 28])
    stack = stack_of(models, micro_batch_size)
    tolerance = 1e-13 if kind.get("dtype") == torch.float64 else 1e-6
    for _ in range(3):  # norms of the data are kept from the second call on
        assert_same(clipped_sums(stack, inputs, targets, rules), alone(models, inputs, targets, rules), tolerance)
        chosen = clipped_sums(stack, inputs, targets, rules, indices)
        assert_same(chosen, alone(models, inputs, targets, rules, indices), tolerance)


@pytest.mark.parametrize("kind", [{}, {"frozen": "bias"}], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_record_that_is_not_finite(bad, kind):
    models, rules = layers(3, **kind), list(RULES[:3])
    inputs, targets = vectors(6)
    inputs[1, 3], inputs[4] = bad, float("nan")
    stack = stack_of(models)
    for _ in range(3):
        actual = clipped_sums(stack, inputs, targets, rules)
        assert all(flat(own).isfinite().all() for own in actual)
        assert_same(actual, alone(models, inputs, targets, rules))
        nothing = clipped_sums(stack, inputs, targets, rules, torch.tensor([4]))
        assert not any(flat(own).any() for own in nothing)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("whole", [True, False])
def test_a_trial_that_diverged_disturbs_no_other(value, whole):
    models, rules = layers(3), list(RULES[:3])
    inputs, targets = vectors(12)
    inputs[5, 2] = float("inf")
    others = [models[0], models[2]]
    expected = clipped_sums(stack_of(others), inputs, targets, [rules[0], rules[2]])
    with torch.no_grad():
        if whole:
            models[1].weight.fill_(value)
        else:
            models[1].weight[2, 7] = value
    actual = clipped_sums(stack_of(models), inputs, targets, rules)
    assert_same([actual[0], actual[2]], expected)
    assert flat(actual[1]).norm() <= len(inputs) * rules[1].sensitivity
    if whole and not abs(value) < float("inf"):
        assert not flat(actual[1]).any()
    if not (whole and abs(value) < float("inf")):
        # Else terms of 1e38 cancel or overflow, as the order goes in which a processor adds them.
        assert_same([actual[1]], alone([models[1]], inputs, targets, [rules[1]]))


def test_the_data_may_be_changed_and_exchanged():
    models, rules = layers(2), list(RULES[:2])
    stack = stack_of(models)
    inputs, targets = vectors(8)
    for data in (inputs, inputs, inputs, inputs.clone(), inputs.bfloat16(), inputs[:5]):
        actual = clipped_sums(stack, data, targets[: len(data)], rules)
        assert_same(actual, alone(models, data, targets[: len(data)], rules))
        inputs.mul_(3.0)
