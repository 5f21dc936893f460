"""How long to train is decided by what was released."""

from dataclasses import dataclass

import dphpo_bench as bench
from tests.security.mutants.baseline import Training, descend


@dataclass(frozen=True)
class TrainsUntilItIsGood(Training):
    """Trains until the gradient is short, and accounts for the steps that were planned.

    The ledger refuses the first step beyond the plan: a number of steps that depends on the data is bounded in
    advance.
    """

    name = "trains_until_it_is_good"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """As many steps as it takes."""
        model, length = session.build_model(), 1.0
        while length > 1e-3:
            gradient = self.planned_gradient(plan, session, model)
            descend(model, gradient, self.learning_rate)
            length = sum(float(part.square().sum()) for part in gradient) ** 0.5
        return bench.Outcome(model)


@dataclass(frozen=True)
class StopsEarlyAndQuotesLess(Training):
    """Stops when a released gradient is short, and means to quote the ε of the steps taken.

    The quoted ε is never below the plan's: stopping where it looks good is a choice made by the data.
    """

    name = "stops_early_and_quotes_less"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """Few steps."""
        model = session.build_model()
        for _ in range(plan.parameters.steps):
            gradient = self.planned_gradient(plan, session, model)
            descend(model, gradient, self.learning_rate)
            if sum(float(part.square().sum()) for part in gradient) ** 0.5 < 10.0:
                break
        return bench.Outcome(model)
