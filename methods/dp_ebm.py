"""The private explainable boosting machine: an additive model, boosted on noisy sums of residuals; tunes nothing."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

import dphpo_bench as bench

MOST_INPUTS = 256
"""A round multiplies each record's bins by a matrix of bins × leaves: a million numbers for 100 inputs."""


@dataclass(frozen=True)
class DpEbm(bench.Method[bench.recipes.NoisyBoosting]):
    """DP-EBM, the private explainable boosting machine (Nori et al. 2021): cyclic boosting of an additive model.

    One release counts the records in each bin of each attribute. Then each round cuts the bins of each attribute at
    random into three leaves, releases the sums of the residuals in all leaves, and moves the output of each leaf by a
    part of its mean residual. The model has a number for each bin of each attribute. The task's own model does not
    matter.

    Attributes and their public bins are those of `naive_bayes`. There is no clipping threshold and no batch. The
    authors' package, interpret, releases the sums of a round one attribute after the other, each with the outputs that
    the last changed. Here all sums of a round are one vector: the privacy is the same. Numbers are clipped in each
    round (docs/pitfalls.md).

    The defaults, the share of the counts and the least count of a leaf were settled on `readmissions`, `diabetes`,
    scikit-learn's tables of tumours and wine, and draws of `research/made_up.py`.

    Attributes:
        rounds: number of rounds.
        step: of all rounds together: of 1, a leaf would move by its mean residual, divided by the largest curvature of
            the loss. A round moves by 1/attributes of that at most.
        bins: of a number, at least 3.
    """

    name = "dp_ebm"
    summary = "DP-EBM: an additive model, boosted on noisy sums of residuals in random leaves; tunes nothing."
    reference = "Nori et al. 2021, Accuracy, Interpretability, and Differential Privacy via Explainable Boosting"
    tuning = ()
    end_to_end_private = True

    rounds: bench.parameters.Count = 100
    step: bench.parameters.Positive = 4.0
    bins: Annotated[int, Interval(ge=3)] = 32

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.recipes.NoisyBoosting]:
        """Plan all releases at the smallest noise that meets the budget."""
        bench.recipes.NoisyTables.check_inputs(facts, self.name, most=MOST_INPUTS)
        return bench.recipes.NoisyBoosting(1.0, self.rounds, self.step, self.bins).plan(facts, budget)

    def run(self, plan: bench.Plan[bench.recipes.NoisyBoosting], session: bench.Session) -> bench.Outcome:
        """Count, boost, and return the network of the additive model."""
        return bench.Outcome(plan.parameters.fit(session), {})
