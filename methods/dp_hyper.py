"""DP-hyper: a private search with a small part of the budget, then one run with the rest."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True)
class DpHyper(bench.SearchMethod):
    """Random stopping for the hyperparameters, then a final run on all records (Liu and Bu 2025, baseline "DP-hyper").

    The paper gives the final run 85 % of ε and the search "the rest", without saying how the two add up. Here
    both are one event, BestOf(K; trial) + T × Poisson(q; Gaussian σ), calibrated as a whole: the final run is
    given the noise that would cost `final_share` of ε by itself, and the trials the least noise for which
    everything together costs ε.

    The trials see more noise than the final run, and the best learning rate falls with noise, so what the search
    finds is too small for the run it is used in. That is the method's own weakness, not corrected here.

    The other parameters are those of every `SearchMethod`; the final run has the schedule of a trial.

    Attributes:
        final_share: ε of the final run by itself, as a share of the whole.
        mean: expected number of trials, geometric.
        accounting: "rdp", "profile" or "layer_cake" (docs/accounting.md), or "tightest", the least of these.
    """

    name = "dp_hyper"
    summary = "A private search with 15 % of the budget, then one run with the rest."
    reference = "Liu and Bu 2025, Section 5 (baseline); Liu and Talwar 2019"
    tuning = ("learning rate",)
    end_to_end_private = True

    final_share: float = 0.85
    mean: float = 10.0
    accounting: Literal["tightest", "rdp", "profile", "layer_cake"] = "tightest"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.final_share < 1:
            raise bench.InvalidValueError(f"Expected 0 < final_share < 1, got {self.final_share}.")

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        """The noise of the final run, then that of the search."""
        final = self.training(facts).calibrated(
            bench.PrivacyBudget(self.final_share * budget.epsilon, budget.delta), accountant=self._accountant
        )
        runs = bench.geometric(self.mean)

        def whole(trial: "DpEvent") -> "DpEvent":
            return bench.compose(bench.best_of(trial, runs), final.event)

        accountant = None if self.accounting == "tightest" else self.accounting
        trial = bench.Trial.calibrated(
            whole, self.training(facts), budget, validation=self.validation, accountant=accountant
        )
        return bench.search_then_train(
            budget, whole(trial.event), trial, final, facts, runs.expected, accountant=accountant
        )

    @property
    def _accountant(self) -> str:
        """Whose ε the final run's share is measured in."""
        return "rdp" if self.accounting == "rdp" else "pld"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """Search, then train."""
        trial, final = bench.Trial.of(plan), bench.DpSgd(**plan.parameters["final"])
        best = trial.best_of(session, bench.geometric(self.mean))
        chosen = best.hyperparameters if best else {}
        return bench.Outcome(final.having(chosen).train(session, "Final run"), chosen)
