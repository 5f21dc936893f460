"""HyFreeDP as published: the learning rate is found during training, from a few privatised losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

import dphpo_bench as bench

LOSS_BOUNDS = (0.05, 100.0)
"""Public limits of the bound of one record's loss: a noisy sum may be negative, a bound may not."""


class PaperRule(bench.recipes.ProbingRule):
    """Algorithm 1 to the letter: η is the minimiser b/a of the parabola L(w − hG) ≈ L₀ − b h + a h²/2.

    The losses are probed one step to either side, at w ± ηG. R becomes the sum of the three ("in practice"; the
    algorithm's own line is the loss at w), within public limits. The paper does not say what to do where b/a is not
    positive; η is kept then.
    """

    def observe(self, values: Sequence[float], deviation: float) -> None:
        """Set η and R."""
        slope, curvature = bench.recipes.parabola(values, self.radius)
        if slope > 0 and curvature > 0:
            self.learning_rate = bench.recipes.clamp(bench.recipes.LEARNING_RATES, self._limited(slope / curvature))
        self.radius = self.learning_rate
        self.bound = bench.recipes.clamp(LOSS_BOUNDS, sum(values))

    def _limited(self, proposed: float) -> float:
        return proposed


class GenRule(PaperRule):
    """The safeguards in the public code of GeN (Bu and Xu 2024), the optimiser that HyFreeDP makes private.

    η is kept unless slope and curvature are positive; b/a is held within a factor 2 of η, and smoothed:
    0.9 η + 0.1 new. That code also wants R² > 0.99 of the fit, which three points always give a parabola.
    """

    def _limited(self, proposed: float) -> float:
        rate = self.learning_rate
        return 0.9 * rate + 0.1 * min(max(proposed, rate / 2), 2 * rate)


@dataclass(frozen=True)
class HyFreeDPPaper(bench.recipes.ProbedTraining):
    """Training without a learning rate or a clipping threshold to choose (Liu and Bu 2025, Algorithm 1).

    From η = 1e-4, or 1e-3 where the model's name says that it trains LoRA, as in "gpt2_lora" (section 5.2), and R = 1,
    each step

    1. draws a Poisson batch, clips its gradients automatically, adds noise σ_g, and the optimiser makes a direction G;
    2. every K-th time clips the losses at w − ηG, w and w + ηG to [0, R], adds noise σ_l R to each sum, and divides
       by the expected batch size;
    3. fits a parabola through the three, sets η to its minimiser and R to their sum;
    4. moves to w − ηG.

    All defaults are its authors' (docs/hyfreedp.md says from where), those of GeN's code where the paper is silent.
    Algorithm 1 to the letter is `rule="paper"`, `loss_batch="same"`, `clipping="auto_v"`. Ours are public limits of R
    and η, and the accounting: the paper accounts losses probed on the gradient's own batch as separate samples.

    The other parameters are those of every `ProbedTraining`.

    Attributes:
        rule: "paper": Algorithm 1 to the letter. "gen": with the safeguards of its authors' optimiser GeN.
        update_interval: K.
        noise_inflation: γ, as in the paper; None has it follow from `probe_noise`.
        averaging: 0, the last weights: the paper averages none.
    """

    name = "hyfreedp_paper"
    version = 2
    summary = "Finds the learning rate while it trains, from privatised losses, as published."
    reference = "Liu and Bu 2025 (arXiv:2503.00703), Towards hyperparameter-free optimization with DP, Algorithm 1"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    rules: ClassVar[dict[str, type[bench.recipes.ProbingRule]]] = {"paper": PaperRule, "gen": GenRule}

    rule: Literal["paper", "gen"] = "gen"
    update_interval: bench.parameters.Count = 5
    noise_inflation: Annotated[float, Interval(gt=1)] | None = 1.01
    optimizer: bench.parameters.OptimizerOrTask = "AdamW"
    averaging: bench.parameters.Decay = 0.0

    def first_rate(self, facts: bench.TaskFacts) -> float:
        """Return η₀: ten times its default for LoRA, as in section 5.2 of the paper; a rate that was set, as it is."""
        is_default = self.initial_learning_rate == HyFreeDPPaper.initial_learning_rate
        return self.initial_learning_rate * (10 if is_default and "lora" in facts.model.split("_") else 1)
