"""A learning rate from the noise of a whole run: a few noisy queries find how much of it the initial weights tolerate.

DP-SGD adds noise of known size in every step. A rate is about right if the noise of the whole run, added to the initial
weights, harms the model a little: with less, the run does not get far; with more, noise is most of what it ends at.
docs/hyfreedp.md has the law behind this.
"""

import math
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, each, length
from dphpo_bench.contract.method import Cost, Plan, Release
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import dp_sgd_event, trainable
from dphpo_bench.recipes.queries import rising_share, second_moments

if TYPE_CHECKING:
    import torch
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn

    from dphpo_bench.records.record import OutputNoise
    from dphpo_bench.session.batch import Batch
    from dphpo_bench.session.session import Session
    from dphpo_bench.training.optimizers import UpdateRule

# Settled on the development set (`research.development_set`), then frozen; see docs/hyfreedp.md.
RISE = 1.2
"""Half of the records' losses may rise by this factor from the noise of a whole run."""

FACTOR, HEAD, CONVOLUTIONS = 2.8, 4.5, 2.0
"""Of the rate: of every model, of a classifier of which the last layer alone is trained, of one with convolutions."""

PACE = 25.0
"""How far weights may move in a step, beside how far noise may move them in the whole run."""

QUERIES = 8
"""Number of queries to a batch, before the first step and perhaps after the last. The last query of the first batch is
about gradients along as many directions, the others are about losses."""

MOVE = 0.25
"""How far losses along these directions are apart on each side, beside the noise per weight that raises losses."""

QUERIED = 512
"""Expected number of records in the batch of these queries."""

PRIOR, SPREAD = {False: 0.25, True: 0.08}, 2.0
"""What is known before the first query of the noise per weight, for a classifier and for a regression: a typical one,
and the standard deviation of its logarithm over tasks."""

WIDTH, SCATTER = 0.8, 0.2
"""How far the logarithms of what records tolerate are apart, and what random directions add to the error of a share
and of the logarithm of a rank, as standard deviations."""

RANK, RANK_SPREAD = 1 / 3, 1.0
"""What is known of the effective rank: a typical one is this power of the number of trained weights; the standard
deviation of its logarithm over tasks."""

COMMON, MANY = 4.0, 10_000
"""An effective rank, and the number of records from which a rate is nearer to that of this rank than to its own."""

BALANCE = {True: (1.0, 8.0), False: (0.1, 0.8)}
"""The ν of good rates, for a classifier of which a last layer is trained or more; below a regression's."""

BALANCE_OF_NUMBERS = (0.06, 0.5)

QUIETEST = 2.0
"""The least noise multiplier of a batch's queries together. With less, μ² grows faster than 1/σ²: they cost more."""


