"""HyFreeDP with a rule of ours: the records vote on whether the last stretch of the training, or another one, helps."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn

# Settled on digits, Fashion-MNIST and Adult (linear models and small networks; of the pictures also one class against
# the rest), then frozen; see docs/hyfreedp.md.
LOOKS = 8
"""Number of noise levels that are tried on the weights before the first step."""

LOOKERS = 256
"""Expected number of records in the looks before the first step and after the last; at least as many vote."""

PASSES = 0.28
"""Forward passes of probes for each training record. In short runs the looks, and the fewest votes, take more."""

GUESS, STRIDE, SHRINK = 0.05, 3.0, 0.72
"""For the search of the noise per weight: start, first stride of its logarithm, factor between strides."""

FELT, BOUND = 0.2, 2.0
"""Nats: what the noise of a whole run adds to the mean loss at the rate called felt; the most one record counts."""

HEAD, SMALLEST, LARGEST = 4.0, 1 / 4, 128.0
"""Rates, as multiples of the felt rate: the first of a linear classifier, and both limits."""

FALLBACK = 0.01
"""The rate that counts as felt where the budget is too small for a look."""

UNSEEN, CLEAR = 0.15, 0.02
"""Standard deviations of a probe: above the first it shows nothing; below the second, less noise gains nothing."""

QUIETEST = 2.0
"""The least noise multiplier of a sum. With less, μ² grows faster than 1/σ², and votes would cost more than planned."""

FEWEST, MOST = 8, 20
"""Times that records vote in a run: the more, the better they can be heard."""

CURVED = 0.085
"""The least difference between two sums of votes, relative to the voters, that counts as curvature."""

LEAST = 1 / 4
"""The distance to the best place, in stretches, below which the rate falls."""

BEHIND = 3.0
"""Stretches by which the best place may lie behind for the rate to be to blame."""

WARM = 0.1
"""The share of the run in which steps grow, evenly, up to the rate."""

MOSTLY = 0.6
"""Where the mean of two sums of votes is below minus this, four records in five lose."""

ONWARD = 2.0
"""Standard deviations by which the gradients must then point along the stretch for the rate to grow."""

BOLD = 36.0
"""By how much it then grows, before the damping that all votes have: the first by the root of this."""

TINY = 1e-5
"""A change of the loss by more than this, in nats, is a whole vote."""

ASIDE, RESCALE, SETTLE = 0.35, 0.7, 0.85
"""For the logarithm of the last layer's scale: distance of compared losses, first stride, factor between strides."""


class VotingRule:
    """The learning rate, from votes along the training's own path.

    A stretch Δ leads from the average of recent weights, w̄, to the present weights, w. Each record votes twice, +1 or
    −1: on whether its loss fell from w̄ to w, and on whether it would fall from w to w + Δ. Let b be the mean of the two
    sums of votes, and a the first minus the second. If votes followed a parabola, b/a would be the best distance from w
    along Δ, in units of Δ. It is large while the run makes headway, about 1 where headway and noise balance, and
    negative where the rate is too large. Votes do not depend on the scale of the loss.

    At t of T steps the rate grows if b/a is above 8 (T − t)/t, held to [1, 8], and falls if b/a is below 1/4, ever more
    slowly. Best fixed learning rates had values between these limits (docs/hyfreedp.md). If b is significant but a is
    not, the path is straight. Where it leads down, the rate grows, by √3 or more, or by less where noise could hide a.
    The rate stays if the path leads up or b/a < −3, because then the direction was wrong and not the length. It stays
    if neither a nor b is significant. It does not grow in the first tenth of the run, the warm-up.

    Where one class is rare, most records may lose although the few gain more. The gradients, released anyway, tell
    this from divergence: if four in five lose along a straight path, and the gradients still point along it, the
    rate grows.

    Args:
        learning_rate: the first.
        limits: the smallest and the largest.
        deviation: standard deviation of the noise on each sum of votes, relative to the number of voters.
    """

    def __init__(self, learning_rate: float, limits: tuple[float, float], deviation: float) -> None:
        self.learning_rate = learning_rate
        self._limits = limits
        self._deviation = deviation
        self._probes = 0

    def observe(self, last: float, next_one: float, done: float, onward: float = 0.0) -> None:
        """Take in one probe.

        Args:
            last: noisy sum of the votes on the last stretch, as a share of all voters.
            next_one: noisy sum of the votes on another such stretch, as a share of all voters.
            done: t/T.
            onward: component of the gradients since the last probe along the stretch, in standard deviations of
                their noise.
        """
        slope, curvature = (last + next_one) / 2, last - next_one
        # Noise of variance 1/2 and 2, in units of the deviation's square.
        visible = max(2 * math.sqrt(2) * self._deviation, CURVED)
        seen = curvature > visible
        if slope < -BEHIND * curvature:
            if slope > -MOSTLY or onward < ONWARD:
                return
            change = math.log(BOLD)
        elif slope <= 1.5 * self._deviation and not seen:
            return
        else:
            farthest = bench.recipes.clamp((1.0, 8.0), 8 * (1 - done) / done)
            best = max(slope, 0.0) / max(curvature, visible)
            nearest = bench.recipes.clamp((LEAST, farthest), best)  # the best distance itself where the rate may stay
            change = math.log(bench.recipes.clamp((1 / 2, 6.0), best / nearest))
            if not seen:
                change = max(change, math.log(3) * CURVED / visible)
        if done < WARM:  # the steps were smaller than the rate says
            change = min(change, 0.0)
        self.learning_rate *= math.exp(change * 0.5 / (1 + self._probes / 10))
        self.learning_rate = bench.recipes.clamp(self._limits, self.learning_rate)
        self._probes += 1


