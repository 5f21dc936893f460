"""Objective perturbation against exact distributions: of one weight by its distribution function, of more by density.

In one dimension the minimum falls as the linear term grows, so P(minimum ≤ w) is a normal probability and needs no
Jacobian. In more dimensions densities are summed up over a grid, and that they add up to 1 checks the determinant.
"""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting.dp_event import DpEvent
from scipy.optimize import brentq
from scipy.special import expit, log_ndtr, logsumexp, ndtr, softmax

from dphpo_bench.privacy import objective
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.event_trees import simplify
from dphpo_bench.privacy.events import (
    compose,
    gaussian,
    no_op,
    non_private,
    objective_perturbation,
    poisson_sampled,
)
from tests.privacy import brute_force
from tests.privacy.brute_force import Array, Pair

EPSILONS = np.linspace(0, 6, 61)
ORDERS = np.array([1.1, 1.5, 2.0, 3.0, 8.0, 32.0])
NOISES = (0.5, 1.0, 3.0)
REGULARISATIONS = (0.02, 0.3, 5.0)


def tilt_at(weights: Array, inputs: Array, labels: Array, regularisation: float) -> Array:
    """The linear term at which these single weights are the minimum."""
    (inputs, labels), counts = np.unique(np.stack([inputs, labels]), axis=1, return_counts=True)
    residuals = expit(np.outer(weights, inputs)) - labels
    return np.asarray(-(residuals @ (counts * inputs)) - regularisation * weights)


def masses(edges: Array, inputs: Array, labels: Array, regularisation: float, noise: float) -> Array:
    """Probabilities of the minimum between edges, below the first and above the last."""
    tilts = tilt_at(edges, inputs, labels, regularisation) / noise
    assert np.all(np.diff(tilts) < 0)
    # From the side on which the numbers are small.
    low, high = np.r_[np.inf, tilts], np.r_[tilts, -np.inf]
    return np.asarray(np.where(high > 0, ndtr(-high) - ndtr(-low), ndtr(low) - ndtr(high)))


def pair(others: tuple[Array, Array], record: tuple[float, float], regularisation: float, noise: float) -> Pair:
    """What one output on one input of norm at most 1 gives, in 20,000 cells between tilts of 12 deviations and more."""
    inputs, labels = others
    least, most = 12 * noise + 2, (12 * noise + len(inputs) + 4) / regularisation
    ends = [
        brentq(lambda at, tilt=tilt: tilt_at(np.array([at]), inputs, labels, regularisation)[0] - tilt, -most, most)
        for tilt in (least, -least)
    ]
    edges = np.linspace(*ends, 20_001)
    more = np.append(inputs, record[0]), np.append(labels, record[1])
    return Pair(masses(edges, *more, regularisation, noise), masses(edges, inputs, labels, regularisation, noise))


def share_attained(event: DpEvent, truth: Pair, error: float = 1e-6) -> float:
    """The largest share of the claimed curve that a truth attains; no truth exceeds the claims.

    `error` is relative, of truths that are summed up over a grid.
    """
    claimed = objective.deltas(event, EPSILONS)  # type: ignore[arg-type]
    exact = np.array([brute_force.delta(truth, at) for at in EPSILONS])
    assert np.all(exact <= claimed * (1 + error) + 1e-10)
    claimed_moments = objective.divergences(event, ORDERS)  # type: ignore[arg-type]
    kept = (truth.with_record > 1e-250) & (truth.without > 1e-250)
    finite = Pair(truth.with_record[kept], truth.without[kept])
    for order, bound in zip(ORDERS, claimed_moments, strict=True):
        assert brute_force.renyi(finite, order) <= bound + 1e-8
    large = claimed > 1e-8
    return float(np.max(exact[large] / claimed[large]))