@dataclass(frozen=True)
class Looked:
    """Parameters of a plan: DP-SGD, and queries about losses before it and perhaps after it.

    Attributes:
        sample_rate: q.
        steps: T.
        noise_multiplier: of the gradients.
        records: N.
        look_rate: of the batches that answer queries about losses.
        look_noise: noise multiplier of each such query.
        scalings: number of queries after the last step.
        regression: whether the loss grows with the square of the outputs.
        optimizer: a `torch.optim` name.
    """

    sample_rate: float
    steps: int
    noise_multiplier: float
    records: int
    look_rate: float
    look_noise: float
    scalings: int
    regression: bool
    optimizer: str

    @classmethod
    def calibrated(
        cls,
        budget: PrivacyBudget,
        sample_rate: float,
        steps: int,
        records: int,
        *,
        share: float,
        regression: bool,
        optimizer: str,
        scaled: bool = False,
    ) -> "Looked":
        """Choose the noise of queries, then calibrate that of gradients, for the whole training at once.

        Args:
            budget: of the whole training.
            sample_rate: q.
            steps: T.
            records: N.
            share: the largest share of the run's Gaussian DP μ² that queries may take, about twice that of ε.
            regression: whether the loss grows with the square of the outputs.
            optimizer: a `torch.optim` name.
            scaled: whether there are queries after the last step too, but for a regression.

        Raises:
            BudgetTooSmallError: if no noise within reach meets the budget.
            InvalidValueError: if the optimiser takes matrices only, so that its noise has no walk.
        """
        from dphpo_bench.privacy.calibration import calibrate, calibrate_roughly

        if optimizer.lower() == "muon":
            raise InvalidValueError("Expected an optimizer of tensors of any shape, got 'muon'. Use 'adamw' or 'sgd'.")
        scalings = QUERIES if scaled and not regression else 0
        queries = QUERIES + scalings
        look_rate = min(1.0, QUERIED / records)
        alone = calibrate_roughly(lambda noise: dp_sgd_event(sample_rate, steps, noise), budget)
        # T subsampled Gaussians have μ² of about T (q/σ)² while σ is large, and queries likewise. An error here makes
        # queries more or less accurate; it never changes ε, which is calibrated below.
        affordable = look_rate * alone * math.sqrt(queries / (share * steps)) / sample_rate
        look_noise = max(QUIETEST * math.sqrt(QUERIES), affordable)
        planned = cls(sample_rate, steps, 0.0, records, look_rate, look_noise, scalings, regression, optimizer)
        return replace(
            planned,
            noise_multiplier=calibrate(lambda noise: replace(planned, noise_multiplier=noise).event, budget),
        )

    @property
    def batch_size(self) -> float:
        """Expected number of records in a step's batch."""
        return self.sample_rate * self.records

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on a mean of a query, in units of the largest that it can be."""
        return self.look_noise / (self.look_rate * self.records)

    @property
    def step(self) -> "DpEvent":
        """Event of the gradient of one step."""
        from dphpo_bench.privacy.events import gaussian, poisson_sampled

        return poisson_sampled(self.sample_rate, gaussian(self.noise_multiplier))

    def queries(self, count: int) -> "DpEvent":
        """Return the event of one batch that answers so many queries."""
        from dphpo_bench.privacy.events import gaussian, poisson_sampled, repeat

        return poisson_sampled(self.look_rate, repeat(gaussian(self.look_noise), count))

    @property
    def around(self) -> "tuple[DpEvent, ...]":
        """Events beside the gradients: queries before the first step, and after the last."""
        return tuple(self.queries(count) for count in (QUERIES, self.scalings) if count)

    @property
    def training(self) -> "DpEvent":
        """Event of the gradients alone."""
        return dp_sgd_event(self.sample_rate, self.steps, self.noise_multiplier)

    @property
    def event(self) -> "DpEvent":
        """Event of the whole training."""
        from dphpo_bench.privacy.events import compose

        return compose(self.training, compose(*self.around))

    def as_plan(self, budget: PrivacyBudget) -> Plan["Looked"]:
        """Return the plan of a method that does this and nothing else."""
        queries = [
            Release("share of records", QUERIES - 1, self.look_noise, self.look_rate),
            Release("second moments of gradients", 1, self.look_noise, self.look_rate),
        ]
        if self.scalings:
            queries.append(Release("clipped sum of loss changes", self.scalings, self.look_noise, self.look_rate))
        passes = (3 * (QUERIES - 1) + 2 * QUERIES + 2 * self.scalings) * self.look_rate + self.sample_rate * self.steps
        return Plan(
            budget=budget,
            event=self.event,
            training_event=self.training,
            parameters=self,
            releases=(Release("clipped gradient sum", self.steps, self.noise_multiplier, self.sample_rate), *queries),
            cost=Cost(runs=1, steps=self.steps, examples=passes * self.records),
        )


def tolerated_rate(
    size: float, rank: float, records: int, distance: float, pace: float, *, head: bool, convolutions: bool
) -> float:
    """Return c s / (M √r + P / (25 √r)), the learning rate that the initial weights tolerate.

    The effective rank r is drawn towards 4 where records are many: its logarithm's distance from that of 4 is divided
    by 1 + N/10,000. Where noise is small, P bounds the rate. c is 2.8, twice as much if a classifier's convolutions are
    trained. If its last layer alone is, c is 4.5 times as much, and there is no P, since its outputs have no scale of
    their own.

    Args:
        size: s, the noise per weight that raises half of the losses by a fifth, averaged over both signs.
        rank: r of records' gradients.
        records: N.
        distance: M, how far noise moves a weight in the whole run at rate 1.
        pace: P, how far gradients that all point the same way move the weights in a step.
        head: whether a classifier's last layer is all that is trained.
        convolutions: whether a classifier's are.
    """
    root = math.sqrt(COMMON * (rank / COMMON) ** (MANY / (MANY + records)))
    if head:
        return FACTOR * HEAD * size / (distance * root)
    return FACTOR * (CONVOLUTIONS if convolutions else 1.0) * size / (distance * root + pace / (PACE * root))


def first_rate(planned: Looked, session: "Session", model: "nn.Module", distance: float, pace: float) -> float:
    """Return the rate that the initial weights tolerate, from noisy queries to one batch of about 512 records.

    Args:
        planned: the plan, which pays for the queries.
        session: whose records answer.
        model: at its initial weights.
        distance: M; see `noise_walk`.
        pace: P, for gradients as long as a clipped record's.
    """
    import torch
    from torch import nn

    batch = session.sample(planned.queries(QUERIES), "walk")
    generator = torch.Generator().manual_seed(random.Random(session.uniform("walk")).getrandbits(63))
    size = _tolerance(planned, batch, model, generator)
    rank = _rank(planned, batch, model, generator, MOVE * size)
    classifier, kinds = not planned.regression, (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    convolutions = any(isinstance(layer, kinds) and layer.weight.requires_grad for layer in model.modules())
    return tolerated_rate(
        size,
        rank,
        planned.records,
        distance,
        pace,
        head=classifier and is_head(model),
        convolutions=classifier and convolutions,
    )


def _tolerance(planned: Looked, batch: "Batch", model: "nn.Module", generator: "torch.Generator") -> float:
    """Return the noise per weight that raises half of the losses by a fifth.

    Each of seven queries asks at the present guess, in a new random direction. The guess follows from all answers and
    their noise by Bayes' rule.
    """
    import torch

    rate, size = planned.look_rate, math.log(PRIOR[planned.regression])
    candidates = size + torch.linspace(-5 * SPREAD, 5 * SPREAD, 401, dtype=torch.float64)
    belief = -((candidates - size) / SPREAD).square() / 2
    error = math.hypot(planned.deviation / 2, math.sqrt((1 - rate) / (4 * rate * planned.records)), SCATTER)
    for _ in range(QUERIES - 1):
        sides = (math.exp(size), -math.exp(size))  # both, so that a lucky direction does not pass for a harmless one
        share = rising_share(batch, model, _direction(model, generator), sides, RISE, planned.look_noise)
        belief -= ((share - torch.special.ndtr((size - candidates) / WIDTH)) / error).square() / 2
        size = (belief.softmax(0) @ candidates).item()
    return math.exp(size)


def _rank(planned: Looked, batch: "Batch", model: "nn.Module", generator: "torch.Generator", move: float) -> float:
    """Return r = (tr Σ)² / tr Σ² of Σ = E u uᵀ, where u is a record's gradient, scaled to length 1.

    So 1/r is the mean squared cosine of the angle between two records' gradients. Eight random directions stand for
    all. Their second moments S have E |S|² = (1 + 7/r) / 8, more by what noise adds and by what each record has in
    common with itself. The rank follows by Bayes' rule.
    """
    import torch

    ways = [_direction(model, generator) for _ in range(QUERIES)]
    moments = second_moments(batch, model, ways, move, planned.look_noise)
    k, noise, expected_size = QUERIES, planned.deviation**2, planned.look_rate * planned.records
    numbers = k * (k + 1) / 2
    heard = (moments.square().sum() - numbers * noise - 1 / expected_size).clamp(min=1 / k)
    candidates = torch.linspace(0, 8, 401, dtype=torch.float64)
    shares = (-candidates).exp()
    expected = (1 + (k - 1) * shares) / k
    error = (SCATTER * (k - 1) / k * shares).square() + 2 * numbers * noise**2 + 4 * noise * expected
    error += 4 * (1 - planned.look_rate) / expected_size * expected.square()  # of the number of records drawn
    typical = RANK * math.log(sum(weight.numel() for weight in trainable(model)))
    belief = ((candidates - typical) / RANK_SPREAD).square() + (heard - expected).square() / error + error.log()
    return math.exp(((-belief / 2).softmax(0) @ candidates).item())


def _direction(model: "nn.Module", generator: "torch.Generator") -> "list[Tensor]":
    """Return a standard normal number for each trained weight."""
    import torch

    return [torch.randn(w.shape, generator=generator, dtype=w.dtype).to(w.device) for w in trainable(model)]


def noise_walk(update: "UpdateRule", noise: float, steps: int, signal: float = 0.0) -> tuple[float, float]:
    """Return how far an optimiser moves a weight by noise alone, and how much farther a signal amid it takes a step.

    All are at learning rate 1. No record has a part in it, and the same numbers come out each time.

    Args:
        update: the optimiser, of `dummy_weights`.
        noise: standard deviation of the noise on each coordinate of a gradient.
        steps: T. Of more than two thousand steps the others are extrapolated by √T, which is too far for Adagrad.
        signal: of each coordinate of a gradient, in all steps the same.

    Returns:
        The root mean square of all steps of noise together; the mean of what the signal adds to the last step.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    alone, _ = update.parameters
    total, simulated = torch.zeros_like(alone), min(steps, 2_000)
    for _ in range(simulated):
        drawn = (torch.randn(len(alone), generator=generator) * noise).to(alone)
        direction, onward = update.direction([drawn, drawn + signal])
        total += direction
    distance = max(math.sqrt(total.double().square().sum().item() / len(total)), 1e-12) * math.sqrt(steps / simulated)
    return distance, (onward - direction).double().mean().item()


