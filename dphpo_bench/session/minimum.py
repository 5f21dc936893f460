"""Objective perturbation on a batch: the minimum of a linear classifier's perturbed loss, with noise of its own."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import RECORD, single
from dphpo_bench.privacy.events import compose, gaussian, objective_perturbation
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.objective import NO_GRID
from dphpo_bench.session.access import Access
from dphpo_bench.training.linear import NOT_LINEAR, convex_layer
from dphpo_bench.training.perturbed_minimum import NotConvergedError, PerturbedLoss, reachable_tolerance, unit_inputs

if TYPE_CHECKING:
    from torch import Tensor

PASSES = 100
"""Example passes that the meter counts for each record: public, unlike the number that the solver takes."""


def perturbed_minimum(
    access: Access,
    indices: "Tensor | None",
    expected_size: float,
    account: Ledger,
    model: nn.Module,
    regularisation: float,
    noise_multiplier: float,
    output_noise: float,
) -> "list[Tensor]":
    """Charge, minimise and release; see `Batch.perturbed_minimum`."""
    layer = _linear_classifier(access, model)
    outputs = layer.out_features
    exact, covering = objective_perturbation(noise_multiplier, regularisation, outputs), gaussian(output_noise)
    regularisation, noise_multiplier = exact.regularisation, exact.noise_multiplier  # checked, and built-in numbers
    account.charge(compose(exact, covering))
    has_bias = layer.bias is not None
    shape, bound = (outputs, layer.in_features + has_bias), 1.0 if outputs == 1 else math.sqrt(2)
    tolerance = reachable_tolerance(expected_size, shape, regularisation, noise_multiplier * bound)
    zeros = torch.zeros(shape, dtype=torch.float64)
    (linear,) = access.with_noise([zeros], noise_multiplier, bound, "objective")

    def minimum() -> "Tensor | None":
        train, (rows, _) = access.raw.train, access.raw.members(indices)
        records = train if rows is None else train.rows(rows)
        inputs = unit_inputs(single(records.inputs).flatten(1).cpu().double().numpy(), constant=has_bias)
        targets = single(records.targets).cpu().reshape(-1)
        labels = (targets > 0.5).long() if outputs == 1 else targets.long().clamp(0, outputs - 1)
        try:
            weights = PerturbedLoss(inputs, labels.numpy(), linear.numpy(), regularisation).minimum(tolerance)
        except NotConvergedError:
            return None
        return torch.from_numpy(np.ascontiguousarray(weights))

    access.meter.advance(PASSES * expected_size)
    weights = access.compute(minimum)
    linear.zero_()  # freed memory keeps its numbers, and the release without its noise is the gradient
    if weights is None:  # exact arithmetic excludes it; there is nothing that the theorem covers
        raise access.failure("The solver did not reach the tolerance that the release is accounted with.")
    (noisy,) = access.with_noise([weights], covering.noise_multiplier, 2 * tolerance / regularisation, "minimum")
    parts = torch.split(noisy, [layer.in_features, 1], dim=1) if has_bias else [noisy]
    return [
        part.reshape(parameter.shape).to(parameter) for part, parameter in zip(parts, layer.parameters(), strict=True)
    ]


def _linear_classifier(access: Access, model: nn.Module) -> nn.Linear:
    """Return the model's layer; reject whatever the theorem does not cover.

    Raises:
        InvalidValueError: if the model, the loss, the unit or the noise is another.
    """
    raw = access.raw
    if raw.facts.unit != RECORD:
        raise InvalidValueError(
            f"Expected records that are protected one by one, got units of {raw.facts.unit!r}: objective perturbation "
            "needs that the gradient of what is protected has the direction of one input. Use another method."
        )
    if access.streams.secure:
        raise InvalidValueError(NO_GRID)
    layer = convex_layer(raw.own_model().like(model), raw.objective.losses)
    if layer is None or raw.train.are_named:
        raise InvalidValueError(f"{NOT_LINEAR}, got a {type(model).__name__} for task {raw.facts.task}.")
    shape = single(raw.train.targets).shape[1:]
    if shape.numel() != 1:
        raise InvalidValueError(
            f"Expected one label for each record, got targets of shape {tuple(shape)} each, for task {raw.facts.task}."
        )
    entries = single(raw.train.inputs).shape[1:].numel()
    if entries != layer.in_features:
        raise InvalidValueError(
            f"Expected as many entries in each record as the layer has inputs, {layer.in_features}, got {entries}, for "
            f"task {raw.facts.task}."
        )
    return layer
