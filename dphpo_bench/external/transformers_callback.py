"""The callback of Hugging Face's Trainer that stops at a privacy budget."""

import warnings
from typing import Any

from dphpo_bench.base.errors import InvalidValueError, require_extra
from dphpo_bench.external.trainers import ACCUMULATION, CHOICE, HALF_PRECISION, RAW, StepBudget

require_extra("transformers", "bench.transformers.BudgetCallback needs", "transformers", "accelerate")

from transformers import TrainerCallback  # noqa: E402

_RECORD_MEANS = tuple(f"For{kind}Classification" for kind in ("Sequence", "Image", "Video", "Audio"))
"""Losses of the library that are means over records, whose gradients do not depend on one another."""


class BudgetCallback(StepBudget, TrainerCallback):  # type: ignore[misc]  # mypy does not read the library
    __doc__ = f"""Callback of `transformers.Trainer` that ends a training before its budget is exceeded.

    {StepBudget.__doc__}"""

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002
        schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
        chooses = args.load_best_model_at_end or args.metric_for_best_model or "reduce" in schedule
        if (chooses or schedule == "greedy" or state.is_hyper_param_search) and not self.public_evaluation:
            raise InvalidValueError(CHOICE.format("A best model, and schedules or a search that read a metric,"))
        if (passes := args.gradient_accumulation_steps) > 1:
            raise InvalidValueError(ACCUMULATION.format(f"gradient_accumulation_steps={passes}"))
        if args.fp16:
            raise InvalidValueError(HALF_PRECISION.format("fp16=True", "bf16=True"))
        model, loader = parts.get("model"), parts.get("train_dataloader")
        self.begin(model, parts.get("optimizer"), loader, state.max_steps, state.global_step)
        strategies = [args.logging_strategy] + [args.eval_strategy] * (not self.public_evaluation)
        if any(str(getattr(strategy, "value", strategy)) != "no" for strategy in strategies):
            warnings.warn(RAW.format("logging_strategy='no' and eval_strategy='no'"), stacklevel=2)
        network = getattr(model, "_module", model)
        if getattr(network, "loss_type", _RECORD_MEANS[0]) not in _RECORD_MEANS:
            warnings.warn(
                f"The loss of {type(network).__name__} may be a mean over all tokens of a batch: then each record's "
                "gradient depends on the others, which clipping does not bound. Pass a compute_loss_func that averages "
                "within each record first.",
                stacklevel=2,
            )

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002
        self._optimizer.zero_grad()  # the Trainer clears the model's gradients, not those that Opacus has summed up

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002
        control.should_training_stop = control.should_training_stop or not self.has_next

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002
        self.end()
