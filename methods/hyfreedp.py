"""HyFreeDP with a rule of ours, which trusts a probe as far as its noise allows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import dphpo_bench as bench


class NoiseAwareRule(bench.ProbingRule):
    """Trust a probe as far as its noise, which is public, allows; then hold what was found.

    - What is released are changes of the loss against the loss at w, clipped per record. They are far
      smaller than the losses, so the same noise multiplier hides less of them.
    - The probing radius and the step are two things. The radius grows fourfold until slope and curvature
      stand out of the noise (three standard deviations), then follows the estimate b/a. Until there is
      an estimate, the step is the radius: never farther than was probed. Where the noise hides even the
      largest change that clipping lets through, nothing moves.
    - SGD is probed along the privatised gradient rather than the momentum, most of which has been walked
      already.
    - The geometric mean of the first `estimates` visible values of b/a counts. Later ones, every K
      steps, may lower it (if their moving average falls below), not raise it: with clipped gradients
      they follow whatever rate is in force, upwards without end. A slope that is lost in the noise changes
      nothing: along one noisy direction it vanishes long before many steps cease to lead somewhere.
    - The optimiser is started anew when the estimates are complete: until then the weights have hardly moved,
      and momentum that was gathered on the spot would throw them far at the first large step.
    - b/a is best for one step, and taken as it is while estimates are gathered. A run of many steps that
      ends in an average of weights bears a larger one, unless noise limits it: η = `reach` · (b/a) / (1 + ρ),
      where ρ = `drift` · √T · (norm of the noise on one gradient), a public number, compares the random walk
      of the noise with steps of length one.
    """

    releases = 2
    released = "clipped sum of loss changes"
    probes_changes = True
    skips_momentum = True
    growth = 4.0
    visible = 3.0
    dense_probes = 16
    estimates = 4
    memory = 0.8
    reach = 6.0
    drift = 0.75

    def __init__(self, learning_rate: float, bound: float, noise_walk: float) -> None:
        super().__init__(learning_rate, bound, noise_walk)
        self._factor = self.reach / (1 + self.drift * noise_walk)
        self._logs: list[float] = []
        self._recent = 0.0

    @staticmethod
    def probe_times(steps: int, interval: int) -> frozenset[int]:
        """Each of the first 16 steps, enough to cover seven orders of magnitude and estimate; then every K-th."""
        dense = NoiseAwareRule.dense_probes
        return frozenset({*range(min(dense, steps)), *range(dense, steps, interval)})

    @property
    def offsets(self) -> tuple[float, ...]:
        """On both sides; the loss at w is the reference."""
        return (-self.radius, self.radius)

    def observe(self, values: Sequence[float], deviation: float) -> None:
        """Update the estimate of the best step, the radius and η."""
        behind, ahead = values
        self.restarts = False
        slope, curvature = bench.parabola((behind, 0.0, ahead), self.radius)
        # The second difference has noise of variance 2, in units of `deviation`; the first, halved, of 1/2.
        sees_curvature = behind + ahead > self.visible * math.sqrt(2) * deviation
        sees_slope = (behind - ahead) / 2 > self.visible * math.sqrt(0.5) * deviation
        if sees_curvature and sees_slope:
            before = len(self._logs)
            estimate = math.exp(self._average(math.log(bench.within(bench.LEARNING_RATES, slope / curvature))))
            self.restarts = before < len(self._logs) == self.estimates
            self.radius = min(max(estimate, self.radius / self.growth), self.radius * self.growth)
            self.learning_rate = estimate * (self._factor if len(self._logs) == self.estimates else 1.0)
        elif not sees_curvature and not self._logs and 2 * self.bound > self.visible * math.sqrt(2) * deviation:
            self.learning_rate = self.radius
            self.radius *= self.growth

    def _average(self, log_step: float) -> float:
        """Take in log(b/a) and return the log of the step to believe in."""
        if len(self._logs) < self.estimates:
            self._logs.append(log_step)
            self._recent = sum(self._logs) / len(self._logs)
            return self._recent
        self._recent = self.memory * self._recent + (1 - self.memory) * log_step
        return min(self._recent, sum(self._logs) / len(self._logs))


@dataclass(frozen=True)
class HyFreeDP(bench.ProbedTraining):
    """Training without a learning rate or a clipping threshold to choose; the idea is that of Liu and Bu 2025.

    The rule by which probes become learning rates is ours, `NoiseAwareRule`; that of the paper is `hyfreedp_paper`.
    What is released are clipped changes of the loss rather than clipped losses. Each of the first steps is probed,
    too.

    The other parameters are those of every `ProbedTraining`.

    Attributes:
        rule: the only one; it is named in records.
    """

    name = "hyfreedp"
    summary = "Finds the learning rate while it trains, from privatised changes of the loss; the rule is ours."
    reference = "after Liu and Bu 2025, Towards hyperparameter-free optimization with differential privacy"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    rules: ClassVar[dict[str, type[bench.ProbingRule]]] = {"noise_aware": NoiseAwareRule}

    rule: Literal["noise_aware"] = "noise_aware"