@dataclass(frozen=True)
class Voted:
    """Parameters of a plan.

    Attributes:
        sample_rate: q.
        steps: T.
        noise_multiplier: of the gradients.
        records: N.
        vote_rate: of the batches that vote.
        look_rate: of the batch before the first step, and of the one after the last.
        deviation: standard deviation of the noise on a sum of clipped changes, relative to the clipping bound and the
            expected number of records, unless those are few.
        probes: steps at which the records vote.
        optimizer: a `torch.optim` name.
    """

    sample_rate: float
    steps: int
    noise_multiplier: float
    records: int
    vote_rate: float
    look_rate: float
    deviation: float
    probes: tuple[int, ...]
    optimizer: str

    def blur(self, rate: float) -> float:
        """Return the deviation for a batch of this rate: that of all, or more where few records are asked."""
        return max(self.deviation, QUIETEST / (rate * self.records))

    def noise(self, rate: float) -> float:
        """Return the noise multiplier of a sum over a batch of this rate."""
        return self.blur(rate) * rate * self.records

    def asked(self, rate: float, sums: int) -> "DpEvent":
        """Return a batch of this rate, of which so many sums are released."""
        return bench.events.poisson_sampled(rate, bench.events.repeat(bench.events.gaussian(self.noise(rate)), sums))

    @property
    def walk(self) -> "DpEvent":
        """Event of the looks before the first step."""
        return self.asked(self.look_rate, 2 * LOOKS)

    @property
    def vote(self) -> "DpEvent":
        """Event of one probe."""
        return self.asked(self.vote_rate, 2)

    @property
    def scale(self) -> "DpEvent":
        """Event of the looks after the last step."""
        return self.asked(self.look_rate, LOOKS)


