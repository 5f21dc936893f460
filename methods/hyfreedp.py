"""HyFreeDP with a rule of ours: the records vote on whether the last stretch of the training, or another one, helps."""

from dataclasses import dataclass

import dphpo_bench as bench


@dataclass(frozen=True)
class HyFreeDP(bench.recipes.TrainingMethod[bench.hyfreedp.Voted]):
    """Training without a learning rate or a clipping threshold to choose; the idea is that of Liu and Bu 2025.

    Like theirs, it releases a few privatised losses while it trains, and its learning rate follows from them. The
    queries and the rule are ours; their rule is `hyfreedp_paper`.

    - Before the first step, eight looks at one batch find the η at which the loss rises by 0.2 nats when a whole run's
      noise, η √T Z with Z standard normal, is added to the initial weights or subtracted. The run starts at η, or at
      4 η if only a last layer is trained and the task is no regression. The rate stays in [η/4, 128 η].
    - Then about eight to twenty batches vote, see `VotingRule`. Steps warm up in the first tenth of the run.
    - After the last step, eight looks at one batch find a scale of the last layer: temperature scaling (Guo et al.
      2017), because normalised gradients let margins grow without end.

    Released are gradients, T × Poisson(q; Gaussian σ), and clipped sums of changes of the loss: Poisson(p; 16 ×
    Gaussian σ_p) first, n × Poisson(r; 2 × Gaussian σ_r) as votes, Poisson(p; 8 × Gaussian σ_p) last. They are
    calibrated as one event. σ_p/p = σ_r/r is fixed beforehand from public numbers: the noise on a mean is 0.02 of the
    bound, or more where that would take more than `share`. Then fewer batches vote, at least about eight. Sums over
    fewer than a hundred records have more noise.

    The other parameters are those of every `TrainingMethod`.

    Attributes:
        share: about twice the share of ε that probes may take: their share of the run's Gaussian DP μ².
        probe_size: largest expected number of voters at a time. In runs on few records fewer vote, down to 256, so
            that probes take about 15 % of the time.
        clipping: "auto_s", "auto_s:γ", "auto_v" or "abadi:C".
        optimizer: a `torch.optim` name; "task" takes the task's.
    """

    name = "hyfreedp"
    version = 10
    summary = "Finds the learning rate while it trains, from privatised votes on the loss; the rule is ours."
    reference = "after Liu and Bu 2025 (arXiv:2503.00703), Towards hyperparameter-free optimization with DP"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True

    share: bench.parameters.Share = 0.03
    probe_size: bench.parameters.Count = 2048
    clipping: bench.parameters.ClippingRule = "auto_s"
    optimizer: bench.parameters.OptimizerOrTask = "AdamW"

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.hyfreedp.Voted]:
        """Calibrate the noise of probes, then that of gradients, for the whole training at once."""
        facts = self.scheduled(facts)
        planned = bench.hyfreedp.Voted.calibrated(
            budget,
            facts.sample_rate,
            facts.steps,
            facts.n_records,
            share=self.share,
            probe_size=self.probe_size,
            optimizer=facts.optimizer if self.optimizer == "task" else self.optimizer,
        )
        return bench.Plan(
            budget=budget,
            event=planned.event,
            training_event=planned.training,
            parameters=planned,
            releases=planned.releases,
            cost=bench.Cost(
                runs=1,
                steps=planned.steps,
                examples=planned.sample_rate * planned.records * planned.steps + planned.passes,
            ),
        )

    def run(self, plan: bench.Plan[bench.hyfreedp.Voted], session: "bench.Session") -> bench.Outcome:
        """Train for T steps; the records vote at the planned ones."""
        planned, model = plan.parameters, session.build_model()
        clipping = bench.clipping.parse_clipping(self.clipping)
        update = bench.recipes.UpdateRule(planned.optimizer, bench.recipes.trainable(model))
        step_kind = bench.events.poisson_sampled(planned.sample_rate, bench.events.gaussian(planned.noise_multiplier))
        noise = planned.noise_multiplier * clipping.sensitivity / (planned.sample_rate * planned.records)
        is_regression = session.facts.kind == "regression"
        training = bench.hyfreedp.VotedTraining(planned, session, model, update, noise, is_regression=is_regression)
        decays = [self.averaging]
        for step in bench.recipes.training_steps(session, planned.steps, [model], decays, state=training.state):
            training.step(step, session.sample(step_kind).gradient(model, clipping, planned.noise_multiplier))
        return bench.Outcome(model, training.results())
