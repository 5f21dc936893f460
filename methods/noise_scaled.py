"""DP-SGD at the learning rate whose noise, in the whole run, is what the initial weights tolerate."""

from dataclasses import dataclass
from typing import ClassVar

import dphpo_bench as bench


@dataclass(frozen=True)
class NoiseScaled(bench.recipes.TrainingMethod[bench.hyfreedp.Looked]):
    """DP-SGD at a fixed rate, found by eight queries before the first step.

    The noise of a whole run moves each weight by η M Z, with Z standard normal. M is public: it follows from the noise
    multiplier, the number of steps and the optimiser. The method adds such noise to the initial weights and subtracts
    it, and asks a batch for the share of records whose loss rises by a fifth or more, averaged over both sides. At the
    rate it is a half; the rate is six times as large if only a last layer is trained and the task is no regression.

    Released are the gradients, T × Poisson(q; Gaussian σ), and the queries, Poisson(p; 8 × Gaussian σ_p), calibrated as
    one event. It is what every method that adapts its rate has to beat; docs/hyfreedp.md has the law behind it.

    On networks with tens of thousands of records the rate may be too large, because there noise is not what limits it.

    The other parameters are those of every `TrainingMethod`.

    Attributes:
        share: about twice the largest share of ε that queries may take: their share of the run's Gaussian DP μ².
        clipping: "auto_s", "auto_s:γ", "auto_v" or "abadi:C".
        optimizer: a `torch.optim` name; "task" takes the task's.
    """

    name = "noise_scaled"
    summary = "DP-SGD at the rate whose noise the initial weights tolerate, found by eight queries; one constant."
    reference = "this benchmark, docs/hyfreedp.md"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True
    scaled: ClassVar[bool] = False  # by queries after the last step

    share: bench.parameters.Share = 0.03
    clipping: bench.parameters.ClippingRule = "auto_s"
    optimizer: bench.parameters.OptimizerOrTask = "SGD"

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.hyfreedp.Looked]:
        """Choose the noise of queries, then calibrate that of gradients, for the whole training at once."""
        facts = self.scheduled(facts)
        return bench.hyfreedp.Looked.calibrated(
            budget,
            facts.sample_rate,
            facts.steps,
            facts.n_records,
            share=self.share,
            regression=facts.kind == "regression",
            optimizer=facts.optimizer if self.optimizer == "task" else self.optimizer,
            scaled=self.scaled,
        ).as_plan(budget)

    def run(self, plan: bench.Plan[bench.hyfreedp.Looked], session: "bench.Session") -> bench.Outcome:
        """Find the rate, then train for T steps."""
        planned, model = plan.parameters, session.build_model()
        clipping = bench.clipping.parse_clipping(self.clipping)
        noise = planned.noise_multiplier * clipping.sensitivity / planned.batch_size
        weights, rate = bench.recipes.trainable(model), list[float]()
        update = bench.recipes.UpdateRule(planned.optimizer, weights)
        decays, state = [self.averaging], [update, rate]
        for step in bench.recipes.training_steps(session, planned.steps, [model], decays, state=state):
            if step == 0:
                simulated = bench.recipes.UpdateRule(planned.optimizer, bench.hyfreedp.dummy_weights(model))
                _, distance, _ = bench.hyfreedp.noise_walk(simulated, noise, planned.steps)
                rate.append(bench.hyfreedp.first_rate(planned, session, model, distance))
            gradient = session.sample(planned.step).gradient(model, clipping, planned.noise_multiplier)
            update.apply(update.direction(gradient), rate[0])
        return bench.Outcome(model, {"learning_rate": rate[0]})
