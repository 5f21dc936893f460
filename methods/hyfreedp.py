"""HyFreeDP: the learning rate is found during training, from a few privatised losses."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

# Public limits of what is computed from noisy values.
LOSS_BOUNDS = (0.05, 100.0)
LEARNING_RATES = (1e-10, 1e10)
SMALLEST_INFLATION = 1.001
LARGEST_INFLATION = 1.05


@dataclass(frozen=True)
class HyFreeDP(bench.Method):
    """Training without a learning rate or a clipping threshold to choose (Liu and Bu 2025, Algorithm 1).

    Gradients are clipped automatically. Every so often the loss is probed on both sides of the weights,
    along the direction of a step; a parabola through the noisy values gives the learning rate. The noise
    on gradients is raised by a factor γ, which pays for the probes.

    What is released is accounted jointly, unlike in the paper (docs/accounting.md):

    - `fresh`: T × Poisson(q; Gaussian σ_g) + n × Poisson(q; k × Gaussian σ_l)
    - `same`: (T − n) × Poisson(q; Gaussian σ_g) + n × Poisson(q; Gaussian σ_g, k × Gaussian σ_l)

    with n probes of k values each. Learning rates, radii and bounds are computed from released values and
    public constants, hence free.

    Attributes:
        rule: how probes become learning rates. "paper": Algorithm 1 to the letter. "gen": with the
            safeguards of its authors' non-private optimiser GeN. "noise_aware": see `NoiseAwareRule`;
            releases clipped changes of the loss instead of clipped losses.
        loss_batch: "fresh" draws a batch for the losses alone; "same" takes the gradient's.
        update_interval: K, steps between probes ("noise_aware" also probes each of the first steps).
        noise_inflation: γ > 1, the factor on the gradient noise; default: the smallest, within public
            limits, for which the noise on a probed mean is about `probe_noise`.
        probe_noise: standard deviation aimed at, of one probed mean, in nats. Only used to choose γ.
        initial_learning_rate: η₀, where the search starts; not to be tuned.
        initial_loss_bound: bound of one record's loss at first ("paper", "gen"), or of its change
            throughout ("noise_aware"); not to be tuned.
        clipping: "auto_s", "auto_s:γ", "auto_v" or "abadi:C".
        optimizer: a `torch.optim` name; "task" takes the task's.
        batch_size: expected batch size; default: the task's.
        epochs: expected passes over the data; default: the task's.
        averaging: decay of the exponential average of weights that is returned; 0 returns the last ones.
    """

    name = "hyfreedp"
    summary = "Finds the learning rate while it trains, from privatised losses; no clipping threshold."
    reference = "Liu and Bu 2025, Towards hyperparameter-free optimization with differential privacy, Algorithm 1"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    rule: Literal["noise_aware", "gen", "paper"] = "noise_aware"
    loss_batch: Literal["fresh", "same"] = "fresh"
    update_interval: int = 10
    noise_inflation: float | None = None
    probe_noise: float = 4e-3
    initial_learning_rate: float = 1e-4
    initial_loss_bound: float = 1.0
    clipping: str = "auto_s"
    optimizer: str = "SGD"
    batch_size: int | None = None
    epochs: float | None = None
    averaging: float = 0.99

    def __post_init__(self) -> None:
        bench.parse_clipping(self.clipping)
        for name, options in (("rule", RULES), ("loss_batch", ("fresh", "same"))):
            if getattr(self, name) not in options:
                raise bench.InvalidValueError(f"Expected {name} in {', '.join(options)}, got {getattr(self, name)!r}.")
        if self.update_interval < 1:
            raise bench.InvalidValueError(f"Expected update_interval >= 1, got {self.update_interval}.")
        if self.noise_inflation is not None and not 1 < self.noise_inflation < math.inf:
            raise bench.InvalidValueError(f"Expected noise_inflation > 1, got {self.noise_inflation}.")
        for name in ("probe_noise", "initial_learning_rate", "initial_loss_bound"):
            if not 0 < getattr(self, name) < math.inf:
                raise bench.InvalidValueError(f"Expected {name} > 0, got {getattr(self, name)}.")

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        """Noise of gradients and probes, for the whole training at once."""
        facts = facts.with_schedule(self.batch_size, self.epochs)
        rate, steps = facts.sample_rate, facts.steps
        rule = RULES[self.rule]
        probes = len(self._probe_times(steps))
        alone = bench.calibrate_roughly(lambda noise: bench.dp_sgd_event(rate, steps, noise), budget)
        inflation = self.noise_inflation or self._cheapest_inflation(alone, facts, probes)
        gradient_noise = inflation * alone

        def event(loss_noise: float) -> "DpEvent":
            plain, probed = self._kinds(rate, gradient_noise, loss_noise)
            n_plain = steps if self.loss_batch == "fresh" else steps - probes
            return bench.compose(bench.repeat(plain, n_plain), bench.repeat(probed, probes))

        loss_noise = bench.calibrate(event, budget)
        batch = rate * facts.n_records
        passes = rule.releases + rule.probes_changes  # a change needs the loss at w as well
        return bench.Plan(
            budget=budget,
            event=event(loss_noise),
            training_event=bench.dp_sgd_event(rate, steps, gradient_noise),
            parameters={
                "sample_rate": rate,
                "steps": steps,
                "noise_multiplier": gradient_noise,
                "loss_noise_multiplier": loss_noise,
                "noise_inflation": inflation,
                "probes": probes,
                "optimizer": facts.optimizer if self.optimizer == "task" else self.optimizer,
            },
            releases=(
                bench.Release("clipped gradient sum", steps, gradient_noise, rate),
                bench.Release(rule.released, probes * rule.releases, loss_noise, rate),
            ),
            cost=bench.Cost(runs=1, steps=steps, examples=batch * (steps + probes * passes)),
        )

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """Train for T steps, probing at the planned ones."""
        rate, steps = plan.parameters["sample_rate"], plan.parameters["steps"]
        loss_noise = plan.parameters["loss_noise_multiplier"]
        optimizer = plan.parameters["optimizer"]
        clipping = bench.parse_clipping(self.clipping)
        model = session.build_model()
        weights = bench.trainable(model)
        update = bench.UpdateRule(optimizer, weights)
        average = bench.WeightAverage(weights, self.averaging)
        expected_size = rate * session.facts.n_records
        noise_norm = (
            plan.parameters["noise_multiplier"]
            * clipping.sensitivity
            * math.sqrt(sum(parameter.numel() for parameter in weights))
            / expected_size
        )
        rule = RULES[self.rule](self.initial_learning_rate, self.initial_loss_bound, math.sqrt(steps) * noise_norm)
        probe_times = self._probe_times(steps)
        plain, probing = self._kinds(rate, plan.parameters["noise_multiplier"], loss_noise)
        path: list[dict[str, float]] = []
        with session.progress.track("Training", steps) as advance:
            for step in range(steps):
                is_probed = step in probe_times
                batch = session.sample(probing if is_probed and self.loss_batch == "same" else plain)
                gradient = batch.gradient(model, clipping, plan.parameters["noise_multiplier"])
                direction = update.direction(gradient)
                if is_probed:
                    probed = batch if self.loss_batch == "same" else session.sample(probing, "probing")
                    ask = probed.loss_changes if rule.probes_changes else probed.losses
                    along = gradient if rule.skips_momentum and optimizer.lower() == "sgd" else direction
                    bound, radius = rule.bound, rule.radius
                    values = ask(model, along, rule.offsets, bound, loss_noise)
                    rule.observe(values, loss_noise * bound / expected_size)
                    if rule.restarts:
                        update = bench.UpdateRule(optimizer, weights)
                        direction = update.direction(gradient)
                    path.append(
                        {
                            "step": step,
                            "learning_rate": rule.learning_rate,
                            "radius": radius,
                            "loss_bound": bound,
                        }
                        | {f"probe_{i}": value for i, value in enumerate(values)}
                    )
                update.apply(direction, rule.learning_rate)
                average.update()
                advance()
        average.copy_to(weights)
        return bench.Outcome(model, {"learning_rate": rule.learning_rate, "path": path})

    def _kinds(self, rate: float, gradient_noise: float, loss_noise: float) -> "tuple[DpEvent, DpEvent]":
        """The batches of a step, and those that losses are asked of: known before a step is taken."""
        gradient = bench.gaussian(gradient_noise)
        losses = bench.repeat(bench.gaussian(loss_noise), RULES[self.rule].releases)
        asked = losses if self.loss_batch == "fresh" else bench.compose(gradient, losses)
        return bench.poisson_sampled(rate, gradient), bench.poisson_sampled(rate, asked)

    def _probe_times(self, steps: int) -> frozenset[int]:
        """The steps with a probe: public, since the number of probes is accounted for in advance."""
        return RULES[self.rule].probe_times(steps, self.update_interval)

    def _cheapest_inflation(self, alone: float, facts: bench.TaskFacts, probes: int) -> float:
        """γ for which the noise on a probed mean is about `probe_noise`; from public constants.

        Uses that T subsampled Gaussians cost about T (q/σ)² while σ is large. An error makes the probes less
        or more accurate than aimed at, and never changes ε, which is calibrated afterwards.
        """
        releases = RULES[self.rule].releases
        loss_noise = self.probe_noise * facts.batch_size / self.initial_loss_bound
        share = probes * releases * alone**2 / (facts.steps * loss_noise**2)
        wanted = 1 / math.sqrt(1 - share) if share < 1 else math.inf
        return min(max(wanted, SMALLEST_INFLATION), LARGEST_INFLATION)


class Rule(ABC):
    """How probes become learning rates. Sees released values and public constants only.

    Attributes:
        learning_rate: η of the coming step.
        radius: the probes are taken at w ± radius · G.
        bound: clipping bound of what is probed.
        releases: values released by one probe.
        released: what they are.
        probes_changes: whether they are changes of the loss rather than losses.
        skips_momentum: whether probes go along the privatised gradient where the optimiser only accumulates it.
        restarts: whether the optimiser is to forget the steps so far.
    """

    releases = 3
    released = "clipped loss sum"
    probes_changes = False
    skips_momentum = False
    restarts = False

    def __init__(self, learning_rate: float, bound: float, noise_walk: float) -> None:
        """Start.

        Args:
            learning_rate: η₀.
            bound: R₀.
            noise_walk: √T · (norm of the noise on one gradient), from the plan.
        """
        del noise_walk
        self.learning_rate = learning_rate
        self.radius = learning_rate
        self.bound = bound

    @staticmethod
    def probe_times(steps: int, interval: int) -> frozenset[int]:
        """Every K-th step, the first included."""
        return frozenset(range(0, steps, interval))

    @property
    def offsets(self) -> tuple[float, ...]:
        """Values h at which w − h · G is probed."""
        return (-self.radius, 0.0, self.radius)

    @abstractmethod
    def observe(self, values: Sequence[float], deviation: float) -> None:
        """Take in one probe: a noisy value for each of `offsets`, each with noise of this standard deviation."""


class PaperRule(Rule):
    """Algorithm 1 to the letter: η is the minimiser b/a of the parabola L(w − hG) ≈ L₀ − b h + a h²/2.

    The paper does not say what to do where b/a is not positive; η is kept then. R becomes the sum of the three
    losses ("in practice"), within public limits.
    """

    def observe(self, values: Sequence[float], deviation: float) -> None:
        """Set η and R."""
        del deviation
        slope, curvature = _parabola(values, self.radius)
        if slope > 0 and curvature > 0:
            self.learning_rate = _within(LEARNING_RATES, self._limited(slope / curvature))
        self.radius = self.learning_rate
        self.bound = _within(LOSS_BOUNDS, sum(values))

    def _limited(self, proposed: float) -> float:
        return proposed


class GenRule(PaperRule):
    """The safeguards of GeN (Bu and Xu 2024): b/a is held within a factor 2 of η, and smoothed: 0.9 η + 0.1 new."""

    def _limited(self, proposed: float) -> float:
        rate = self.learning_rate
        return 0.9 * rate + 0.1 * min(max(proposed, rate / 2), 2 * rate)


class NoiseAwareRule(Rule):
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
        slope, curvature = _parabola((behind, 0.0, ahead), self.radius)
        # The second difference has noise of variance 2, in units of `deviation`; the first, halved, of 1/2.
        sees_curvature = behind + ahead > self.visible * math.sqrt(2) * deviation
        sees_slope = (behind - ahead) / 2 > self.visible * math.sqrt(0.5) * deviation
        if sees_curvature and sees_slope:
            before = len(self._logs)
            estimate = math.exp(self._average(math.log(_within(LEARNING_RATES, slope / curvature))))
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


def _within(limits: tuple[float, float], value: float) -> float:
    return min(max(value, limits[0]), limits[1])


def _parabola(values: Sequence[float], radius: float) -> tuple[float, float]:
    """Slope b and curvature a of L(w − hG) ≈ L₀ − b h + a h²/2 through h = −radius, 0, radius."""
    behind, here, ahead = values
    return (behind - ahead) / (2 * radius), (behind + ahead - 2 * here) / radius**2


RULES: dict[str, type[Rule]] = {"noise_aware": NoiseAwareRule, "gen": GenRule, "paper": PaperRule}