@dataclass(frozen=True)
class HyFreeDP(bench.recipes.TrainingMethod[Voted]):
    """Training without a learning rate or a clipping threshold to choose; the idea is that of Liu and Bu 2025.

    Like theirs, it releases a few privatised losses while it trains, and its learning rate follows from them. The
    queries and the rule are ours; their rule is `hyfreedp_paper`.

    - Before the first step, eight looks at one batch find the η at which the loss rises by 0.2 nats when a whole run's
      noise, η √T Z with Z standard normal, is added to the initial weights or subtracted. The run starts at η, or at
      4 η if only a last layer is trained and the task is no regression. The rate stays in [η/4, 128 η].
    - Then about eight to twenty batches vote, see `VotingRule`. Steps warm up in the first tenth of the run.
    - After the last step, eight looks at one batch find a scale of the last layer: temperature scaling (Guo et al.
      2017), because normalised gradients let margins grow without end.

    Released are gradients, T × Poisson(q; Gaussian σ), and clipped sums of changes of the loss: Poisson(p; 16 ×
    Gaussian σ_p) first, n × Poisson(r; 2 × Gaussian σ_r) as votes, Poisson(p; 8 × Gaussian σ_p) last. They are
    calibrated as one event. σ_p/p = σ_r/r is fixed beforehand from public numbers: the noise on a mean is 0.02 of the
    bound, or more where that would take more than `share`. Then fewer batches vote, at least about eight. Sums over
    fewer than a hundred records have more noise.

    The other parameters are those of every `TrainingMethod`.

    Attributes:
        share: about twice the share of ε that probes may take: their share of the run's Gaussian DP μ².
        probe_size: largest expected number of voters at a time. In runs on few records fewer vote, down to 256, so
            that probes take about 15 % of the time.
        clipping: "auto_s", "auto_s:γ", "auto_v" or "abadi:C".
        optimizer: a `torch.optim` name; "task" takes the task's.
    """

    name = "hyfreedp"
    version = 10
    summary = "Finds the learning rate while it trains, from privatised votes on the loss; the rule is ours."
    reference = "after Liu and Bu 2025 (arXiv:2503.00703), Towards hyperparameter-free optimization with DP"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    share: bench.parameters.Share = 0.03
    probe_size: bench.parameters.Count = 2048
    clipping: bench.parameters.ClippingRule = "auto_s"
    optimizer: bench.parameters.OptimizerOrTask = "AdamW"

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Voted]:
        """Calibrate the noise of probes, then that of gradients, for the whole training at once."""
        facts = self.scheduled(facts)
        rate, steps, records = facts.sample_rate, facts.steps, facts.n_records
        look_rate = min(1.0, LOOKERS / records)
        alone = bench.events.calibrate_roughly(lambda noise: bench.recipes.dp_sgd_event(rate, steps, noise), budget)
        # T subsampled Gaussians have μ² of about T (q/σ)² while σ is large, and sums over batches of other rates
        # likewise. An error here makes probes more or less accurate; it never changes ε, which is calibrated below.
        for_one = alone / (rate * math.sqrt(self.share * steps) * records)
        votes = bench.recipes.clamp((FEWEST, MOST), ((CLEAR / for_one) ** 2 - 3 * LOOKS) / 2)
        apart = max(1, int(steps / votes))
        probes = tuple(range(max(2, apart), steps, apart))
        affordable = (PASSES * rate * steps - 5 * LOOKS * look_rate) / (3 * max(1, len(probes)))
        vote_rate = min(rate, self.probe_size / records, max(look_rate, affordable))
        deviation = max(CLEAR, for_one * math.sqrt(3 * LOOKS + 2 * len(probes)))
        optimizer = facts.optimizer if self.optimizer == "task" else self.optimizer
        planned = Voted(rate, steps, 0.0, records, vote_rate, look_rate, deviation, probes, optimizer)
        asking = bench.events.compose(planned.walk, bench.events.repeat(planned.vote, len(probes)), planned.scale)
        noise = bench.events.calibrate(
            lambda noise: bench.events.compose(bench.recipes.dp_sgd_event(rate, steps, noise), asking), budget
        )
        training = bench.recipes.dp_sgd_event(rate, steps, noise)
        forward = (5 * LOOKS * look_rate + 3 * len(probes) * vote_rate) * records
        return bench.Plan(
            budget=budget,
            event=bench.events.compose(training, asking),
            training_event=training,
            parameters=replace(planned, noise_multiplier=noise),
            releases=(
                bench.Release("clipped gradient sum", steps, noise, rate),
                bench.Release("clipped sum of loss changes", 2 * len(probes), planned.noise(vote_rate), vote_rate),
                bench.Release("clipped sum of loss changes", 3 * LOOKS, planned.noise(look_rate), look_rate),
            ),
            cost=bench.Cost(runs=1, steps=steps, examples=rate * records * steps + forward),
        )

    def run(self, plan: bench.Plan[Voted], session: "bench.Session") -> bench.Outcome:
        """Train for T steps; the records vote at the planned ones."""
        planned, model = plan.parameters, session.build_model()
        clipping, weights = bench.clipping.parse_clipping(self.clipping), bench.recipes.trainable(model)
        update = bench.recipes.UpdateRule(planned.optimizer, weights)
        recent = bench.recipes.WeightAverage(weights, 0.99)
        step_kind = bench.events.poisson_sampled(planned.sample_rate, bench.events.gaussian(planned.noise_multiplier))
        noise = planned.noise_multiplier * clipping.sensitivity / (planned.sample_rate * planned.records)
        onward: list[float] = []
        rule = VotingRule(math.nan, (math.nan, math.nan), math.nan)  # set at the first step
        path: list[dict[str, float]] = []
        state, decays = [update, recent, onward, rule, path], [self.averaging]
        for step in bench.recipes.training_steps(session, planned.steps, [model], decays, state=state):
            gradient = session.sample(step_kind).gradient(model, clipping, planned.noise_multiplier)
            direction = update.direction(gradient)
            if step == 0:
                vars(rule).update(vars(self.first_rule(planned, session, model, direction)))
            stretch = [weight.detach() - mean for weight, mean in zip(weights, recent.average, strict=True)]
            onward.append(descent(gradient, stretch) / noise)
            if step in planned.probes:
                batch = session.sample(planned.vote, "votes")
                behind, ahead = batch.loss_changes(model, stretch, (1.0, -1.0), TINY, planned.noise(planned.vote_rate))
                last, next_one = behind / TINY, -ahead / TINY
                along = sum(onward) / math.sqrt(len(onward))
                rule.observe(last, next_one, step / planned.steps, along)
                seen = {"learning_rate": rule.learning_rate, "last": last, "next": next_one, "onward": along}
                path.append({"step": step} | seen)
                onward.clear()
            update.apply(direction, rule.learning_rate * min(1.0, (step + 1) / (WARM * planned.steps)))
            recent.update()
        results = {"learning_rate": rule.learning_rate, "path": path}
        return bench.Outcome(model, results | {"scale": self.scaled(planned, session, model)})

    def first_rule(
        self, planned: Voted, session: "bench.Session", model: "nn.Module", direction: "Sequence[Tensor]"
    ) -> VotingRule:
        """Return the rule at its first rate, which the noise decides that the initial weights can bear."""
        batch, noise = session.sample(planned.walk, "walk"), planned.noise(planned.look_rate)
        deviation, felt = planned.blur(planned.look_rate), FALLBACK
        if deviation <= UNSEEN:
            draws = normal_like(direction, session.uniform("walk"))

            def rise(size: float) -> float:
                # Both ways: what is linear cancels, so that a lucky direction does not pass for a harmless one.
                return sum(batch.loss_changes(model, next(draws), (size, -size), BOUND, noise)) / 2

            # Noise on two clipped sums must not pass for a rise, or the run starts far too low. The rise is quadratic.
            clear = max(FELT, 2 * BOUND * deviation / math.sqrt(2))
            size = bearable(rise, clear) * math.sqrt(FELT / clear)
            # What a step of rate 1 moves each weight by: one for Adam and its kin.
            felt = size / (math.sqrt(planned.steps) * root_mean_square(direction))
        first = felt * (HEAD if is_head(model) and session.facts.kind != "regression" else 1.0)
        return VotingRule(first, (SMALLEST * felt, LARGEST * felt), planned.blur(planned.vote_rate))

    def scaled(self, planned: Voted, session: "bench.Session", model: "nn.Module") -> float:
        """Scale the last layer to where the loss is least, and tell by how much."""
        import torch

        batch, logarithm = session.sample(planned.scale, "scale"), 0.0
        noise, deviation = planned.noise(planned.look_rate), planned.blur(planned.look_rate)
        if deviation > UNSEEN:
            return 1.0
        last = list(last_layer(model))
        with torch.no_grad():
            for look in range(LOOKS):
                torch._foreach_mul_(last, math.exp(ASIDE))
                direction = [
                    weight * any(weight is member for member in last) for weight in bench.recipes.trainable(model)
                ]
                (change,) = batch.loss_changes(model, direction, (1 - math.exp(-2 * ASIDE),), BOUND, noise)
                stride = math.copysign(RESCALE * SETTLE**look, change) if abs(change) > 2 * BOUND * deviation else 0.0
                torch._foreach_mul_(last, math.exp(stride - ASIDE))
                logarithm += stride
        return math.exp(logarithm)


