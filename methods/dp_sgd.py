"""DP-SGD with hyperparameters fixed beforehand: what every other method is compared with."""

from dataclasses import dataclass
from typing import ClassVar

import dphpo_bench as bench


@dataclass(frozen=True)
class FixedDpSgd(bench.Method):
    """DP-SGD (Abadi et al. 2016, arXiv:1607.00133, Algorithm 1) at given hyperparameters.

    T steps at sample rate q and noise multiplier σ are T × Poisson(q; Gaussian σ). The guarantee covers the
    run, not how its hyperparameters were found: it is end-to-end as long as they were fixed without looking
    at the data, as the defaults were. The paper chose its threshold, learning rate and batch size by trying
    several on the private data, and does not account for it.

    Attributes:
        clipping: "abadi:C" with threshold C, "auto_s", "auto_s:γ" or "auto_v".
        learning_rate: default: the task's.
        optimizer: a `torch.optim` name; default: the task's.
        batch_size: expected batch size; default: the task's.
        epochs: expected passes over the data; default: the task's.
        averaging: decay of the exponential average of weights that is returned; 0 returns the last weights.
    """

    name = "dp_sgd"
    summary = "DP-SGD at fixed hyperparameters; tunes nothing."
    reference = "Abadi et al. 2016, Deep Learning with Differential Privacy, Algorithm 1"
    tuning: ClassVar[tuple[str, ...]] = ()
    end_to_end_private = True

    clipping: str = "abadi:1"
    learning_rate: float | None = None
    optimizer: str | None = None
    batch_size: int | None = None
    epochs: float | None = None
    averaging: float = 0.99

    def __post_init__(self) -> None:
        bench.parse_clipping(self.clipping)
        if self.learning_rate is not None and not 0 < self.learning_rate < float("inf"):
            raise bench.InvalidValueError(f"Expected learning_rate > 0, got {self.learning_rate}.")

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        """T steps at the smallest noise that meets the budget."""
        facts = facts.with_schedule(self.batch_size, self.epochs)
        training = bench.DpSgd.of(
            facts,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            clipping=self.clipping,
            averaging=self.averaging,
        )
        return training.calibrated(budget).as_plan(facts, budget)

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """Train for T steps."""
        training = bench.DpSgd(**plan.parameters)
        return bench.Outcome(training.train(session), {"learning_rate": training.learning_rate})
