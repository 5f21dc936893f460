"""DP-SGD whose clipping threshold follows a quantile of the gradient norms."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Interval

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

THRESHOLDS = (1e-4, 1e4)
"""Public limits of the clipping threshold C."""


@dataclass(frozen=True)
class Planned:
    """Parameters of a plan.

    Attributes:
        sample_rate: q.
        steps: T.
        noise_multiplier: z_Δ.
        count_noise: σ_b.
        learning_rate: of the optimiser.
        optimizer: a `torch.optim` name.
    """

    sample_rate: float
    steps: int
    noise_multiplier: float
    count_noise: float
    learning_rate: float
    optimizer: str

    @property
    def step(self) -> "DpEvent":
        """A gradient and a centred count, of sensitivity 1/2, of one batch."""
        both = bench.events.compose(
            bench.events.gaussian(self.noise_multiplier), bench.events.gaussian(2 * self.count_noise)
        )
        return bench.events.poisson_sampled(self.sample_rate, both)


@dataclass(frozen=True)
class AdaptiveClipping(bench.recipes.TrainingMethod[Planned]):
    """Adaptive clipping (Andrew, Thakkar, McMahan and Ramaswamy 2021, arXiv:1905.03871, Algorithm 1).

    Every step also releases which share b̃ of the batch's gradients was no longer than C, and then sets
    C ← C · exp(−η_C (b̃ − quantile)), which is post-processing.

    The clipped sum has noise z_Δ C. The count is centred, Σ (bᵢ − 1/2), so it has sensitivity 1/2 and its noise
    σ_b is a multiplier 2σ_b. Both come from one batch, so a step is Poisson(q; Gaussian z_Δ, Gaussian 2σ_b),
    which costs what one Gaussian of multiplier z costs: z⁻² = z_Δ⁻² + (2σ_b)⁻² (Theorem 1). Calibrated is the joint
    event. `AdaClipDPOptimizer` of Opacus 1.6 does not centre the count, so that it costs four times as
    much, and divides it by the drawn batch size, which it thereby releases.

    As in the paper a step moves along the clipped mean, which grows and shrinks with C: plain SGD takes
    longer steps as C grows. Adam and its like divide by the size of recent gradients, and hardly notice.

    The paper trains across users, each a record; here a record is one example.

    The other parameters are those of every `TrainingMethod`.

    Attributes:
        quantile: of the gradient norms, which C is to follow.
        initial_max_grad_norm: C of the first step.
        threshold_learning_rate: η_C.
        count_noise: σ_b, standard deviation of the noise on the count; default: a twentieth of the expected batch.
        learning_rate: default: the task's.
        optimizer: a `torch.optim` name; default: the task's.
    """

    name = "adaptive_clipping"
    summary = "DP-SGD whose clipping threshold follows a private quantile of the gradient norms."
    reference = "Andrew et al. 2021, Differentially Private Learning with Adaptive Clipping, Algorithm 1"
    tuning = ("clipping threshold",)
    end_to_end_private = True

    quantile: bench.parameters.Share = 0.5
    initial_max_grad_norm: Annotated[float, Interval(ge=THRESHOLDS[0], le=THRESHOLDS[1])] = 0.1
    threshold_learning_rate: bench.parameters.Positive = 0.2
    count_noise: bench.parameters.Positive | None = None
    learning_rate: bench.parameters.Positive | None = None
    optimizer: bench.parameters.OptimizerName | None = None

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Planned]:
        """Calibrate the noise of the gradients, so that gradients and counts together meet the budget."""
        facts = self.scheduled(facts)
        rate, steps = facts.sample_rate, facts.steps
        count_noise = facts.batch_size / 20 if self.count_noise is None else self.count_noise
        joint = bench.events.calibrate_roughly(lambda noise: bench.recipes.dp_sgd_event(rate, steps, noise), budget)
        if joint >= 2 * count_noise:
            raise bench.errors.BudgetTooSmallError(
                f"Expected count_noise > {joint / 2:.4g}, got {count_noise:g}: the counts alone would cost more "
                "than the budget. Raise count_noise, batch_size or epsilon."
            )

        def planned(noise: float) -> Planned:
            learning_rate, optimizer = self.learning_rate or facts.learning_rate, self.optimizer or facts.optimizer
            return Planned(rate, steps, noise, count_noise, learning_rate, optimizer)

        noise = bench.events.calibrate(lambda noise: bench.events.repeat(planned(noise).step, steps), budget)
        return bench.Plan(
            budget=budget,
            event=bench.events.repeat(planned(noise).step, steps),
            training_event=bench.recipes.dp_sgd_event(rate, steps, noise),
            parameters=planned(noise),
            releases=(
                bench.Release("clipped gradient sum", steps, noise, rate),
                bench.Release("count of unclipped gradients", steps, 2 * count_noise, rate),
            ),
            cost=bench.Cost(runs=1, steps=steps, examples=float(steps * facts.batch_size)),
        )

    def run(self, plan: bench.Plan[Planned], session: "bench.Session") -> bench.Outcome:
        """Train for T steps, moving C after each."""
        planned, model = plan.parameters, session.build_model()
        update = bench.recipes.UpdateRule(planned.optimizer, bench.recipes.trainable(model))
        smallest, largest = map(math.log, THRESHOLDS)
        logarithms = [math.log(self.initial_max_grad_norm)]
        state = [update, logarithms]
        for _ in bench.recipes.training_steps(session, planned.steps, [model], [self.averaging], state=state):
            gradient, share = session.sample(planned.step).gradient_and_quantile(
                model, math.exp(logarithms[-1]), planned.noise_multiplier, planned.count_noise
            )
            update.apply(update.direction(gradient), planned.learning_rate)
            moved = logarithms[-1] - self.threshold_learning_rate * (share - self.quantile)
            logarithms.append(min(max(moved, smallest), largest))
        path = [math.exp(logarithm) for logarithm in logarithms[:-1]]
        return bench.Outcome(model, {"learning_rate": planned.learning_rate, "max_grad_norm": path})
