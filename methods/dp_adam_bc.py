"""DP-AdamBC: Adam whose second moments are rid of the noise's variance."""

from dataclasses import dataclass, replace

import dphpo_bench as bench


@dataclass(frozen=True)
class DpAdamBc(bench.recipes.SingleRun):
    """DP-AdamBC (Tang, Shpilevskiy and Lécuyer 2024, arXiv:2312.14334, Algorithm 1), as in the authors' code.

    Each coordinate of the noisy mean gradient has noise of standard deviation s = σC/L, where σC is the noise on the
    sum and L the expected lot size. Adam's bias-corrected second moment v̂ has the expectation of the square of the
    clipped mean gradient plus s², which is public. A step moves by η m̂ / √max(v̂ − s², floor), without Adam's 1e-8.

    All of it is post-processing of released gradients: T × Poisson(q; Gaussian σ). The authors' PyTorch code takes
    batches of fixed size, while its accounting is that of Poisson sampling; here batches are Poisson samples.

    v̂ itself has an error of about s² √(2/t) after t steps. Where that exceeds the clipped gradient's square, half of
    the coordinates fall to the floor, and move like plain SGD at the rate η / √floor: 5 at the defaults. The paper
    searches both for every data set.

    The other parameters are those of every `SingleRun`; C is the sensitivity of the clipping rule.

    Attributes:
        learning_rate: η; the authors' PyTorch code's.
        floor: γ′, least corrected second moment; the authors' code's.
        momentum: β₁.
        smoothing: β₂, decay of the second moments.
    """

    name = "dp_adam_bc"
    summary = "Adam whose second moments have the noise's variance subtracted, at its authors' rate and floor."
    reference = "Tang et al. 2024, DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless You Apply Bias Correction)"
    tuning = ()
    end_to_end_private = True

    clipping: bench.parameters.ClippingRule = "abadi:1"
    learning_rate: bench.parameters.Positive = 5e-4
    floor: bench.parameters.Positive = 1e-8
    momentum: bench.parameters.Decay = 0.9
    smoothing: bench.parameters.Decay = 0.999

    def training(self, facts: bench.TaskFacts) -> bench.recipes.DpSgd:
        """Return the run without its noise."""
        return replace(super().training(facts), optimizer="DPAdamBC", learning_rate=self.learning_rate)

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: "bench.Session") -> bench.Outcome:
        """Train for T steps."""
        import torch

        training, model = plan.parameters, session.build_model()
        sensitivity = bench.clipping.parse_clipping(training.clipping).sensitivity
        deviation = training.noise_multiplier * sensitivity / (session.expected_records * training.sample_rate)
        weights = bench.recipes.trainable(model)
        first, second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
        state = [first, second]
        for step in bench.recipes.training_steps(session, training.steps, [model], [training.averaging], state=state):
            gradient = training.gradient(session, model)
            with torch.no_grad():
                rate = training.learning_rate / (1 - self.momentum ** (step + 1))
                share = 1 - self.smoothing ** (step + 1)
                for weight, value, mean, square in zip(weights, gradient, first, second, strict=True):
                    mean.lerp_(value, 1 - self.momentum)
                    square.lerp_(value.square(), 1 - self.smoothing)
                    corrected = (square / share - deviation**2).clamp_(min=self.floor)
                    weight.addcdiv_(mean, corrected.sqrt_(), value=-rate)
        return bench.Outcome(model, {"learning_rate": training.learning_rate, "noise": deviation})
