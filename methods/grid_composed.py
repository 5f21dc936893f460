"""A grid that pays for every run: the honest version of what is usually done."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True)
class GridComposed(bench.search.SearchMethod[bench.search.Trial]):
    """Every candidate of a grid is trained, scored by a noisy count, and paid for by composition.

    All runs and scores could be published: n·T × Poisson(q; Gaussian σ) for a record that trains, n Gaussian
    counts for one that validates. The model with the best noisy score is returned.

    The other parameters are those of every `SearchMethod`.

    Attributes:
        points: values of each hyperparameter on the grid; n is their product.
    """

    name = "grid_composed"
    summary = "A grid search that pays for all of its runs by composition."
    reference = "composition of DP-SGD runs (Abadi et al. 2016); no tuning theorem needed"
    tuning = ("learning rate",)
    end_to_end_private = True

    points: bench.parameters.Count = 5

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.search.Trial]:
        """Calibrate the noise of each run, and of each of the scores."""
        runs = len(facts.grid(self.points, self.searched_space(facts)))

        def whole(trial: "DpEvent") -> "DpEvent":
            return bench.events.repeat(trial, runs)

        trial = self.trial(facts, budget, whole)
        return trial.as_plan(facts, budget, whole(trial.event), runs)

    def run(self, plan: bench.Plan[bench.search.Trial], session: "bench.Session") -> bench.Outcome:
        """Train and score every candidate; return the best."""
        trial = plan.parameters
        candidates = session.facts.grid(self.points, self.searched_space(session.facts))
        results = []
        with session.progress.track("Candidates", len(candidates)) as advance:
            for start in range(0, len(candidates), bench.search.MAX_STACKED_TRIALS):
                some = candidates[start : start + bench.search.MAX_STACKED_TRIALS]
                results += trial.run([session.fork(f"candidate {start + i}") for i in range(len(some))], some)
                advance(len(some))
        best = max(results, key=lambda result: result.score)
        scores = [{**result.outcome.hyperparameters, "score": result.score} for result in results]
        return bench.Outcome(best.outcome.model, {**best.outcome.hyperparameters, "scores": scores})
