"""DP-SGD at ε = ∞: its clipping and its Poisson batches without its noise."""

from dataclasses import dataclass, replace

import dphpo_bench as bench

from .dp_sgd import FixedDpSgd


@dataclass(frozen=True)
class Noiseless(FixedDpSgd):
    """`FixedDpSgd` without noise: what clipping costs by itself, before any privacy.

    Papers call it ε = ∞. Not even a clipped gradient is private without noise, so the true ε is infinite, and the row
    stands apart. The budget is ignored.
    """

    name = "noiseless"
    summary = "DP-SGD's clipping and batches without noise, ε = ∞: what clipping costs by itself."
    reference = "Abadi et al. 2016, Algorithm 1, without its noise; Bu et al. 2023, Automatic Clipping"
    end_to_end_private = False

    clipping: bench.parameters.ClippingRule = "auto_s"

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.recipes.DpSgd]:
        """Plan T steps without noise; the release is not private."""
        plan = self.training(facts).as_plan(facts, budget)
        return replace(plan, event=bench.events.non_private(), training_event=bench.events.non_private(), releases=())

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: "bench.Session") -> bench.Outcome:
        """Train for T steps."""
        bench.recipes.UpdateRule(plan.parameters.optimizer, bench.recipes.trainable(session.build_model()))  # or refuse
        session.nonprivate()  # charges ε = ∞; what follows asks as private methods do
        return super().run(plan, session)
