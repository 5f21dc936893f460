"""One blind draw of the hyperparameters, and the whole budget on that run: tuning that costs nothing."""

from dataclasses import dataclass

import dphpo_bench as bench


@dataclass(frozen=True)
class RandomSearch(bench.Method):
    """One candidate drawn from the task's search space, trained by DP-SGD with the whole budget.

    A search with a single trial looks at no score, so the draw is free: the event is that of one run,
    T × Poisson(q; Gaussian σ). It is what a private search with more trials, hence more noise in each, has
    to beat. (Random search as published, Bergstra and Bengio 2012, keeps the best of many; private forms of
    that are methods of their own here.)

    Attributes:
        clipping: "auto_s", "auto_s:γ", "auto_v" or "abadi:C"; replaced if the search space has it, as are
            optimizer and averaging.
        optimizer: a `torch.optim` name; default: the task's.
        batch_size: expected batch size; default: the task's.
        epochs: expected passes over the data; default: the task's.
        averaging: decay of the exponential average of weights that is returned; 0 returns the last weights.
    """

    name = "random_search"
    summary = "Draws the learning rate blindly from the search space, once; all of the budget on that run."
    reference = "Bergstra and Bengio 2012, Random Search for Hyper-Parameter Optimization; a single trial"
    tuning = ("learning rate",)
    end_to_end_private = True

    clipping: str = "auto_s"
    optimizer: str | None = None
    batch_size: int | None = None
    epochs: float | None = None
    averaging: float = 0.99

    def __post_init__(self) -> None:
        bench.parse_clipping(self.clipping)

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        """T steps at the smallest noise that meets the budget; the learning rate is still the task's default."""
        facts = facts.with_schedule(self.batch_size, self.epochs)
        training = bench.DpSgd.of(facts, optimizer=self.optimizer, clipping=self.clipping, averaging=self.averaging)
        return training.calibrated(budget).as_plan(facts, budget)

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """Draw, then train for T steps."""
        candidate = session.candidate()
        training = bench.DpSgd(**plan.parameters).having(candidate)
        return bench.Outcome(training.train(session), candidate)
