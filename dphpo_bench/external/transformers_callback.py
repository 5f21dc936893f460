"""The callback of Hugging Face's Trainer that stops at a privacy budget."""

from collections.abc import Iterator
from typing import Any

from dphpo_bench.base.errors import InvalidValueError, require_extra
from dphpo_bench.external.budget_stop import StepBudget
from dphpo_bench.external.trainer_rules import ACCUMULATION, CHOICE, CLIPPING, HALF_PRECISION, SCORES, warn_of

require_extra("transformers", "bench.transformers.BudgetCallback needs", "transformers", "accelerate")

from transformers import TrainerCallback  # noqa: E402

_RECORD_MEANS = tuple(f"For{kind}Classification" for kind in ("Sequence", "Image", "Video", "Audio"))
"""Losses of the library that are means over records, whose gradients do not depend on one another."""


class BudgetCallback(StepBudget, TrainerCallback):
    __doc__ = f"""Callback of `transformers.Trainer` that ends a training before its budget is exceeded.

    It fixes and counts the steps before the first one, sets `control.should_training_stop` after the last, and writes
    the record at the end. {StepBudget.__doc__}"""

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002
        for is_wrong, why in _refusals(args, state, self.public_evaluation):
            if is_wrong:
                raise InvalidValueError(why)
        model, optimizer = parts.get("model"), parts.get("optimizer")
        self.begin(model, optimizer, parts.get("train_dataloader"), state.max_steps, state.global_step)
        warn_of(_doubts(args, model, self.public_evaluation, self.has_opacus))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002
        self.before_step()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002
        self.clear_gradients()

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002
        if self.after_step():
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002
        self.end()


def _refusals(args: Any, state: Any, public_evaluation: bool) -> Iterator[tuple[bool, str]]:
    chooses = (
        args.load_best_model_at_end
        or args.metric_for_best_model is not None
        or str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)) in ("reduce_lr_on_plateau", "greedy")
    )
    yield (
        state.is_hyper_param_search,
        "The best of several trials is chosen by raw scores, which nobody pays for. Tune with bench.select, whose ε "
        "covers the choice.",
    )
    yield (
        args.gradient_accumulation_steps > 1,
        ACCUMULATION.format(f"gradient_accumulation_steps={args.gradient_accumulation_steps}"),
    )
    yield args.fp16, HALF_PRECISION.format("fp16=True", "bf16=True")
    yield (
        args.n_gpu > 1,
        f"Expected one device in a process, got n_gpu={args.n_gpu}, which Opacus does not support. Use torchrun.",
    )
    yield (
        chooses and not public_evaluation,
        CHOICE.format("load_best_model_at_end, metric_for_best_model and schedules that look at it"),
    )


def _doubts(args: Any, model: Any, public_evaluation: bool, has_opacus: bool) -> Iterator[tuple[bool, str]]:
    def is_on(strategy: Any) -> bool:
        return str(getattr(strategy, "value", strategy)) != "no"

    network = getattr(model, "_module", model)
    yield is_on(args.eval_strategy) and not public_evaluation, SCORES.format("eval_strategy='no'")
    yield (
        is_on(args.logging_strategy),
        "The Trainer logs loss and grad_norm of private records without noise: keep its logs and trainer_state.json as "
        "secret as the records, or set logging_strategy='no'.",
    )
    yield has_opacus and args.max_grad_norm > 0, CLIPPING.format(f"max_grad_norm={args.max_grad_norm:g}", "0")
    yield (
        getattr(network, "loss_type", _RECORD_MEANS[0]) not in _RECORD_MEANS,
        f"The loss of {type(network).__name__} may be a mean over all tokens of a batch: then each record's gradient "
        "depends on the tokens of the others, which clipping does not bound. Pass a compute_loss_func that averages "
        "within each record first.",
    )
