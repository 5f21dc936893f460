"""Rules that move the learning rate in a run, beside the law alone: what votes and gradients buy.

    python -m research.moving_rates --every 2          # a table; takes half an hour on every second task
    python -m research.moving_rates --only digits

All rules run in one stack (`research.stacked`) with SGD, from the rate of the law, whose noise is found on 512
records without noise. Steps are limited as in `hyfreedp`. Twenty times a run each rule gets two numbers: the component
of the gradients since the last time along w − w̄, in standard deviations of its noise; and the mean vote of 256 records
on whether their loss fell from w̄ to w, with the noise that 3 % of μ² pay for. w̄ averages weights with weight (t + 1)³.
"""

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import dphpo_bench as bench
from dphpo_bench.recipes.noise_law import GUESS, HEAD, RISE, is_head
from dphpo_bench.recipes.tuned_training import GROWTH, HEARD, LIMIT, TIMES
from dphpo_bench.training.optimizers import WeightAverage
from dphpo_bench.training.randomness import Streams
from research.development_runs import held, kind_of, references, summary
from research.development_set import EPSILONS, Curves, batches, make, measured, read
from research.stacked import Stack, gaussian_noise, initial_model, stack_of


class Heard(NamedTuple):
    """What a rule learns of all runs: component of the gradients, votes, share of the run that is done."""

    along: Tensor
    votes: Tensor
    done: float


OCTAVE, STEP = 0.25, math.log2(GROWTH)
RULES: dict[str, Callable[[Heard], Tensor]] = {
    "the law alone": lambda heard: torch.zeros_like(heard.along),
    "gradients, up and down": lambda heard: OCTAVE * torch.tanh(heard.along / 2),
    "gradients, up and down, beyond three": lambda heard: OCTAVE * heard.along.sign() * (heard.along.abs() > HEARD),
    "gradients, up, beyond three": lambda heard: STEP * (heard.along > HEARD),
    "gradients, up, beyond three, late": lambda heard: STEP * (heard.along > HEARD) * (heard.done >= 0.2),
    "votes, up and down": lambda heard: OCTAVE * torch.tanh(heard.votes / 0.1),
}
"""Logarithms to base 2 of the factor by which each rule changes the rate. "Three": standard deviations."""


def bearable(curves: Curves, moves: int = 8) -> float:
    """The noise per weight at which half of the records' losses rise by the factor `RISE`."""
    task = make(curves.name)
    source = bench.DataSource.resolve()
    task.prepare(source)
    records, model = task.load_train(source), initial_model(task, 0)
    x, y, losses = records.inputs[:512].float(), records.targets[:512], task.objective().losses  # type: ignore[index]
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    generator = Streams(0).generator("moves")

    @torch.no_grad()
    def share(size: float) -> float:
        """The share of records whose loss rises, averaged over random moves."""
        shares, start = [], losses(torch.func.functional_call(model, weights, (x,)), y)
        for _ in range(moves):
            move = {name: torch.randn(weight.shape, generator=generator) for name, weight in weights.items()}
            sides = [{name: weights[name] + side * size * move[name] for name in move} for side in (1, -1)]
            ends = [losses(torch.func.functional_call(model, at, (x,)), y) for at in sides]
            shares.append(((ends[0] + ends[1]) / 2 > RISE * start).double().mean())
        return float(torch.stack(shares).mean())

    low, high = math.log(GUESS) - 10, math.log(GUESS) + 10
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if share(math.exp(middle)) < 0.5 else (low, middle)
    return math.exp(low)


def lengths(tensors: list[Tensor]) -> Tensor:
    """Squared lengths of each run's part: shape (runs,)."""
    return torch.stack([tensor.flatten(1).square().sum(1) for tensor in tensors]).sum(0)


