"""The callback of Lightning's Trainer that stops at a privacy budget."""

import math
from collections.abc import Iterator
from typing import Any

from dphpo_bench.base.errors import InvalidValueError, require_extra
from dphpo_bench.external.budget_stop import StepBudget
from dphpo_bench.external.trainer_rules import ACCUMULATION, CHOICE, CLIPPING, HALF_PRECISION, SCORES, warn_of

require_extra("lightning", "bench.lightning.BudgetCallback needs", "lightning")

from lightning.pytorch.callbacks import (  # noqa: E402
    Callback,
    Checkpoint,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
)


class BudgetCallback(StepBudget, Callback):
    __doc__ = f"""Callback of `lightning.Trainer` that ends a training before its budget is exceeded.

    It fixes and counts the steps before the first one, sets `trainer.should_stop` after the last, and writes the record
    at the end, whether optimization is automatic or manual. {StepBudget.__doc__}"""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        if stage == "fit":  # before anything looks at the records
            self._refuse(trainer)

    def _refuse(self, trainer: Any) -> None:
        for is_wrong, why in _refusals(trainer, self.public_evaluation):
            if is_wrong:
                raise InvalidValueError(why)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._refuse(trainer)  # optimizers and schedulers as well
        steps = trainer.estimated_stepping_batches
        most = -1 if steps == math.inf else int(steps)
        self.begin(pl_module, next(iter(trainer.optimizers), None), trainer.train_dataloader, most, trainer.global_step)
        warn_of(_doubts(trainer, self.public_evaluation, self.has_opacus))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:  # noqa: ARG002
        self.before_step()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        if self.after_step():
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self.end()


def _refusals(trainer: Any, public_evaluation: bool) -> Iterator[tuple[bool, str]]:
    count, precision = len(trainer.optimizers), str(trainer.precision)
    schedules = [each.scheduling for each in trainer.callbacks if isinstance(each, GradientAccumulationScheduler)]
    batches = max([trainer.accumulate_grad_batches, *(most for each in schedules for most in each.values())])
    chooses = [
        type(callback).__name__
        for callback in trainer.callbacks
        if isinstance(callback, EarlyStopping | LearningRateFinder)
        or (isinstance(callback, Checkpoint) and getattr(callback, "monitor", None) is not None)
    ]
    chooses += ["schedulers that look at a score"] * any(
        config.reduce_on_plateau for config in trainer.lr_scheduler_configs
    )
    yield count > 1, f"Expected one optimizer, whose steps are counted, got {count}. Train one model at a time."
    yield batches > 1, ACCUMULATION.format(f"accumulate_grad_batches={batches}")
    yield precision.startswith("16"), HALF_PRECISION.format(f"precision={precision!r}", "precision='bf16-mixed'")
    yield (
        bool(trainer.min_epochs or trainer.min_steps),
        "Expected no min_epochs and no min_steps: with them Lightning goes on when the budget is spent.",
    )
    yield bool(chooses) and not public_evaluation, CHOICE.format(" and ".join(dict.fromkeys(chooses)))


def _doubts(trainer: Any, public_evaluation: bool, has_opacus: bool) -> Iterator[tuple[bool, str]]:
    clip = trainer.gradient_clip_val
    yield bool(trainer.enable_validation) and not public_evaluation, SCORES.format("limit_val_batches=0")
    yield (
        bool(trainer.loggers),
        "What training_step logs has no noise: keep the logs as secret as the records, or set logger=False.",
    )
    yield has_opacus and bool(clip), CLIPPING.format(f"gradient_clip_val={clip}", "None")
