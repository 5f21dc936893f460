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
"""How often it is asked, before the first step, what noise the weights can bear."""

LOOKERS = 256
"""Expected number of records asked before the first step and after the last; of a larger batch, at least as many."""

PASSES = 0.28
"""Records that probes pass forward for each that is trained on: where most weights are frozen, a pass forward takes
half as long as a step of training. In short runs the looks, and the fewest votes, take more."""

GUESS, STRIDE, SHRINK = 0.05, 3.0, 0.72
"""That noise per weight is looked for from the first on, its logarithm by the second, then by ever smaller strides."""

FELT, BOUND = 0.2, 2.0
"""Nats: what the noise of a whole run adds to the mean loss at the rate called felt; the most one record counts."""

HEAD, SMALLEST, LARGEST = 4.0, 1 / 4, 128.0
"""Rates, in multiples of the one that is felt: the first of a linear classifier, and both limits."""

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
"""Of the logarithm of the last layer's scale: distance of compared losses, first stride, factor of each next one."""


class VotingRule:
    """The learning rate, from votes along the training's own path.

    A stretch Δ leads from the average of recent weights, w̄, to the present ones, w. Of each record it is asked whether
    its loss fell from w̄ to w, and whether it would fall again from w to w + Δ; the answers are +1 or −1. Let b be the
    mean of the two sums of votes, and a the first minus the second: b/a is the best distance from w along Δ, in units
    of Δ, if votes followed a parabola. It is large while the run makes headway, about one where headway and noise
    balance, and negative where the rate is too large. Votes know no scale: they serve cross entropy, squared errors
    and tokens alike, and clipped gradients, which minimise no loss, agree with them.

    At t of T steps the rate grows if b/a is above 8 (T − t)/t, held to [1, 8], and falls if it is below 1/4, ever more
    slowly. Fixed learning rates that turned out best had values between the two: the upper ones where noise is most of
    a step, as in linear models, the lower ones where the way is bent, as in networks. Where b stands out of the noise
    but a does not, the way is straight: if it leads down, the rate grows, by √3 or more, or by less where noise could
    hide a. If it leads up, or the best place lies far behind, b/a < −3, it stays: then the direction was wrong and not
    the length. So it does where neither is seen. In the first tenth of the run, where steps are smaller than the rate
    says, it does not grow.

    Where one class is rare, a stretch helps it or the others, by turns, and a vote counts heads: most may lose
    although the few gain more. The gradients, released anyway, tell that from a run that goes astray. If four in
    five lose by a straight way, and the gradients still point along it, the rate grows.

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
            last: those whose loss the last stretch lowered, minus the others, as a share of all; noisy.
            next_one: the same for another such stretch.
            done: t/T.
            onward: how far the gradients since the last probe point along the stretch, in standard deviations of
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
            wanted = bench.within((1.0, 8.0), 8 * (1 - done) / done)
            found = max(slope, 0.0) / max(curvature, visible)
            nearest = bench.within((LEAST, wanted), found)  # found itself where it may stay
            change = math.log(bench.within((1 / 2, 6.0), found / nearest))
            if not seen:
                change = max(change, math.log(3) * CURVED / visible)
        if done < WARM:  # the steps were smaller than the rate says
            change = min(change, 0.0)
        self.learning_rate *= math.exp(change * 0.5 / (1 + self._probes / 10))
        self.learning_rate = bench.within(self._limits, self.learning_rate)
        self._probes += 1


@dataclass(frozen=True)
class Voted:
    """What is planned.

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
        """The deviation for a batch of this rate: that of all, or more where few records are asked."""
        return max(self.deviation, QUIETEST / (rate * self.records))

    def noise(self, rate: float) -> float:
        """The noise multiplier of a sum over a batch of this rate."""
        return self.blur(rate) * rate * self.records

    def asked(self, rate: float, sums: int) -> "DpEvent":
        """A batch of this rate, of which so many sums are released."""
        return bench.poisson_sampled(rate, bench.repeat(bench.gaussian(self.noise(rate)), sums))

    @property
    def walk(self) -> "DpEvent":
        """What is asked before the first step."""
        return self.asked(self.look_rate, 2 * LOOKS)

    @property
    def vote(self) -> "DpEvent":
        """What is asked at a probe."""
        return self.asked(self.vote_rate, 2)

    @property
    def scale(self) -> "DpEvent":
        """What is asked after the last step."""
        return self.asked(self.look_rate, LOOKS)


