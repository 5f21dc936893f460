"""DP-SGD with automatic clipping: the clipping threshold is gone, the learning rate stays at its default."""

from dataclasses import dataclass

import dphpo_bench as bench


@dataclass(frozen=True)
class AutoClipping(bench.Method):
    """Automatic clipping (Bu, Wang, Zha and Karypis 2023, arXiv:2206.07136, Theorem 3 and Algorithm 1).

    Every per-sample gradient g is scaled to g / (‖g‖ + stability), so one record contributes less than 1 to
    the sum whatever the threshold would have been: nothing is tuned, and all of the budget goes into
    training. T steps of DP-SGD at sample rate q and noise multiplier σ are one event,
    T × Poisson(q; Gaussian σ).

    Attributes:
        clipping: "auto_s", "auto_s:γ" with another stability constant than 0.01, or "auto_v" for g / ‖g‖.
        learning_rate: default: the task's.
        optimizer: a `torch.optim` name; default: the task's.
        batch_size: expected batch size; default: the task's.
        epochs: expected passes over the data; default: the task's.
        averaging: decay of the exponential average of weights that is returned; 0 returns the last weights.
    """

    name = "auto_clipping"
    summary = "DP-SGD with automatic clipping at the default learning rate; tunes nothing."
    reference = "Bu, Wang, Zha and Karypis 2023, Automatic Clipping, Algorithm 1"
    tuning = ("clipping threshold",)
    end_to_end_private = True

    clipping: str = "auto_s"
    learning_rate: float | None = None
    optimizer: str | None = None
    batch_size: int | None = None
    epochs: float | None = None
    averaging: float = 0.99

    def __post_init__(self) -> None:
        if not self.clipping.startswith("auto"):
            raise bench.InvalidValueError(f"Expected clipping auto_s or auto_v, got {self.clipping!r}.")
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
