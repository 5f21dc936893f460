"""Ridge regression on noisy second moments: nothing is trained, and nothing is tuned."""

from dataclasses import dataclass

import dphpo_bench as bench

MOST_INPUTS = 2048
"""Two million pairs: 16 MiB of each record."""


@dataclass(frozen=True)
class Marginals(bench.Method[bench.recipes.NoisyMoments]):
    """Ridge regression on noisy second moments: sufficient statistics, perturbed once (Wang 2018, AdaSSP).

    One release has the sums of zzᵀ and ztᵀ over all records: z are the inputs with a constant 1, scaled to norm 1, and
    t is the target. The model is linear, with its own layer; the task's own model does not matter. Classes are fitted
    by least squares on rows with a 1 at the class.

    The ridge penalty follows from the least eigenvalue of the noisy matrix. The paper pays for it with a third of the
    budget; here it is post-processing of the release. There is no learning rate, no clipping threshold, no batch and
    no step. Penalties of .2 and .5 are level on 24 linear tasks of the development set (docs/hyfreedp.md); the larger
    is safer at small ε.

    Attributes:
        penalty: the ridge penalty lifts the least eigenvalue to this, relative to the norm of the noise.
    """

    name = "marginals"
    summary = "Ridge regression on noisy second moments: one pass, no training; tunes nothing."
    reference = "Wang 2018, Revisiting differentially private linear regression (AdaSSP)"
    tuning = ()
    end_to_end_private = True

    penalty: bench.parameters.Positive = 0.5

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.recipes.NoisyMoments]:
        """Plan one release at the smallest noise that meets the budget."""
        bench.recipes.NoisyTables.check_inputs(facts, self.name, most=MOST_INPUTS)
        return bench.recipes.NoisyMoments(1.0, self.penalty).plan(facts, budget)

    def run(self, plan: bench.Plan[bench.recipes.NoisyMoments], session: bench.Session) -> bench.Outcome:
        """Release the moments, and solve for the weights."""
        return bench.Outcome(plan.parameters.fit(session), {})
