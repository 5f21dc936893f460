"""DP-hyper: a private search with a small part of the budget, then one run with the rest."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

import dphpo_bench as bench


@dataclass(frozen=True)
class DpHyper(bench.search.RandomStopping[bench.search.SearchThenTrain]):
    """Random stopping for the hyperparameters, then a final run on all records (Liu and Bu 2025, baseline "DP-hyper").

    The paper simulates this baseline: it takes a narrow range around the best learning rate as known, and trains with
    85 % of ε. It describes no search, and does not say what the rest pays for. Here a search is run over the task's
    search space. Search and final run are one event, BestOf(K; trial) + T × Poisson(q; Gaussian σ), calibrated as a
    whole: the final run is given the noise that would cost `final_share` of ε by itself, and the trials the least noise
    for which everything together costs ε.

    The trials see more noise than the final run, and the best learning rate falls with noise, so what the search
    finds is too small for the run it is used in. That is the method's own weakness, not corrected here.

    The other parameters are those of every `RandomStopping`; the final run has the schedule of a trial. The trial that
    wins is not released, so more records may score it.

    Attributes:
        final_share: ε of the final run by itself, as a share of the whole.
    """

    name = "dp_hyper"
    summary = "A private search with 15 % of the budget, then one run with the rest."
    reference = "Liu and Bu 2025 (arXiv:2503.00703), Section 5 (baseline); Liu and Talwar 2019"
    tuning = ("learning rate",)
    version = 2
    end_to_end_private = True

    validation: bench.parameters.Share = 0.3
    mean: Annotated[float, Interval(gt=1)] = 10.0
    final_share: bench.parameters.Share = 0.85
    accounting: Literal["tightest", "rdp", "profile", "layer_cake"] = "tightest"

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.search.SearchThenTrain]:
        """Calibrate the noise of the final run, then that of the search."""
        selection = self.selection(budget)
        share = selection.final_budget(budget)
        final = self.searched(facts, share).calibrated(share, selection.final_accountant)
        return self.plan_search_and_run(facts, budget, selection.with_final(final.event), final)

    def selection(self, budget: bench.PrivacyBudget) -> bench.search.Selection:
        """Return the rule by which the search selects within this budget."""
        measure = "rdp" if self.accounting == "rdp" else "pld"  # of the share
        return bench.search.Selection(self.runs, final_share=self.final_share, final_accountant=measure)

    def run(self, plan: bench.Plan[bench.search.SearchThenTrain], session: "bench.Session") -> bench.Outcome:
        """Search, then train."""
        best = plan.parameters.trial.best_of(session, self.runs)
        chosen = best.hyperparameters if best else {}
        return bench.Outcome(plan.parameters.final.trained(session, chosen, "Final run"), chosen)
