"""DP-ZO: training from one privatised scalar a step, without a gradient."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ZerothOrder(bench.recipes.DpSgd):
    """T steps of DP-ZO; see `DpZo`. What they release has the events of DP-SGD's gradients.

    Its `learning_rate` is η · d. An optimiser, a schedule and a rule of clipping it has not.

    Attributes:
        smoothing: λ.
        clipping_threshold: C.
    """

    smoothing: bench.parameters.Positive = 1e-3
    clipping_threshold: bench.parameters.Positive = 1.0

    @property
    def releases(self) -> tuple[bench.Release, ...]:
        """The releases of the run."""
        return (bench.Release("clipped sum of loss differences", self.steps, self.noise_multiplier, self.sample_rate),)

    def cost(self, n_records: float) -> bench.Cost:
        """Return the expected cost of the run on this many records."""
        return bench.Cost(runs=1, steps=self.steps, examples=2 * self.steps * self.sample_rate * n_records)

    def train(self, session: bench.Session, label: str = "Training") -> "nn.Module":
        """Train the task's model on the session's records; see `DpSgd.train`."""
        import torch

        model = session.build_model()
        weights = bench.recipes.trainable(model)
        rate = self.learning_rate / sum(weight.numel() for weight in weights)
        width, bound = 2 * self.smoothing, 2 * self.smoothing * self.clipping_threshold
        # Drawn where the weights are not: the same on every device.
        generator = torch.Generator().manual_seed(int(session.uniform("directions") * 2**53))
        for _ in bench.recipes.training_steps(session, self.steps, [model], [self.averaging], label, state=[generator]):
            direction = [torch.randn(weight.shape, generator=generator).to(weight) for weight in weights]
            with torch.no_grad():
                torch._foreach_add_(weights, direction, alpha=self.smoothing)
            # From w + λz, a step of 2λ back along z leads to w − λz.
            (change,) = bench.recipes.mean_loss_changes(
                session.sample(self.step), model, direction, (width,), bound, self.noise_multiplier
            )
            derivative = -change / width
            with torch.no_grad():
                torch._foreach_add_(weights, direction, alpha=-self.smoothing - rate * derivative)
        return model


@dataclass(frozen=True)
class DpZo(bench.recipes.TrainingMethod[ZerothOrder]):
    """Zeroth-order training (Tang et al. 2024, DP-ZO; Zhang et al. 2024, DPZero).

    Each step draws a direction z ~ N(0, I) that depends on no record, takes each record's two-point difference
    (L(w + λz) − L(w − λz)) / 2λ, clips it to ±C, and releases the noisy mean ĝ. Then w ← w − η ĝ z. So all that is
    released is one number a step, whatever the number of weights: T × Poisson(q; Gaussian σ), as DP-SGD with gradients
    of one dimension. There is no backward pass and no gradient of a record, which is what it is for: memory is
    that of inference.

    The price is in steps: ĝz is the gradient on average, but d times as long in the square, where d is the number of
    weights. Hence many steps (`passes`), each a small one (η is `learning_rate` / d).

    The papers tune η and C for each task. Here both are fixed. `learning_rate` was settled on `digits` and `adult`,
    where 30 and 100 do about as well. A C below most derivatives makes records equal, as automatic clipping does.

    The other parameters are those of every `TrainingMethod`.

    Attributes:
        epochs: expected passes over the data; default: `passes` times the task's.
        passes: see `epochs`.
        learning_rate: η · d.
        smoothing: λ.
        clipping_threshold: C, of a record's directional derivative.
        averaging: 0, the last weights, as in the papers.
    """

    name = "dp_zo"
    summary = "Zeroth-order training: one privatised loss difference a step, and no gradients; tunes nothing."
    reference = "Tang et al. 2024, Private Fine-tuning of Large Language Models with Zeroth-order Optimization"
    tuning = ()
    end_to_end_private = True

    passes: bench.parameters.Positive = 10.0
    learning_rate: bench.parameters.Positive = 100.0
    smoothing: bench.parameters.Positive = 1e-3
    clipping_threshold: bench.parameters.Positive = 1.0
    averaging: bench.parameters.Decay = 0.0

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[ZerothOrder]:
        """Plan T scalars at the smallest noise that meets the budget."""
        facts = facts.with_schedule(self.batch_size, self.epochs or self.passes * facts.epochs)
        run = ZerothOrder(
            *(facts.sample_rate, facts.steps, 0.0, self.learning_rate),
            averaging=self.averaging,
            smoothing=self.smoothing,
            clipping_threshold=self.clipping_threshold,
        )
        return run.calibrated(budget).as_plan(facts, budget)

    def run(self, plan: bench.Plan[ZerothOrder], session: bench.Session) -> bench.Outcome:
        """Train for T steps."""
        model = plan.parameters.train(session)
        weights = sum(weight.numel() for weight in bench.recipes.trainable(model))
        return bench.Outcome(model, {"learning_rate": self.learning_rate / weights})
