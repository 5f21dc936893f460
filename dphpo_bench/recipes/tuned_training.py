"""A training whose learning rate follows from queries and from its own gradients: gradients in, steps out.

The method `hyfreedp` and `bench.hyfreedp.Tuner` train by it. They differ in who computes the gradients.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.recipes.dp_sgd import trainable
from dphpo_bench.recipes.noise_law import SHRINK, Looked, first_rate, is_head, noise_walk, root_mean_square
from dphpo_bench.recipes.queries import mean_loss_changes
from dphpo_bench.session.session import Session
from dphpo_bench.training.optimizers import UpdateRule, WeightAverage

# Settled like those of `noise_law`.
TIMES, HEARD, GROWTH = 20, 3.0, 1.2
"""Least times in a run that the rate may grow, and at most twice that; the standard deviations by which gradients must
ask for it; the factor."""

LIMIT = 4.0
"""The longest step, in steps of pure noise."""

FASTEST, FASTEST_REGRESSION = 20.0, 5.0
"""Limits of the first rate: how far it may let gradients that all point the same way, each as long as a clipped
record's, move the weights in a step. With SGD's momentum of .9 and `auto_s` they are learning rates of 2 and of .5."""

ASIDE = 0.35
"""Distance of compared losses on both sides, for the logarithm of the last layer's scale."""

BOUND = 2.0
"""Nats: the most that one record counts in a query after the last step."""


class TunedTraining:
    """A training of a plan, one step at a time.

    Its first rate is that of `first_rate`, but for a linear classifier at most one of two limits, because where there
    is little noise it is the curvature of the loss that bounds the rate. For the same reason steps are no longer than
    four steps of pure noise.

    In a regression gradients, which are released anyway, may raise the rate. Let w̄ be the average of the recent
    weights, and w the present ones. The noise of a step's gradient does not depend on w − w̄, so the component of the
    gradient along it, in standard deviations of that noise, is a standard normal number plus what the drawn records
    say. If over a twentieth of the run or less they say by three standard deviations that the loss still falls that
    way, the rate grows. In a classification they nearly always say so, because normalised gradients let margins grow
    without end.

    Args:
        planned: the plan's parameters.
        session: whose records answer.
        model: what is trained, in place.
        update: makes directions of gradients.
        simulated: the same optimiser in its first state, of `dummy_weights`.
        noise: standard deviation of the noise on each coordinate of a gradient.

    Attributes:
        learning_rate: of the latest step; NaN before the first.
        state: all that changes from step to step but the weights, for checkpoints.
        path: what the gradients said, and the learning rate after it.
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
        self._update, self._noise = update, noise
        self._weights = trainable(model)
        self._recent = WeightAverage(self._weights, 0.99)
        length = math.sqrt(sum(weight.numel() for weight in self._weights))
        clipped = noise * planned.batch_size / planned.noise_multiplier
        self._steps, self._distance, onward = noise_walk(simulated, noise, planned.steps, clipped / length)
        longest = FASTEST_REGRESSION if planned.regression else math.inf if is_head(model) else FASTEST
        self._fastest = longest / max(onward * length, 1e-12)
        self._rate: list[float] = []
        self._onward: list[float] = []
        apart = max(1, planned.steps // TIMES)
        self._times = frozenset(range(max(2, apart), planned.steps, apart))
        self.path: list[dict[str, float]] = []
        self.state: list[Any] = [update, self._recent, self._onward, self._rate, self.path]

    @property
    def learning_rate(self) -> float:
        """See above."""
        return self._rate[-1] if self._rate else math.nan

    def step(self, step: int, gradient: Sequence[Tensor]) -> None:
        """Take one step along a noisy mean gradient.

        Args:
            step: its number, from 0.
            gradient: one tensor for each trainable parameter.
        """
        if step == 0:
            first = first_rate(self.planned, self.session, self.model, self._distance)
            self._rate.append(min(first, self._fastest))
        if self.planned.regression:
            self._listen(step, gradient)
        direction = self._update.direction(gradient)
        longest = LIMIT * self._steps[min(step, len(self._steps) - 1)]
        self._update.apply(direction, self.learning_rate * min(1.0, longest / root_mean_square(direction)))

    def _listen(self, step: int, gradient: Sequence[Tensor]) -> None:
        """Raise the rate at the times of it, if the gradients since the last time ask for it."""
        self._recent.update()
        stretch = [weight.detach() - mean for weight, mean in zip(self._weights, self._recent.average, strict=True)]
        self._onward.append(descent(gradient, stretch) / self._noise)
        if step in self._times:
            along = sum(self._onward) / math.sqrt(len(self._onward))
            self._rate[:] = [self.learning_rate * (GROWTH if along > HEARD else 1.0)]
            self.path.append({"step": step, "learning_rate": self.learning_rate, "onward": along})
            self._onward.clear()

    def results(self) -> dict[str, Any]:
        """Scale the last layer, after the last step, and return what the training released beside the gradients."""
        return {"learning_rate": self.learning_rate, "path": self.path, "scale": self.scaled()}

    @torch.no_grad()
    def scaled(self) -> float:
        """Scale the last layer to where the cross entropy is least, and return by how much; not in a regression."""
        planned, logarithm = self.planned, 0.0
        if not planned.scalings:
            return 1.0
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


def descent(gradient: Sequence[Tensor], way: Sequence[Tensor]) -> float:
    """Return the first-order decrease of the loss for a step of length 1 along the path; 0 without a path."""
    pairs = [(slope.double(), step.double()) for slope, step in zip(gradient, way, strict=True)]
    length = math.sqrt(sum(step.square().sum().item() for _, step in pairs))
    return -sum((slope * step).sum().item() for slope, step in pairs) / length if length else 0.0
