"""Objective and output perturbation on a batch: a linear classifier's minimal loss, with noise before or behind."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import RECORD, single
from dphpo_bench.privacy.events import checked_regularisation, compose, gaussian, objective_perturbation
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.objective import NO_GRID
from dphpo_bench.session.access import Access
from dphpo_bench.training.linear import NOT_LINEAR, convex_layer
from dphpo_bench.training.perturbed_minimum import NotConvergedError, PerturbedLoss, reachable_tolerance, unit_inputs

PASSES = 100
"""Example passes that the meter counts for each record: public, unlike the number that the solver takes."""


class Minimisation:
    """The regularised loss of a batch under a linear classifier, whose minimum is released with noise.

    Args:
        model: a classifier of the task; its weights do not matter.
    """

    def __init__(
        self, access: Access, indices: Tensor | None, expected_size: float, account: Ledger | Access, model: nn.Module
    ) -> None:
        self._access, self._indices, self._expected_size, self._account = access, indices, expected_size, account
        self._layer = layer = _linear_classifier(access, model)
        # W: the weights, and the bias as one more column.
        self._shape = layer.out_features, layer.in_features + (layer.bias is not None)
        # L, the norm that no record's gradient exceeds: that of p − y, or of p − e_y, for inputs of norm 1.
        self._bound = 1.0 if layer.out_features == 1 else math.sqrt(2)

    def perturbed(self, regularisation: float, noise_multiplier: float, output_noise: float) -> list[Tensor]:
        """Charge, minimise and release; see `Batch.perturbed_minimum`."""
        if self._access.streams.secure:
            raise InvalidValueError(NO_GRID)
        exact = objective_perturbation(noise_multiplier, regularisation, self._layer.out_features)
        covering = gaussian(output_noise)
        regularisation, noise_multiplier = exact.regularisation, exact.noise_multiplier  # checked, and built-in numbers
        self._account.charge(compose(exact, covering))
        tolerance = reachable_tolerance(
            self._expected_size, self._shape, regularisation, noise_multiplier * self._bound
        )
        zeros = torch.zeros(self._shape, dtype=torch.float64)
        (linear,) = self._access.with_noise([zeros], noise_multiplier, self._bound, "objective")
        weights = self._minimum(linear, regularisation, tolerance)
        return self._released(weights, covering.noise_multiplier, 2 * tolerance / regularisation)

    def noisy(self, regularisation: float, noise_multiplier: float) -> list[Tensor]:
        """Charge, minimise and release; see `Batch.noisy_minimum`."""
        regularisation, event = checked_regularisation(regularisation), gaussian(noise_multiplier)
        self._account.charge(event)
        tolerance = reachable_tolerance(self._expected_size, self._shape, regularisation, 0.0)
        weights = self._minimum(torch.zeros(self._shape, dtype=torch.float64), regularisation, tolerance)
        return self._released(weights, event.noise_multiplier, (self._bound + 2 * tolerance) / regularisation)

    def _minimum(self, linear: Tensor, regularisation: float, tolerance: float) -> Tensor:
        """Return the batch's minimum without the noise on the weights; `linear` is overwritten."""
        outputs, has_bias = self._layer.out_features, self._layer.bias is not None

        def minimum() -> Tensor | None:
            train, (rows, _) = self._access.raw.train, self._access.raw.members(self._indices)
            records = train if rows is None else train.rows(rows)
            inputs = unit_inputs(single(records.inputs).flatten(1).cpu().double().numpy(), constant=has_bias)
            targets = single(records.targets).cpu().reshape(-1)
            labels = (targets > 0.5).long() if outputs == 1 else targets.long().clamp(0, outputs - 1)
            try:
                weights = PerturbedLoss(inputs, labels.numpy(), linear.numpy(), regularisation).minimum(tolerance)
            except NotConvergedError:
                return None
            return torch.from_numpy(np.ascontiguousarray(weights))

        self._access.ledger.root.hides_time = True
        self._access.meter.advance(PASSES * self._expected_size)
        weights = self._access.compute(minimum)
        linear.zero_()  # freed memory keeps its numbers, and the release without its noise is the gradient
        if weights is None:  # exact arithmetic excludes it; there is nothing that the theorem covers
            raise self._access.failure("The solver did not reach the tolerance that the release is accounted with.")
        return weights

    def _released(self, weights: Tensor, noise_multiplier: float, sensitivity: float) -> list[Tensor]:
        """Return the weights with their noise, as the layer has them."""
        layer = self._layer
        (noisy,) = self._access.with_noise([weights], noise_multiplier, sensitivity, "minimum")
        parts = torch.split(noisy, [layer.in_features, 1], dim=1) if layer.bias is not None else [noisy]
        pairs = zip(parts, layer.parameters(), strict=True)
        return [part.reshape(parameter.shape).to(parameter) for part, parameter in pairs]


def _linear_classifier(access: Access, model: nn.Module) -> nn.Linear:
    """Return the model's layer; reject a model, a loss or a unit that the theorem does not cover."""
    raw = access.raw
    if raw.facts.unit != RECORD:
        raise InvalidValueError(
            f"Expected records that are protected one by one, got units of {raw.facts.unit!r}: the minimum's "
            "theorems bound the gradient of one record. Use another method."
        )
    layer = convex_layer(raw.own_model().like(model), raw.objective.losses)
    if layer is None or raw.train.are_named:
        raise InvalidValueError(f"{NOT_LINEAR}, got a {type(model).__name__} for task {raw.facts.task}.")
    shape = single(raw.train.targets).shape[1:]
    if shape.numel() != 1:
        raise InvalidValueError(
            f"Expected one label for each record, got targets of shape {tuple(shape)} each, for task {raw.facts.task}."
        )
    return layer
