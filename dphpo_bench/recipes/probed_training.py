"""Training whose learning rate follows from a few privatised losses, probed along a step; see `hyfreedp_paper`."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Interval

from dphpo_bench.contract.method import Cost, Outcome, Plan, Release
from dphpo_bench.contract.parameters import Count, Positive
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import ClippingRule, dp_sgd_event, trainable, training_steps
from dphpo_bench.recipes.queries import mean_losses
from dphpo_bench.recipes.single_run import TrainingMethod
from dphpo_bench.session.session import Session
from dphpo_bench.training.clipping import parse_clipping
from dphpo_bench.training.optimizer_names import OptimizerOrTask

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


# Public limits of what is computed from noisy values.
LEARNING_RATES = (1e-10, 1e10)
SMALLEST_INFLATION = 1.001
LARGEST_INFLATION = 1.05

RELEASES = 3
"""Losses that one probe releases: behind, at and ahead of the weights."""


class ProbingRule(ABC):
    """A rule from probes to learning rates. It sees released values and public constants only.

    Attributes:
        learning_rate: η of the coming step.
        radius: the probes are taken at w ± radius · G.
        bound: clipping bound of what is probed.
    """

    def __init__(self, learning_rate: float, bound: float) -> None:
        """Start at η₀ and R₀."""
        self.learning_rate = learning_rate
        self.radius = learning_rate
        self.bound = bound

    @property
    def offsets(self) -> tuple[float, ...]:
        """The values h at which w − h · G is probed."""
        return (-self.radius, 0.0, self.radius)

    @abstractmethod
    def observe(self, values: Sequence[float], deviation: float) -> None:
        """Take in one probe: a noisy value for each of `offsets`, each with noise of this standard deviation."""


@dataclass(frozen=True)
class Probed:
    """The plan's parameters."""

    sample_rate: float  # q
    steps: int  # T
    noise_multiplier: float  # σ_g, of the gradients
    loss_noise_multiplier: float  # σ_l, of each probed value
    noise_inflation: float  # γ
    probes: int  # n
    optimizer: str  # a `torch.optim` name


