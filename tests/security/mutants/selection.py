"""Private selections that release more, try more, or draw otherwise than their proofs allow."""

import copy
import math
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import dphpo_bench as bench
from tests.security.mutants.baseline import Search

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

GOOD = 2.0
"""No score is as good: whoever waits for it goes on for ever."""


@dataclass(frozen=True)
class UnpaidValidation(Search):
    """Validation accuracy costs nothing, because training does not see those records."""

    name = "unpaid_validation"

    @property
    def trial_event(self) -> "DpEvent":
        training = bench.events.repeat(bench.events.gaussian(self.noise), self.steps)
        return bench.events.on_part(*self._training_part, training)

    @property
    def _training_part(self) -> tuple[str, str]:
        from dphpo_bench.privacy.holdout import TRAINING, holdout_name

        return holdout_name(self.validation), TRAINING


@dataclass(frozen=True)
class RetriesFailures(Search):
    """A trial that did not work is tried again, as many sweeps do with runs that diverged."""

    name = "retries_failures"

    def trial(self, session: "bench.Session") -> "bench.search.TrialResult":
        found = super().trial(session)
        while found.score < GOOD:
            found = super().trial(session)
        return found


@dataclass(frozen=True)
class SearchesUntilItIsGood(Search):
    """Searches again while the winner is not good enough: the number of runs depends on the scores."""

    name = "searches_until_it_is_good"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        best, score = None, 0.0
        while score < GOOD:
            best = session.best_of(self.trial, self.runs, self.trial_event)
        return self.outcome(best, session)


class AlwaysSix(bench.search.UniformCount):
    """Says that it is uniform, and draws the largest number."""

    def sample(self, uniform: float) -> int:
        return self.high


@dataclass(frozen=True)
class FixedCount(Search):
    """A fixed number of trials under a theorem for a random one."""

    name = "fixed_count"

    @property
    def runs(self) -> bench.search.RunCount:
        return AlwaysSix(3, 6)


@dataclass(frozen=True)
class SwallowsRefusals(Search):
    """Asks for more than a trial has, and goes on when it is refused."""

    name = "swallows_refusals"

    def trial(self, session: "bench.Session") -> "bench.search.TrialResult":
        found = super().trial(session)
        with suppress(bench.errors.OverBudgetError):
            bench.recipes.mean_score(session, session.build_model(), 1e-3)
        return found


@dataclass(frozen=True)
class CopiesItsSession(Search):
    """One deep copy of the session for each try, as of a configuration: the copies draw the same noise."""

    name = "copies_its_session"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        tries = [copy.deepcopy(session) for _ in range(3)]
        return super().run(plan, tries[0])


@dataclass(frozen=True)
class SeedsEveryTrial(Search):
    """Seeds torch's global generator in every trial, as the optimiser of one public repository does."""

    name = "seeds_every_trial"

    def trial(self, session: "bench.Session") -> "bench.search.TrialResult":
        import torch

        torch.manual_seed(42)
        return super().trial(session)


@dataclass(frozen=True)
class KeepsATrialsSession(Search):
    """Trains the winner a little longer, on what is left of a trial's account."""

    name = "keeps_a_trials_session"

    def trial(self, session: "bench.Session") -> "bench.search.TrialResult":
        training, _ = session.holdout(self.validation)
        return bench.search.TrialResult(training, 0.0)

    def outcome(self, best: Any, session: "bench.Session") -> bench.Outcome:
        model, rate = self.train(best, {"learning_rate": 0.1})
        return bench.Outcome(model, {"learning_rate": rate})


@dataclass(frozen=True)
class _Recorder(Search):
    """Remembers all its trials."""

    tried: list[Any] = field(default_factory=list, init=False, compare=False)

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        self.tried.clear()
        return super().run(plan, session)

    def trial(self, session: "bench.Session") -> "bench.search.TrialResult":
        found = super().trial(session)
        self.tried.append((found.outcome[0], found.score, copy.deepcopy(found.outcome[0].state_dict())))
        return found


@dataclass(frozen=True)
class ReleasesALoser(_Recorder):
    """Returns the last model that was trained, not the winner."""

    name = "releases_a_loser"

    def outcome(self, best: Any, session: "bench.Session") -> bench.Outcome:
        losers = [model for model, *_ in self.tried if best is None or model is not best[0]]
        return bench.Outcome([best[0], *losers][-1], {"losers": len(losers)})


@dataclass(frozen=True)
class ReleasesALosersWeights(_Recorder):
    """The same by `copy.deepcopy(model.state_dict())`, as public code keeps its checkpoints."""

    name = "releases_a_losers_weights"

    def outcome(self, best: Any, session: "bench.Session") -> bench.Outcome:
        weights = [state for _, _, state in self.tried]
        fresh = session.build_model()
        fresh.load_state_dict([best[0].state_dict(), *weights][-1])
        return bench.Outcome(fresh, {"losers": len(weights)})


@dataclass(frozen=True)
class PublishesScores(_Recorder):
    """Publishes what every trial scored, for a plot of the search."""

    name = "publishes_scores"

    def outcome(self, best: Any, session: "bench.Session") -> bench.Outcome:
        return bench.Outcome(best[0], {"scores": [score for _, score, _ in self.tried]})