def dummy_weights(model: "nn.Module") -> "list[Tensor]":
    """Return two zero tensors on the model's device for the simulation of `noise_walk`."""
    import torch

    weight = trainable(model)[0]
    return [weight.new_zeros(1_000, dtype=torch.promote_types(weight.dtype, torch.float32)) for _ in range(2)]


def is_head(model: "nn.Module") -> bool:
    """Return whether one matrix, and at most a bias, of the last layer with weights is all that is trained."""
    owned = [weights for layer in model.modules() if (weights := list(layer.parameters(recurse=False)))]
    others = (weight.requires_grad for weights in owned[:-1] for weight in weights)
    return sum(weight.requires_grad and weight.dim() > 1 for weight in owned[-1]) == 1 and not any(others)


def output_noise(
    model: "nn.Module",
    inputs: "Tensors",
    *,
    learning_rate: float,
    noise: float,
    steps: int,
    optimizer: str = "SGD",
    target_spread: float | None = None,
) -> "OutputNoise":
    """Tell whether a DP-SGD run is limited by its learning rate or by its noise; nothing is released for it.

    The answer needs inputs that are public, such as those of test records. On the development set, where it says that
    a larger rate helps, that gains half a point in 75 to 94 % of runs, by kind of task and model (docs/hyfreedp.md).

    Args:
        model: at its initial weights.
        inputs: public inputs, of which the first 512 count.
        learning_rate: η, constant.
        noise: standard deviation of the noise on each coordinate of a mean gradient, σ C / (q N).
        steps: T.
        optimizer: a `torch.optim` name.
        target_spread: of a regression: standard deviation of the targets, in the units of the outputs.

    Raises:
        InvalidValueError: if there is no such optimiser.
    """
    from dphpo_bench.records.record import OutputNoise
    from dphpo_bench.training.optimizers import UpdateRule

    distance = noise_walk(UpdateRule(optimizer, dummy_weights(model)), noise, steps)[0]
    nu = learning_rate * distance * output_spread(model, inputs) / (target_spread or 1.0)
    low, high = BALANCE_OF_NUMBERS if target_spread else BALANCE[is_head(model)]
    return OutputNoise(nu=nu, limit="rate" if nu < low else "noise" if nu > high else "both")


def output_spread(model: "nn.Module", inputs: "Tensors", draws: int = 4) -> float:
    """Return J: how much the outputs vary over records when each weight moves by a standard normal number.

    J is a standard deviation, linearised at the model's weights by moves of a ten-thousandth to both sides.

    Args:
        model: its trained weights move.
        inputs: of which the first 512 count.
    """
    import torch

    from dphpo_bench.training.evaluation import all_outputs
    from dphpo_bench.training.losses import logits

    weights, some = trainable(model), each(lambda tensor: tensor[:512], inputs)
    start, squares, size = [weight.detach().clone() for weight in weights], [], 1e-4
    records, generator = Records(some, torch.zeros(length(some))), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _ in range(draws):
            move, sides = [torch.randn(weight.shape, generator=generator).to(weight) for weight in weights], []
            for side in (size, -size):
                torch._foreach_copy_(weights, torch._foreach_add(start, move, alpha=side))
                sides.append(logits(all_outputs(model, records)).double())
            change = (sides[0] - sides[1]) / (2 * size)
            squares.append((change - change.mean(0)).square().mean())
        torch._foreach_copy_(weights, start)
    return float(torch.stack(squares).mean().sqrt())
