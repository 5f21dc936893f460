"""Naive Bayes on noisy tables: nothing is trained, and nothing is tuned."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

import dphpo_bench as bench


@dataclass(frozen=True)
class NaiveBayes(bench.Method[bench.recipes.NoisyTables]):
    """Naive Bayes on noisy tables of labels by attributes (Vaidya et al. 2013, here with Gaussian noise).

    One release counts the records of each label, another those in each bin of each attribute. Counts say how likely a
    bin is, given the label; the model takes attributes for independent, given the label. It is additive: a number for
    each bin of each attribute. The task's own model does not matter.

    An attribute is a number or a category of a declared table, `Task.columns`. Where none is declared, each input is a
    number of typical value 0 and spread 1. All bins are public. There is no learning rate, no clipping threshold, no
    batch and no step. The rule for the number of bins, and how counts are smoothed, were settled on `adult`,
    `adult_few`, `readmissions` and `digits`.

    Attributes:
        bins: of a number, at least 3. Default: a power of two from 4 to 128. A mean cell of the rarest label then has
            at least 30 records and 8 standard deviations of noise.
    """

    name = "naive_bayes"
    summary = "Naive Bayes on noisy tables of labels by attributes: one pass, no training; tunes nothing."
    reference = "Vaidya et al. 2013, Differentially Private Naive Bayes Classification"
    tuning = ()
    end_to_end_private = True

    bins: Annotated[int, Interval(ge=3)] | None = None

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.recipes.NoisyTables]:
        """Plan both releases at the smallest noise that meets the budget."""
        bench.recipes.NoisyTables.check_inputs(facts, self.name, kinds=("classification", "binary"))
        return bench.recipes.NoisyTables(1.0, self.bins).plan(facts, budget)

    def run(self, plan: bench.Plan[bench.recipes.NoisyTables], session: bench.Session) -> bench.Outcome:
        """Count, and make a network of the counts."""
        model = plan.parameters.fit(session)
        network = model.network(binary=session.facts.kind == "binary")
        return bench.Outcome(network.to(session.device), {"bins": model.bins.k})
