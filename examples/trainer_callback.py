"""A Trainer of Hugging Face that stops when its privacy budget is spent, and states what it guarantees.

    python examples/trainer_callback.py

The model is a small BERT of random weights, on random texts. Opacus makes optimiser and loader private; the callback
counts the steps that the budget covers in the account of the records, and writes the record.
"""

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import dphpo_bench as bench

config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
model = BertForSequenceClassification(config).train()
model.bert.embeddings.position_embeddings.requires_grad_(False)  # one for all records of a batch
records = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(row % 2)} for row in range(256)]

_, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    optimizer=torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=1e-3),
    data_loader=DataLoader(records, batch_size=32),
    noise_multiplier=2.0,
    max_grad_norm=1.0,
    wrap_model=False,
)


class PoissonTrainer(Trainer):
    """A Trainer on the batches that Opacus draws."""

    def get_train_dataloader(self) -> DataLoader:
        return loader


if __name__ == "__main__":
    callback = bench.transformers.BudgetCallback(bench.PrivacyBudget(3, 1e-5), name="reviews", results_dir="results")
    arguments = TrainingArguments(
        "checkpoints",
        num_train_epochs=100,
        max_grad_norm=0,  # Opacus clips
        logging_strategy="no",  # losses of private records
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
    )
    PoissonTrainer(model, arguments, optimizers=(optimizer, None), callbacks=[callback]).train()
    print(f"Stopped after {callback.taken} steps.\n{callback.finished.statement()}")
