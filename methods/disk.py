"""DiSK: a simplified Kalman filter of noisy gradients, each taken ahead of the weights."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

import dphpo_bench as bench

from .recommended import Recommended


@dataclass(frozen=True)
class Disk(Recommended):
    """DiSK (Zhang, Bu, Balle, Hong, Razaviyayn and Mirrokni 2025, arXiv:2410.03883), with a gradient a step.

    The filter averages gradients, m_t = (1 − κ) m_{t-1} + κ g_t. The weights have moved since m_{t-1}, by d_t, so it
    needs the gradient's change H d_t, which a second point shows. Every record's gradients at x_t and at x_t + γ d_t
    are combined with weights 1 − c and c, c = (1 − κ) / (κ γ), then clipped, so the sensitivity is C whatever c is.
    With γ = (1 − κ) / κ, c is 1: a gradient at the point ahead is all it takes, and the authors' code has this case,
    too. It is the only one here. The step is x_{t+1} = x_t − η m_t.

    The point ahead depends on released gradients alone, so a run is T × Poisson(q; Gaussian σ). The authors' code
    divides σ by √(c² + (1 − c)²), which clipping makes needless: for c > 1 that is less noise than was calibrated, and
    their accountant then charges more than the ε that was asked for; for c = 1 it changes nothing. Their code also
    gives g_t the weight 1 − κ, against the formulas beside it, which are those here.

    But for the filter this is `Recommended`.

    Attributes:
        gain: κ; the authors'. 1 is plain SGD.
    """

    name = "disk"
    summary = "DP-SGD as De et al. advise it, along Kalman-filtered gradients taken ahead of the weights."
    reference = "Zhang et al. 2025, DiSK: Differentially Private Optimizer with Simplified Kalman Filter"

    gain: Annotated[float, Interval(gt=0, le=1)] = 0.7

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: "bench.Session") -> bench.Outcome:
        """Train for T steps."""
        import torch

        training, model = plan.parameters, session.build_model()
        weights = bench.recipes.trainable(model)
        ahead = (1 - self.gain) / self.gain
        filtered, here = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
        state = [filtered]
        for step in bench.recipes.training_steps(session, training.steps, [model], [training.averaging], state=state):
            with torch.no_grad():
                torch._foreach_copy_(here, weights)
                torch._foreach_add_(weights, filtered, alpha=-training.learning_rate * ahead)
            gradient = training.gradient(session, model)
            with torch.no_grad():
                torch._foreach_lerp_(filtered, gradient, self.gain if step else 1.0)
                torch._foreach_copy_(weights, here)
                torch._foreach_add_(weights, filtered, alpha=-training.learning_rate)
        return bench.Outcome(model, {"learning_rate": training.learning_rate})
