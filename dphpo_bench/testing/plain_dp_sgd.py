"""The plainest private method, to try tasks with: one DP-SGD run at the task's defaults."""

from dataclasses import dataclass
from typing import ClassVar

from dphpo_bench.contract.method import Method, Outcome, Plan
from dphpo_bench.contract.session import Session
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import DpSgd


@dataclass(frozen=True)
class PlainDpSgd(Method):
    """T steps of DP-SGD with the task's learning rate; tunes nothing."""

    name = "plain_dp_sgd"
    summary = "DP-SGD at the task's defaults."
    reference = "Abadi et al. 2016, Deep Learning with Differential Privacy, Algorithm 1"
    tuning: ClassVar[tuple[str, ...]] = ()
    end_to_end_private = True

    def plan(self, facts: TaskFacts, budget: PrivacyBudget) -> Plan:
        """The least noise that meets the budget."""
        return DpSgd.of(facts).calibrated(budget).as_plan(facts, budget)

    def run(self, plan: Plan, session: Session) -> Outcome:
        """Train."""
        return Outcome(DpSgd(**plan.parameters).train(session))
