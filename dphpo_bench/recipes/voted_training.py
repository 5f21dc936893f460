"""A training whose records vote on its learning rate: gradients in, steps of the weights out.

The method `hyfreedp` and `bench.hyfreedp.Tuner` train by it. They differ in who computes the gradients.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.recipes.dp_sgd import trainable
from dphpo_bench.recipes.voting import (
    ASIDE,
    BOUND,
    FALLBACK,
    FELT,
    GUESS,
    HEAD,
    LARGEST,
    LOOKS,
    RESCALE,
    SETTLE,
    SHRINK,
    SMALLEST,
    STRIDE,
    TINY,
    UNSEEN,
    WARM,
    Voted,
    VotingRule,
)
from dphpo_bench.session.session import Session
from dphpo_bench.training.averaging import WeightAverage
from dphpo_bench.training.optimizers import UpdateRule


class VotedTraining:
    """A training of a plan, one step at a time.

    Args:
        planned: the plan's parameters.
        session: whose records look and vote.
        model: what is trained, in place.
        update: makes directions of gradients.
        noise: standard deviation of the noise on each coordinate of a gradient.
        is_regression: whether the loss grows with the square of the outputs.

    Attributes:
        state: all that changes from step to step but the weights, for checkpoints.
        path: what each probe released, and the learning rate after it.
    """

    def __init__(
        self,
        planned: Voted,
        session: Session,
        model: nn.Module,
        update: UpdateRule,
        noise: float,
        *,
        is_regression: bool = False,
    ) -> None:
        self.planned, self.session, self.model = planned, session, model
        self._update, self._noise, self._is_regression = update, noise, is_regression
        self._weights = trainable(model)
        self._recent = WeightAverage(self._weights, 0.99)
        self._onward: list[float] = []
        self.rule = VotingRule(math.nan, (math.nan, math.nan), math.nan)  # set at the first step
        self.path: list[dict[str, float]] = []
        self.state: list[Any] = [update, self._recent, self._onward, self.rule, self.path]

    def step(self, step: int, gradient: Sequence[Tensor]) -> None:
        """Take one step along a noisy mean gradient; the records vote first, if the plan says so.

        Args:
            step: its number, from 0.
            gradient: one tensor for each trainable parameter.
        """
        planned = self.planned
        direction = self._update.direction(gradient)
        if step == 0:
            vars(self.rule).update(vars(self.first_rule(direction)))
        stretch = [weight.detach() - mean for weight, mean in zip(self._weights, self._recent.average, strict=True)]
        self._onward.append(descent(gradient, stretch) / self._noise)
        if step in planned.probes:
            batch = self.session.sample(planned.vote, "votes")
            noise = planned.noise(planned.vote_rate)
            behind, ahead = batch.loss_changes(self.model, stretch, (1.0, -1.0), TINY, noise)
            last, next_one = behind / TINY, -ahead / TINY
            along = sum(self._onward) / math.sqrt(len(self._onward))
            self.rule.observe(last, next_one, step / planned.steps, along)
            seen = {"learning_rate": self.rule.learning_rate, "last": last, "next": next_one, "onward": along}
            self.path.append({"step": step} | seen)
            self._onward.clear()
        self._update.apply(direction, self.rule.learning_rate * min(1.0, (step + 1) / (WARM * planned.steps)))
        self._recent.update()

    def results(self) -> dict[str, Any]:
        """Scale the last layer, after the last step, and return what the training released beside the gradients."""
        return {"learning_rate": self.rule.learning_rate, "path": self.path, "scale": self.scaled()}

    def first_rule(self, direction: Sequence[Tensor]) -> VotingRule:
        """Return the rule at its first rate, which the noise decides that the initial weights can bear."""
        planned, model = self.planned, self.model
        batch, noise = self.session.sample(planned.walk, "walk"), planned.noise(planned.look_rate)
        deviation, felt = planned.blur(planned.look_rate), FALLBACK
        if deviation <= UNSEEN:
            draws = normal_like(direction, self.session.uniform("walk"))

            def rise(size: float) -> float:
                # Both ways: what is linear cancels, so that a lucky direction does not pass for a harmless one.
                return sum(batch.loss_changes(model, next(draws), (size, -size), BOUND, noise)) / 2

            # Noise on two clipped sums must not pass for a rise, or the run starts far too low. The rise is quadratic.
            clear = max(FELT, 2 * BOUND * deviation / math.sqrt(2))
            size = bearable(rise, clear) * math.sqrt(FELT / clear)
            # What a step of rate 1 moves each weight by: one for Adam and its kin.
            felt = size / (math.sqrt(planned.steps) * root_mean_square(direction))
        first = felt * (HEAD if is_head(model) and not self._is_regression else 1.0)
        return VotingRule(first, (SMALLEST * felt, LARGEST * felt), planned.blur(planned.vote_rate))

    @torch.no_grad()
    def scaled(self) -> float:
        """Scale the last layer to where the loss is least, and return by how much."""
        planned, logarithm = self.planned, 0.0
        batch = self.session.sample(planned.scale, "scale")
        noise, deviation = planned.noise(planned.look_rate), planned.blur(planned.look_rate)
        if deviation > UNSEEN:
            return 1.0
        last = list(last_layer(self.model))
        for look in range(LOOKS):
            torch._foreach_mul_(last, math.exp(ASIDE))
            direction = [weight * any(weight is member for member in last) for weight in self._weights]
            (change,) = batch.loss_changes(self.model, direction, (1 - math.exp(-2 * ASIDE),), BOUND, noise)
            stride = math.copysign(RESCALE * SETTLE**look, change) if abs(change) > 2 * BOUND * deviation else 0.0
            torch._foreach_mul_(last, math.exp(stride - ASIDE))
            logarithm += stride
        return math.exp(logarithm)


def bearable(rise: Callable[[float], float], limit: float) -> float:
    """Return the noise per weight at which the loss rises by `limit`, from eight looks.

    Unlike in bisection, later looks can correct a wrong one.

    Args:
        rise: of the loss at such noise, in nats; noisy.
        limit: in nats.
    """
    size = math.log(GUESS)
    for look in range(LOOKS):
        size += STRIDE * SHRINK**look * (-1 if rise(math.exp(size)) > limit else 1)
    return math.exp(size)


def descent(gradient: Sequence[Tensor], way: Sequence[Tensor]) -> float:
    """Return the first-order decrease of the loss for a step of length 1 along the path; 0 without a path."""
    pairs = [(slope.double(), step.double()) for slope, step in zip(gradient, way, strict=True)]
    length = math.sqrt(sum(step.square().sum().item() for _, step in pairs))
    return -sum((slope * step).sum().item() for slope, step in pairs) / length if length else 0.0


def normal_like(tensors: Sequence[Tensor], uniform: float) -> Iterator[list[Tensor]]:
    """Yield standard normal tensors of these shapes without end, drawn without looking at any record."""
    generator = torch.Generator().manual_seed(random.Random(uniform).getrandbits(63))
    while True:
        yield [
            torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype).to(tensor.device) for tensor in tensors
        ]


def root_mean_square(tensors: Sequence[Tensor]) -> float:
    """Return the root mean square of all entries; never 0."""
    total = sum(tensor.double().square().sum().item() for tensor in tensors)
    return max(math.sqrt(total / sum(tensor.numel() for tensor in tensors)), 1e-12)


def is_head(model: nn.Module) -> bool:
    """Return whether one matrix, and at most a bias, of the last layer with weights is all that is trained."""
    owned = [weights for layer in model.modules() if (weights := list(layer.parameters(recurse=False)))]
    others = (weight.requires_grad for weights in owned[:-1] for weight in weights)
    return sum(weight.requires_grad and weight.dim() > 1 for weight in owned[-1]) == 1 and not any(others)


def last_layer(model: nn.Module) -> Sequence[Tensor]:
    """Return the trained weights of the last module that has any itself, which usually computes the outputs."""
    owned = (
        [weight for weight in layer.parameters(recurse=False) if weight.requires_grad] for layer in model.modules()
    )
    return [weights for weights in owned if weights][-1]
