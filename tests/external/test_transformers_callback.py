import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from dphpo_bench import transformers as ours
from dphpo_bench.base.errors import DataError, InvalidValueError, OverBudgetError
from dphpo_bench.external.declared import steps_within
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.transformers import BudgetCallback
from tests.external.trainings import BUDGET, RATE, Parts, private_parts

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook"),
    pytest.mark.filterwarnings("ignore:No account counts this"),
]
RECORDS = 64


class PoissonTrainer(Trainer):
    """A Trainer that reads the batches which Opacus drew."""

    loader: Any = None

    def get_train_dataloader(self) -> Any:
        return self.loader


def tokens(records: int = RECORDS) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    return [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(row % 2)} for row in range(records)]


def transformer() -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    model.bert.embeddings.position_embeddings.requires_grad_(False)  # shared by the records of a batch
    return model


def trainer_of(
    folder: Path, callback: BudgetCallback, parts: Parts | None = None, *others: Any, **settings: Any
) -> PoissonTrainer:
    if parts is None:
        parts = private_parts(model=transformer(), data=tokens(), wrap_model=False)
    arguments = {"max_steps": 500, "report_to": "none", "save_strategy": "no", "logging_strategy": "no"} | settings
    args = TrainingArguments(
        str(folder),
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        **arguments,  # type: ignore[arg-type]
    )
    trainer = PoissonTrainer(
        parts.model,
        args,
        train_dataset=tokens(),
        eval_dataset=tokens(8),
        optimizers=(parts.optimizer, None),
        callbacks=[callback, *others],
    )
    trainer.loader = parts.loader
    return trainer


def callback_of(folder: Path | None = None, name: str = "bert", **how: Any) -> BudgetCallback:
    return BudgetCallback(PrivacyBudget(*BUDGET), name=name, results_dir=folder, **how)


@pytest.mark.parametrize("wraps", [True, False])
def test_the_trainer_stops_at_the_budget_with_a_record(tmp_path: Path, wraps: bool) -> None:
    parts = private_parts(model=transformer(), data=tokens(), wrap_model=wraps)
    callback = callback_of(tmp_path)
    trainer = trainer_of(tmp_path, callback, parts)
    before = [weight.clone() for weight in parts.model.parameters()]
    trainer.train()
    taken = trainer.state.global_step
    assert taken == steps_within(PrivacyBudget(*BUDGET), RATE, 2.0)
    assert parts.engine.accountant.history == [(2.0, RATE, taken)]
    assert callback.finished is not None
    assert f"{taken} × Poisson(q=0.25; Gaussian σ=2)" in callback.finished.statement()
    assert any(not torch.equal(old, new) for old, new in zip(before, parts.model.parameters(), strict=True))


def test_planned_steps_are_the_trainers_if_the_budget_covers_them(tmp_path: Path) -> None:
    callback = callback_of()
    trainer = trainer_of(tmp_path, callback, max_steps=5)
    trainer.train()
    assert trainer.state.global_step == callback.taken == callback.steps == 5


def test_a_training_that_goes_on_from_a_checkpoint_is_refused(tmp_path: Path) -> None:
    trainer_of(tmp_path, callback_of(), max_steps=4, save_strategy="steps", save_steps=2).train()
    with pytest.raises(InvalidValueError, match="that is another release"):
        trainer_of(tmp_path, callback_of(), max_steps=8).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"gradient_accumulation_steps": 4}, "got gradient_accumulation_steps=4: a record may be in several"),
        (
            {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"},
            "choose by raw scores, and the evaluation records may be private",
        ),
        ({"metric_for_best_model": "accuracy"}, "choose by raw scores"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"}, "choose by raw scores"),
    ],
)
def test_what_is_silently_wrong_is_refused(tmp_path: Path, settings: dict[str, Any], rule: str) -> None:
    callback = callback_of(tmp_path / "results")
    with pytest.raises(InvalidValueError, match=rule) as refusal:
        trainer_of(tmp_path, callback, **settings).train()
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "results").exists()


def test_half_precision_and_a_search_of_the_trainer_are_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, callback_of())
    trainer.args.fp16 = True  # which this machine may not have
    with pytest.raises(InvalidValueError, match=r"got fp16=True: .* Use bf16=True"):
        trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    trainer.state.is_hyper_param_search = True
    with pytest.raises(InvalidValueError, match=r"tune with bench\.select"):
        trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)


def test_public_evaluation_may_choose(tmp_path: Path) -> None:
    callback = callback_of(public_evaluation=True)
    settings = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"}
    trainer_of(tmp_path, callback, None, EarlyStoppingCallback(), **settings).train()
    assert callback.taken == 4


def test_raw_values_that_the_trainer_shows_are_named(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, callback_of(), max_steps=2, logging_strategy="steps")
    with pytest.warns(UserWarning, match="losses of private records, and scores of evaluations, without noise"):
        trainer.train()


def test_a_mean_over_the_tokens_of_a_batch_is_named(tmp_path: Path) -> None:
    callback, parts = callback_of(), private_parts(model=transformer(), data=tokens(), wrap_model=False)
    trainer = trainer_of(tmp_path, callback, parts)
    network = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    handed = {"model": network, "optimizer": parts.optimizer, "train_dataloader": parts.loader}
    with pytest.warns(UserWarning, match="The loss of GPT2LMHeadModel may be a mean over all tokens of a batch"):
        callback.on_train_begin(trainer.args, trainer.state, trainer.control, **handed)


def test_a_batch_that_is_split_in_memory_is_one_step(tmp_path: Path) -> None:
    from opacus.utils.batch_memory_manager import wrap_data_loader

    parts = private_parts(model=transformer(), data=tokens(), wrap_model=False)
    parts.loader = wrap_data_loader(data_loader=parts.loader, max_batch_size=6, optimizer=parts.optimizer)
    callback = callback_of()
    trainer = trainer_of(tmp_path, callback, parts, max_steps=12)
    trainer.train()
    ((noise, rate, steps),) = parts.engine.accountant.history
    assert (noise, rate) == (2.0, RATE)
    assert callback.taken == steps < trainer.state.global_step == 12


def test_a_lower_noise_ends_the_training_before_its_step(tmp_path: Path) -> None:
    class Fall(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step == 3:
                parts.optimizer.noise_multiplier = 1.0

    parts = private_parts(model=transformer(), data=tokens(), wrap_model=False)
    callback = callback_of()
    with pytest.raises(OverBudgetError, match="The noise of step 4 fell to 1"):
        trainer_of(tmp_path, callback, parts, Fall()).train()
    assert parts.engine.accountant.history == [(2.0, RATE, 3)]
    assert callback.finished is not None
    assert callback.finished.record.status == "failed"


def test_without_the_library_a_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dphpo_bench.base.errors.find_spec", lambda name: None if name == "transformers" else name)
    monkeypatch.delitem(sys.modules, "dphpo_bench.external.transformers_callback")
    monkeypatch.delitem(vars(ours), "BudgetCallback", raising=False)
    with pytest.raises(DataError, match=r"pip install 'dphpo-bench\[transformers\]'\.$"):
        _ = ours.BudgetCallback
