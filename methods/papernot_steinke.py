"""Papernot and Steinke's tuning: the best of a random number of DP-SGD runs, and how many there were is a secret."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

import dphpo_bench as bench

BOUNDS = {"uniform": ("tightest", "layer_cake"), "binomial": ("tightest", "layer_cake", "profile")}
"""Accountings that bound the number of runs, by its distribution; every one bounds the others."""


@dataclass(frozen=True)
class PapernotSteinke(bench.search.RandomStopping[bench.search.Trial]):
    """Random search with a random number K of trials, of which only the best is released.

    Papernot and Steinke 2022 (arXiv:2110.03620), Algorithm 1; Theorem 2 (truncated negative binomial K) and
    Theorem 6 (Poisson K). Each trial draws its hyperparameters from the search space, trains on one part of the
    records and is scored on the other by a noisy count. A record is exposed to either the best of K trainings or
    the best of K counts, so both are calibrated to the whole budget (docs/accounting.md).

    What the theorems do not allow, and is not done: a fixed number of trials, a fixed grid, a search that learns
    from scores, releasing losers or K, another draw after K = 0.

    The other parameters are those of every `RandomStopping`.

    Attributes:
        distribution: of K: "poisson"; "negative_binomial"; "binomial" on 0, ..., 2 · mean (Koskela, Redberg
            and Wang 2024), which "rdp" does not bound; or "uniform" on 1, ..., 2 · mean − 1, which only the
            layer cake bounds.
        shape: η of the negative binomial: 0 logarithmic, 1 geometric. The logarithmic one costs the least ε
            for its mean; the larger η, the more rarely a search stops after one trial.
        mean: expected number of trials. A Poisson number of so few is often 0, and of more it is dear.
        accounting: which bound is calibrated and quoted: "rdp" (as published), "profile" (Koskela, Redberg and
            Wang 2024), "layer_cake" (ours; docs/accounting.md), or "tightest", the least of these.
    """

    name = "papernot_steinke"
    summary = "Best of a random number of runs (negative binomial or Poisson); RDP, profile or layer-cake accounting."
    reference = "Papernot and Steinke 2022, Hyperparameter tuning with Rényi differential privacy, Theorems 2 and 6"
    tuning = ("learning rate",)
    version = 2
    end_to_end_private = True

    distribution: Literal["negative_binomial", "poisson", "binomial", "uniform"] = "negative_binomial"
    shape: Annotated[float, Interval(ge=0)] = 3.0
    mean: bench.parameters.Positive = 4.0
    accounting: Literal["tightest", "profile", "rdp", "layer_cake"] = "tightest"

    def __post_init__(self) -> None:
        super().__post_init__()
        bounds = BOUNDS.get(self.distribution, (self.accounting,))
        if self.accounting not in bounds:
            raise bench.errors.InvalidValueError(
                f"Expected accounting={' or '.join(bounds)} with distribution={self.distribution}, "
                f"got {self.accounting!r}."
            )
        self.runs  # noqa: B018  (raises if there is no such distribution)

    @property
    def runs(self) -> "bench.search.RunCount":
        """The distribution of K.

        Raises:
            InvalidValueError: if there is none with these values.
        """
        match self.distribution:
            case "negative_binomial":
                return bench.search.TruncatedNegativeBinomial(self.mean, self.shape)
            case "poisson":
                return bench.search.Poisson(self.mean)
            case "binomial":
                return bench.search.Binomial(self.mean, math.ceil(2 * self.mean))
            case "uniform":
                return bench.search.UniformCount(1, round(2 * self.mean - 1))

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.search.Trial]:
        """Calibrate the noise of a trial's training and of its score, for the best of K of them."""
        return self.plan_search(facts, budget, self.selection(budget).search)

    def run(self, plan: bench.Plan[bench.search.Trial], session: "bench.Session") -> bench.Outcome:
        """Train K models and release the best."""
        return bench.search.winner_outcome(plan.parameters.best_of(session, self.runs), session)
