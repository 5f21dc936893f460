"""The callback of Lightning's Trainer that stops at a privacy budget."""

import warnings
from collections.abc import Collection
from typing import Any

from dphpo_bench.base.errors import InvalidValueError, require_extra
from dphpo_bench.external.trainers import ACCUMULATION, CHOICE, HALF_PRECISION, RAW, StepBudget

require_extra("lightning", "bench.lightning.BudgetCallback needs", "lightning")

from lightning.pytorch import callbacks  # noqa: E402


class BudgetCallback(StepBudget, callbacks.Callback):  # type: ignore[misc]  # mypy does not read the library
    __doc__ = f"""Callback of `lightning.Trainer` that ends a training before its budget is exceeded.

    {StepBudget.__doc__}"""

    _validated: Collection[str] | None = None
    """Names of the scores that the validation logs; None: unknown."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        if stage == "fit":  # before anything reads the records
            _check(trainer, self.public_evaluation, None)

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._validated = {*trainer.callback_metrics} or None  # which may log nothing here

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        validated = self._validated if trainer.enable_validation else ()
        _check(trainer, self.public_evaluation, validated)  # optimizers and schedulers as well
        optimizer, most = next(iter(trainer.optimizers), None), trainer.estimated_stepping_batches
        self.begin(pl_module, optimizer, trainer.train_dataloader, most, trainer.global_step)
        if trainer.loggers or (trainer.enable_validation and not self.public_evaluation):
            warnings.warn(RAW.format("logger=False and limit_val_batches=0"), stacklevel=2)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self.check_loader(trainer.train_dataloader)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        trainer.should_stop = trainer.should_stop or not self.has_next

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self.end()


def _check(trainer: Any, public_evaluation: bool, validated: Collection[str] | None) -> None:
    """Reject what would silently break the guarantee."""
    batches, chooses = [trainer.accumulate_grad_batches], list[tuple[str, Any]]()
    for callback in trainer.callbacks:
        if isinstance(callback, callbacks.GradientAccumulationScheduler):
            batches += callback.scheduling.values()
        if isinstance(callback, callbacks.LearningRateFinder) or getattr(callback, "monitor", None) is not None:
            chooses.append((type(callback).__name__, getattr(callback, "monitor", None)))
    plateaus = [config.monitor for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    chooses += [("schedulers that read a score", monitor) for monitor in plateaus]
    if len(trainer.optimizers) > 1:
        raise InvalidValueError("Expected one optimizer, whose steps are counted. Train one model at a time.")
    if max(batches) > 1:
        raise InvalidValueError(ACCUMULATION.format(f"accumulate_grad_batches={max(batches)}"))
    if str(trainer.precision).startswith("16"):
        raise InvalidValueError(HALF_PRECISION.format(f"precision={trainer.precision!r}", "precision='bf16-mixed'"))
    if chooses and not public_evaluation:
        raise InvalidValueError(CHOICE.format(" and ".join(name for name, _ in chooses)))
    # A finder of rates trains, and has no monitor.
    known = None if validated is None else {*validated, "epoch", "step"}
    if raw := [name for name, of in chooses if of is None or (known is not None and of not in known)]:
        raise InvalidValueError(
            f"{' and '.join(raw)} choose by raw losses of the training records, which are private, even if those of "
            "evaluations are public. Monitor what validation_step logs, or tune with bench.select."
        )
