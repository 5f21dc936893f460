"""DP-SGD whose clipping threshold follows what clipping leaves over, which costs nothing beside the gradients."""

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

import dphpo_bench as bench

from .adaptive_clipping import THRESHOLDS


@dataclass(frozen=True)
class SlaClip(bench.recipes.SingleRun):
    """SlaClip (Zou, Wang, Zhu, Li, Dong, Sassone and Wu 2026): adaptive clipping from slacks.

    Each step releases, in the same Gaussian as the clipped gradients, how much of C their norms leave over: K shares,
    of which share j is about that of gradients no longer than C (1 − j/K). Then C ← C · exp(η_C (γ − first share)).
    γ is (1 + r)/2 with r the last share over C, held to [0, 1] (appendix C, equations 28 to 30). That is
    post-processing, so a run costs what DP-SGD costs (docs/accounting.md, slacks).

    Without `feedback`, γ is 1/2 (SlaClip-Q, equation 12): C follows a quantile, as in `adaptive_clipping`, but no count
    is paid for.

    As there, a step moves along the clipped mean, which grows and shrinks with C.

    The other parameters are those of every `SingleRun`.

    Attributes:
        clipping: of the first step; it must have a threshold.
        slots: K.
        threshold_learning_rate: η_C.
        feedback: whether γ follows the last slot.
    """

    name = "slaclip"
    summary = "DP-SGD whose clipping threshold follows what clipping leaves over, at no further cost."
    reference = "Zou et al. 2026, SlaClip: Gradient Norm Slacks can be Indicator for Adaptive Clipping in DP-SGD"
    tuning = ("clipping threshold",)
    end_to_end_private = True

    clipping: bench.parameters.ClippingRule = "abadi:1"
    slots: Annotated[int, Interval(ge=1, le=1000)] = 10
    threshold_learning_rate: bench.parameters.Positive = 0.5
    feedback: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.clipping.startswith("abadi:"):
            raise bench.errors.InvalidValueError(
                f"Expected clipping abadi:C, got {self.clipping!r}: slaclip moves a threshold, and others have none."
            )

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: "bench.Session") -> bench.Outcome:
        """Train for T steps, moving C after each."""
        planned, model = plan.parameters, session.build_model()
        update = bench.recipes.UpdateRule(planned.optimizer, bench.recipes.trainable(model))
        smallest, largest = map(math.log, THRESHOLDS)
        logarithms = [math.log(bench.clipping.parse_clipping(planned.clipping).sensitivity)]
        state = [update, logarithms]
        for _ in bench.recipes.training_steps(session, planned.steps, [model], [planned.averaging], state=state):
            threshold = math.exp(logarithms[-1])
            gradient, shares = session.sample(planned.step).gradient_and_slacks(
                model, threshold, planned.noise_multiplier, self.slots
            )
            update.apply(update.direction(gradient), planned.learning_rate)
            target = (1 + min(max(shares[-1] / threshold, 0.0), 1.0)) / 2 if self.feedback else 0.5
            moved = logarithms[-1] + self.threshold_learning_rate * (target - shares[0])
            logarithms.append(min(max(moved, smallest), largest))
        path = [math.exp(logarithm) for logarithm in logarithms[:-1]]
        return bench.Outcome(model, {"learning_rate": planned.learning_rate, "max_grad_norm": path})
