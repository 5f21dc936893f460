"""A mistake in a task is found before it costs any ε; a selection must not take it for trials that lost."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.progress import NullProgress
from tests.own_task import array_task

BUDGET = bench.PrivacyBudget(3.0, 1e-4)


def task(model: nn.Module, **options: object) -> bench.ArrayTask:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((200, 4)).astype(np.float32), rng.integers(0, 2, 200)
    return array_task("own", data, model, batch_size=100, epochs=2, public=True, **options)


def test_losses_that_are_never_finite_are_refused() -> None:
    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.log(-torch.ones(len(targets))) * outputs.sum(-1)

    with pytest.raises(InvalidValueError, match="Expected losses that are finite"):
        task(nn.Linear(4, 2), losses=losses)


def test_scores_that_raise_are_refused() -> None:
    def scores(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ValueError("not yet written")

    with pytest.raises(InvalidValueError, match="No score can be computed from the model's outputs: not yet written"):
        task(nn.Linear(4, 2), scores=scores)


def test_a_number_is_no_budget() -> None:
    with pytest.raises(InvalidValueError, match="Expected budget to be a PrivacyBudget"):
        bench.run("dp_sgd", task(nn.Linear(4, 2)), 3, seed=0, progress=NullProgress())  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="got epsilon='3'"):
        bench.PrivacyBudget("3", 1e-5)  # type: ignore[arg-type]
