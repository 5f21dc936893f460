"""A DP-SGD run that can be stopped, scored and continued: for searches that give up on some of their trials.

What it may cost is fixed in the plan, as for any run: the steps of all trials, composed, whichever of them are taken.
Continuing one trial rather than another is then a choice made from what was released before, which composition allows
(docs/accounting.md, kinds of batches). A step that the plan does not hold is refused by the ledger.
"""

from typing import TYPE_CHECKING

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.recipes.dp_sgd import DpSgd, trainable
from dphpo_bench.session.session import Session
from dphpo_bench.training.clipping import parse_clipping
from dphpo_bench.training.functional import copied

if TYPE_CHECKING:
    from torch import nn


class Training:
    """One run of DP-SGD, taken in pieces; at the end it is the run that `DpSgd.train` does in one.

    Args:
        session: where the records are; is charged for each step that is taken. Trials that run side by side need a
            fork each.
        run: what is trained, with all of its steps.

    Attributes:
        run: what is trained.
        steps: number of steps taken.
    """

    def __init__(self, session: Session, run: DpSgd) -> None:
        from dphpo_bench.training.optimizers import UpdateRule, WeightAverage

        self.run, self.steps = run, 0
        self._session, self._clipping = session, parse_clipping(run.clipping)
        self._model = session.build_model()
        weights = trainable(self._model)
        self._update = UpdateRule(run.optimizer, weights, run.optimizer_options)
        self._average = WeightAverage(weights, run.averaging)

    def advance(self, steps: int, noise_multiplier: float | None = None) -> None:
        """Take some more steps.

        Args:
            steps: how many.
            noise_multiplier: σ of these; default: that of the run.

        Raises:
            InvalidValueError: if the run has fewer left.
            OverBudgetError: if the plan does not cover them.
        """
        if not 0 <= steps <= self.run.steps - self.steps:
            raise InvalidValueError(f"Expected 0 <= steps <= {self.run.steps - self.steps}, what is left, got {steps}.")
        run = self.run if noise_multiplier is None else self.run.with_noise(noise_multiplier)
        for _ in range(steps):
            gradient = self._session.sample(run.step).gradient(self._model, self._clipping, run.noise_multiplier)
            self._update.apply(self._update.direction(gradient), run.rate_at(self.steps))
            self._average.update()
            self.steps += 1

    def model(self) -> "nn.Module":
        """Return a copy of the model with the average of the weights so far."""
        model = copied(self._model)
        self._average.copy_to(trainable(model))
        return model
