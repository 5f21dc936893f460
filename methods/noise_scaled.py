"""DP-SGD at the learning rate whose noise, in the whole run, is what the initial weights tolerate."""

from dataclasses import dataclass
from typing import ClassVar

import dphpo_bench as bench


@dataclass(frozen=True)
class NoiseScaled(bench.recipes.TrainingMethod[bench.hyfreedp.Looked]):
    """DP-SGD at a fixed rate, found by eight queries before the first step.

    The noise of a whole run moves each weight by η M Z, with Z standard normal. M is public: it follows from the noise
    multiplier, the number of steps and the optimiser. Seven queries find s, the noise that the initial weights
    tolerate: each adds noise to them and subtracts it, and asks a batch for the share of records whose loss rises by a
    fifth or more, averaged over both sides. At s the share is a half. One query finds r, the effective rank of
    records' gradients. The rate is c s / (M √r), and bounded where there is little noise
    (`dphpo_bench.recipes.noise_law.first_rate`; docs/hyfreedp.md has the law behind it).

    Released are the gradients, T × Poisson(q; Gaussian σ), and the queries, Poisson(p; 8 × Gaussian σ_p), calibrated as
    one event. It is what every method that adapts its rate has to beat.

    The other parameters are those of every `TrainingMethod`.

    Attributes:
        share: about twice the largest share of ε that queries may take: their share of the run's Gaussian DP μ².
        clipping: "auto_s", "auto_s:γ", "auto_v" or "abadi:C".
        optimizer: a `torch.optim` name; "task" takes the task's.
    """

    name = "noise_scaled"
    version = 2
    summary = "DP-SGD at the rate whose noise the initial weights tolerate, found by eight queries."
    reference = "this benchmark, docs/hyfreedp.md"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True
    scaled: ClassVar[bool] = False  # by queries after the last step

    share: bench.parameters.Share = 0.025
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
        """Find the rate, then train for T steps; scale the last layer if the plan says so."""
        planned, model = plan.parameters, session.build_model()
        clipping = bench.clipping.parse_clipping(self.clipping)
        noise = planned.noise_multiplier * clipping.sensitivity / planned.batch_size
        update, simulated = (
            bench.recipes.UpdateRule(planned.optimizer, weights)
            for weights in (bench.recipes.trainable(model), bench.hyfreedp.dummy_weights(model))
        )
        training = bench.hyfreedp.TunedTraining(planned, session, model, update, simulated, noise)
        decays = [self.averaging]
        for _ in bench.recipes.training_steps(session, planned.steps, [model], decays, state=training.state):
            training.step(session.sample(planned.step).gradient(model, clipping, planned.noise_multiplier))
        return bench.Outcome(model, training.results())
