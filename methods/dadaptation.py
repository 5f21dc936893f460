"""D-Adaptation on private gradients: an optimiser that estimates its own step size."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    import torch
    from torch import Tensor

REPORTED = 20
"""How many values of d, about, a record keeps."""


@dataclass(frozen=True)
class DAdaptation(bench.Method):
    """DAdaptAdam (Defazio and Mishchenko 2023, arXiv:2301.07733, Algorithm 5) fed with noisy gradients.

    The published optimiser, unchanged. It grows a lower bound d of the distance from the first weights to a
    solution and steps in proportion. All it sees are the noisy mean gradients of T × Poisson(q; Gaussian σ),
    so d is post-processing: no tuning cost.

    The theory behind d is about gradients with far less noise: how well d, a ratio of sums of them, measures a
    distance under DP is not known. Liu and Bu 2025 report that it grows too slowly.

    Attributes:
        initial_d: d₀.
        learning_rate: a factor on the estimated step size; the authors advise 1.
        clipping: "auto_s", "auto_s:γ", "auto_v" or "abadi:C".
        batch_size: expected batch size; default: the task's.
        epochs: expected passes over the data; default: the task's.
        averaging: decay of the exponential average of weights that is returned; 0 returns the last weights.
    """

    name = "dadaptation"
    summary = "D-Adaptation's Adam on private gradients: estimates its step size from them."
    reference = "Defazio and Mishchenko 2023, Learning-Rate-Free Learning by D-Adaptation; package dadaptation"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    initial_d: float = 1e-6
    learning_rate: float = 1.0
    clipping: str = "auto_s"
    batch_size: int | None = None
    epochs: float | None = None
    averaging: float = 0.99

    def __post_init__(self) -> None:
        bench.parse_clipping(self.clipping)
        for name in ("initial_d", "learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise bench.InvalidValueError(f"Expected {name} > 0, got {getattr(self, name)}.")

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        """T steps at the smallest noise that meets the budget."""
        facts = facts.with_schedule(self.batch_size, self.epochs)
        training = bench.DpSgd.of(facts, clipping=self.clipping).calibrated(budget)
        parameters = {
            "sample_rate": training.sample_rate,
            "steps": training.steps,
            "noise_multiplier": training.noise_multiplier,
        }
        return replace(training.as_plan(facts, budget), parameters=parameters)

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """Train for T steps."""
        steps = plan.parameters["steps"]
        model = session.build_model()
        weights = bench.trainable(model)
        optimizer = self._optimizer(weights)
        average = bench.WeightAverage(weights, self.averaging)
        gradients = bench.noisy_gradients(
            session,
            model,
            sample_rate=plan.parameters["sample_rate"],
            steps=steps,
            clipping=bench.parse_clipping(self.clipping),
            noise_multiplier=plan.parameters["noise_multiplier"],
        )
        path = []
        for step, gradient in enumerate(gradients, start=1):
            for weight, value in zip(weights, gradient, strict=True):
                weight.grad = value
            optimizer.step()
            average.update()
            if step % math.ceil(steps / REPORTED) == 0 or step == steps:
                path.append({"step": step, "d": float(optimizer.param_groups[0]["d"])})
        average.copy_to(weights)
        return bench.Outcome(model, {"d": path[-1]["d"], "path": path})

    def _optimizer(self, weights: "list[Tensor]") -> "torch.optim.Optimizer":
        from dadaptation import DAdaptAdam

        optimizer: torch.optim.Optimizer = DAdaptAdam(weights, lr=self.learning_rate, d0=self.initial_d)
        return optimizer
