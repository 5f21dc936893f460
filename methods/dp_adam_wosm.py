"""DPAdam without second moments: the step size follows from the noise, so no learning rate is tuned."""

from dataclasses import dataclass, replace

import dphpo_bench as bench

STABILITY = 1e-8


@dataclass(frozen=True)
class DpAdamWosm(bench.recipes.SingleRun):
    """DPAdamWOSM (Mohapatra, Sasy, He, Kamath and Thakkar 2022, arXiv:2111.04906, section 5).

    Under DP, what Adam takes for the second moment of a gradient is mostly the variance of the noise, which
    is public. It is put in directly: every coordinate moves by α / (σC/L + 10⁻⁸) times the bias-corrected
    momentum of the noisy mean gradient, where σC is the noise on the sum and L the expected lot size. The step
    size depends on no data, and the rest is post-processing: T × Poisson(q; Gaussian σ), all of the budget on
    one run.

    Epochs, batch size and clipping still have to be fixed in advance; a paper that tunes them on private
    data has to account for it. The authors' code starts its Adam by setting torch's global seed to 42, noise
    included; here the noise has a stream of its own.

    The other parameters are those of every `SingleRun`; the batch size is the expected lot size L, and C the
    sensitivity of the clipping rule.

    Attributes:
        step_size: α.
        momentum: β₁.
    """

    name = "dp_adam_wosm"
    summary = "Adam with the public noise level in place of second moments; leaves no learning rate to tune."
    reference = "Mohapatra et al. 2022, The Role of Adaptive Optimizers for Honest Private Hyperparameter Selection"
    tuning = ("learning rate",)
    end_to_end_private = True

    step_size: bench.parameters.Positive = 1e-3
    momentum: bench.parameters.Decay = 0.9
    clipping: bench.parameters.ClippingRule = "abadi:1"

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.recipes.DpSgd]:
        """Plan T steps at the smallest noise that meets the budget, and the learning rate that follows from it."""
        training = self.training(facts).calibrated(budget)
        sensitivity = bench.clipping.parse_clipping(self.clipping).sensitivity
        deviation = training.noise_multiplier * sensitivity / self.scheduled(facts).batch_size
        rate = self.step_size / (deviation + STABILITY)
        return replace(training, optimizer="DPAdamWOSM", learning_rate=rate).as_plan(facts, budget)

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: "bench.Session") -> bench.Outcome:
        """Train for T steps."""
        import torch

        training, model = plan.parameters, session.build_model()
        weights = bench.recipes.trainable(model)
        momenta = [torch.zeros_like(weight) for weight in weights]
        for step in bench.recipes.training_steps(session, training.steps, [model], [training.averaging], state=momenta):
            gradient = training.gradient(session, model)
            with torch.no_grad():
                torch._foreach_lerp_(momenta, gradient, 1 - self.momentum)
                corrected = training.learning_rate / (1 - self.momentum ** (step + 1))
                torch._foreach_add_(weights, momenta, alpha=-corrected)
        return bench.Outcome(model, {"learning_rate": training.learning_rate})