def bearable(rise: "Callable[[float], float]", limit: float) -> float:
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


def descent(gradient: "Sequence[Tensor]", way: "Sequence[Tensor]") -> float:
    """Return the first-order decrease of the loss for a step of length 1 along the path; 0 without a path."""
    pairs = [(slope.double(), step.double()) for slope, step in zip(gradient, way, strict=True)]
    length = math.sqrt(sum(step.square().sum().item() for _, step in pairs))
    return -sum((slope * step).sum().item() for slope, step in pairs) / length if length else 0.0


def normal_like(tensors: "Sequence[Tensor]", uniform: float) -> "Iterator[list[Tensor]]":
    """Yield standard normal tensors of these shapes without end, drawn without looking at any record."""
    import torch

    generator = torch.Generator().manual_seed(random.Random(uniform).getrandbits(63))
    while True:
        yield [
            torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype).to(tensor.device) for tensor in tensors
        ]


def root_mean_square(tensors: "Sequence[Tensor]") -> float:
    """Return the root mean square of all entries; never 0."""
    total = sum(tensor.double().square().sum().item() for tensor in tensors)
    return max(math.sqrt(total / sum(tensor.numel() for tensor in tensors)), 1e-12)


def is_head(model: "nn.Module") -> bool:
    """Return whether one matrix, and at most a bias, of the last layer with weights is all that is trained."""
    owned = [weights for layer in model.modules() if (weights := list(layer.parameters(recurse=False)))]
    others = (weight.requires_grad for weights in owned[:-1] for weight in weights)
    return sum(weight.requires_grad and weight.dim() > 1 for weight in owned[-1]) == 1 and not any(others)


def last_layer(model: "nn.Module") -> "Sequence[Tensor]":
    """Return the trained weights of the last module that has any itself, which usually computes the outputs."""
    owned = (
        [weight for weight in layer.parameters(recurse=False) if weight.requires_grad] for layer in model.modules()
    )
    return [weights for weights in owned if weights][-1]
