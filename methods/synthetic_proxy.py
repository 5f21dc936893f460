"""Tuning on records drawn from noisy tables of the private records, which a share of the budget pays for."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dphpo_bench as bench

from .public_proxy import ProxyMethod

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True)
class TablesThenTrain:
    """Parameters of a plan.

    Attributes:
        tables: from which records are drawn.
        run: the final run, but for what the search finds.
    """

    tables: bench.recipes.NoisyTables
    run: bench.search.DpSgdRun

    @property
    def event(self) -> "DpEvent":
        """The event of both."""
        return bench.events.compose(self.tables.event, self.run.event)


@dataclass(frozen=True)
class SyntheticProxy(ProxyMethod[TablesThenTrain]):
    """DP-SGD at the best of a grid of hyperparameters, judged on records drawn from noisy tables of the private ones.

    A share of the budget buys tables of labels by attributes, as in `naive_bayes`. Records are drawn from them: a
    label, then each attribute by itself, given the label. Each candidate trains on some of them, with the steps, the
    clipping, the batches and the noise of the final run, and is judged by the raw score of others. Then the best
    trains on the private records with the rest of the budget. Of the private records the search knows the tables
    alone, so candidates and dimensions of the search space are free. Batch size and epochs are searched, too, if the
    space has them; each combination has its own noise.

    Drawn records know nothing of how attributes go together. They say what rate the noise, the scale of the inputs and
    the strength of single attributes allow. The search fails where tables are little but noise: many attributes and
    labels, few records (docs/methods.md).

    The other parameters are those of every `ProxyMethod`.

    Attributes:
        share: of the budget's μ² that tables take, as if all of it bought a Gaussian release.
    """

    name = "synthetic_proxy"
    summary = "Grid search on records drawn from noisy tables of the private ones, then DP-SGD at its best point."
    reference = "this benchmark; tables as in Vaidya et al. 2013"
    tuning = ("learning rate",)
    end_to_end_private = True

    share: bench.parameters.Share = 0.05

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[TablesThenTrain]:
        """Calibrate the tables to their share, then the final run to what is left."""
        bench.recipes.NoisyTables.check_inputs(facts, self.name)
        alone = bench.events.calibrate(lambda noise: bench.recipes.NoisyTables(noise).event, budget)
        planned = TablesThenTrain(
            bench.recipes.NoisyTables(alone / math.sqrt(self.share)), self.searched(facts, budget).calibrated(budget)
        )
        noise = bench.events.calibrate(lambda sigma: replace(planned, run=planned.run.with_noise(sigma)).event, budget)
        planned = replace(planned, run=planned.run.with_noise(noise))
        searched = len(facts.grid(self.points, self.searched_space(facts)))
        return bench.Plan(
            budget=budget,
            event=planned.event,
            training_event=planned.run.event,
            parameters=planned,
            releases=(*planned.tables.releases, *planned.run.releases),
            cost=self.cost_with(planned.run.cost(facts.n_records), searched, facts.n_records),
        )

    def run(self, plan: bench.Plan[TablesThenTrain], session: "bench.Session") -> bench.Outcome:
        """Release the tables, search on records drawn from them, and train the best on the private records."""
        planned, facts = plan.parameters, session.facts
        made_up = planned.tables.fit(session).session(session, math.ceil((1 + self.validation) * facts.n_records))
        candidates = facts.grid(self.points, self.searched_space(facts))
        best, tried = self.search(made_up, candidates, planned.run, facts.n_records)
        return bench.Outcome(planned.run.trained(session, best), {**best, "candidates": tried})
