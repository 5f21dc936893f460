"""One blind draw of the hyperparameters, and the whole budget on that run: tuning that costs nothing."""

from dataclasses import dataclass

import dphpo_bench as bench


@dataclass(frozen=True)
class RandomSearch(bench.search.CandidateMethod[bench.search.DpSgdRun]):
    """One candidate drawn from the task's search space, trained by DP-SGD with the whole budget.

    A search with a single trial looks at no score, so the draw is free: the event is that of one run,
    T × Poisson(q; Gaussian σ). It is what a private search with more trials, hence more noise in each, has
    to beat. (Random search as published, Bergstra and Bengio 2012, keeps the best of many; private forms of
    that are methods of their own here.)

    The other parameters are those of every `CandidateMethod`.
    """

    name = "random_search"
    summary = "Draws the learning rate blindly from the search space, once; all of the budget on that run."
    reference = "Bergstra and Bengio 2012, Random Search for Hyper-Parameter Optimization; a single trial"
    tuning = ("learning rate",)
    end_to_end_private = True

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.search.DpSgdRun]:
        """Plan T steps at the smallest noise that meets the budget; each of several schedules has its own."""
        return self.searched(facts, budget, drawn=True).calibrated(budget).as_plan(facts, budget)

    def run(self, plan: bench.Plan[bench.search.DpSgdRun], session: "bench.Session") -> bench.Outcome:
        """Draw, then train for T steps."""
        run, inner, candidate = plan.parameters.opened(session, session.candidate(self.searched_space(session.facts)))
        return bench.Outcome(run.train(inner), candidate)
