"""DPAdam without second moments: the step size follows from the noise, so no learning rate is tuned."""

import math
from dataclasses import dataclass, replace

import dphpo_bench as bench

STABILITY = 1e-8


@dataclass(frozen=True)
class DpAdamWosm(bench.Method):
    """DPAdamWOSM (Mohapatra, Sasy, He, Kamath and Thakkar 2022, arXiv:2111.04906, section 5).

    Under DP, what Adam takes for the second moment of a gradient is mostly the variance of the noise, which
    is public. It is put in directly: every coordinate moves by α / (σC/L + 10⁻⁸) times the bias-corrected
    momentum of the noisy mean gradient, where σC is the noise on the sum and L the expected lot size. The step
    size depends on no data, and the rest is post-processing: T × Poisson(q; Gaussian σ), all of the budget on
    one run.

    Epochs, batch size and clipping still have to be fixed in advance; a paper that tunes them on private
    data has to account for it. The authors' code starts its Adam by setting torch's global seed to 42, noise
    included; here the noise has a stream of its own.

    Attributes:
        step_size: α.
        momentum: β₁.
        clipping: "abadi:C" with threshold C, "auto_s", "auto_s:γ" or "auto_v"; C is the rule's sensitivity.
        batch_size: expected lot size L; default: the task's.
        epochs: expected passes over the data; default: the task's.
        averaging: decay of the exponential average of weights that is returned; 0 returns the last weights.
    """

    name = "dp_adam_wosm"
    summary = "Adam with the public noise level in place of second moments; tunes no learning rate."
    reference = "Mohapatra et al. 2022, The Role of Adaptive Optimizers for Honest Private Hyperparameter Selection"
    tuning = ("learning rate",)
    end_to_end_private = True

    step_size: float = 1e-3
    momentum: float = 0.9
    clipping: str = "abadi:1"
    batch_size: int | None = None
    epochs: float | None = None
    averaging: float = 0.99

    def __post_init__(self) -> None:
        bench.parse_clipping(self.clipping)
        if not 0 < self.step_size < math.inf:
            raise bench.InvalidValueError(f"Expected step_size > 0, got {self.step_size}.")
        if not 0 <= self.momentum < 1:
            raise bench.InvalidValueError(f"Expected 0 <= momentum < 1, got {self.momentum}.")

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        """T steps at the smallest noise that meets the budget, and the learning rate that follows from it."""
        facts = facts.with_schedule(self.batch_size, self.epochs)
        training = bench.DpSgd.of(facts, clipping=self.clipping).calibrated(budget)
        deviation = training.noise_multiplier * bench.parse_clipping(self.clipping).sensitivity / facts.batch_size
        parameters = {
            "sample_rate": training.sample_rate,
            "steps": training.steps,
            "noise_multiplier": training.noise_multiplier,
            "learning_rate": self.step_size / (deviation + STABILITY),
        }
        return replace(training.as_plan(facts, budget), parameters=parameters)

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """Train for T steps."""
        import torch

        model = session.build_model()
        weights = bench.trainable(model)
        momenta = [torch.zeros_like(weight) for weight in weights]
        average = bench.WeightAverage(weights, self.averaging)
        gradients = bench.noisy_gradients(
            session,
            model,
            sample_rate=plan.parameters["sample_rate"],
            steps=plan.parameters["steps"],
            clipping=bench.parse_clipping(self.clipping),
            noise_multiplier=plan.parameters["noise_multiplier"],
        )
        for step, gradient in enumerate(gradients, start=1):
            with torch.no_grad():
                torch._foreach_lerp_(momenta, gradient, 1 - self.momentum)
                corrected = plan.parameters["learning_rate"] / (1 - self.momentum**step)
                torch._foreach_add_(weights, momenta, alpha=-corrected)
            average.update()
        average.copy_to(weights)
        return bench.Outcome(model, {"learning_rate": plan.parameters["learning_rate"]})
