"""A training whose learning rate follows from queries: gradients in, steps out.

The methods `hyfreedp` and `noise_scaled`, and `bench.hyfreedp.Tuner`, train by it. They differ in who computes the
gradients, and in whether queries follow the last step.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.recipes.dp_sgd import trainable
from dphpo_bench.recipes.noise_law import Looked, first_rate, noise_walk
from dphpo_bench.recipes.queries import mean_loss_changes
from dphpo_bench.session.session import Session
from dphpo_bench.training.optimizers import UpdateRule

# Settled like those of `noise_law`.
ASIDE, SHRINK = 0.35, 0.72
"""Distance of compared losses on both sides, for the logarithm of the last layer's scale; factor between strides."""

BOUND = 2.0
"""Nats: the most that one record counts in a query after the last step."""


class TunedTraining:
    """A training of a plan at one learning rate, that of `first_rate`.

    Args:
        planned: the plan's parameters.
        session: whose records answer.
        model: what is trained, in place.
        update: makes directions of gradients.
        simulated: the same optimiser in its first state, of `dummy_weights`.
        noise: standard deviation of the noise on each coordinate of a gradient.

    Attributes:
        learning_rate: NaN before the first step.
        state: all that changes from step to step but the weights, for checkpoints.
    """

    def __init__(
        self,
        planned: Looked,
        session: Session,
        model: nn.Module,
        update: UpdateRule,
        simulated: UpdateRule,
        noise: float,
    ) -> None:
        self.planned, self.session, self.model = planned, session, model
        self._update, self._weights = update, trainable(model)
        length = math.sqrt(sum(weight.numel() for weight in self._weights))
        clipped = noise * planned.batch_size / planned.noise_multiplier
        self._distance, onward = noise_walk(simulated, noise, planned.steps, clipped / length)
        self._pace = onward * length
        self._rate: list[float] = []
        self.state: list[Any] = [update, self._rate]

    @property
    def learning_rate(self) -> float:
        """See above."""
        return self._rate[0] if self._rate else math.nan

    def step(self, gradient: Sequence[Tensor]) -> None:
        """Take one step along a noisy mean gradient; find the rate before the first.

        Args:
            gradient: one tensor for each trainable parameter.
        """
        if not self._rate:
            self._rate.append(first_rate(self.planned, self.session, self.model, self._distance, self._pace))
        self._update.apply(self._update.direction(gradient), self.learning_rate)

    def results(self) -> dict[str, Any]:
        """Scale the last layer, after the last step, and return what the training released beside the gradients."""
        scale = {"scale": self._scaled()} if self.planned.scalings else {}
        return {"learning_rate": self.learning_rate, **scale}

    @torch.no_grad()
    def _scaled(self) -> float:
        """Scale the last layer to where the cross entropy is least, and return by how much."""
        planned, logarithm = self.planned, 0.0
        batch = self.session.sample(planned.queries(planned.scalings), "scale")
        layers: list[list[Tensor]] = [
            [weight for weight in layer.parameters(False) if weight.requires_grad] for layer in self.model.modules()
        ]
        last = [weights for weights in layers if weights][-1]  # which usually computes the outputs
        for query in range(planned.scalings):
            torch._foreach_mul_(last, math.exp(ASIDE))
            direction = [weight * any(weight is member for member in last) for weight in self._weights]
            back, noise = 1 - math.exp(-2 * ASIDE), planned.look_noise
            (change,) = mean_loss_changes(batch, self.model, direction, (back,), BOUND, noise)
            stride = 2 * ASIDE * SHRINK**query if abs(change) > 2 * BOUND * planned.deviation else 0.0
            torch._foreach_mul_(last, math.exp(math.copysign(stride, change) - ASIDE))
            logarithm += math.copysign(stride, change)
        return math.exp(logarithm)
