"""Batches that are not what the accountant takes them for."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench
from tests.security.mutants.baseline import Training, descend

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class FixedBatches(Training):
    """An epoch is a shuffled list, cut into batches and accounted as Poisson samples."""

    name = "fixed_batches"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        model, noise = session.build_model(), plan.parameters.noise_multiplier
        rest, batches = session, []
        for left in range(round(1 / plan.parameters.sample_rate), 1, -1):
            rest, batch = rest.holdout(1 / left)
            batches.append(batch)
        batches.append(rest)
        for step in range(plan.parameters.steps):
            batch = batches[step % len(batches)]
            gradient = self.asked(batch, model, 1.0, noise, bench.clipping.Abadi(self.max_grad_norm))
            descend(model, gradient, self.learning_rate)
        return bench.Outcome(model)


@dataclass(frozen=True)
class DrawnBatchSize(Training):
    """Divides by the number of records drawn, which one record changes: Opacus' AdaClip does so with its count."""

    name = "drawn_batch_size"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        batch = session.sample(bench.events.poisson_sampled(rate, bench.events.gaussian(noise)))
        expected = session.expected_records * rate
        mean = batch.gradient(model, bench.clipping.Abadi(self.max_grad_norm), noise)
        return [gradient * expected / len(batch) for gradient in mean]  # type: ignore[arg-type]


@dataclass(frozen=True)
class RateOfALoader(Training):
    """Samples at 1 / (number of whole batches) and accounts for B / N, as when the last batch is dropped."""

    name = "rate_of_a_loader"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        rate = 1 / math.floor(1 / rate)
        return self.asked(session, model, rate, noise, bench.clipping.Abadi(self.max_grad_norm))


@dataclass(frozen=True)
class CorrelatedAsDpSgd(Training):
    """Adds noise that takes itself back, from step to step, and accounts for it as for that of DP-SGD."""

    name = "correlated_as_dp_sgd"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        planned = plan.parameters
        options = {"learning_rate": self.learning_rate, "clipping": "abadi:1", "coefficients": (1.0, 0.7)}
        run = bench.recipes.BandedSgd(planned.sample_rate, planned.steps, planned.noise_multiplier, **options)
        return bench.Outcome(run.train(session))
