"""Methods that train, and those whose budget goes into a single run."""

from dataclasses import dataclass

from dphpo_bench.contract.method import Method, Outcome, P, Plan
from dphpo_bench.contract.parameters import Count, Decay, Positive
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import ClippingRule, DpSgd
from dphpo_bench.session.session import Session


@dataclass(frozen=True)
class TrainingMethod(Method[P]):
    """A method that trains on the task's schedule, or on one of its own.

    Attributes:
        batch_size: expected batch size; default: the task's.
        epochs: expected passes over the data of one run; default: the task's.
        averaging: decay of the exponential average of weights that a run returns; 0 returns the last ones.
    """

    batch_size: Count | None = None
    epochs: Positive | None = None
    averaging: Decay = 0.99

    def scheduled(self, facts: TaskFacts) -> TaskFacts:
        """Return the facts with this method's batch size and epochs."""
        return facts.with_schedule(self.batch_size, self.epochs)


@dataclass(frozen=True)
class SingleRun(TrainingMethod[DpSgd]):
    """A method whose budget goes into one run, T × Poisson(q; Gaussian σ).

    The other parameters are those of every `TrainingMethod`.

    Attributes:
        clipping: "auto_s", "auto_s:γ", "auto_v" or "abadi:C" with threshold C.
    """

    clipping: ClippingRule = "auto_s"

    def training(self, facts: TaskFacts) -> DpSgd:
        """Return the run but for its noise."""
        return DpSgd.of(self.scheduled(facts), clipping=self.clipping, averaging=self.averaging)

    def plan(self, facts: TaskFacts, budget: PrivacyBudget) -> Plan[DpSgd]:
        """Plan T steps at the smallest noise that meets the budget."""
        return self.training(facts).calibrated(budget).as_plan(facts, budget)

    def run(self, plan: Plan[DpSgd], session: Session) -> Outcome:
        """Train for T steps."""
        training = plan.parameters
        return Outcome(training.train(session), {"learning_rate": training.learning_rate})