def losses_at(stack: Stack, weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Losses of all runs at other weights: shape (runs, n)."""
    present = [parameter.clone() for parameter in stack.parameters]
    torch._foreach_copy_(stack.parameters, weights)
    losses = torch.stack([stack.loss(outputs, y) for outputs in stack.outputs(x)])
    torch._foreach_copy_(stack.parameters, present)
    return losses


def simulate(curves: Curves, size: float, seed: int) -> np.ndarray:
    """The metric of each rule at each ε, in %: shape (rules, ε)."""
    task, source = make(curves.name, seed), bench.DataSource.resolve()
    task.prepare(source)
    records, streams, facts = task.load_train(source), Streams(seed + 1_000), task.facts
    runs, steps = len(RULES) * len(EPSILONS), facts.steps
    stack = stack_of(task, records, runs, seed)
    sigmas = torch.tensor(curves.sigmas).repeat(len(RULES))
    noise = gaussian_noise(stack, sigmas, streams.generator("noise", curves.name))
    deviation = sigmas / facts.batch_size
    walk = [math.sqrt(sum(0.81**k for k in range(step + 1))) for step in range(steps)]
    travel = deviation * math.sqrt(sum(((1 - 0.9**k) / 0.1) ** 2 for k in range(1, steps + 1)))
    heads = HEAD if is_head(initial_model(task, seed)) and facts.kind != "regression" else 1.0
    rates = heads * size / travel
    apart = max(1, steps // TIMES)
    times = range(max(2, apart), steps, apart)
    blur = torch.clamp(deviation * math.sqrt(2 * len(times) / (0.03 * steps)), min=0.02)
    numbers = sum(parameter[0].numel() for parameter in stack.parameters)
    momentum = [torch.zeros_like(parameter) for parameter in stack.parameters]
    average, mean = WeightAverage(stack.parameters, 0.99), [parameter.clone() for parameter in stack.parameters]
    along, since = torch.zeros(runs), 0
    generator = streams.generator("votes", curves.name)
    for step, indices in enumerate(batches(task, streams.generator("batches", curves.name))):
        gradient = [torch.zeros_like(parameter) for parameter in stack.parameters]
        for some in indices.split(stack.rows()):
            x, y = records.inputs[some].float(), records.targets[some]  # type: ignore[index]
            torch._foreach_add_(gradient, stack.clipped_sums(x, y))
        torch._foreach_add_(gradient, list(noise()))
        torch._foreach_div_(gradient, facts.batch_size)
        way = [weight - middle for weight, middle in zip(stack.parameters, mean, strict=True)]
        dots = torch.stack([(a * b).flatten(1).sum(1) for a, b in zip(gradient, way, strict=True)]).sum(0)
        along -= torch.nan_to_num(dots / lengths(way).sqrt().clamp_min(1e-20) / deviation, nan=0.0)
        since += 1
        if step in times:
            voters = torch.randperm(facts.n_records, generator=generator)[:256]
            x, y = records.inputs[voters].float(), records.targets[voters]  # type: ignore[index]
            fell = losses_at(stack, mean, x, y) - losses_at(stack, stack.parameters, x, y)
            votes = (fell / 1e-5).nan_to_num(-1.0).clamp(-1, 1).mean(1) + blur * torch.randn(runs, generator=generator)
            factors = [
                rule(Heard(z, v, step / steps))
                for rule, z, v in zip(
                    RULES.values(), (along / math.sqrt(since)).chunk(len(RULES)), votes.chunk(len(RULES)), strict=True
                )
            ]
            rates, along, since = rates * 2 ** torch.cat(factors), torch.zeros(runs), 0
        torch._foreach_mul_(momentum, 0.9)
        torch._foreach_add_(momentum, gradient)
        longest = LIMIT * deviation * walk[step]
        moves = rates * (longest / (lengths(momentum) / numbers).sqrt().clamp_min(1e-20)).clamp(max=1.0)
        for weight, direction in zip(stack.parameters, momentum, strict=True):
            weight.sub_(direction * moves.view(-1, *(1,) * (direction.ndim - 1)))
        torch._foreach_lerp_(mean, stack.parameters, min(1.0, 4 / (step + 4)))
        average.update()
    average.copy_to(stack.parameters)
    return np.asarray(held(measured(task, stack, task.load_test(source)))).reshape(len(RULES), len(EPSILONS))


def main() -> None:
    """Print regrets of all rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="tasks whose name has this text")
    parser.add_argument("--every", type=int, default=1, help="every n-th task")
    parser.add_argument("--seconds", type=float, default=3.0, help="tasks whose curves took at most this, a seed")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    tasks = [each for each in read() if asked.only in each.name and each.seconds <= asked.seconds * len(each.metric)]
    regrets: dict[tuple[str, str], list[float]] = defaultdict(list)
    for count, curves in enumerate(tasks[:: asked.every], start=1):
        size = bearable(curves)
        metric = np.mean([simulate(curves, size, seed) for seed in range(2)], axis=0)
        for rule, row in zip(RULES, metric, strict=True):
            lost = [best - value for best, value in zip(references(curves), row.tolist(), strict=True)]
            regrets[rule, "all"] += lost
            regrets[rule, kind_of(curves)] += lost
        sys.stdout.write(f"{count} of {len(tasks[:: asked.every])}: {curves.name}\n")
        sys.stdout.flush()
    sys.stdout.write("rule, kind (runs) | mean | within 1 | 90th | worst\n")
    for (rule, kind), values in sorted(regrets.items()):
        sys.stdout.write(f"{rule}, {kind} ({len(values)}) | {summary(values)}\n")


if __name__ == "__main__":
    main()
