"""ADADP: a full step beside two half steps says how long the next may be."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AdaDp(bench.recipes.SingleRun):
    """ADADP (Koskela and Honkela 2020, arXiv:1809.03832), as in the authors' code.

    SGD without momentum, in pairs of steps. The first noisy gradient makes a full step, and half of one. There the
    second gradient, of another batch, makes the other half. The distance between both ends estimates the error against
    the gradient flow; weights beyond 1 count relatively. If it exceeds the tolerance, the pair is undone. The rate
    moves by √(tolerance / error), held to 0.9 and 1.1.

    All of it is post-processing of released gradients: T × Poisson(q; Gaussian σ). Gradients of a pair that is undone
    were released too, and count. The authors' code takes shuffled batches of fixed size, while its accounting is that
    of Poisson sampling; here batches are Poisson.

    Both gradients of a pair have noise of their own, so the error is mostly noise: about η σC/L √(W/2) for W weights.
    The rate thus tends to where noise alone moves all weights together by the tolerance, if the run lasts that long: it
    grows by a tenth every two steps, and the authors' runs have thousands.

    The other parameters are those of every `SingleRun`. An odd last step is half a step.

    Attributes:
        tolerance: of the error; the authors'.
        initial_rate: learning rate of the first pair; the authors'.
    """

    name = "adadp"
    summary = "SGD whose rate follows from the distance between a full step and two half steps, as in ODE solvers."
    reference = "Koskela and Honkela 2020, Learning Rate Adaptation for Differentially Private Learning"
    tuning = ("learning rate",)
    end_to_end_private = True

    tolerance: bench.parameters.Positive = 1.0
    initial_rate: bench.parameters.Positive = 1e-3

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: "bench.Session") -> bench.Outcome:
        """Train for T steps, in pairs."""
        import torch

        training, model = plan.parameters, session.build_model()
        weights = bench.recipes.trainable(model)
        before, full = ([weight.detach().clone() for weight in weights] for _ in range(2))
        rate, undone = [self.initial_rate], [0]
        state = [before, full, rate, undone]
        for step in bench.recipes.training_steps(session, training.steps, [model], [training.averaging], state=state):
            gradient = training.gradient(session, model)
            with torch.no_grad():
                if step % 2 == 0:
                    torch._foreach_copy_(before, weights)
                    torch._foreach_copy_(full, weights)
                    torch._foreach_sub_(full, gradient, alpha=rate[0])
                torch._foreach_sub_(weights, gradient, alpha=rate[0] / 2)
                if step % 2 == 1:
                    error = distance(full, weights)
                    if error > self.tolerance:
                        torch._foreach_copy_(weights, before)
                        undone[0] += 1
                    rate[0] *= min(max(math.sqrt(self.tolerance / max(error, 1e-30)), 0.9), 1.1)
        return bench.Outcome(model, {"learning_rate": rate[0], "undone": undone[0]})


def distance(full: "Sequence[Tensor]", halves: "Sequence[Tensor]") -> float:
    """Return the length of the difference, relative where a full step ends beyond 1; infinite if it is no number."""
    ends = [(end.double(), weight.double()) for end, weight in zip(full, halves, strict=True)]
    square = sum(((end - weight) / end.abs().clamp(min=1)).square().sum().item() for end, weight in ends)
    return math.inf if math.isnan(square) else math.sqrt(square)
