"""Directions against the trajectories of torch's optimisers; the moving average against its definition."""

import pytest
import torch

from dphpo_bench.training.optimizers import UpdateRule, WeightAverage

CASES = [
    ("SGD", torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", torch.optim.AdamW, {}),
    ("RMSprop", torch.optim.RMSprop, {}),
    ("radam", torch.optim.RAdam, {}),
]


def weights() -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    return [torch.randn(4, 3, generator=source), torch.randn(3, generator=source)]


@pytest.mark.parametrize(("name", "factory", "options"), CASES)
def test_direction_times_learning_rate_is_the_trajectory_of_torch(name, factory, options):
    learning_rate = 0.02
    ours, theirs = weights(), weights()
    rule = UpdateRule(name, ours, options)
    optimizer = factory(theirs, lr=learning_rate, **options)
    source = torch.Generator().manual_seed(1)
    for _ in range(20):
        gradients = [torch.randn(p.shape, generator=source) for p in ours]
        before = [p.clone() for p in ours]
        direction = rule.direction(gradients)
        assert all(torch.equal(p, q) for p, q in zip(ours, before, strict=True))
        rule.apply(direction, learning_rate)
        for p, g in zip(theirs, gradients, strict=True):
            p.grad = g.clone()
        optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_sgd_has_momentum_unless_it_is_given():
    gradients = [torch.ones_like(p) for p in weights()]
    rule = UpdateRule("sgd", weights())
    rule.direction(gradients)
    torch.testing.assert_close(rule.direction(gradients), [1.9 * g for g in gradients])
    plain = UpdateRule("sgd", weights(), {"momentum": 0.0})
    plain.direction(gradients)
    torch.testing.assert_close(plain.direction(gradients), gradients)


def test_average_forgets_the_initial_weights_and_warms_up():
    weight = torch.tensor([100.0])
    average = WeightAverage([weight], decay=0.99)
    expected = None
    for t in range(30):
        weight.fill_(float(t))
        average.update()
        decay = min(0.99, (1 + t) / (10 + t))
        expected = float(t) if expected is None else decay * expected + (1 - decay) * t
    target = torch.zeros(1)
    average.copy_to([target])
    assert target.item() == pytest.approx(expected, rel=1e-5)
    assert weight.item() == 29.0