@dataclass(frozen=True)
class HyFreeDP(bench.TrainingMethod[Voted]):
    """Training without a learning rate or a clipping threshold to choose; the idea is that of Liu and Bu 2025.

    Like theirs, it releases a few privatised losses while it trains, and its learning rate follows from them. What is
    asked, and how the rate follows, is ours; their rule is `hyfreedp_paper`.

    - Before the first step, one batch is asked how much the loss would rise if a whole run's noise, η √T Z, were added
      to the initial weights or taken from them, Z standard normal. Eight such looks, each at another Z, lead to the η
      at which it rises by 0.2 nats. The run starts there, or at four times that if a last layer alone is trained and
      the task is no regression, and stays between a quarter of it and 128 times it.
    - Then about eight to twenty batches vote, see `VotingRule`. In the first tenth of the run, steps grow up to its
      rate.
    - After the last step, one batch is asked eight times by how much the loss would change if the last layer were
      scaled down. Normalised gradients let margins grow without end; a scale mends the probabilities and leaves the
      classes as they are (temperature scaling, Guo et al. 2017).

    Released are gradients, T × Poisson(q; Gaussian σ), and clipped sums of changes of the loss: Poisson(p; 16 ×
    Gaussian σ_p) at first, n × Poisson(r; 2 × Gaussian σ_r) as votes, Poisson(p; 8 × Gaussian σ_p) at last. All of it
    is one event, calibrated as such. σ_p/p = σ_r/r is fixed beforehand from public numbers: the noise on a mean is 0.02
    of the bound, or more where that would take more than `share`; then fewer batches vote, at least about eight. Sums
    over fewer than a hundred records have more.

    The other parameters are those of every `TrainingMethod`.

    Attributes:
        share: about the most that probes may take of the run's Gaussian DP μ² (Dong et al. 2022), while it is small;
            twice their share of ε.
        probe_size: expected number of records that vote at a time, at most. Where a run trains on few records, fewer
            vote, down to 256, so that probes take about 15 % of the time. A batch may be smaller still.
        clipping: "auto_s", "auto_s:γ", "auto_v" or "abadi:C".
        optimizer: a `torch.optim` name; "task" takes the task's.
    """

    name = "hyfreedp"
    version = 10
    summary = "Finds the learning rate while it trains, from privatised votes on the loss; the rule is ours."
    reference = "after Liu and Bu 2025 (arXiv:2503.00703), Towards hyperparameter-free optimization with DP"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    share: bench.Share = 0.03
    probe_size: bench.Count = 2048
    clipping: bench.ClippingRule = "auto_s"
    optimizer: bench.OptimizerOrTask = "AdamW"

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Voted]:
        """The noise of probes, then that of gradients, for the whole training at once."""
        facts = self.scheduled(facts)
        rate, steps, records = facts.sample_rate, facts.steps, facts.n_records
        look_rate = min(1.0, LOOKERS / records)
        alone = bench.calibrate_roughly(lambda noise: bench.dp_sgd_event(rate, steps, noise), budget)
        # T subsampled Gaussians have μ² of about T (q/σ)² while σ is large, and sums over batches of other rates
        # likewise. An error here makes probes more or less accurate; it never changes ε, which is calibrated below.
        for_one = alone / (rate * math.sqrt(self.share * steps) * records)
        votes = bench.within((FEWEST, MOST), ((CLEAR / for_one) ** 2 - 3 * LOOKS) / 2)
        apart = max(1, int(steps / votes))
        probes = tuple(range(max(2, apart), steps, apart))
        affordable = (PASSES * rate * steps - 5 * LOOKS * look_rate) / (3 * max(1, len(probes)))
        vote_rate = min(rate, self.probe_size / records, max(look_rate, affordable))
        deviation = max(CLEAR, for_one * math.sqrt(3 * LOOKS + 2 * len(probes)))
        optimizer = facts.optimizer if self.optimizer == "task" else self.optimizer
        planned = Voted(rate, steps, 0.0, records, vote_rate, look_rate, deviation, probes, optimizer)
        asking = bench.compose(planned.walk, bench.repeat(planned.vote, len(probes)), planned.scale)
        noise = bench.calibrate(lambda noise: bench.compose(bench.dp_sgd_event(rate, steps, noise), asking), budget)
        training = bench.dp_sgd_event(rate, steps, noise)
        forward = (5 * LOOKS * look_rate + 3 * len(probes) * vote_rate) * records
        return bench.Plan(
            budget=budget,
            event=bench.compose(training, asking),
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
        clipping, weights = bench.parse_clipping(self.clipping), bench.trainable(model)
        update = bench.UpdateRule(planned.optimizer, weights)
        recent = bench.WeightAverage(weights, 0.99)
        step_kind = bench.poisson_sampled(planned.sample_rate, bench.gaussian(planned.noise_multiplier))
        noise = planned.noise_multiplier * clipping.sensitivity / (planned.sample_rate * planned.records)
        onward: list[float] = []
        rule = VotingRule(math.nan, (math.nan, math.nan), math.nan)  # set at the first step
        path: list[dict[str, float]] = []
        state, decays = [update, recent, onward, rule, path], [self.averaging]
        for step in bench.training_steps(session, planned.steps, [model], decays, state=state):
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
        found = {"learning_rate": rule.learning_rate, "path": path}
        return bench.Outcome(model, found | {"scale": self.scaled(planned, session, model)})

    def first_rule(
        self, planned: Voted, session: "bench.Session", model: "nn.Module", direction: "Sequence[Tensor]"
    ) -> VotingRule:
        """The rule at its first rate, which the noise decides that the initial weights can bear."""
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
                direction = [weight * any(weight is one for one in last) for weight in bench.trainable(model)]
                (change,) = batch.loss_changes(model, direction, (1 - math.exp(-2 * ASIDE),), BOUND, noise)
                stride = math.copysign(RESCALE * SETTLE**look, change) if abs(change) > 2 * BOUND * deviation else 0.0
                torch._foreach_mul_(last, math.exp(stride - ASIDE))
                logarithm += stride
        return math.exp(logarithm)


def bearable(rise: "Callable[[float], float]", limit: float) -> float:
    """The noise per weight at which the loss rises by so much, in eight looks of which none decides alone.

    No interval is left for good, as bisection would, so that later looks mend what one of them got wrong.

    Args:
        rise: of the loss at such noise, in nats; noisy.
        limit: in nats.
    """
    size = math.log(GUESS)
    for look in range(LOOKS):
        size += STRIDE * SHRINK**look * (-1 if rise(math.exp(size)) > limit else 1)
    return math.exp(size)


def descent(gradient: "Sequence[Tensor]", way: "Sequence[Tensor]") -> float:
    """By how much the loss falls on a step of length one along the way, to first order; 0 where there is no way."""
    pairs = [(one.double(), other.double()) for one, other in zip(gradient, way, strict=True)]
    length = math.sqrt(sum(step.square().sum().item() for _, step in pairs))
    return -sum((slope * step).sum().item() for slope, step in pairs) / length if length else 0.0


def normal_like(tensors: "Sequence[Tensor]", uniform: float) -> "Iterator[list[Tensor]]":
    """Standard normal tensors of the same shapes, over and over, drawn without looking at any record."""
    import torch

    generator = torch.Generator().manual_seed(random.Random(uniform).getrandbits(63))
    while True:
        yield [torch.randn(one.shape, generator=generator, dtype=one.dtype).to(one.device) for one in tensors]


def root_mean_square(tensors: "Sequence[Tensor]") -> float:
    """Of all entries; never 0."""
    total = sum(tensor.double().square().sum().item() for tensor in tensors)
    return max(math.sqrt(total / sum(tensor.numel() for tensor in tensors)), 1e-12)


def is_head(model: "nn.Module") -> bool:
    """Whether all that is trained is one matrix, with or without a bias, of the last layer that was given weights."""
    owned = [weights for layer in model.modules() if (weights := list(layer.parameters(recurse=False)))]
    others = (one.requires_grad for weights in owned[:-1] for one in weights)
    return sum(one.requires_grad and one.dim() > 1 for one in owned[-1]) == 1 and not any(others)


def last_layer(model: "nn.Module") -> "Sequence[Tensor]":
    """The trained weights of the last module that has any of its own: as a rule, what makes the outputs."""
    owned = ([one for one in layer.parameters(recurse=False) if one.requires_grad] for layer in model.modules())
    return [weights for weights in owned if weights][-1]
