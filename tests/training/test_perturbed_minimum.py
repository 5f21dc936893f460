"""The solver of objective perturbation: derivatives, the tolerance it states, and inputs of norm 1."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from dphpo_bench.training.perturbed_minimum import NotConvergedError, PerturbedLoss, reachable_tolerance, unit_inputs

Array = NDArray[np.float64]


def loss_of(
    outputs: int, n: int = 300, regularisation: float = 2.0, seed: int = 0, deviation: float = 3.0
) -> PerturbedLoss:
    rng = np.random.default_rng(seed)
    inputs = unit_inputs(rng.normal(size=(n, 4)) + 0.5, constant=True)
    labels = rng.integers(0, max(2, outputs), n)
    return PerturbedLoss(inputs, labels, rng.normal(size=(outputs, 5)) * deviation, regularisation)


def value(loss: PerturbedLoss, weights: torch.Tensor) -> torch.Tensor:
    """F by torch."""
    logits = torch.from_numpy(loss.inputs) @ weights.T
    labels = torch.from_numpy(loss.labels)
    if len(weights) == 1:
        data = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels.double(), reduction="sum")
    else:
        data = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    tilted = (torch.from_numpy(loss.linear) * weights).sum()
    total: torch.Tensor = data + loss.regularisation / 2 * weights.square().sum() + tilted
    return total


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_it_is_the_minimum_that_scipy_finds(outputs: int) -> None:
    loss = loss_of(outputs)

    def both(flat: Array) -> tuple[float, Array]:
        at = torch.from_numpy(flat.reshape(outputs, 5)).requires_grad_()
        total = value(loss, at)
        total.backward()  # type: ignore[no-untyped-call]
        assert at.grad is not None
        return total.item(), at.grad.numpy().ravel()

    other = minimize(both, np.zeros(outputs * 5), jac=True, method="BFGS", options={"gtol": 1e-5})
    assert loss.minimum(1e-8).ravel() == pytest.approx(other.x, abs=1e-5)


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize(
    ("regularisation", "deviation", "n"),
    [
        (1e-9, 10.0, 300),
        (1e-4, 1.0, 300),
        (1e-2, 100.0, 300),
        (1e6, 1e3, 300),
        (3.0, 10.0, 20_000),
        (1.0, 5.0, 1),
        (1.0, 5.0, 0),
    ],
)
def test_the_tolerance_holds_and_bounds_the_distance(
    outputs: int, regularisation: float, deviation: float, n: int
) -> None:
    """F is λ-strongly convex, so the minimum lies within τ/λ: what the noise on the weights is accounted by."""
    loss = loss_of(outputs, n, regularisation, deviation=deviation)
    tolerance = reachable_tolerance(n / 2, loss.linear.shape, regularisation, deviation)  # of half as many records
    weights, better = loss.minimum(tolerance), loss.minimum(tolerance / 1.5)
    exact, _ = PerturbedLoss(
        loss.inputs.astype(np.longdouble), loss.labels, loss.linear.astype(np.longdouble), regularisation
    ).gradient(weights.astype(np.longdouble))
    assert float(np.linalg.norm(exact)) <= tolerance
    assert float(np.linalg.norm(weights - better)) <= 2 * tolerance / regularisation


def test_the_bound_of_rounding_holds() -> None:
    loss, rng = loss_of(3, n=20_000), np.random.default_rng(2)
    for scale in (0.1, 10.0, 300.0):
        weights = rng.normal(size=(3, 5)) * scale
        exact, _ = PerturbedLoss(
            loss.inputs.astype(np.longdouble), loss.labels, loss.linear.astype(np.longdouble), loss.regularisation
        ).gradient(weights.astype(np.longdouble))
        assert float(np.linalg.norm(exact - loss.gradient(weights)[0])) <= loss.rounding(weights)


def test_a_tolerance_below_rounding_is_never_claimed() -> None:
    loss = loss_of(3)
    with pytest.raises(NotConvergedError):
        loss.minimum(loss.rounding(loss.linear) / 10)


def test_inputs_have_norm_1_each_by_itself_whatever_they_hold() -> None:
    largest = float(np.finfo(np.float32).max)
    rows = np.array([[1.0, 2.0], [0.0, 0.0], [math.nan, 3.0], [math.inf, -math.inf], [largest, largest], [1e-30, 0.0]])
    for constant in (True, False):
        scaled = unit_inputs(rows, constant=constant)
        norms = np.linalg.norm(scaled, axis=1)
        assert np.all(norms <= 1)
        assert np.all((norms > 1 - 1e-9) | (norms == 0))
        alone = np.vstack([unit_inputs(row[None], constant=constant) for row in rows])
        assert np.array_equal(scaled, alone)
    assert np.allclose(unit_inputs(rows, constant=True)[0], np.array([1, 2, 1]) / math.sqrt(6))
    assert np.array_equal(unit_inputs(rows, constant=True)[3], unit_inputs(rows, constant=True)[1])
