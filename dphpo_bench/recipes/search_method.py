"""Searches by held-out scores: a trial, and what the methods of searches share.

A trial is a DP-SGD run with hyperparameters of its own, and a noisy score on held-out records. Training and scoring
touch disjoint parts of the records, so a record pays for one of the two. Each part's noise is therefore calibrated
against the whole budget (docs/accounting.md, parts).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Interval

from dphpo_bench.base.checks import check_fields
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.method import Cost, Outcome, P, Plan, Release
from dphpo_bench.contract.parameters import LATER, Share
from dphpo_bench.contract.search_space import OF_ONE_OPTIMIZER, Candidate, Extent, Space
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import ClippingRule, DpSgd
from dphpo_bench.recipes.queries import mean_score
from dphpo_bench.recipes.searched_run import DpSgdRun, SearchedRun, check_values, searched_run
from dphpo_bench.recipes.single_run import TrainingMethod
from dphpo_bench.session.interfaces import TrialResult
from dphpo_bench.session.session import Session
from dphpo_bench.training.optimizer_names import OptimizerName

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


@dataclass(frozen=True)
class CandidateMethod(TrainingMethod[P]):
    """A method that trains with hyperparameters of a search space.

    The other parameters are those of every `TrainingMethod`. What the search space has replaces them.

    Attributes:
        clipping: as in `parse_clipping`.
        optimizer: a `torch.optim` name; default: the task's.
        space: what is searched; default: the task's search space as it is; if it states none, the learning rate, over
            four decades, or over two in searches of a random number of trials. `Extent` has the others, which leave
            out what is set by hand: batch size, epochs, optimiser, and a clipping other than "auto_s".
        unstated: what is searched where neither `space` nor the task says; None: the learning rate, four decades of it.
    """

    unstated: ClassVar[Extent | None] = None

    clipping: ClippingRule = "auto_s"
    optimizer: OptimizerName | None = None
    space: Extent | None = field(default=None, metadata=LATER)

    def training(self, facts: TaskFacts) -> DpSgd:
        """Return the run, but for its hyperparameters and its noise."""
        facts = self.scheduled(facts)
        return DpSgd.of(facts, optimizer=self.optimizer, clipping=self.clipping, averaging=self.averaging)

    def searched_space(self, facts: TaskFacts) -> Space | None:
        """Return the part of the task's search space that is searched; None: the space as it is.

        Raises:
            InvalidValueError: if it holds a value that no run takes.
        """
        space = None
        if extent := self.space or (None if facts.states_a_space else self.unstated):
            set_by_hand = {
                "clipping": self.clipping != "auto_s",
                "batch_size": self.batch_size is not None,
                "epochs": self.epochs is not None,
            }
            optimizer = self.optimizer or (facts.optimizer if extent in OF_ONE_OPTIMIZER else None)
            space = Space(extent, tuple(name for name, by_hand in set_by_hand.items() if by_hand), optimizer)
        check_values(facts, facts.searched(space))
        return space

    def searched(self, facts: TaskFacts, budget: PrivacyBudget, *, drawn: bool = False) -> DpSgdRun:
        """Return a run, or a run for each batch size and number of epochs that are searched; see `searched`."""
        space = self.searched_space(facts)
        return searched_run(self.training(facts), self.scheduled(facts), budget, drawn=drawn, space=space)


@dataclass(frozen=True)
class SearchMethod(CandidateMethod[P]):
    """A method that compares DP-SGD runs of different hyperparameters, scored on held-out records.

    The other parameters are those of every `CandidateMethod`. With a `batch_size` of as many as there are records,
    trials are trained together, in one matrix product where the model is linear.

    Attributes:
        validation: expected share of the records that scores are computed on; the others train.
    """

    needs_scores: ClassVar[bool] = True

    validation: Share = 0.1

    def trial(
        self,
        facts: TaskFacts,
        budget: PrivacyBudget,
        whole: Whole,
        accountant: str | None = None,
        *,
        drawn: bool = False,
    ) -> Trial:
        """Return the trial with the least noise that keeps the procedure within budget; see `Trial.calibrated`."""
        return Trial.calibrated(
            whole,
            self.searched(facts, budget, drawn=drawn),
            budget,
            validation=self.validation,
            accountant=accountant,
            space=self.searched_space(facts),
        )


@dataclass(frozen=True)
class Selection:
    """The rule by which a search selects among independent trials, whoever trains them.

    Attributes:
        runs: the distribution of the secret number of trials.
        threshold: score at which the search stops and releases that trial; None: it releases the best.
        sample_rate: share of the records that the trials see, a secret Poisson sample; 1: all of them.
        final_share: ε by itself of a final run on all records, as a share of the whole; 0: there is no such run, and
            the trial that wins is released.
        final_accountant: whose ε of the final run meets that share; None: the tightest.
    """

    runs: "RunCount"
    threshold: float | None = None
    sample_rate: float = 1.0
    final_share: float = 0.0
    final_accountant: str | None = None

    def search(self, trial: "DpEvent") -> "DpEvent":
        """Return the event of the search, as a function of what a trial exposes a record to."""
        from dphpo_bench.privacy.events import best_of, poisson_sampled, threshold_search

        if self.threshold is not None:
            return threshold_search(trial, 1 / self.runs.expected)
        best = best_of(trial, self.runs)
        return best if self.sample_rate == 1 else poisson_sampled(self.sample_rate, best)

    def final_budget(self, budget: PrivacyBudget) -> PrivacyBudget:
        """Return the part of a budget that the final run may cost by itself."""
        return PrivacyBudget(self.final_share * budget.epsilon, budget.delta)

    def with_final(self, final: "DpEvent") -> Whole:
        """Return the event of the search and a final run, as a function of what a trial exposes a record to."""
        from dphpo_bench.privacy.events import compose

        return lambda trial: compose(self.search(trial), final)


@dataclass(frozen=True)
class RandomStopping(SearchMethod[P]):
    """A search of a random, secret number of trials, of which only the best is released.

    The other parameters are those of every `SearchMethod`.

    Attributes:
        mean: expected number of trials.
        accounting: which bound is calibrated and quoted (docs/accounting.md); "tightest" is the least of all.
    """

    mean: Annotated[float, Interval(gt=1)] = 4.0
    accounting: str = "tightest"
    unstated: ClassVar[Extent | None] = "learning_rate"  # two decades, where draws are good (docs/methods.md)
    independent: ClassVar[bool] = True  # each trial draws its candidate blindly

    @property
    def runs(self) -> "RunCount":
        """The distribution of the number of trials: geometric."""
        from dphpo_bench.privacy.run_counts import geometric

        return geometric(self.mean)

    @property
    def accountant(self) -> str | None:
        """Whose ε is quoted; None: the tightest."""
        return None if self.accounting == "tightest" else self.accounting

    def selection(self, budget: PrivacyBudget) -> Selection:  # noqa: ARG002  (some depend on it)
        """Return the rule by which the search selects within this budget."""
        return Selection(self.runs)

    def extrapolated(self, winner: Candidate, optimizer: str) -> Candidate:  # noqa: ARG002
        """Return the winner's hyperparameters as a final run with this optimiser trains with them."""
        return winner

    def plan_search(
        self, facts: TaskFacts, budget: PrivacyBudget, whole: Whole, expected_runs: float | None = None
    ) -> Plan[Trial]:
        """Return the plan of a search that releases its best trial.

        Args:
            facts: of the task.
            budget: the (ε, δ) of the whole procedure.
            whole: the event of the whole procedure, as a function of what a trial exposes a record to.
            expected_runs: expected number of trials; default: that of `runs`.
        """
        trial = self.trial(facts, budget, whole, self.accountant, drawn=self.independent)
        expected = self.runs.expected if expected_runs is None else expected_runs
        return trial.as_plan(facts, budget, whole(trial.event), expected, self.accountant)

    def plan_search_and_run(
        self, facts: TaskFacts, budget: PrivacyBudget, whole: Whole, final: DpSgdRun, searched: float = 1.0
    ) -> Plan[SearchThenTrain]:
        """Return the plan of a search whose winner's hyperparameters serve one final run on all records.

        Args:
            facts: of the task.
            budget: the (ε, δ) of the whole procedure.
            whole: its event, the final run's included, as a function of what a trial exposes a record to.
            final: the final run, but for what the search finds.
            searched: share of the records that the search sees.
        """
        trial = self.trial(facts, budget, whole, self.accountant, drawn=self.independent)
        search = trial.cost(searched * facts.n_records, self.runs.expected)
        last = final.cost(facts.n_records)
        return Plan(
            budget=budget,
            event=whole(trial.event),
            training_event=final.event,
            parameters=SearchThenTrain(trial, final),
            releases=(*trial.releases, *final.releases),
            cost=Cost(search.runs + 1, search.steps + last.steps, search.examples + last.examples),
            accountant=self.accountant,
        )
