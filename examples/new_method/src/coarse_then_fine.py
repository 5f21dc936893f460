"""coarse_then_fine: short noisy trials choose a learning rate, and one long run uses it; one number is calibrated."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Interval

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True)
class Planned:
    """Parameters that the plan hands to the run.

    Attributes:
        trial: one trial of the search.
        final: the run that follows, but for its learning rate.
    """

    trial: bench.search.Trial
    final: bench.recipes.DpSgd


@dataclass(frozen=True)
class CoarseThenFine(bench.recipes.TrainingMethod[Planned]):
    """A search in two phases, all of it paid for by composition.

    Phase 1 tries learning rates around the task's in short runs on a part of the records, and scores each by a noisy
    count on the other part. Phase 2 trains on all records with the best of them. Trials have more noise than the
    final run by a fixed factor, so that one number, the noise of the final run, decides about all noise: the plan
    looks for the least that keeps the whole within the budget.

    The other parameters are those of every `TrainingMethod`.

    Attributes:
        candidates: how many learning rates are tried.
        spread: factor between a learning rate and the next.
        length: epochs of a trial, as a share of those of the final run.
        louder: noise of a trial, as a multiple of the final run's.
        validation: expected share of the records that scores are computed on.
    """

    name = "coarse_then_fine"
    version = 1  # part of a run's identity: raise it when results change, so that new records do not mix with old ones
    summary = "Short noisy trials choose the learning rate of one long run; all are paid for by composition."
    reference = "an example"
    tuning = ("learning rate",)
    end_to_end_private = True

    candidates: bench.parameters.Count = 4
    spread: Annotated[float, Interval(gt=1, lt=1000)] = 4.0
    length: bench.parameters.Share = 0.25
    louder: Annotated[float, Interval(ge=1, lt=1000)] = 1.5
    validation: bench.parameters.Share = 0.2

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Planned]:
        """Find the least noise of the final run, and with it of all trials and scores, that meets the budget."""
        facts = self.scheduled(facts)  # with this method's batch_size and epochs
        final = bench.recipes.DpSgd.of(facts, averaging=self.averaging)
        short = bench.recipes.DpSgd.of(facts.with_schedule(epochs=self.length * facts.epochs), averaging=self.averaging)

        def trial(noise: float) -> bench.search.Trial:
            # The count's noise grows with the same number, so that there is one number to calibrate.
            return bench.search.Trial(short.with_noise(self.louder * noise), self.louder * noise, self.validation)

        def whole(noise: float) -> "DpEvent":
            search = bench.events.repeat(trial(noise).event, self.candidates)  # its two parts: bench.events.held_out
            return bench.events.compose(search, final.with_noise(noise).event)

        noise = bench.events.calibrate(whole, budget)
        planned = Planned(trial(noise), final.with_noise(noise))
        search = planned.trial.cost(facts.n_records, self.candidates)
        last = planned.final.cost(facts.n_records)
        return bench.Plan(
            budget=budget,
            event=whole(noise),
            training_event=planned.final.event,  # the rest of the event is what tuning costs
            parameters=planned,
            releases=(*planned.trial.releases, *planned.final.releases),
            cost=bench.Cost(search.runs + 1, search.steps + last.steps, search.examples + last.examples),
        )

    def run(self, plan: bench.Plan[Planned], session: "bench.Session") -> bench.Outcome:
        """Search, then train."""
        planned, middle = plan.parameters, (self.candidates - 1) / 2
        rates = [session.facts.learning_rate * self.spread ** (index - middle) for index in range(self.candidates)]
        scores = {}
        for rate in rates:
            # Scores of all trials may be looked at and published, for all of them were paid for.
            (trial,) = planned.trial.run([session.fork(f"rate {rate:g}")], [{"learning_rate": rate}])
            scores[rate] = trial.score
        best = max(rates, key=scores.__getitem__)
        model = planned.final.having({"learning_rate": best}).train(session, "Final run")
        return bench.Outcome(model, {"learning_rate": best, "scores": [scores[rate] for rate in rates]})
