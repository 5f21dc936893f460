"""Many runs of DP-SGD on one task at once: models of one shape, which share their batches and matrix products.

For curves of public tasks, not for private records: runs of a stack share Poisson batches, which no accountant of
repeated runs allows. Each run by itself is one of `auto_clipping`: its batches are Poisson, its noise is its own. Only
the differences between runs of a stack lose what different batches would add to them.

A perceptron's per-record gradients are never formed: layer by layer, a record's gradient is an outer product
δ ⊗ (h, 1). Sums are in float32, which is right for curves and would be wrong for privacy (see `training.norms`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Task
from dphpo_bench.training import losses
from dphpo_bench.training.clipping import AutoS, Clipping
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.optimizers import UpdateRule, WeightAverage
from dphpo_bench.training.randomness import Streams, global_randomness

SLOPES: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.Tanh: torch.ops.aten.tanh_backward,
    nn.ReLU: lambda delta, outputs: torch.ops.aten.threshold_backward(delta, outputs, 0),
}
"""Gradients with respect to inputs of activations, from those with respect to outputs, and outputs."""

CELLS = 2**20
"""Largest number of outputs of a layer, of all runs for the records of a micro-batch: they should stay in cache."""


def initial_model(task: Task, seed: int) -> nn.Module:
    """The task's model as a run of this seed has it at first."""
    with global_randomness(Streams(seed).derive("initial weights", task.facts.task, task.facts.model)):
        return task.build_model()


