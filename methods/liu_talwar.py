"""Liu and Talwar's random stopping: keep drawing candidates until a coin says stop, release the best."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

import dphpo_bench as bench


@dataclass(frozen=True)
class LiuTalwar(bench.search.RandomStopping[bench.search.Trial]):
    """Private selection from private candidates (Liu and Talwar 2019, arXiv:1811.07971).

    Without a threshold (Algorithm 2): a geometric number of trials, the best is released. With one
    (Algorithm 1): the first trial whose score reaches it is released; after every other one, a coin ends the
    search with nothing.

    The paper's theorem for a trial that is (ε₁, δ₁)-DP, (3ε₁ + 3√(2δ₁), √(2δ₁)·T + δ₂)-DP after T trials at the latest,
    is right and useless for DP-SGD: √(2δ₁)·T ≤ 1e-5 asks for δ₁ near 1e-15. Often quoted as "3ε", which holds for
    trials with δ₁ = 0 only. `accounting` names later analyses of the same search.

    Each trial trains on one part of the records and is scored on the other; see `papernot_steinke`.

    The other parameters are those of every `RandomStopping`; the mean is 1/γ.

    Attributes:
        accounting: "rdp" (Papernot and Steinke 2022, Theorem 2 and Corollary 16), "profile" or
            "layer_cake" (docs/accounting.md); or "tightest", the least of all that bound the search.
        threshold: share of correct predictions at which to stop, fixed in advance; None: there is none.
    """

    name = "liu_talwar"
    summary = "Random stopping: the best of a geometric number of runs, or the first above a threshold."
    reference = "Liu and Talwar 2019, Private selection from private candidates, Algorithms 1 and 2"
    tuning = ("learning rate",)
    version = 2
    end_to_end_private = True

    accounting: Literal["tightest", "rdp", "profile", "layer_cake"] = "tightest"
    threshold: Annotated[float, Interval()] | None = None

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.search.Trial]:
        """Calibrate the noise of a trial's training and of its score."""
        return self.plan_search(facts, budget, self.selection(budget).search, self.mean)

    def run(self, plan: bench.Plan[bench.search.Trial], session: "bench.Session") -> bench.Outcome:
        """Run trials until the coin, or the threshold, says stop."""
        trial = plan.parameters
        if self.threshold is None:
            return bench.search.winner_outcome(trial.best_of(session, self.runs), session)
        best = session.threshold_search(trial, self.threshold, 1 / self.mean, trial.event)
        return bench.search.winner_outcome(best, session)

    def selection(self, budget: bench.PrivacyBudget) -> bench.search.Selection:
        """Return the rule by which the search selects."""
        return bench.search.Selection(self.runs, self.threshold)
