"""Liu and Talwar's random stopping: keep drawing candidates until a coin says stop, release the best."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

import dphpo_bench as bench

# Half of δ pays for the hard stop, half for what a trial may do.
STOP_SHARE = 0.5


@dataclass(frozen=True)
class LiuTalwar(bench.search.RandomStopping[bench.search.Trial]):
    """Private selection from private candidates (Liu and Talwar 2019, arXiv:1811.07971).

    Without a threshold (Algorithm 2): a geometric number of trials, the best is released. With one
    (Algorithm 1): the first trial whose score reaches it is released; after every other one, a coin ends the
    search with nothing.

    The paper's statements are about a trial that is (ε₁, δ₁)-DP:

    - Algorithm 2, stopped after T ≥ ln(1/δ₂)/γ trials at the latest: (3ε₁ + 3√(2δ₁), √(2δ₁)·T + δ₂)-DP (Theorem 3.2).
    - Algorithm 1 is (2ε₁ + ε₀, 3e^{2ε₁} δ₁/(γ ε₀))-DP (Theorem 3.1).

    They are right, and useless for DP-SGD: √(2δ₁)·T ≤ 1e-5 asks for δ₁ near 1e-15. Often quoted as "3ε", which
    holds for trials with δ₁ = 0 only. `accounting` shows what later analyses of the same search buy. The search
    under "theorem" differs in one thing: it has the hard stop T that the theorem asks for.

    Each trial trains on one part of the records and is scored on the other; see `papernot_steinke`.

    The other parameters are those of every `RandomStopping`; the mean is 1/γ.

    Attributes:
        accounting: "theorem" as above; "rdp" (Papernot and Steinke 2022, Theorem 2 and Corollary 16), "profile" or
            "layer_cake" (docs/accounting.md); or "tightest", the least of all that bound the search.
        threshold: share of correct predictions at which to stop, fixed in advance; None: there is none.
    """

    name = "liu_talwar"
    summary = "Random stopping: the best of a geometric number of runs, or the first above a threshold."
    reference = "Liu and Talwar 2019, Private selection from private candidates, Algorithms 1 and 2"
    tuning = ("learning rate",)
    version = 2
    end_to_end_private = True

    accounting: Literal["tightest", "theorem", "rdp", "profile", "layer_cake"] = "tightest"
    threshold: Annotated[float, Interval()] | None = None

    @property
    def accountant(self) -> str | None:
        """Name of the quoted accountant; None: the tightest."""
        return "liu_talwar" if self.accounting == "theorem" else super().accountant

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.search.Trial]:
        """Calibrate the noise of a trial's training and of its score."""
        return self.plan_search(facts, budget, self.selection(budget).search, self.mean)

    def run(self, plan: bench.Plan[bench.search.Trial], session: "bench.Session") -> bench.Outcome:
        """Run trials until the coin, or the threshold, says stop."""
        trial = plan.parameters
        if self.threshold is None:
            return bench.search.winner_outcome(trial.best_of(session, self.number(plan.budget.delta)), session)
        best = session.threshold_search(trial, self.threshold, 1 / self.mean, trial.event)
        return bench.search.winner_outcome(best, session)

    def selection(self, budget: bench.PrivacyBudget) -> bench.search.Selection:
        """Return the rule by which the search selects within this budget."""
        runs = self.runs if self.threshold is not None else self.number(budget.delta)
        return bench.search.Selection(runs, self.threshold)

    def number(self, delta: float) -> "bench.search.RunCount":
        """Return the distribution of the number of trials; "theorem" asks for a hard stop."""
        if self.accounting != "theorem":
            return self.runs
        return bench.search.CappedGeometric(self.mean, math.ceil(math.log(1 / (STOP_SHARE * delta)) * self.mean))
