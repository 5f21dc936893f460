"""Tuning on public records that are like the private ones: nothing is paid for it, and nothing is promised."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from typing_extensions import TypeVar

import dphpo_bench as bench

P = TypeVar("P", default=Any)


@dataclass(frozen=True)
class ProxyMethod(bench.search.CandidateMethod[P]):
    """DP-SGD at the best of a grid of hyperparameters, judged on records that cost nothing.

    The other parameters are those of every `CandidateMethod`.

    Attributes:
        points: values of each numeric hyperparameter of the search space, evenly spaced (in the logarithm where
            the space says so).
        validation: number of records that judge, as a share of the number of private ones; at most half of those that
            cost nothing.
    """

    needs_scores: ClassVar[bool] = True

    points: bench.parameters.Count = 13
    validation: bench.parameters.Share = 0.25

    def search(
        self, free: bench.Session, candidates: Sequence[bench.search.Candidate], run: bench.search.DpSgdRun, n: float
    ) -> tuple[bench.search.Candidate, list[dict[str, Any]]]:
        """Train every candidate on records that cost nothing, and judge it by others of them.

        Args:
            free: session on these records.
            candidates: hyperparameters.
            run: of which each candidate repeats the steps, the expected batch and the noise.
            n: number of private records.

        Returns:
            The best candidate, and all with their scores.
        """
        training, validation = free.holdout(min(self.validation * n / free.expected_records, 0.5))
        tried = []
        for index, candidate in enumerate(candidates):
            planned = run.planned(candidate) if isinstance(run, bench.search.SearchedRun) else run.having(candidate)
            repeated = transferred(planned, n, training.expected_records)
            model = repeated.train(training, f"Candidate {index + 1} of {len(candidates)}")
            tried.append({**candidate, "score": bench.recipes.mean_score(validation, model, noise_multiplier=0.0)})
        scores = [entry["score"] for entry in tried]
        return candidates[scores.index(max(scores))], tried

    def cost_with(self, last: bench.Cost, searched: int, n: float) -> bench.Cost:
        """Return the cost of a run with its search before it."""
        return bench.Cost(
            runs=searched + 1,
            steps=(searched + 1) * last.steps,
            examples=(searched + 1) * last.examples + searched * self.validation * n,
        )


@dataclass(frozen=True)
class PublicProxy(ProxyMethod[bench.recipes.DpSgd]):
    """DP-SGD at the best of a grid of hyperparameters, judged on the task's public sibling.

    The whole budget buys the noise of one run on the private records. Before it, that run is repeated on the sibling
    for each candidate, and judged by the raw score of public records that did not train. The private records are asked
    nothing for it, so tuning takes no ε, and the ε of the run covers everything.

    A repeated run has the private run's number of steps T, optimiser, clipping, expected batch size B and noise on the
    mean gradient, σ / B. What a rate η does to the weights at the start is then the same: the noise of all steps moves
    a weight by η M Z, where M follows from σ / B, T and the optimiser (docs/hyfreedp.md). So the rate itself is
    transferred. To transfer η M instead gives the same rate, as M is the same. It would differ if the sibling's run
    kept the sample rate B / N or the number of epochs. What does not transfer is what the private loss tolerates, so
    the sibling has to be similar. A sibling with fewer records than a batch takes all of them in each step, with as
    much less noise on their sum.

    It is what tuning at no ε can do at best where such records exist. Whether they are similar cannot be checked
    without paying.

    The parameters are those of every `ProxyMethod`; the search space replaces those that it names. Batch size and
    epochs are not searched. SGD takes larger learning rates than AdamW: with `optimizer=SGD`, set `space=wide`.
    """

    name = "public_proxy"
    summary = "Grid search on a public sibling of the task, then DP-SGD at its best point: tuning takes no ε."
    reference = "this benchmark; as public data serve in De et al. 2022 and in most of practice"
    tuning = ("learning rate",)
    end_to_end_private = True
    needs_sibling: ClassVar[bool] = True

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.recipes.DpSgd]:
        """Calibrate the noise of one run; the search on public records costs time only."""
        single = self.training(facts).calibrated(budget).as_plan(facts, budget)
        return replace(single, cost=self.cost_with(single.cost, len(self.candidates(facts)), facts.n_records))

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: "bench.Session") -> bench.Outcome:
        """Train every candidate on the sibling and judge it, then train the best on the private records."""
        public, facts = session.sibling, session.facts
        best, tried = self.search(public, self.candidates(facts), plan.parameters, facts.n_records)
        model = plan.parameters.trained(session, best)
        return bench.Outcome(model, {**best, "sibling": public.facts.task, "candidates": tried})

    def candidates(self, facts: bench.TaskFacts) -> list[bench.search.Candidate]:
        """Return the grid.

        Raises:
            InvalidValueError: if it holds what would change the noise of the run.
        """
        space = self.searched_space(facts)
        why = "the noise of the private run is planned for one batch size and one number of steps"
        bench.search.refuse_search_space(facts, bench.recipes.HYPERPARAMETERS, why, space)
        return facts.grid(self.points, space)


def transferred(run: bench.recipes.DpSgd, n_records: float, public_records: float) -> bench.recipes.DpSgd:
    """Return a run on public records with the steps, the expected batch and the noise σ / B of a private one.

    Args:
        run: on the private records.
        n_records: N, of the private records.
        public_records: expected number of the public ones; if they are fewer than a batch, all are in each step.
    """
    batch_size = run.sample_rate * n_records
    smaller = min(batch_size, public_records)
    return replace(
        run, sample_rate=smaller / public_records, noise_multiplier=run.noise_multiplier * smaller / batch_size
    )
