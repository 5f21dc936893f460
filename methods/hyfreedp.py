"""HyFreeDP with a rule of ours: the rate whose noise the weights tolerate, and more where gradients ask for it."""

from dataclasses import dataclass

import dphpo_bench as bench

from .noise_scaled import NoiseScaled


@dataclass(frozen=True)
class HyFreeDP(NoiseScaled):
    """Training without a learning rate or a clipping threshold to choose; the idea is that of Liu and Bu 2025.

    Like theirs, it releases a few privatised losses, and its learning rate follows from them and from the gradients.
    The queries and the rule are ours; their rule is `hyfreedp_paper`.

    - Before the first step, eight queries to one batch find the first rate, as in `noise_scaled`. Unless only a linear
      classifier is trained, it has an upper limit; see `TunedTraining`.
    - In a regression the rate grows where the released gradients ask for it; see `TunedTraining`. That costs nothing.
    - After the last step, eight queries to one batch find a scale of the last layer, unless the task is a regression:
      temperature scaling (Guo et al. 2017), because normalised gradients let margins grow without end.

    Released are gradients, T × Poisson(q; Gaussian σ), and queries: Poisson(p; 8 × Gaussian σ_p) first, as shares of
    records, and Poisson(p; 8 × Gaussian σ_p) last, as clipped sums of changes of the loss. They are calibrated as one
    event. σ_p follows from `share` and public numbers.

    The parameters are those of `NoiseScaled`.
    """

    name = "hyfreedp"
    version = 12
    summary = "Starts at the rate whose noise the weights tolerate, and raises it as gradients ask; the rule is ours."
    reference = "after Liu and Bu 2025 (arXiv:2503.00703), Towards hyperparameter-free optimization with DP"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True
    scaled = True

    def run(self, plan: bench.Plan[bench.hyfreedp.Looked], session: "bench.Session") -> bench.Outcome:
        """Train for T steps, at a rate that moves."""
        planned, model = plan.parameters, session.build_model()
        clipping = bench.clipping.parse_clipping(self.clipping)
        noise = planned.noise_multiplier * clipping.sensitivity / planned.batch_size
        update, simulated = (
            bench.recipes.UpdateRule(planned.optimizer, weights)
            for weights in (bench.recipes.trainable(model), bench.hyfreedp.dummy_weights(model))
        )
        training = bench.hyfreedp.TunedTraining(planned, session, model, update, simulated, noise)
        decays = [self.averaging]
        for step in bench.recipes.training_steps(session, planned.steps, [model], decays, state=training.state):
            gradient = session.sample(planned.step).gradient(model, clipping, planned.noise_multiplier)
            training.step(step, gradient)
        return bench.Outcome(model, training.results())
