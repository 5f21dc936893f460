"""Non-private tuning of a private run: the grid search that papers report, with its true ε."""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Interval

import dphpo_bench as bench

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


@dataclass(frozen=True)
class GridOracle(bench.search.SearchMethod[bench.search.DpSgdRun]):
    """DP-SGD at the best of a grid of hyperparameters, which is found without privacy.

    Every candidate is trained with the noise that the whole budget buys for one run, on 90 % of the
    records, and judged by its raw score on the others. The best is trained again on all records.

    Published results are often of this kind, with the ε of the last run alone. That ε holds for none of the
    released values: the choice depends on raw validation records, and on all the other runs. The event here is
    composed with non-private access, so ε is infinite, and the row stands apart. It tells what perfect tuning
    would be worth, not what can be had.

    The other parameters are those of every `SearchMethod`; the search space replaces those that it names. SGD takes
    larger learning rates than AdamW: with `optimizer=SGD`, set `space=wide`.

    Attributes:
        points: values of each numeric hyperparameter of the search space, evenly spaced (in the logarithm where
            the space says so).
        schedule: of the learning rate: "constant", "cosine" or "linear".
        refinements: how many times the values beside the best are tried as well, each time at half the distance.
        judge: of the candidates: "score", the mean of the task's scores, as in private searches; or "metric", the
            task's first, by which boards rank. A candidate whose metric is undefined is the worst.
    """

    name = "grid_oracle"
    summary = "Grid search without privacy, then DP-SGD at the best point: a reference, its true ε is infinite."
    reference = "Abadi et al. 2016, Algorithm 1, tuned as is common in papers"
    tuning = ("learning rate",)
    end_to_end_private = False

    points: bench.parameters.Count = 7
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    refinements: Annotated[int, Interval(ge=0, le=8)] = field(default=0, metadata=bench.parameters.LATER)
    judge: Literal["score", "metric"] = field(default="score", metadata=bench.parameters.LATER)

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.search.DpSgdRun]:
        """Calibrate the noise of one run; ε of the whole is infinite all the same."""
        training = self.searched(facts, budget).having({"schedule": self.schedule}).calibrated(budget)
        single = training.as_plan(facts, budget)
        distributions = facts.searched(self.searched_space(facts))
        grid = bench.search.grid(distributions, self.points)
        at_an_end = bench.search.beside(distributions, grid[0], self.points)  # one for each real number
        candidates = len(grid) + 2 * self.refinements * len(at_an_end)
        searched = single.cost.examples * (1 - self.validation) + facts.n_records * self.validation
        return replace(
            single,
            event=bench.events.compose(training.event, bench.events.non_private()),
            cost=bench.Cost(
                runs=candidates + 1,
                steps=round((candidates + 1) * training.steps),
                examples=single.cost.examples + candidates * searched,
            ),
        )

    def run(self, plan: bench.Plan[bench.search.DpSgdRun], session: "bench.Session") -> bench.Outcome:
        """Train every candidate and judge it, then train the best on everything."""
        distributions = session.facts.searched(self.searched_space(session.facts))
        bench.search.Trial(plan.parameters, 0.0, self.validation, self.searched_space(session.facts)).check(session)
        training, validation = session.holdout(self.validation)
        rated, candidates = self._rated(validation), bench.search.grid(distributions, self.points)
        best, points, scores = candidates[0], self.points, list[float]()
        for refinement in range(self.refinements + 1):
            if refinement:
                points = 2 * points - 1
                candidates += bench.search.beside(distributions, best, points)
            for candidate in candidates[len(scores) :]:
                title = f"Candidate {len(scores) + 1} of {plan.cost.runs - 1}"
                score = rated(plan.parameters.trained(training, candidate, title))
                scores.append(-math.inf if math.isnan(score) else score)
            best = candidates[scores.index(max(scores))]
        model = plan.parameters.trained(session, best, "Training at the best candidate")
        finite = [score if math.isfinite(score) else None for score in scores]
        tried = [{**candidate, "score": score} for candidate, score in zip(candidates, finite, strict=True)]
        return bench.Outcome(model, {**best, "candidates": tried})

    def _rated(self, validation: "bench.Session") -> "Callable[[nn.Module], float]":
        """Return how good a model is on raw validation records; NaN where its metric is undefined."""
        if self.judge == "score":
            return partial(bench.recipes.mean_score, validation, noise_multiplier=0.0)
        records = validation.nonprivate()
        return partial(validation.objective.quality, records=records)
