"""ADADP beside its formulas, on gradients that are known, and where its rate ends on noise alone."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.methods.adadp import distance
from tests.own_task import array_task

BUDGET = bench.PrivacyBudget(3.0, 1e-3)


def task(inputs: int = 4, steps: int = 40) -> bench.ArrayTask:
    x = torch.randn(64, inputs, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"public": True, "batch_size": 16, "epochs": steps / 4}
    return array_task(
        "toy", (x, (x[:, 0] > 0).long()), lambda: nn.Linear(inputs, 2), (x, (x[:, 0] > 0).long()), **options
    )


def run(of: bench.ArrayTask, **parameters: Any) -> Any:
    method = bench.make_method("adadp", {"averaging": 0.0, **parameters})
    return bench.run(method, of, BUDGET, seed=0, progress=bench.NullProgress())


def test_steps_are_those_of_the_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, start = np.random.Generator(np.random.PCG64(0)).normal(size=(9, 10)), []

    def known(self: Any, session: Any, model: nn.Module) -> list[torch.Tensor]:
        weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
        start.append(weights.double().numpy())
        flat = torch.tensor(drawn[len(start) - 1], dtype=torch.float32)
        return [part.view_as(like) for part, like in zip(flat.split([8, 2]), model.parameters(), strict=True)]

    monkeypatch.setattr(bench.recipes.DpSgd, "gradient", known)
    result = run(task(steps=9), initial_rate=0.7, tolerance=0.9)
    weights, rate, undone = start[0], 0.7, 0
    for first, second in zip(drawn[0:8:2], drawn[1:8:2], strict=True):
        full, halves = weights - rate * first, weights - rate / 2 * (first + second)
        error = math.sqrt(float(((full - halves) ** 2 / np.maximum(1, full**2)).sum()))
        undone += error > 0.9
        weights = weights if error > 0.9 else halves
        rate *= min(max(math.sqrt(0.9 / error), 0.9), 1.1)
    assert 0 < undone < 4
    assert result.record.released["undone"] == undone
    assert result.record.released["learning_rate"] == pytest.approx(rate, rel=1e-5)
    ends = torch.cat([weight.detach().flatten() for weight in result.model.parameters()]).double().numpy()
    np.testing.assert_allclose(ends, weights - rate / 2 * drawn[8], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("start", [0.05, 100.0])
def test_the_rate_ends_where_noise_moves_all_weights_by_the_tolerance(start: float) -> None:
    of = task(inputs=200, steps=400)
    result = run(of, initial_rate=start)
    deviation = bench.make_method("adadp").plan(of.facts, BUDGET).parameters.noise_multiplier / of.facts.batch_size
    # η √(W / 2) σC/L = 1 for W = 402 weights; signal and the size of weights make it less, never more than twice.
    assert 0.4 < result.record.released["learning_rate"] * deviation * math.sqrt(201) < 2
    assert result.record.released["undone"] > 0 or start < 1


def test_what_is_no_number_is_undone() -> None:
    one = [torch.ones(3)]
    assert distance(one, [torch.tensor([1.0, math.nan, 1.0])]) == math.inf
    assert distance([torch.tensor([4.0, 0.5])], [torch.tensor([2.0, 0.0])]) == pytest.approx(math.sqrt(0.25 + 0.25))