class TestOneOutput:
    @pytest.mark.parametrize(("noise", "regularisation"), list(itertools.product(NOISES, REGULARISATIONS)))
    def test_no_dataset_exceeds_the_curve(self, noise: float, regularisation: float) -> None:
        rng = np.random.default_rng(1)
        event = objective_perturbation(noise, regularisation, 1)
        attained = 0.0
        for size in (0, 0, 1, 2, 5, 20):
            others = rng.uniform(-1, 1, size), rng.integers(0, 2, size).astype(float)
            for record in ((1.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (rng.uniform(-1, 1), 1.0)):
                attained = max(attained, share_attained(event, pair(others, record, regularisation, noise)))
        assert attained > 0.1

    def test_the_curve_is_nearly_attained(self) -> None:
        """Where the other records push the minimum far to one side, the record's gradient is 1 all along."""
        others = -np.ones(20_000), np.ones(20_000)
        event = objective_perturbation(2.0, 20.0, 1)
        assert share_attained(event, pair(others, (1.0, 1.0), 20.0, 2.0)) > 0.9

    def test_smaller_curves_would_be_wrong(self) -> None:
        """The brute force sees what the determinant adds: a curve without κ is exceeded."""
        empty = np.empty(0), np.empty(0)
        truth = pair(empty, (1.0, 1.0), 0.02, 3.0)
        unshifted = objective_perturbation(3.0, 1e9, 1)
        with pytest.raises(AssertionError):
            share_attained(unshifted, truth)


def density(weights: Array, inputs: Array, labels: np.ndarray, regularisation: float, deviation: float) -> Array:
    """The density of the minimum at many weights, shape (cells, outputs, d), for several outputs."""
    cells, outputs, d = weights.shape
    tilt = -regularisation * weights
    hessian = np.tile(regularisation * np.eye(outputs * d), (cells, 1, 1))
    for x, label in zip(inputs, labels, strict=True):
        p = softmax(weights @ x, axis=1)
        tilt = tilt - (p - np.eye(outputs)[label])[:, :, None] * x
        curvature = p[:, :, None] * np.eye(outputs) - p[:, :, None] * p[:, None, :]
        hessian += np.einsum("ckl,i,j->ckilj", curvature, x, x).reshape(hessian.shape)
    square = np.sum((tilt / deviation) ** 2, axis=(1, 2))
    normal = np.exp(-square / 2) / (deviation * math.sqrt(2 * math.pi)) ** (outputs * d)
    return np.asarray(normal * np.linalg.det(hessian))


class TestSeveralOutputs:
    @pytest.mark.parametrize(
        ("outputs", "points", "noise", "regularisation"),
        [(2, 400, 1.0, 0.5), (2, 400, 0.6, 3.0), (3, 60, 1.0, 1.0), (3, 60, 0.7, 3.0)],
    )
    def test_no_dataset_exceeds_the_curve(self, outputs: int, points: int, noise: float, regularisation: float) -> None:
        rng = np.random.default_rng(2)
        event = objective_perturbation(noise, regularisation, outputs)
        deviation = noise * math.sqrt(2)
        reach = (6.5 * deviation + 2) / regularisation
        line = np.linspace(-reach, reach, points)
        cells = np.stack(np.meshgrid(*[line] * outputs, indexing="ij"), axis=-1).reshape(-1, outputs, 1)
        volume = (line[1] - line[0]) ** outputs
        for size in (0, 2):
            inputs, labels = rng.uniform(-1, 1, (size, 1)), rng.integers(0, outputs, size)
            without = volume * density(cells, inputs, labels, regularisation, deviation)
            for x, label in ((1.0, 0), (-1.0, outputs - 1)):
                more = np.vstack([inputs, [[x]]]), np.append(labels, label)
                with_record = volume * density(cells, *more, regularisation, deviation)
                assert with_record.sum() == pytest.approx(1, abs=1e-6)
                assert without.sum() == pytest.approx(1, abs=1e-6)
                assert share_attained(event, Pair(with_record, without), 0.01) > 0.05

    def test_inputs_of_several_directions(self) -> None:
        """Two outputs of two weights each would be four dimensions: one output's difference decides, by symmetry."""
        rng = np.random.default_rng(3)
        noise, regularisation = 1.0, 0.4
        event = objective_perturbation(noise, regularisation, 1)
        line = np.linspace(-25, 25, 400)
        first, second = np.meshgrid(line, line, indexing="ij")
        cells = np.stack([first.ravel(), second.ravel()], axis=1)
        volume = (line[1] - line[0]) ** 2

        def probabilities(inputs: Array, labels: Array) -> Array:
            p = expit(cells @ inputs.T)
            tilt = -((p - labels) @ inputs) - regularisation * cells
            curvature = np.einsum("cn,ni,nj->cij", p * (1 - p), inputs, inputs) + regularisation * np.eye(2)
            normal = np.exp(-np.sum(tilt**2, axis=1) / 2 / noise**2) / (2 * math.pi * noise**2)
            return np.asarray(volume * normal * np.linalg.det(curvature))

        for _ in range(5):
            inputs = rng.normal(size=(4, 2))
            inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
            labels = rng.integers(0, 2, 4).astype(float)
            truth = Pair(probabilities(inputs, labels), probabilities(inputs[1:], labels[1:]))
            assert truth.with_record.sum() == pytest.approx(1, abs=1e-6)
            share_attained(event, truth, 0.01)

    def test_a_record_adds_no_more_to_the_determinant(self) -> None:
        rng = np.random.default_rng(4)
        for outputs, regularisation in itertools.product((2, 3, 10), (0.01, 0.3, 10.0)):
            bound = objective.log_determinant(objective_perturbation(1.0, regularisation, outputs))  # type: ignore[arg-type]
            for concentration in (0.1, 1.0, 100.0, math.inf):
                p = np.full(outputs, 1 / outputs)
                if concentration < math.inf:
                    p = rng.dirichlet(np.full(outputs, concentration))
                grown = np.linalg.slogdet(np.eye(outputs) + (np.diag(p) - np.outer(p, p)) / regularisation)[1]
                assert grown <= bound + 1e-9
            assert grown == pytest.approx(bound, rel=1e-6)  # attained where all classes are equally likely


def worst_losses(outputs: int, noise: float, regularisation: float) -> tuple[Array, Array]:
    """The largest losses that the proof leaves a record, over all its residuals, and their probabilities, on a grid."""
    ratio, corners = 1 / noise, max(1, outputs - 1)
    line = np.linspace(-9, 9, 4001 if corners == 1 else 141)
    draws = np.stack(np.meshgrid(*[line] * corners, indexing="ij"), axis=-1).reshape(-1, corners)
    weights = np.exp(-np.sum(draws**2, axis=1) / 2)
    correlation = np.full((corners, corners), 0.5) + 0.5 * np.eye(corners)  # of e_j − e_y with one another
    at_corners = ratio**2 / 2 + ratio * draws @ np.linalg.cholesky(correlation).T
    steps = np.linspace(0, 1, 201 if corners == 1 else 31)
    shares = np.stack(np.meshgrid(*[steps] * corners, indexing="ij"), axis=-1).reshape(-1, corners)
    shares = shares[shares.sum(axis=1) <= 1 + 1e-12]
    p = np.hstack([1 - shares.sum(axis=1, keepdims=True), shares])
    curvature = p[:, :, None] * np.eye(corners + 1) - p[:, :, None] * p[:, None, :]
    if outputs == 1:
        curvature = (p[:, :1] * p[:, 1:])[:, :, None]
    determinant = np.linalg.slogdet(np.eye(curvature.shape[1]) + curvature / regularisation)[1]
    return np.max(at_corners @ shares.T + determinant, axis=1), weights / weights.sum()


class TestWorstLoss:
    """The curve against the exact expectation over the losses that the proof allows, which no dataset may attain."""

    @pytest.mark.parametrize("outputs", [1, 2, 3])
    @pytest.mark.parametrize(
        ("noise", "regularisation"), [(1.0, 0.5), (2.0, 1.0), (0.7, 2.0), (1.5, 30.0), (50.0, 2.0)]
    )
    def test_it_is_covered(self, outputs: int, noise: float, regularisation: float) -> None:
        event: Any = objective_perturbation(noise, regularisation, outputs)
        losses, weights = worst_losses(outputs, noise, regularisation)
        exact = np.array([np.sum(weights * np.maximum(-np.expm1(at - losses), 0)) for at in EPSILONS])
        claimed = objective.deltas(event, EPSILONS)
        assert np.all(exact <= claimed * 1.001 + 1e-9)
        for order, bound in zip(ORDERS, objective.divergences(event, ORDERS), strict=True):
            assert logsumexp((order - 1) * losses, b=weights) / (order - 1) <= bound + 1e-6


class TestInTrees:
    def test_compositions_and_samples_hold(self) -> None:
        """With the noise on the weights, and in a Poisson sample, the exact curve stays below ε of every accountant."""
        truth = pair((np.array([0.5]), np.array([1.0])), (1.0, 1.0), 0.5, 1.0)
        coarse = [np.add.reduceat(side, np.arange(0, len(side), 20)) for side in (truth.with_record, truth.without)]
        edges = np.linspace(-9, 9, 400)
        normal = [np.diff(np.r_[0.0, ndtr(edges - shift), 1.0]) for shift in (0.25, 0.0)]
        both = Pair(*(np.outer(ours, theirs).ravel() for ours, theirs in zip(coarse, normal, strict=True)))
        event = objective_perturbation(1.0, 0.5, 1)
        sampled = Pair(0.2 * truth.with_record + 0.8 * truth.without, truth.without)
        trees = {compose(event, gaussian(4.0)): both, poisson_sampled(0.2, event): sampled, event: truth}
        for tree, exact in trees.items():
            for delta in (1e-6, 1e-4, 0.01, 0.1):
                for claimed in epsilon(tree, delta).by_accountant.values():
                    assert brute_force.delta(exact, claimed) <= delta * (1 + 1e-6)

    @pytest.mark.parametrize("regularisation", [0.3, 2.0, 20.0])
    def test_it_is_below_the_theorem_for_any_linear_model(self, regularisation: float) -> None:
        """Redberg, Koskela and Wang (2023), whose loss may have derivatives of both signs."""
        for noise in NOISES:
            event = objective_perturbation(noise, regularisation, 1)
            kappa, ratio = abs(math.log1p(-min(1 / (4 * regularisation), 0.999))), 1 / noise
            left = EPSILONS - kappa
            at = np.maximum(left, ratio**2 / 2)
            theirs = 2 * (ndtr(ratio / 2 - at / ratio) - np.exp(at + log_ndtr(-ratio / 2 - at / ratio)))
            below = np.minimum(left - ratio**2 / 2, 0)
            theirs = np.where(below < 0, -np.expm1(below) + np.exp(below) * theirs, theirs)
            assert np.all(objective.deltas(event, EPSILONS) <= theirs + 1e-12)  # type: ignore[arg-type]

    def test_extremes_are_simplified(self) -> None:
        assert simplify(objective_perturbation(1e-7, 1.0, 3)) == non_private()
        assert simplify(objective_perturbation(1.0, 1e-9, 200_000)) == non_private()
        assert simplify(compose(objective_perturbation(1.0, 1.0, 2), non_private())) == non_private()
        assert simplify(poisson_sampled(0, objective_perturbation(1.0, 1.0, 2))) == no_op()
        assert epsilon(objective_perturbation(1e150, 1e15, 2), 1e-6).epsilon == pytest.approx(0, abs=1e-9)
