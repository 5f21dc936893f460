"""HyFreeDP as published: the learning rate is found during training, from a few privatised losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import dphpo_bench as bench

LOSS_BOUNDS = (0.05, 100.0)
"""Public limits of the bound of one record's loss."""


class PaperRule(bench.ProbingRule):
    """Algorithm 1 to the letter: η is the minimiser b/a of the parabola L(w − hG) ≈ L₀ − b h + a h²/2.

    The paper does not say what to do where b/a is not positive; η is kept then. R becomes the sum of the three
    losses ("in practice"), within public limits.
    """

    def observe(self, values: Sequence[float], deviation: float) -> None:
        """Set η and R."""
        del deviation
        slope, curvature = bench.parabola(values, self.radius)
        if slope > 0 and curvature > 0:
            self.learning_rate = bench.within(bench.LEARNING_RATES, self._limited(slope / curvature))
        self.radius = self.learning_rate
        self.bound = bench.within(LOSS_BOUNDS, sum(values))

    def _limited(self, proposed: float) -> float:
        return proposed


class GenRule(PaperRule):
    """The safeguards of GeN (Bu and Xu 2024): b/a is held within a factor 2 of η, and smoothed: 0.9 η + 0.1 new."""

    def _limited(self, proposed: float) -> float:
        rate = self.learning_rate
        return 0.9 * rate + 0.1 * min(max(proposed, rate / 2), 2 * rate)


@dataclass(frozen=True)
class HyFreeDPPaper(bench.ProbedTraining):
    """Training without a learning rate or a clipping threshold to choose (Liu and Bu 2025, Algorithm 1).

    What the paper gets wrong: losses probed on the gradient's own batch are accounted as separate samples. Here they
    are accounted jointly, with what else is said of `ProbedTraining`.

    The other parameters are those of every `ProbedTraining`.

    Attributes:
        rule: "paper": Algorithm 1 to the letter. "gen": with the safeguards of its authors' non-private
            optimiser GeN.
    """

    name = "hyfreedp_paper"
    summary = "Finds the learning rate while it trains, from privatised losses, as published."
    reference = "Liu and Bu 2025, Towards hyperparameter-free optimization with differential privacy, Algorithm 1"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    rules: ClassVar[dict[str, type[bench.ProbingRule]]] = {"paper": PaperRule, "gen": GenRule}

    rule: Literal["paper", "gen"] = "paper"
