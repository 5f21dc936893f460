"""The best of a random number of trials, in which the optimiser is drawn as well as the learning rate."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

OPTIMIZERS = ("SGD", "AdamW")


@dataclass(frozen=True)
class FewOptimizers(bench.Method):
    """Papernot and Steinke's search with a geometric number of trials, over two optimisers.

    Attributes:
        mean: expected number of trials.
        validation: expected share of the records that scores are computed on.
    """

    name = "few_optimizers"
    summary = "Best of a geometric number of runs of two optimisers."
    reference = "Papernot and Steinke 2022, Hyperparameter tuning with Rényi differential privacy, Theorem 2"
    tuning = ("optimiser", "learning rate")
    end_to_end_private = True

    mean: float = 4.0
    validation: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.validation < 1:
            raise bench.InvalidValueError(f"Expected 0 < validation < 1, got {self.validation}.")
        bench.geometric(self.mean)  # raises if there is no such distribution

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        """The noise of a trial's training and of its score, for the best of a geometric number."""

        def whole(trial: "DpEvent") -> "DpEvent":
            return bench.best_of(trial, bench.geometric(self.mean))

        trial = bench.Trial.calibrated(
            whole, bench.DpSgd.of(facts), budget, validation=self.validation, accountant="profile"
        )
        return bench.Plan(
            budget=budget,
            event=whole(trial.event),
            training_event=trial.training.event,
            parameters={"trial": trial.to_json()},
            releases=trial.releases,
            cost=trial.cost(facts.n_records, self.mean),
            accountant="profile",
        )

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """Draw, train and score; only the best comes out."""
        trial = bench.Trial.of(plan)
        trial.check(session)

        def draw_and_train(own: "bench.Session") -> "bench.Scored":
            optimizer = OPTIMIZERS[int(own.uniform("optimizer") * len(OPTIMIZERS))]
            (scored,) = trial.run([own], [{**own.candidate(), "optimizer": optimizer}])
            return scored

        return bench.released(session.best_of(draw_and_train, bench.geometric(self.mean), trial.event), session)
