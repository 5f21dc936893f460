"""How long to train is decided by what was released."""

from dataclasses import dataclass

import dphpo_bench as bench
from tests.security.mutants.baseline import Training, descend


@dataclass(frozen=True)
class TrainsUntilItIsGood(Training):
    """Trains until the gradient is short, and accounts for the steps that were planned."""

    name = "trains_until_it_is_good"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        model, length = session.build_model(), 1.0
        while length > 1e-3:
            gradient = self.planned_gradient(plan, session, model)
            descend(model, gradient, self.learning_rate)
            length = sum(float(part.square().sum()) for part in gradient) ** 0.5
        return bench.Outcome(model)


@dataclass(frozen=True)
class StopsEarlyAndQuotesLess(Training):
    """Stops when a released gradient is short, and means to quote the ε of the steps taken."""

    name = "stops_early_and_quotes_less"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        model = session.build_model()
        for _ in range(plan.parameters.steps):
            gradient = self.planned_gradient(plan, session, model)
            descend(model, gradient, self.learning_rate)
            if sum(float(part.square().sum()) for part in gradient) ** 0.5 < 10.0:
                break
        return bench.Outcome(model)