@dataclass(frozen=True)
class ProbedTraining(TrainingMethod[Probed]):
    """Training that finds its learning rate on the way, with automatic clipping.

    Every so often the loss is probed on both sides of the weights, along the direction of a step; a parabola
    through the noisy values gives the learning rate. The noise on gradients is raised by a factor γ, which pays for
    the probes.

    What is released is accounted jointly (docs/accounting.md):

    - `fresh`: T × Poisson(q; Gaussian σ_g) + n × Poisson(q; 3 × Gaussian σ_l)
    - `same`: (T − n) × Poisson(q; Gaussian σ_g) + n × Poisson(q; Gaussian σ_g, 3 × Gaussian σ_l)

    with n probes of three losses each. Learning rates, radii and bounds are computed from released values and
    public constants, hence free.

    The other parameters are those of every `TrainingMethod`.

    Attributes:
        rules: the rules by name.
        rule: how probes become learning rates; a name of `rules`.
        loss_batch: "fresh" draws a batch for the losses alone; "same" takes the gradient's.
        update_interval: K, steps between probes.
        noise_inflation: γ > 1, the factor on the gradient noise; default: the smallest, within public
            limits, for which the noise on a probed mean is about `probe_noise`.
        probe_noise: standard deviation aimed at, of one probed mean, in nats. Only used to choose γ.
        initial_learning_rate: η₀, where the search starts; not to be tuned.
        initial_loss_bound: bound of what one record adds to a probe at first; not to be tuned.
        clipping: "auto_s", "auto_s:γ", "auto_v" or "abadi:C".
        optimizer: a `torch.optim` name; "task" takes the task's.
    """

    rules: "ClassVar[dict[str, type[ProbingRule]]]"

    rule: str = ""
    loss_batch: Literal["fresh", "same"] = "fresh"
    update_interval: Count = 10
    noise_inflation: Annotated[float, Interval(gt=1)] | None = None
    probe_noise: Positive = 4e-3
    initial_learning_rate: Positive = 1e-4
    initial_loss_bound: Positive = 1.0
    clipping: ClippingRule = "auto_s"
    optimizer: OptimizerOrTask = "SGD"

    def plan(self, facts: TaskFacts, budget: PrivacyBudget) -> Plan[Probed]:
        """Calibrate the noise of gradients and probes, for the whole training at once."""
        from dphpo_bench.privacy.calibration import calibrate, calibrate_roughly
        from dphpo_bench.privacy.events import compose, repeat

        facts = self.scheduled(facts)
        rate, steps = facts.sample_rate, facts.steps
        probes = len(range(0, steps, self.update_interval))
        alone = calibrate_roughly(lambda noise: dp_sgd_event(rate, steps, noise), budget)
        inflation = self.noise_inflation or self._cheapest_inflation(alone, facts, probes)
        gradient_noise = inflation * alone

        def event(loss_noise: float) -> "DpEvent":
            plain, probed = self.kinds(rate, gradient_noise, loss_noise)
            n_plain = steps if self.loss_batch == "fresh" else steps - probes
            return compose(repeat(plain, n_plain), repeat(probed, probes))

        loss_noise = calibrate(event, budget)
        batch = rate * facts.n_records
        optimizer = facts.optimizer if self.optimizer == "task" else self.optimizer
        return Plan(
            budget=budget,
            event=event(loss_noise),
            training_event=dp_sgd_event(rate, steps, gradient_noise),
            parameters=Probed(rate, steps, gradient_noise, loss_noise, inflation, probes, optimizer),
            releases=(
                Release("clipped gradient sum", steps, gradient_noise, rate),
                Release("clipped loss sum", probes * RELEASES, loss_noise, rate),
            ),
            cost=Cost(runs=1, steps=steps, examples=batch * (steps + probes * RELEASES)),
        )

    def run(self, plan: Plan[Probed], session: Session) -> Outcome:
        """Train for T steps, probing at the planned ones."""
        from dphpo_bench.training.optimizers import UpdateRule

        planned, model = plan.parameters, session.build_model()
        noise, loss_noise = planned.noise_multiplier, planned.loss_noise_multiplier
        clipping = parse_clipping(self.clipping)
        update = UpdateRule(planned.optimizer, trainable(model))
        expected_size = planned.sample_rate * session.facts.n_records
        rule = self.rules[self.rule](self.first_rate(session.facts), self.initial_loss_bound)
        plain, probing = self.kinds(planned.sample_rate, noise, loss_noise)
        path: list[dict[str, float]] = []
        for step in training_steps(session, planned.steps, [model], [self.averaging], state=[update, rule, path]):
            is_probed = step % self.update_interval == 0
            batch = session.sample(probing if is_probed and self.loss_batch == "same" else plain)
            direction = update.direction(batch.gradient(model, clipping, noise))
            if is_probed:
                probed = batch if self.loss_batch == "same" else session.sample(probing, "probing")
                bound, radius = rule.bound, rule.radius
                values = mean_losses(probed, model, direction, rule.offsets, bound, loss_noise)
                rule.observe(values, loss_noise * bound / expected_size)
                seen = {f"probe_{index}": value for index, value in enumerate(values)}
                state = {"step": step, "learning_rate": rule.learning_rate, "radius": radius, "loss_bound": bound}
                path.append(state | seen)
            update.apply(direction, rule.learning_rate)
        return Outcome(model, {"learning_rate": rule.learning_rate, "path": path})

    def first_rate(self, facts: TaskFacts) -> float:
        """Return η₀, by default `initial_learning_rate`; from public facts."""
        del facts
        return self.initial_learning_rate

    def kinds(self, rate: float, gradient_noise: float, loss_noise: float) -> "tuple[DpEvent, DpEvent]":
        """Return the event of a step's batches, and of those that are probed."""
        from dphpo_bench.privacy.events import compose, gaussian, poisson_sampled, repeat

        gradient = gaussian(gradient_noise)
        losses = repeat(gaussian(loss_noise), RELEASES)
        asked = losses if self.loss_batch == "fresh" else compose(gradient, losses)
        return poisson_sampled(rate, gradient), poisson_sampled(rate, asked)

    def _cheapest_inflation(self, alone: float, facts: TaskFacts, probes: int) -> float:
        """Return γ for which the noise on a probed mean is about `probe_noise`; from public constants.

        Uses that T subsampled Gaussians cost about T (q/σ)² while σ is large. An error makes the probes less
        or more accurate than aimed at, and never changes ε, which is calibrated afterwards.
        """
        loss_noise = self.probe_noise * facts.batch_size / self.initial_loss_bound
        share = probes * RELEASES * alone**2 / (facts.steps * loss_noise**2)
        inflation = 1 / math.sqrt(1 - share) if share < 1 else math.inf
        return min(max(inflation, SMALLEST_INFLATION), LARGEST_INFLATION)


def clamp(limits: tuple[float, float], value: float) -> float:
    """Return the value, or the limit that it exceeds."""
    return min(max(value, limits[0]), limits[1])


def parabola(values: Sequence[float], radius: float) -> tuple[float, float]:
    """Return slope b and curvature a of L(w − hG) ≈ L₀ − b h + a h²/2 through h = −radius, 0, radius."""
    behind, here, ahead = values
    return (behind - ahead) / (2 * radius), (behind + ahead - 2 * here) / radius**2
