"""Training without privacy: the ceiling of what the model can do on the task."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    import torch
    from torch import nn

LEARNING_RATES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Tried on a holdout; around the default of Adam, which most tasks name."""

EPOCHS = 10
LEAST_STEPS = 500


@dataclass(frozen=True)
class Planned:
    """Parameters of a plan.

    Attributes:
        batch_size: of a minibatch.
        steps: of each run.
        optimizer: a `torch.optim` name.
    """

    batch_size: int
    steps: int
    optimizer: str


@dataclass(frozen=True)
class NonPrivate(bench.Method[Planned]):
    """Minibatches of shuffled raw records, no clipping, no noise: ε is infinite.

    The budget is ignored. The learning rate, which falls along a cosine, is the one of `LEARNING_RATES` with
    the best mean score on a tenth of the training records; then everything is trained on. The test data play no
    part in it.

    Attributes:
        learning_rate: default: tuned.
        optimizer: a `torch.optim` name; default: the task's.
        batch_size: size of a minibatch; small, because there is no noise to average out.
        epochs: passes over the data; default: ten, or as many more as make 500 steps.
        holdout: share of the records that judge the learning rates.
    """

    name = "nonprivate"
    summary = "Training without privacy, ε = ∞: the ceiling."
    reference = "Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, for the usual optimizer"
    tuning = ("learning rate",)
    end_to_end_private = False
    needs_scores = True

    learning_rate: bench.parameters.Positive | None = None
    optimizer: bench.parameters.OptimizerName | None = None
    batch_size: bench.parameters.Count = 256
    epochs: bench.parameters.Positive | None = None
    holdout: bench.parameters.Share = 0.1

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Planned]:
        """Plan how long to train; the release is not private."""
        batch_size = min(self.batch_size, facts.n_records)
        least = LEAST_STEPS * batch_size / facts.n_records
        facts = facts.with_schedule(batch_size, max(EPOCHS, least) if self.epochs is None else self.epochs)
        searched = 0 if self.learning_rate else len(LEARNING_RATES)
        runs = 1 + searched * (1 - self.holdout)  # in units of the last run
        return bench.Plan(
            budget=budget,
            event=bench.events.non_private(),
            training_event=bench.events.non_private(),
            parameters=Planned(batch_size, facts.steps, self.optimizer or facts.optimizer),
            releases=(),
            cost=bench.Cost(1 + searched, (1 + searched) * facts.steps, runs * facts.steps * batch_size),
        )

    def run(self, plan: bench.Plan[Planned], session: "bench.Session") -> bench.Outcome:
        """Tune on a holdout, unless told the learning rate, and train on everything."""
        import torch

        bench.recipes.UpdateRule(plan.parameters.optimizer, bench.recipes.trainable(session.build_model()))  # or refuse
        records = session.nonprivate()
        generator = torch.Generator().manual_seed(int(session.uniform("order of records") * 2**53))
        order = torch.randperm(len(records), generator=generator)
        released: dict[str, object] = {}
        rate = self.learning_rate
        if rate is None:
            held_out = max(1, round(self.holdout * len(records)))
            models = self._train(
                plan.parameters, session, records, order[held_out:], LEARNING_RATES, generator, "Tuning without privacy"
            )
            judge, judges = session.objective.scores, order[:held_out]
            scores = [bench.losses.total_score(model, judge, records, judges) / held_out for model in models]
            rate = LEARNING_RATES[scores.index(max(scores))]
            released["candidates"] = [
                {"learning_rate": tried, "score": score} for tried, score in zip(LEARNING_RATES, scores, strict=True)
            ]
        (model,) = self._train(plan.parameters, session, records, order, (rate,), generator, "Training without privacy")
        return bench.Outcome(model, {"learning_rate": rate, **released})

    def _train(
        self,
        planned: Planned,
        session: "bench.Session",
        records: bench.Records,
        rows: "torch.Tensor",
        rates: tuple[float, ...],
        generator: "torch.Generator",
        label: str,
    ) -> "list[nn.Module]":
        """Return one model for each learning rate, all on the same minibatches, so that the records are read once."""
        import torch

        batch_size, steps = planned.batch_size, planned.steps
        models = [session.build_model().train() for _ in rates]
        updates = [bench.recipes.UpdateRule(planned.optimizer, bench.recipes.trainable(model)) for model in models]
        schedule = bench.recipes.DpSgd(1.0, steps, 0.0, 1.0, schedule="cosine")
        with session.progress.track(label, steps) as advance:
            left = rows[:0]
            for step in range(steps):
                if len(left) < min(batch_size, len(rows)):
                    left = rows[torch.randperm(len(rows), generator=generator)]
                batch, left = left[:batch_size], left[batch_size:]
                some = records.rows(batch).to(session.device, bench.recipes.trainable(models[0])[0].dtype)
                for model, update, rate in zip(models, updates, rates, strict=True):
                    # A model or a loss may write to its batch.
                    rows_of_model = some if model is models[-1] else some.copied()
                    loss = session.objective.losses(rows_of_model.outputs(model), rows_of_model.targets).mean()
                    gradients = torch.autograd.grad(loss, bench.recipes.trainable(model))
                    update.apply(update.direction(gradients), rate * schedule.rate_at(step))
                advance()
        return models
