"""DOPPLER: SGD along gradients that passed a low-pass filter."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

import dphpo_bench as bench

from .recommended import Recommended


@dataclass(frozen=True)
class Doppler(Recommended):
    """DOPPLER (Zhang, Bu, Hong and Razaviyayn 2024, arXiv:2408.13460), with a filter of first order.

    Noise is spread evenly over all frequencies, gradients change slowly. A step moves along m_t / c_t, where

        m_t = pole m_{t-1} + b₀ g_t + b₁ g_{t-1}

    and c_t is what the filter makes of 1, 1, ..., so that the first steps are no shorter. Frequency zero has gain 1:
    b₁ = zero · b₀ and b₀ + b₁ = 1 − pole. With zero = 1 the highest frequency has gain 0; zero = 0 is momentum.
    White noise shrinks by b₀² + (b₁ + pole b₀)² / (1 − pole²) in variance, .05 at the defaults.

    All of it is post-processing of released gradients: T × Poisson(q; Gaussian σ). But for the filter this is
    `Recommended`, so the difference of both is the filter's.

    The other parameters are those of `Recommended`.

    Attributes:
        pole: −a₁ of the paper.
        zero: b₁ / b₀; −1 would be a high-pass filter.
    """

    name = "doppler"
    summary = "DP-SGD as De et al. advise it, along gradients that passed a low-pass filter; tunes nothing."
    reference = "Zhang et al. 2024, DOPPLER: Differentially Private Optimizers with Low-pass Filter"

    pole: bench.parameters.Decay = 0.9
    zero: Annotated[float, Interval(gt=-1, le=1)] = 1.0

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: "bench.Session") -> bench.Outcome:
        """Train for T steps."""
        import torch

        training, model = plan.parameters, session.build_model()
        weights = bench.recipes.trainable(model)
        now = (1 - self.pole) / (1 + self.zero)
        filtered, before = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
        gain = [0.0]
        state = [filtered, before, gain]
        for step in bench.recipes.training_steps(session, training.steps, [model], [training.averaging], state=state):
            gradient = training.gradient(session, model)
            gain[0] = self.pole * gain[0] + now * (1 + self.zero * (step > 0))
            with torch.no_grad():
                torch._foreach_mul_(filtered, self.pole)
                torch._foreach_add_(filtered, gradient, alpha=now)
                torch._foreach_add_(filtered, before, alpha=now * self.zero)
                torch._foreach_copy_(before, gradient)
                torch._foreach_add_(weights, filtered, alpha=-training.learning_rate / gain[0])
        return bench.Outcome(model, {"learning_rate": training.learning_rate})
