"""The best of a random number of trials, in which the optimiser is drawn as well as the learning rate."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Interval

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

OPTIMIZERS = ("SGD", "AdamW")


@dataclass(frozen=True)
class FewOptimizers(bench.Method[bench.search.Trial]):
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

    mean: Annotated[float, Interval(gt=1)] = 4.0
    validation: bench.parameters.Share = 0.2

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.search.Trial]:
        """The noise of a trial's training and of its score, for the best of a geometric number."""

        def whole(trial: "DpEvent") -> "DpEvent":
            return bench.events.best_of(trial, bench.search.geometric(self.mean))

        trial = bench.search.Trial.calibrated(
            whole, bench.recipes.DpSgd.of(facts), budget, validation=self.validation, accountant="profile"
        )
        return trial.as_plan(facts, budget, whole(trial.event), self.mean, "profile")

    def run(self, plan: bench.Plan[bench.search.Trial], session: "bench.Session") -> bench.Outcome:
        """Draw, train and score; only the best comes out."""
        trial = plan.parameters
        trial.check(session)

        def draw_and_train(own: "bench.Session") -> "bench.search.TrialResult":
            optimizer = OPTIMIZERS[int(own.uniform("optimizer") * len(OPTIMIZERS))]
            (scored,) = trial.run([own], [{**own.candidate(), "optimizer": optimizer}])
            return scored

        return bench.search.winner_outcome(
            session.best_of(draw_and_train, bench.search.geometric(self.mean), trial.event), session
        )
