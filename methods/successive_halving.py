"""Successive halving: many short runs, of which the better ones go on."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Interval

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True)
class Rung:
    """Training between two scores.

    Attributes:
        trials: how many train.
        steps: that each of them takes.
        noise_multiplier: σ of these steps.
        is_last: whether its only trial is released, unscored.
    """

    trials: int
    steps: int
    noise_multiplier: float
    is_last: bool


@dataclass(frozen=True)
class Planned:
    """Parameters of a plan.

    Attributes:
        run: with all steps, and the noise of the last rung.
        rungs: one after the other.
        score_noise: σ of each count of correct predictions.
    """

    run: bench.recipes.DpSgd
    rungs: tuple[Rung, ...]
    score_noise: float


@dataclass(frozen=True)
class SuccessiveHalving(bench.search.SearchMethod[Planned]):
    """Successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943) whose every step and score is paid for.

    n candidates train for a short while, are scored by noisy counts on held-out records, and the best n/η of them
    go on; so again, until one is left, which trains to the end and is released. All scores could be published, so
    which trials go on is a choice that composition allows: the event is Σ over rungs of trials × steps × Poisson(q;
    Gaussian σ) for a record that trains, and as many Gaussian counts as there are scores for one that validates. No
    theorem of private selection is used: those hide the losers, and a loser here has been seen in its first rung.

    Early rungs have more noise, by `scouting_noise`: their steps only compare, and there are as many of them as in
    the winner's own run.

    Batch size and epochs cannot be searched: the rungs are the schedule.

    The other parameters are those of every `SearchMethod`.

    Attributes:
        candidates: n.
        keep: η; one in so many goes on.
        scouting_noise: noise of all rungs but the last, relative to that of the last.
    """

    name = "successive_halving"
    summary = "Many short runs, scored privately; the better ones go on, and all of it is paid for."
    reference = "Jamieson and Talwalkar 2016, Non-stochastic best arm identification, Figure 3; composed"
    tuning = ("learning rate",)
    end_to_end_private = True

    candidates: Annotated[int, Interval(ge=2, le=1000)] = 9
    keep: Annotated[int, Interval(ge=2)] = 3
    scouting_noise: Annotated[float, Interval(ge=1, le=100)] = 2.0

    def rungs(self, run: bench.recipes.DpSgd) -> tuple[Rung, ...]:
        """Return the rungs of a run: the shortest lasts 1/η^r of it, r the number of scores."""
        counts = [self.candidates]
        while counts[-1] > 1:
            counts.append(math.ceil(counts[-1] / self.keep))
        scored = len(counts) - 1
        ends = [max(1, round(run.steps / self.keep ** (scored - rung))) for rung in range(len(counts))]
        starts = [0, *ends]
        return tuple(
            Rung(
                trials,
                end - start,
                run.noise_multiplier * (1 if trials == 1 else self.scouting_noise),
                is_last=trials == 1,
            )
            for trials, start, end in zip(counts, starts, ends, strict=False)
        )

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Planned]:
        """Calibrate the noise of the steps, then that of the scores: each part of the records has the whole budget."""
        space, why = self.searched_space(facts), "the rungs are the schedule"
        bench.search.refuse_search_space(facts, bench.recipes.HYPERPARAMETERS, why, space)
        run = self.training(facts)
        run = run.with_noise(bench.events.calibrate(lambda noise: self.training_event(run.with_noise(noise)), budget))
        rungs = self.rungs(run)
        scores = sum(rung.trials for rung in rungs if not rung.is_last)
        score_noise = bench.events.calibrate(
            lambda noise: bench.events.repeat(bench.events.gaussian(noise), scores), budget
        )
        steps = sum(rung.trials * rung.steps for rung in rungs)
        trained = steps * run.sample_rate * (1 - self.validation) + scores * self.validation
        return bench.Plan(
            budget=budget,
            event=bench.events.held_out(
                self.training_event(run),
                bench.events.repeat(bench.events.gaussian(score_noise), scores),
                self.validation,
            ),
            training_event=run.event,
            parameters=Planned(run, rungs, score_noise),
            releases=(
                *(
                    bench.Release(
                        "clipped gradient sum", rung.trials * rung.steps, rung.noise_multiplier, run.sample_rate
                    )
                    for rung in rungs
                ),
                bench.Release("count of correct predictions", scores, score_noise, 1.0),
            ),
            cost=bench.Cost(runs=self.candidates, steps=steps, examples=trained * facts.n_records),
        )

    def training_event(self, run: bench.recipes.DpSgd) -> "DpEvent":
        """Return the steps of all rungs."""
        return bench.events.compose(
            *(
                bench.events.repeat(run.with_noise(rung.noise_multiplier).step, rung.trials * rung.steps)
                for rung in self.rungs(run)
            )
        )

    def run(self, plan: bench.Plan[Planned], session: "bench.Session") -> bench.Outcome:
        """Train, score, give up on the worse ones, go on."""
        planned, space = plan.parameters, self.searched_space(session.facts)
        training, validation = session.holdout(self.validation)
        candidates = [session.fork(f"candidate {index}").candidate(space) for index in range(self.candidates)]
        left = {
            index: bench.recipes.Training(training.fork(f"candidate {index}"), planned.run.having(candidate))
            for index, candidate in enumerate(candidates)
        }
        scored: list[dict[str, float]] = []
        with session.progress.track("Rungs", len(planned.rungs)) as advance:
            for rung in planned.rungs:
                for trial in left.values():
                    trial.advance(rung.steps, rung.noise_multiplier)
                if not rung.is_last:
                    scores = {
                        index: bench.recipes.mean_score(validation, trial.model(), planned.score_noise)
                        for index, trial in left.items()
                    }
                    better = sorted(scores, key=lambda index: -scores[index])[: math.ceil(len(scores) / self.keep)]
                    left = {index: left[index] for index in better}
                    scored.append({str(index): score for index, score in scores.items()})
                advance()
        ((winner, trained),) = left.items()
        return bench.Outcome(trained.model(), {**candidates[winner], "candidates": candidates, "scores": scored})
