"""Searches by held-out scores: what their methods share."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Interval

from dphpo_bench.contract.method import Cost, P, Plan
from dphpo_bench.contract.parameters import LATER, Share
from dphpo_bench.contract.search_space import OF_ONE_OPTIMIZER, Candidate, Extent, Space
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import ClippingRule, DpSgd
from dphpo_bench.recipes.searched_run import DpSgdRun, check_values, searched_run
from dphpo_bench.recipes.single_run import TrainingMethod
from dphpo_bench.recipes.trial import SearchThenTrain, Trial, Whole
from dphpo_bench.training.optimizer_names import OptimizerName

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dphpo_bench.privacy.run_counts import RunCount


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
