"""One sound method, and methods that differ from it in one mistake each. Nothing slow is imported here."""

import math
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dphpo_bench as bench

REMEMBERED: list[float] = []


class Base(bench.Method[bench.recipes.DpSgd]):
    """DP-SGD as it should be, but for the dataclass."""

    name = "wrong"
    summary = "DP-SGD with one mistake."
    reference = "a test"
    tuning = ()
    end_to_end_private = True

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        return bench.recipes.DpSgd.of(facts).calibrated(budget).as_plan(facts, budget)

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        return bench.Outcome(plan.parameters.train(session), {"steps": plan.parameters.steps})


@dataclass(frozen=True)
class Sound(Base):
    """No mistake."""


@dataclass(frozen=True)
class NameWithCapitals(Sound):
    name = "Wrong-Name"


@dataclass
class NotFrozen(Base):
    momentum: float = 0.9


@dataclass(frozen=True)
class ChangesItsParameter(Sound):
    width: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", self.width / 2)


@dataclass(frozen=True)
class PlansFromData(Sound):
    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        bench.make_task("digits").load_train(bench.DataSource.resolve())
        return super().plan(facts, budget)


@dataclass(frozen=True)
class PlansFromARun(Sound):
    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        made = super().plan(facts, budget)
        return replace(made, cost=replace(made.cost, runs=len(REMEMBERED)))

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        outcome = super().run(plan, session)
        REMEMBERED.append(1.0)
        return outcome


@dataclass(frozen=True)
class PlansFromEarlierResults(Sound):
    """One run more of cost for each earlier one; it sees them without opening any."""

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        made = super().plan(facts, budget)
        return replace(made, cost=replace(made.cost, runs=1 + len([*Path("results").glob("**/*.json")])))


@dataclass(frozen=True)
class PlansFromAFile(Sound):
    """A file that says the same each time."""

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        file = Path(tempfile.gettempdir()) / "dphpo-bench-wrong-plan"
        file.write_text("1")
        made = super().plan(facts, budget)
        return replace(made, cost=replace(made.cost, runs=int(file.read_text())))


@dataclass(frozen=True)
class OverBudgetAtEight(Sound):
    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        if budget.epsilon < 8:
            return super().plan(facts, budget)
        training = bench.recipes.DpSgd.of(facts).calibrated(budget)
        return training.with_noise(0.9 * training.noise_multiplier).as_plan(facts, budget)


@dataclass(frozen=True)
class NoModel(Sound):
    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        return bench.Outcome(super().run(plan, session).model, {"rates": {0.1, 0.2}})  # type: ignore[dict-item]


@dataclass(frozen=True)
class AsksForMore(Sound):
    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        outcome = super().run(plan, session)
        with suppress(bench.errors.OverBudgetError):
            bench.recipes.mean_score(session, outcome.model, 1.0)
        return outcome


@dataclass(frozen=True)
class Searches(bench.Method[bench.search.Trial]):
    """The best of a few trials, as it should be."""

    name, summary, reference, tuning, end_to_end_private = "wrong", "A search with one mistake.", "a test", (), True

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        trial = bench.search.Trial.calibrated(
            self.whole, bench.recipes.DpSgd.of(facts), budget, validation=0.2, accountant="rdp"
        )
        return trial.as_plan(facts, budget, self.whole(trial.event), 4.0, "rdp")

    def whole(self, trial: Any) -> Any:
        return bench.events.best_of(trial, bench.search.geometric(4.0))

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        trial = plan.parameters
        TRIED.clear()
        best = session.best_of(lambda own: self.one(trial, own), bench.search.geometric(4.0), trial.event)
        return self.out(best, TRIED, session)

    def one(self, trial: "bench.search.Trial", own: "bench.Session") -> "bench.search.TrialResult":
        TRIED.append(trial(own))
        return TRIED[-1]

    def out(self, best: Any, tried: list[Any], session: "bench.Session") -> bench.Outcome:
        return bench.search.winner_outcome(best, session)


TRIED: list[Any] = []
"""What a trial stores in a module outlives the copy of the function that it calls."""


@dataclass(frozen=True)
class CountsItsTrials(Searches):
    def one(self, trial: "bench.search.Trial", own: "bench.Session") -> "bench.search.TrialResult":
        TRIED.extend(trial.run([own], [{"learning_rate": 0.01 * 2 ** len(TRIED)}]))
        return TRIED[-1]


@dataclass(frozen=True)
class AveragesItsTrials(Searches):
    """Their order changes nothing."""

    def out(self, best: Any, tried: list[Any], session: "bench.Session") -> bench.Outcome:
        total = math.fsum(scored.score for scored in tried)
        return bench.Outcome(bench.search.winner_outcome(best, session).model, {"mean": total / max(1, len(tried))})


@dataclass(frozen=True)
class DrawsFromTheSystem(Sound):
    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        return bench.Outcome(super().run(plan, session).model, {"lucky": os.urandom(4).hex()})


@dataclass(frozen=True)
class DependsOnThreads(Sound):
    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        import torch

        return bench.Outcome(super().run(plan, session).model, {"threads": torch.get_num_threads()})


@dataclass(frozen=True)
class DrawsFromTheGlobalGenerator(Sound):
    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        import torch

        return bench.Outcome(super().run(plan, session).model, {"lucky": torch.rand(()).item()})


@dataclass(frozen=True)
class RemembersTheFirstRun(Sound):
    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        outcome = super().run(plan, session)
        REMEMBERED.append(next(outcome.model.parameters()).sum().item())
        return bench.Outcome(outcome.model, {"first": REMEMBERED[0]})


@dataclass(frozen=True)
class DoesNotNameItsState(Sound):
    """A rate that falls is not in the state, and starts anew after a kill."""

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        import torch

        training, model, rate = plan.parameters, session.build_model(), 1.0
        for _ in bench.recipes.training_steps(session, training.steps, [model], [0.0], state=[]):
            rate *= 0.9
            with torch.no_grad():
                gradient = training.gradient(session, model)
                torch._foreach_add_(bench.recipes.trainable(model), gradient, alpha=-rate)
        return bench.Outcome(model, {})


@dataclass(frozen=True)
class DividesByTheBatchSize(Sound):
    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        outcome = super().run(plan, session)
        return bench.Outcome(outcome.model, {"error": 1 / (session.facts.batch_size - 1)})


@dataclass(frozen=True)
class WantsFiniteOutputs(Sound):
    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        import torch

        outcome = super().run(plan, session)
        if not outcome.model(-torch.ones(1, *session.facts.inputs.shape)).isfinite().all():
            raise ValueError("diverged")
        return outcome


@dataclass(frozen=True)
class FallsOverASmallBudget(Sound):
    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        assert budget.epsilon >= 1
        return super().plan(facts, budget)
