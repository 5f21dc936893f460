"""Optimisers that find their step size from noisy gradients are as published."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import dphpo_bench as bench
from dphpo_bench.methods.dog import DoG
from dphpo_bench.methods.dowg import DoWG
from dphpo_bench.methods.ldog import LDoG
from dphpo_bench.methods.mechanic import Mechanic
from dphpo_bench.methods.schedule_free import ScheduleFree
from dphpo_bench.training.optimizers import WeightAverage

STARTS = (torch.tensor([[1.0, -2.0], [0.5, 0.0]]), torch.tensor([0.0, 0.25]))


def gradients(steps: int) -> list[list[Tensor]]:
    """Noisy gradients that all point the same way, of the shapes of `STARTS`."""
    generator = torch.Generator().manual_seed(5)
    return [[0.3 + 0.5 * torch.randn(start.shape, generator=generator) for start in STARTS] for _ in range(steps)]


def moved(method: bench.recipes.OptimizerRun, seen: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Where a method's optimiser takes `STARTS`."""
    weights = [start.clone().requires_grad_() for start in STARTS]
    optimizer = method.published(weights)
    for gradient in seen:
        for weight, value in zip(weights, gradient, strict=True):
            weight.grad = value.clone()
        optimizer.step()
    method.finish(optimizer)
    return [weight.detach() for weight in weights]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors]).double()


def walked(start: Tensor, seen: Sequence[Tensor], first: float) -> Tensor:
    """DoG, from its formula."""
    weights, distance, total = start.clone(), first * (1 + start.norm()), torch.tensor(1e-8, dtype=torch.float64)
    for gradient in seen:
        distance = torch.maximum(distance, (weights - start).norm())
        total += gradient.square().sum()
        weights = weights - distance / total.sqrt() * gradient
    return weights


@pytest.mark.parametrize("first", [1e-3, 0.1])
def test_dog_follows_its_formula(first: float) -> None:
    seen = gradients(40)
    expected = walked(flat(STARTS), [flat(one) for one in seen], first)
    torch.testing.assert_close(flat(moved(DoG(initial_distance=first), seen)), expected, rtol=1e-4, atol=1e-6)


def test_ldog_does_so_for_each_layer() -> None:
    seen = gradients(40)
    expected = [walked(flat([start]), [flat([one[layer]]) for one in seen], 0.1) for layer, start in enumerate(STARTS)]
    torch.testing.assert_close(flat(moved(LDoG(initial_distance=0.1), seen)), torch.cat(expected), rtol=1e-4, atol=1e-6)


def test_dowg_follows_its_formula() -> None:
    seen = gradients(40)
    start = weights = flat(STARTS)
    squared, total = torch.tensor(1e-4, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    for gradient in map(flat, seen):
        squared = torch.maximum(squared, (weights - start).square().sum())
        total += squared * gradient.square().sum()
        weights = weights - squared / (total.sqrt() + 1e-4) * gradient
    torch.testing.assert_close(flat(moved(DoWG(), seen)), weights, rtol=1e-4, atol=1e-6)


def test_mechanic_follows_its_algorithm() -> None:
    """But for where its decay, a hundredth of s, is taken: after AdamW's update, not before; hence the tolerance."""
    seen = gradients(60)
    start = flat(STARTS).float()
    weights = start.clone().requires_grad_()
    base = torch.optim.AdamW([weights], lr=1.0)
    betas = torch.tensor([0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999])
    scale, reward, squares = (torch.zeros(6) for _ in range(3))
    largest, updates = torch.full((6,), 1e-6), torch.zeros_like(start)
    for gradient in (flat(one).float() for one in seen):
        before = weights.detach().clone()
        weights.grad = gradient.clone()
        base.step()
        decay = 0.01 * scale.sum() * gradient.norm() * before / before.norm()
        product = updates @ (gradient + decay)
        updates = updates + weights.detach() - before
        largest = torch.maximum(betas * largest, product.abs())
        squares = betas**2 * squares + product**2
        reward = (betas * reward - scale * product).clamp(min=0)
        scale = (1e-8 / 6 * largest + reward) / (squares.sqrt() + 1e-8)
        with torch.no_grad():
            weights.copy_(start + scale.sum() * updates)
    found = flat(moved(Mechanic(), seen)) - start
    assert found.norm() > 0.1, "it has left its start"
    torch.testing.assert_close(found, weights.detach().double() - start, rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("steps", [1, 40])
def test_schedule_free_releases_the_mean_of_adamws_weights(steps: int) -> None:
    seen = gradients(steps)
    mean = own = flat(STARTS)
    second = torch.zeros_like(own)
    for t, gradient in enumerate(map(flat, seen), start=1):
        second = 0.999 * second + 0.001 * gradient.square()
        own = own - 0.0025 * gradient / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
        mean = mean + (own - mean) / t
    torch.testing.assert_close(flat(moved(ScheduleFree(), seen)), mean, rtol=1e-5, atol=1e-6)


def test_dogs_average_is_the_polynomial_decay_of_its_paper() -> None:
    """γ = 8, but for one step's shift: the package gives update t = 0, 1, ... the weight 9 / (9 + t)."""
    from dog import PolynomialDecayAverager

    steps = 2000  # past where a decay of 0.99 would cut the window off
    line = torch.nn.Linear(1, 1, bias=False)
    theirs, ours = PolynomialDecayAverager(line), WeightAverage([line.weight], DoG().averaging)
    for step in range(steps):
        with torch.no_grad():
            line.weight.fill_(step)
        theirs.step()
        ours.update()
    expected = theirs.averaged_model.weight.item()
    assert ours.average[0].item() == pytest.approx(expected, rel=2 / steps)
    assert expected < 0.95 * steps


def test_a_package_that_is_not_installed_is_named_before_anything_is_spent(budget, monkeypatch) -> None:
    monkeypatch.setattr("dphpo_bench.base.errors.find_spec", lambda _: None)
    with pytest.raises(
        bench.errors.InvalidValueError, match=r"ldog needs dog: pip install 'dphpo-bench\[optimizers\]'"
    ):
        bench.plan("ldog", "digits", budget)
