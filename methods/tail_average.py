"""The uniform average of a run's last weights in place of the exponential one."""

from dataclasses import dataclass

import dphpo_bench as bench

from .recommended import Recommended


@dataclass(frozen=True)
class TailAverage(Recommended):
    """Uniform tail averaging (Shejwalkar et al. 2022, arXiv:2210.01864), the average of the last steps' weights.

    Weights of all steps are released, so averages of them are post-processing: T × Poisson(q; Gaussian σ). The paper
    averages the last k checkpoints and tries several k; here k is a share of the steps, by default the half of suffix
    averaging (Rakhlin, Shamir and Sridharan 2012). The exponential average of De et al. 2022, warm-up included, is
    `averaging` of every other single run. But for the average this is `Recommended`.

    Attributes:
        averaging: 0: there is one average, that of the tail.
        tail: share of the steps, the last ones, whose weights are averaged.
    """

    name = "tail_average"
    summary = "DP-SGD as De et al. advise it, with the uniform average of the last half of the steps; tunes nothing."
    reference = "Shejwalkar et al. 2022, Recycling Scraps: Improving Private Learning by Leveraging Checkpoints"

    averaging: bench.parameters.Decay = 0.0
    tail: bench.parameters.Share = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.averaging:
            raise bench.errors.InvalidValueError(
                f"Expected averaging=0, got {self.averaging}: tail_average averages the last weights itself. "
                "Use the method recommended for an exponential average."
            )

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: "bench.Session") -> bench.Outcome:
        """Train for T steps."""
        import torch

        training, model = plan.parameters, session.build_model()
        weights = bench.recipes.trainable(model)
        average = [weight.detach().clone() for weight in weights]
        first = min(int(training.steps * (1 - self.tail)), training.steps - 1)
        for step in bench.recipes.training_steps(session, training.steps, [model], [0.0], state=average):
            gradient = training.gradient(session, model)
            with torch.no_grad():
                torch._foreach_add_(weights, gradient, alpha=-training.learning_rate)
                if step >= first:
                    torch._foreach_lerp_(average, weights, 1 / (step - first + 1))
        with torch.no_grad():
            torch._foreach_copy_(weights, average)
        return bench.Outcome(model, {"learning_rate": training.learning_rate})
