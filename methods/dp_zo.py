"""DP-ZO: training from one privatised scalar a step, without a gradient."""

from dataclasses import dataclass

import dphpo_bench as bench


@dataclass(frozen=True)
class ZerothOrder:
    """Parameters of a plan.

    Attributes:
        sample_rate: q.
        steps: T.
        noise_multiplier: σ, of each released scalar.
    """

    sample_rate: float
    steps: int
    noise_multiplier: float


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
        rate, steps = facts.sample_rate, facts.steps
        noise = bench.events.calibrate(lambda sigma: bench.recipes.dp_sgd_event(rate, steps, sigma), budget)
        event = bench.recipes.dp_sgd_event(rate, steps, noise)
        return bench.Plan(
            budget=budget,
            event=event,
            training_event=event,
            parameters=ZerothOrder(rate, steps, noise),
            releases=(bench.Release("clipped sum of loss differences", steps, noise, rate),),
            cost=bench.Cost(runs=1, steps=steps, examples=2 * steps * rate * facts.n_records),
        )

    def run(self, plan: bench.Plan[ZerothOrder], session: bench.Session) -> bench.Outcome:
        """Train for T steps."""
        import torch

        planned, model = plan.parameters, session.build_model()
        weights = bench.recipes.trainable(model)
        rate = self.learning_rate / sum(weight.numel() for weight in weights)
        width, bound = 2 * self.smoothing, 2 * self.smoothing * self.clipping_threshold
        kind = bench.events.poisson_sampled(planned.sample_rate, bench.events.gaussian(planned.noise_multiplier))
        # Drawn where the weights are not: the same on every device.
        generator = torch.Generator().manual_seed(int(session.uniform("directions") * 2**53))
        for _ in bench.recipes.training_steps(session, planned.steps, [model], [self.averaging], state=[generator]):
            direction = [torch.randn(weight.shape, generator=generator).to(weight) for weight in weights]
            with torch.no_grad():
                torch._foreach_add_(weights, direction, alpha=self.smoothing)
            # From w + λz, a step of 2λ back along z leads to w − λz.
            (change,) = bench.recipes.mean_loss_changes(
                session.sample(kind), model, direction, (width,), bound, planned.noise_multiplier
            )
            derivative = -change / width
            with torch.no_grad():
                torch._foreach_add_(weights, direction, alpha=-self.smoothing - rate * derivative)
        return bench.Outcome(model, {"learning_rate": rate})