@dataclass(frozen=True)
class PublishesRoundedScores(_Recorder):
    """The same in per cent and as a text, so that the numbers are others."""

    name = "publishes_rounded_scores"

    def outcome(self, best: Any, session: "bench.Session") -> bench.Outcome:
        return bench.Outcome(best[0], {"per_cent": " ".join(f"{100 * score:.1f}" for _, score, _ in self.tried)})


@dataclass(frozen=True)
class PublishesTheNumberOfTrials(_Recorder):
    """Says how many trials there were, as every log of a search does."""

    name = "publishes_the_number_of_trials"

    def outcome(self, best: Any, session: "bench.Session") -> bench.Outcome:
        return bench.Outcome(best[0], {"trials": len(self.tried)})


@dataclass(frozen=True)
class WatchesTheProgress(Search):
    """Says how many trials there were, by a progress display of its own."""

    name = "watches_the_progress"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        session.progress = Counting()  # type: ignore[misc, assignment]
        return super().run(plan, session)


class Counting:
    """A display that is told the number of trials."""


@dataclass(frozen=True)
class LogsItsTrials(Search):
    """Writes every score to a file, as loggers do, and publishes the mean."""

    name = "logs_its_trials"

    log: ClassVar[Path] = Path(tempfile.gettempdir()) / f"dphpo-bench-mutant-{os.getpid()}.log"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        self.log.write_text("")
        return super().run(plan, session)

    def trial(self, session: "bench.Session") -> "bench.search.TrialResult":
        found = super().trial(session)
        with self.log.open("a") as log:
            log.write(f"{found.score!r}\n")
        return found

    def outcome(self, best: Any, session: "bench.Session") -> bench.Outcome:
        scores = [float(line) for line in self.log.read_text().split()]
        self.log.unlink()
        return bench.Outcome(best[0], {"mean": math.fsum(scores) / len(scores)})


@dataclass(frozen=True)
class LearnsFromScores(Search):
    """Proposes near the best so far, as Bayesian optimisation does, under a theorem for independent trials."""

    name = "learns_from_scores"

    best: list[Any] = field(default_factory=list, init=False, compare=False)

    def trial(self, session: "bench.Session") -> "bench.search.TrialResult":
        training, validation = session.holdout(self.validation)
        candidate = session.candidate()
        if self.best:
            candidate = {"learning_rate": 2 * self.best[-1][1] * session.uniform("near the best")}
        model, rate = self.train(training, candidate)
        score = bench.recipes.mean_score(validation, model, self.score_noise)
        if not self.best or score > self.best[-1][0]:
            self.best.append((score, rate))
        return bench.search.TrialResult((model, rate), score)


@dataclass(frozen=True)
class WalksAGrid(Search):
    """A fixed grid, one point after the other, under a theorem for independent draws."""

    name = "walks_a_grid"

    at: list[float] = field(default_factory=list, init=False, compare=False)

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        self.at[:] = [1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0]
        return super().run(plan, session)

    def trial(self, session: "bench.Session") -> "bench.search.TrialResult":
        training, validation = session.holdout(self.validation)
        model, rate = self.train(training, {"learning_rate": self.at.pop()})
        return bench.search.TrialResult((model, rate), bench.recipes.mean_score(validation, model, self.score_noise))


@dataclass(frozen=True)
class AsksTheOuterSession(Search):
    """Scores a trial's model through the session around it, whose score is planned as if it were one more."""

    name = "asks_the_outer_session"

    outer_noise: ClassVar[float] = 100.0

    def event(self) -> "DpEvent":
        scores = bench.events.repeat(bench.events.gaussian(self.outer_noise), self.runs.largest)
        return bench.events.compose(super().event(), bench.events.on_part(*self._validation_part, scores))

    @property
    def _validation_part(self) -> tuple[str, str]:
        from dphpo_bench.privacy.holdout import VALIDATION, holdout_name

        return holdout_name(self.validation), VALIDATION

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        _, validation = session.holdout(self.validation)

        def trial(own: "bench.Session") -> "bench.search.TrialResult":
            model, rate = self.train(own.holdout(self.validation)[0], own.candidate())
            return bench.search.TrialResult(
                (model, rate), bench.recipes.mean_score(validation, model, self.outer_noise)
            )

        return self.outcome(session.best_of(trial, self.runs, self.trial_event), session)


@dataclass(frozen=True)
class LogsRawGradients(Search):
    """Compares candidates on parts of the data with an optimiser of its own, which logs the gradients it is given."""

    name = "logs_raw_gradients"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        import torch

        norms = []

        class Logging(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:
                norms.extend(float(weights.grad.norm()) for weights in self.param_groups[0]["params"])
                super().step(closure)

        candidate: Any = bench.recipes.DpSgd(1.0, 2, 0.0, 0.1)
        session.sealed_utilities([replace(candidate, optimizer=Logging)], partitions=2, validation=self.validation)
        return bench.Outcome(session.build_model(), {"norms": norms})