class Stack:
    """Models of one task, all at the same initial weights; gradients by the package's engine, one model at a time.

    `parameters` are those of a model with a first dimension for the models. The first of the clipping rules is that of
    the first `runs / len(clippings)` models.
    """

    def __init__(
        self, task: Task, like: Records, runs: int, seed: int, clippings: Sequence[Clipping] = (AutoS(),)
    ) -> None:
        self.model, self.runs, self.clippings = initial_model(task, seed), runs, clippings
        self._weights = list(self.model.parameters())
        self.parameters = [weight.detach().expand(runs, *weight.shape).clone() for weight in self._weights]
        self._engine = gradient_engine(self.model, task.objective().losses, like=like)
        self.loss = self._engine.loss

    def rows(self) -> int:
        """Records in a micro-batch."""
        return 4_096

    def _load(self, run: int) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self._weights, [parameter[run] for parameter in self.parameters])

    def clipped_sums(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """The sums of clipped gradients, of the shapes of the parameters."""
        by_run = []
        for run in range(self.runs):
            self._load(run)
            rule = self.clippings[run * len(self.clippings) // self.runs]
            by_run.append([part.float() for part in self._engine.clipped_sum(inputs, targets, rule)])
        return [torch.stack(of_parameter) for of_parameter in zip(*by_run, strict=True)]

    def outputs(self, inputs: Tensor) -> Tensor:
        """Outputs of all models: shape (runs, n, outputs)."""
        by_run = []
        with torch.no_grad():
            for run in range(self.runs):
                self._load(run)
                by_run.append(self.model(inputs))
        return torch.stack(by_run)


class StackedPerceptrons(Stack):
    """Perceptrons of any depth, linear models too: clipped sums in closed form, by products for all runs at once.

    Activations are held as (runs, units, records).
    """

    def __init__(
        self, task: Task, like: Records, runs: int, seed: int, clippings: Sequence[Clipping] = (AutoS(),)
    ) -> None:
        super().__init__(task, like, runs, seed, clippings)
        layers = perceptron_layers(self.model)
        if layers is None or self.loss not in RESIDUALS:
            raise InvalidValueError(f"Expected a perceptron with a ready-made loss, got {type(self.model).__name__}.")
        self._activations = layers
        self._residuals = RESIDUALS[self.loss]

    def rows(self) -> int:
        widest = max(parameter.shape[1] for parameter in self.parameters)
        return max(32, CELLS // (self.runs * widest))

    def _forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The inputs of all layers but the first, and the outputs (runs, outputs, n)."""
        weights, biases = self.parameters[::2], self.parameters[1::2]
        z = (weights[0].flatten(0, 1) @ x.t()).view(self.runs, -1, len(x)).add_(biases[0][..., None])
        hidden: list[Tensor] = []
        for activation, weight, bias in zip(self._activations, weights[1:], biases[1:], strict=True):
            hidden.append(z.tanh_() if activation is nn.Tanh else z.relu_())
            z = torch.baddbmm(bias[..., None], weight, hidden[-1])
        return hidden, z

    @torch.no_grad()
    def clipped_sums(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        x, weights = inputs.flatten(1), self.parameters[::2]
        hidden, outputs = self._forward(x)
        deltas, squares = [self._residuals(outputs, targets)], torch.zeros(self.runs, len(x))
        for layer in range(len(hidden), -1, -1):
            lengths = (hidden[layer - 1] if layer else x.t()).square().sum(-2).add_(1)
            squares.addcmul_(deltas[0].square().sum(1), lengths.expand_as(squares))
            if layer:
                back = SLOPES[self._activations[layer - 1]]
                deltas.insert(0, back(torch.bmm(weights[layer].transpose(1, 2), deltas[0]), hidden[layer - 1]))
        finite = squares.isfinite()
        if not finite.all():  # of runs that diverged: such a record adds nothing
            deltas, hidden = ([torch.where(finite[:, None], part, 0.0) for part in parts] for parts in (deltas, hidden))
        parts = zip(self.clippings, squares.sqrt_().chunk(len(self.clippings)), strict=True)
        factors = torch.cat([rule.factors(norms) for rule, norms in parts])[:, None]
        sums = []
        for layer, delta in enumerate(deltas):
            delta *= factors
            sums += [
                torch.bmm(delta, hidden[layer - 1].transpose(1, 2)) if layer else (delta.flatten(0, 1) @ x),
                delta.sum(2),
            ]
        return [part.view_as(parameter) for part, parameter in zip(sums, self.parameters, strict=True)]

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        pieces = [self._forward(part.flatten(1))[1] for part in inputs.split(self.rows())]
        return torch.cat(pieces, dim=2).transpose(1, 2)


def perceptron_layers(model: nn.Module) -> list[type[nn.Module]] | None:
    """The classes of the activations between a perceptron's layers; None for other models."""
    layers = list(model) if type(model) is nn.Sequential else [model]
    layers = layers[1:] if type(layers[0]) is nn.Flatten else layers
    linear, between = layers[::2], [type(layer) for layer in layers[1::2]]
    is_linear = all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
    return between if is_linear and len(layers) % 2 and set(between) <= set(SLOPES) else None


def _of_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    chances = outputs.sub_(outputs.amax(1, keepdim=True)).exp_()
    chances /= chances.sum(1, keepdim=True)
    return chances.scatter_add_(1, targets.expand(len(outputs), 1, -1), -torch.ones_like(outputs[:, :1]))


RESIDUALS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    losses.cross_entropy: _of_classes,
    losses.binary_cross_entropy: lambda outputs, targets: outputs.sigmoid_().sub_(targets),
    losses.squared_error: lambda outputs, targets: outputs.sub_(targets).mul_(2),
}
"""Gradients of losses with respect to outputs (runs, outputs, n), which they overwrite; of a number or a class."""


def stack_of(task: Task, like: Records, runs: int, seed: int, clippings: Sequence[Clipping] = (AutoS(),)) -> Stack:
    """The fast stack where the model is a perceptron, else the general one."""
    is_fast = perceptron_layers(initial_model(task, seed)) is not None and task.objective().losses in RESIDUALS
    return (StackedPerceptrons if is_fast else Stack)(task, like, runs, seed, clippings)


class UniformAverage(WeightAverage):
    """The mean of the weights after each step from number `first` on, the earliest being 0."""

    def __init__(self, parameters: Sequence[Tensor], first: int) -> None:
        super().__init__(parameters, 0.0)
        self._first = first

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights."""
        torch._foreach_lerp_(self.average, self._parameters, 1 / max(1, self.updates - self._first + 1))
        self.updates += 1


def train(
    stack: Stack,
    records: Records,
    batch_size: float,
    batches: Iterator[Tensor],
    noise: Callable[[], Sequence[Tensor]],
    rates: Tensor,
    optimizers: Sequence[str],
    averaging: float = 0.99,
    first: int | None = None,
) -> None:
    """Train all models of a stack; in the end they have the average of their weights.

    Args:
        stack: the models.
        records: the training records.
        batch_size: expected.
        batches: numbers of the records of each step.
        noise: noise on the clipped sums of a step, of the shapes of the parameters.
        rates: of the runs.
        optimizers: of the runs: the first has the first `runs / len(optimizers)` of them.
        averaging: decay of the average.
        first: number of the first step of a uniform average, in its place.
    """
    shares = [parameter.chunk(len(optimizers)) for parameter in stack.parameters]
    updates = [UpdateRule(name, list(part)) for name, part in zip(optimizers, zip(*shares, strict=True), strict=True)]
    parameters = stack.parameters
    average = WeightAverage(parameters, averaging) if first is None else UniformAverage(parameters, first)
    for indices in batches:
        total = [torch.zeros_like(parameter) for parameter in stack.parameters]
        for some in indices.split(stack.rows()):
            x, y = records.inputs[some].float(), records.targets[some]
            torch._foreach_add_(total, stack.clipped_sums(x, y))
        torch._foreach_add_(total, list(noise()))
        torch._foreach_div_(total, batch_size)
        parts = zip(*(gradient.chunk(len(optimizers)) for gradient in total), strict=True)
        for update, part, of_part in zip(updates, parts, rates.chunk(len(optimizers)), strict=True):
            direction = update.direction(part)
            update.apply([move * of_part.view(-1, *(1,) * (move.ndim - 1)) for move in direction], 1.0)
        average.update()
    average.copy_to(stack.parameters)


def gaussian_noise(stack: Stack, sigmas: Tensor, generator: torch.Generator) -> Callable[[], list[Tensor]]:
    """Independent noise of each run, in float32."""
    scales = [sigmas.view(-1, *(1,) * (parameter.ndim - 1)) for parameter in stack.parameters]

    def draw() -> list[Tensor]:
        return [
            torch.randn(parameter.shape, generator=generator).mul_(scale)
            for parameter, scale in zip(stack.parameters, scales, strict=True)
        ]

    return draw
