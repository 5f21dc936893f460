"""A learning rate from privatised votes: the rule of `hyfreedp`, its constants, and what a plan of it releases."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dphpo_bench.contract.method import Release
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import dp_sgd_event
from dphpo_bench.recipes.probed_training import clamp

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

# Settled on digits, Fashion-MNIST and Adult (linear models and small networks; of the pictures also one class against
# the rest), then frozen; see docs/hyfreedp_history.md.
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
"""Mean of two sums of votes, negated: above it four records in five lose."""

ONWARD = 2.0
"""Standard deviations by which the gradients must then point along the stretch for the rate to grow."""

BOLD = 36.0
"""Factor by which the rate then grows, before the damping that all votes have: the first by the root of this."""

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
    slowly. Best fixed learning rates had values between these limits (docs/hyfreedp_history.md). If b is significant
    but a is not, the path is straight. Where it leads down, the rate grows, by √3 or more, or by less where noise could
    hide a. The rate stays if the path leads up or b/a < −3, because then the direction was wrong and not the length. It
    stays if neither a nor b is significant. It does not grow in the first tenth of the run, the warm-up.

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
            farthest = clamp((1.0, 8.0), 8 * (1 - done) / done)
            best = max(slope, 0.0) / max(curvature, visible)
            nearest = clamp((LEAST, farthest), best)  # the best distance itself where the rate may stay
            change = math.log(clamp((1 / 2, 6.0), best / nearest))
            if not seen:
                change = max(change, math.log(3) * CURVED / visible)
        if done < WARM:  # the steps were smaller than the rate says
            change = min(change, 0.0)
        self.learning_rate *= math.exp(change * 0.5 / (1 + self._probes / 10))
        self.learning_rate = clamp(self._limits, self.learning_rate)
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

    @classmethod
    def calibrated(
        cls,
        budget: PrivacyBudget,
        sample_rate: float,
        steps: int,
        records: int,
        *,
        share: float,
        probe_size: int,
        optimizer: str,
    ) -> "Voted":
        """Calibrate the noise of probes, then that of gradients, for the whole training at once.

        Args:
            budget: of the whole training.
            sample_rate: q.
            steps: T.
            records: N.
            share: about the share of the run's Gaussian DP μ² that probes take.
            probe_size: largest expected number of voters at a time.
            optimizer: a `torch.optim` name.

        Raises:
            BudgetTooSmallError: if no noise within reach meets the budget.
        """
        from dphpo_bench.privacy.calibration import calibrate, calibrate_roughly

        look_rate = min(1.0, LOOKERS / records)
        alone = calibrate_roughly(lambda noise: dp_sgd_event(sample_rate, steps, noise), budget)
        # T subsampled Gaussians have μ² of about T (q/σ)² while σ is large, and sums over batches of other rates
        # likewise. An error here makes probes more or less accurate; it never changes ε, which is calibrated below.
        for_one = alone / (sample_rate * math.sqrt(share * steps) * records)
        votes = clamp((FEWEST, MOST), ((CLEAR / for_one) ** 2 - 3 * LOOKS) / 2)
        apart = max(1, int(steps / votes))
        probes = tuple(range(max(2, apart), steps, apart))
        affordable = (PASSES * sample_rate * steps - 5 * LOOKS * look_rate) / (3 * max(1, len(probes)))
        vote_rate = min(sample_rate, probe_size / records, max(look_rate, affordable))
        deviation = max(CLEAR, for_one * math.sqrt(3 * LOOKS + 2 * len(probes)))
        planned = cls(sample_rate, steps, 0.0, records, vote_rate, look_rate, deviation, probes, optimizer)
        noise = calibrate(lambda noise: replace(planned, noise_multiplier=noise).event, budget)
        return replace(planned, noise_multiplier=noise)

    @property
    def batch_size(self) -> float:
        """Expected number of records in a step's batch."""
        return self.sample_rate * self.records

    def blur(self, rate: float) -> float:
        """Return the deviation for a batch of this rate: that of all, or more where few records are asked."""
        return max(self.deviation, QUIETEST / (rate * self.records))

    def noise(self, rate: float) -> float:
        """Return the noise multiplier of a sum over a batch of this rate."""
        return self.blur(rate) * rate * self.records

    def asked(self, rate: float, sums: int) -> "DpEvent":
        """Return a batch of this rate, of which so many sums are released."""
        from dphpo_bench.privacy.events import gaussian, poisson_sampled, repeat

        return poisson_sampled(rate, repeat(gaussian(self.noise(rate)), sums))

    @property
    def step(self) -> "DpEvent":
        """Event of the gradient of one step."""
        from dphpo_bench.privacy.events import gaussian, poisson_sampled

        return poisson_sampled(self.sample_rate, gaussian(self.noise_multiplier))

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

    @property
    def training(self) -> "DpEvent":
        """Event of the gradients alone."""
        return dp_sgd_event(self.sample_rate, self.steps, self.noise_multiplier)

    @property
    def event(self) -> "DpEvent":
        """Event of the whole training: gradients, looks and votes."""
        from dphpo_bench.privacy.events import compose, repeat

        return compose(self.training, compose(self.walk, repeat(self.vote, len(self.probes)), self.scale))

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases of the whole training."""
        return (
            Release("clipped gradient sum", self.steps, self.noise_multiplier, self.sample_rate),
            Release("clipped sum of loss changes", 2 * len(self.probes), self.noise(self.vote_rate), self.vote_rate),
            Release("clipped sum of loss changes", 3 * LOOKS, self.noise(self.look_rate), self.look_rate),
        )

    @property
    def passes(self) -> float:
        """Expected number of records that looks and votes pass forward."""
        return (5 * LOOKS * self.look_rate + 3 * len(self.probes) * self.vote_rate) * self.records
