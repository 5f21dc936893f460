"""Tuning on a secret sample of the records: the search is cheaper, in privacy and in time."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

import dphpo_bench as bench


@dataclass(frozen=True)
class SubsampledTuning(bench.search.RandomStopping[bench.search.SearchThenTrain]):
    """Practical hyperparameter tuning on subsamples (Koskela and Kulkarni 2023, arXiv:2301.11989, second variant).

    A Poisson sample of rate q₁ is searched with a random number of trials; the final run uses all records with
    the winner's hyperparameters. The event is Poisson(q₁; BestOf(K; trial)) + T × Poisson(q; Gaussian σ). The paper
    amplifies the Rényi curve of the search by sampling; here the search's privacy profile is amplified, exactly
    (docs/accounting.md, sampling of any mechanism).

    Trials keep the sample rate, and thus the number of steps, of the final run, on fewer records. The noise on
    their mean gradient is 1/q₁ times larger at the same multiplier, so a learning rate for SGD grows with the
    number of records (`extrapolation="linear"`); a step of an adaptive optimiser does not depend on the scale of
    the gradient ("none"). The paper extrapolates SGD's.

    The other parameters are those of every `RandomStopping`. The trial that wins is not released, so more records may
    score it.

    Attributes:
        tuning_rate: q₁, share of the records that are searched on.
        final_share: ε of the final run by itself, as a share of the whole.
        extrapolation: "auto": "linear" for SGD, "none" for others.
    """

    name = "subsampled_tuning"
    summary = "Searches on a secret sample of the records, then trains on all of them."
    reference = "Koskela and Kulkarni 2023, Practical differentially private hyperparameter tuning with subsampling"
    tuning = ("learning rate",)
    version = 2
    end_to_end_private = True

    validation: bench.parameters.Share = 0.3
    mean: Annotated[float, Interval(gt=1)] = 10.0
    tuning_rate: bench.parameters.Share = 0.2
    final_share: bench.parameters.Share = 0.85
    extrapolation: Literal["auto", "linear", "none"] = "auto"
    accounting: Literal["tightest", "profile", "layer_cake"] = "tightest"

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.search.SearchThenTrain]:
        """Calibrate the noise of the final run, then that of the search."""
        selection = self.selection(budget)
        share = selection.final_budget(budget)
        final = self.searched(facts, share).calibrated(share)
        whole = selection.with_final(final.event)
        return self.plan_search_and_run(facts, budget, whole, final, searched=self.tuning_rate)

    def selection(self, budget: bench.PrivacyBudget) -> bench.search.Selection:
        """Return the rule by which the search selects within this budget."""
        return bench.search.Selection(self.runs, sample_rate=self.tuning_rate, final_share=self.final_share)

    def run(self, plan: bench.Plan[bench.search.SearchThenTrain], session: "bench.Session") -> bench.Outcome:
        """Search on a sample, extrapolate, train."""
        trial, final = plan.parameters.trial, plan.parameters.final
        best = trial.best_of(session.subsample(self.selection(plan.budget).search(trial.event)), self.runs)
        winner = best.hyperparameters if best else {}
        chosen = self.extrapolated(winner, winner.get("optimizer", final.optimizer))
        return bench.Outcome(final.trained(session, chosen, "Final run"), chosen)

    def extrapolated(self, winner: "bench.search.Candidate", optimizer: str) -> "bench.search.Candidate":
        """Extrapolate the winner of the sample to all records."""
        linear = self.extrapolation == "linear" or (self.extrapolation == "auto" and optimizer.lower() == "sgd")
        rate = winner.get("learning_rate")
        if not linear or not isinstance(rate, int | float):  # a study may call its choices by names
            return winner
        return {**winner, "learning_rate": rate / self.tuning_rate}
