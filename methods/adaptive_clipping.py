"""DP-SGD whose clipping threshold follows a quantile of the gradient norms."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

THRESHOLDS = (1e-4, 1e4)
"""Public limits of the clipping threshold C."""


@dataclass(frozen=True)
class AdaptiveClipping(bench.Method):
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

    Attributes:
        quantile: of the gradient norms, which C is to follow.
        initial_max_grad_norm: C of the first step.
        threshold_learning_rate: η_C.
        count_noise: σ_b, standard deviation of the noise on the count; default: a twentieth of the expected batch.
        learning_rate: default: the task's.
        optimizer: a `torch.optim` name; default: the task's.
        batch_size: expected batch size; default: the task's.
        epochs: expected passes over the data; default: the task's.
        averaging: decay of the exponential average of weights that is returned; 0 returns the last weights.
    """

    name = "adaptive_clipping"
    summary = "DP-SGD whose clipping threshold follows a private quantile of the gradient norms."
    reference = "Andrew et al. 2021, Differentially Private Learning with Adaptive Clipping, Algorithm 1"
    tuning = ("clipping threshold",)
    end_to_end_private = True

    quantile: float = 0.5
    initial_max_grad_norm: float = 0.1
    threshold_learning_rate: float = 0.2
    count_noise: float | None = None
    learning_rate: float | None = None
    optimizer: str | None = None
    batch_size: int | None = None
    epochs: float | None = None
    averaging: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise bench.InvalidValueError(f"Expected 0 < quantile < 1, got {self.quantile}.")
        low, high = THRESHOLDS
        if not low <= self.initial_max_grad_norm <= high:
            raise bench.InvalidValueError(
                f"Expected {low:g} <= initial_max_grad_norm <= {high:g}, got {self.initial_max_grad_norm}."
            )
        for name in ("threshold_learning_rate", "count_noise", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise bench.InvalidValueError(f"Expected {name} > 0, got {value}.")

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        """Noise of the gradients, for a given noise of the counts, such that both together meet the budget."""
        facts = facts.with_schedule(self.batch_size, self.epochs)
        rate, steps = facts.sample_rate, facts.steps
        count_noise = facts.batch_size / 20 if self.count_noise is None else self.count_noise
        joint = bench.calibrate_roughly(lambda noise: bench.dp_sgd_event(rate, steps, noise), budget)
        if joint >= 2 * count_noise:
            raise bench.BudgetTooSmallError(
                f"Expected count_noise > {joint / 2:.4g}, got {count_noise:g}: the counts alone would cost more "
                "than the budget. Raise count_noise, batch_size or epsilon."
            )

        def event(noise: float) -> "DpEvent":
            return bench.repeat(step(rate, noise, count_noise), steps)

        noise = bench.calibrate(event, budget)
        return bench.Plan(
            budget=budget,
            event=event(noise),
            training_event=bench.dp_sgd_event(rate, steps, noise),
            parameters={
                "sample_rate": rate,
                "steps": steps,
                "noise_multiplier": noise,
                "count_noise": count_noise,
                "learning_rate": self.learning_rate or facts.learning_rate,
                "optimizer": self.optimizer or facts.optimizer,
            },
            releases=(
                bench.Release("clipped gradient sum", steps, noise, rate),
                bench.Release("count of unclipped gradients", steps, 2 * count_noise, rate),
            ),
            cost=bench.Cost(runs=1, steps=steps, examples=float(steps * facts.batch_size)),
        )

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """Train for T steps, moving C after each."""
        facts = plan.parameters
        model = session.build_model()
        weights = bench.trainable(model)
        update = bench.UpdateRule(facts["optimizer"], weights)
        average = bench.WeightAverage(weights, self.averaging)
        smallest, largest = map(math.log, THRESHOLDS)
        log_threshold = math.log(self.initial_max_grad_norm)
        path = []
        kind = step(facts["sample_rate"], facts["noise_multiplier"], facts["count_noise"])
        with session.progress.track("Training", facts["steps"]) as advance:
            for _ in range(facts["steps"]):
                path.append(math.exp(log_threshold))
                gradient, share = session.sample(kind).gradient_and_quantile(
                    model, path[-1], facts["noise_multiplier"], facts["count_noise"]
                )
                update.apply(update.direction(gradient), facts["learning_rate"])
                average.update()
                moved = log_threshold - self.threshold_learning_rate * (share - self.quantile)
                log_threshold = min(max(moved, smallest), largest)
                advance()
        average.copy_to(weights)
        return bench.Outcome(model, {"learning_rate": facts["learning_rate"], "max_grad_norm": path})


def step(rate: float, noise: float, count_noise: float) -> "DpEvent":
    """One step: a gradient and a centred count, of sensitivity 1/2, of one batch."""
    return bench.poisson_sampled(rate, bench.compose(bench.gaussian(noise), bench.gaussian(2 * count_noise)))
