"""DP-Hype, centralised: parts of the records vote on a grid, and a final private run takes the winner."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Interval

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True)
class Planned:
    """Parameters of a plan.

    Attributes:
        vote_noise: noise standard deviation of a count of votes / √2.
        final: the final run, but for what the vote finds.
    """

    vote_noise: float
    final: bench.recipes.DpSgd


@dataclass(frozen=True)
class DpHype(bench.search.SearchMethod[Planned]):
    """A vote of parts of the records on a public grid (Liebenow, Peinemann and Mohammadi 2025, arXiv:2510.04902).

    Coins split the records into k parts. Each part trains every candidate, and votes for the one that is best on
    records of the part that did not train. Released are the counts of votes with Gaussian noise, whose argmax is the
    winner. A record is in one part and changes one vote, so the price does not depend on the number of candidates
    (docs/accounting.md, noisy counts of parts). A final private run on all records takes the winner, with the budget
    that is left.

    The paper's parts are clients, who vote for their five best candidates (√10 in place of √2), and whom it protects as
    a whole. Here all records are in one place, and the protected unit is that of every other method.

    A run on a part stands for the final one, in as many full batches as that has epochs. Each step stands for s of its
    steps: the rate is s times as large, and the noise on the mean gradient is 1/√s of the final run's, so that signal
    and noise move the weights as far. This noise protects nothing, as only votes leave the parts: the candidates are to
    tolerate it. Equal rates in fewer steps would favour rates that are too large for the final run.

    What to expect: parts have few records, so votes scatter among neighbours of the best candidate. The noise of a
    count is √2 · `vote_noise`, against a sum of k votes.

    The other parameters are those of every `SearchMethod`; `validation` is the share of a part's records that judges.

    Attributes:
        points: values of each hyperparameter on the grid.
        partitions: k.
        final_share: ε of the final run by itself, as a share of the whole.
    """

    name = "dp_hype"
    summary = "Parts of the data vote on a grid of hyperparameters; noisy counts name the winner of one final run."
    reference = "Liebenow, Peinemann and Mohammadi 2025, DP-Hype, with parts of the records as clients"
    tuning = ("learning rate",)
    end_to_end_private = True

    unstated: ClassVar[bench.search.Extent | None] = "learning_rate"

    points: bench.parameters.Count = 5
    partitions: Annotated[int, Interval(ge=2)] = 50
    validation: bench.parameters.Share = 0.3
    final_share: bench.parameters.Share = 0.85

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Planned]:
        """Calibrate the noise of the final run, then that of the votes."""
        space, why = self.searched_space(facts), "candidates are compared after as many steps as the final run has"
        bench.search.refuse_search_space(facts, bench.recipes.HYPERPARAMETERS, why, space)
        final = self.training(facts).calibrated(bench.PrivacyBudget(self.final_share * budget.epsilon, budget.delta))

        def whole(noise: float) -> "DpEvent":
            return bench.events.compose(bench.events.gaussian(noise), final.event)

        noise = bench.events.calibrate(whole, budget)
        candidates, last = facts.grid(self.points, space), final.cost(facts.n_records)
        steps = self.on_part(final, facts.n_records, {}).steps
        examples = len(candidates) * facts.n_records * ((1 - self.validation) * steps + self.validation)
        runs = self.partitions * len(candidates)
        return bench.Plan(
            budget=budget,
            event=whole(noise),
            training_event=final.event,
            parameters=Planned(noise, final),
            releases=(bench.Release("counts of votes", 1, noise, 1.0), *final.releases),
            cost=bench.Cost(runs + 1, runs * steps + last.steps, examples + last.examples),
        )

    def on_part(
        self, final: bench.recipes.DpSgd, n_records: float, candidate: bench.search.Candidate
    ) -> bench.recipes.DpSgd:
        """Return the run of a candidate on the records of a part that train.

        Args:
            final: the final run.
            n_records: N, of all parts together.
            candidate: hyperparameters of the final run.
        """
        whole = final.having(candidate)
        steps = max(1, round(final.steps * final.sample_rate))
        stride, trained = final.steps / steps, (1 - self.validation) * n_records / self.partitions
        return replace(
            whole,
            sample_rate=1.0,
            steps=steps,
            noise_multiplier=whole.noise_multiplier * trained / (final.sample_rate * n_records) / math.sqrt(stride),
            learning_rate=stride * whole.learning_rate,
            averaging=whole.averaging**stride,
        )

    def run(self, plan: bench.Plan[Planned], session: "bench.Session") -> bench.Outcome:
        """Let the parts vote, then train on everything."""
        final, facts = plan.parameters.final, session.facts
        space = self.searched_space(facts)
        candidates = facts.grid(self.points, space)
        bench.search.Trial(final, 0.0, self.validation, space).check(session)
        runs = [self.on_part(final, facts.n_records, candidate) for candidate in candidates]
        votes = bench.recipes.noisy_votes(session, runs, self.partitions, self.validation, plan.parameters.vote_noise)
        best = candidates[votes.index(max(votes))]
        tried = [{**candidate, "votes": count} for candidate, count in zip(candidates, votes, strict=True)]
        return bench.Outcome(final.trained(session, best, "Final run"), {**best, "candidates": tried})
