"""One trial of a search: a DP-SGD run with hyperparameters of its own, and a noisy score on held-out records.

Training and scoring touch disjoint parts of the records, so a record pays for one of the two. Each part's noise
is therefore calibrated against the whole budget (docs/accounting.md, parts).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Interval

from dphpo_bench.base.checks import check_fields
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.method import Cost, Outcome, Plan, Release
from dphpo_bench.contract.parameters import Share
from dphpo_bench.contract.search_space import Candidate, Space
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import DpSgd
from dphpo_bench.recipes.queries import mean_score
from dphpo_bench.recipes.searched_run import DpSgdRun, SearchedRun
from dphpo_bench.session.interfaces import TrialResult
from dphpo_bench.session.session import Session

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import nn

    from dphpo_bench.contract.search_space import Proposals
    from dphpo_bench.privacy.run_counts import RunCount

Whole = Callable[["DpEvent"], "DpEvent"]


@dataclass(frozen=True)
class Trained:
    """The release of a trial that wins.

    Attributes:
        model: the trained model.
        hyperparameters: what it was trained with, of those that were searched.
    """

    model: "nn.Module"
    hyperparameters: Candidate


@dataclass(frozen=True)
class Trial:
    """Train on one part of the records, score on the other.

    Attributes:
        training: the run, or several of which one is trained. A candidate's hyperparameters replace the fields of the
            same names.
        score_noise: noise multiplier of the count of correct predictions, whose sensitivity is 1.
        validation: expected share of the records that are held out for the score.
        space: what its candidates are drawn from; None: the task's search space as it is.
    """

    needs_scores: ClassVar[bool] = True

    training: DpSgdRun
    score_noise: Annotated[float, Interval(ge=0)]
    validation: Share
    space: Space | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def calibrated(
        cls,
        whole: Whole,
        training: DpSgdRun,
        budget: PrivacyBudget,
        *,
        validation: float,
        accountant: str | None = None,
        space: Space | None = None,
    ) -> "Trial":
        """Return the trial with the least noise, in both parts, that keeps a whole procedure within its budget.

        Args:
            whole: the event of the whole procedure, as a function of what a trial exposes a record to.
            training: the run but for its noise multiplier.
            budget: the (ε, δ) of the whole procedure.
            validation: see above.
            accountant: whose ε must meet the budget; None for the one that is tightest for the training.
            space: see above.

        Raises:
            BudgetTooSmallError: if no noise within reach meets the budget.
        """
        from dphpo_bench.privacy.calibration import calibrate_parts

        noise, score_noise = calibrate_parts(whole, lambda noise: training.with_noise(noise).event, budget, accountant)
        return cls(training.with_noise(noise), score_noise, validation, space)

    @property
    def event(self) -> "DpEvent":
        """The event of one trial, each record being in one of the two parts."""
        from dphpo_bench.privacy.events import gaussian
        from dphpo_bench.privacy.holdout import held_out

        return held_out(self.training.event, gaussian(self.score_noise), self.validation)

    @property
    def full_batches(self) -> bool:
        """True if every step takes every record of the training part."""
        return type(self.training) is DpSgd and self.training.sample_rate == 1

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases of one trial, each named as such."""
        releases = (*self.training.releases, Release("count of correct predictions", 1, self.score_noise, 1.0))
        return tuple(replace(release, name=f"{release.name}, each trial") for release in releases)

    def cost(self, n_records: float, runs: float) -> Cost:
        """Return the expected cost of this many trials on this many records."""
        steps = runs * self.training.steps
        examples = steps * self.training.sample_rate * (1 - self.validation) + runs * self.validation
        return Cost(runs=round(runs), steps=round(steps), examples=examples * n_records)

    def as_plan(
        self, facts: TaskFacts, budget: PrivacyBudget, event: "DpEvent", runs: float, accountant: str | None = None
    ) -> "Plan[Trial]":
        """Return the plan of a method that runs such trials, and releases the model of one.

        Args:
            facts: of the task.
            budget: the (ε, δ) of the whole procedure.
            event: of the whole procedure.
            runs: expected number of trials.
            accountant: whose ε is quoted; None: the tightest.
        """
        return Plan(
            budget=budget,
            event=event,
            training_event=self.training.event,
            parameters=self,
            releases=self.releases,
            cost=self.cost(facts.n_records, runs),
            accountant=accountant,
        )

    def best_of(self, session: Session, runs: "RunCount", proposals: "Proposals | None" = None) -> "Trained | None":
        """`Session.best_of` of such trials; None if there is no winner."""
        best: Trained | None = session.best_of(self, runs, self.event, proposals=proposals)
        return best

    def check(self, session: Session) -> None:
        """Find optimisers that do not take the model or their options, before anything is charged.

        In a selection, a trial that raises is a trial that lost. The harness asks this before it runs a plan.

        Raises:
            InvalidValueError: if there is one.
        """
        model = session.build_model()
        space = session.facts.searched(self.space)
        categories = {name: values for name, values in space.items() if name not in search.SCHEDULE}
        for candidate in search.grid(categories, 1):  # with every optimiser, clipping rule and other category
            training = self.training.having(candidate)
            for run in training.runs if isinstance(training, SearchedRun) else (training,):
                run.update_rule(model)

    def __call__(self, session: Session) -> TrialResult:
        """Run a single trial."""
        return self.run([session])[0]

    def run(self, sessions: list[Session], candidates: list[Candidate] | None = None) -> list[TrialResult]:
        """Run one trial on each session.

        Args:
            sessions: one for each trial.
            candidates: hyperparameters of each; None draws them from `space`, independently.
        """
        chosen = candidates or [session.candidate(self.space) for session in sessions]
        parts = [session.holdout(self.validation) for session in sessions]
        opened = [self.training.opened(part, candidate) for (part, _), candidate in zip(parts, chosen, strict=True)]
        if len({run.steps for run, _, _ in opened}) == 1:
            models = DpSgd.train_together([inner for _, inner, _ in opened], [run for run, _, _ in opened])
        else:
            models = [run.train(inner) for run, inner, _ in opened]
        return [
            TrialResult(Trained(model, candidate), mean_score(validation, model, self.score_noise))
            for model, (_, _, candidate), (_, validation) in zip(models, opened, parts, strict=True)
        ]


@dataclass(frozen=True)
class SearchThenTrain:
    """A search, and a final run on all records with the winner's hyperparameters.

    Attributes:
        trial: of the search.
        final: the final run, but for what the search finds.
    """

    trial: Trial
    final: DpSgdRun

    def check(self, session: Session) -> None:
        """See `Trial.check`."""
        self.trial.check(session)


def winner_outcome(best: Trained | None, session: Session) -> Outcome:
    """Return the outcome of a method that releases the winner of a search.

    Args:
        best: the winner; None if there is none. The model's initial weights are released then: they do not
            depend on the data.
        session: where the initial weights come from.
    """
    if best is None:
        return Outcome(session.build_model(), {"winner": None})
    return Outcome(best.model, dict(best.hyperparameters))
