"""An Opacus loop that needs no learning rate: the lines marked with # + are all that changes.

    python examples/opacus_loop.py

The loop is the usual one of Opacus, on the digits that scikit-learn packages.
"""

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import dphpo_bench as bench

BUDGET = bench.PrivacyBudget(3, 1e-4)
BATCH_SIZE, EPOCHS = 256, 20

images, labels = load_digits(return_X_y=True)
inputs, targets = torch.tensor(images / 16).float(), torch.tensor(labels)
records = TensorDataset(inputs[:1437], targets[:1437])


def losses(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the loss of each record."""
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


if __name__ == "__main__":
    model = nn.Linear(64, 10)
    loader = DataLoader(records, batch_size=BATCH_SIZE)
    tuner = bench.hyfreedp.Tuner(  # +
        model, records, losses, sample_rate=1 / len(loader), steps=EPOCHS * len(loader), budget=BUDGET,
        name="digits", results_dir="results",
    )  # fmt: skip
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        data_loader=loader,
        noise_multiplier=tuner.noise_multiplier,  # +
        max_grad_norm=0.01,
    )
    tuner.attach(optimizer, loader, engine.accountant)  # +
    for _ in range(EPOCHS):
        for x, y in loader:
            functional.cross_entropy(model(x), y).backward()
            tuner.step()  # + in place of optimizer.step() and optimizer.zero_grad()
    finished = tuner.finish()  # +

    right = (model(inputs[1437:]).argmax(1) == targets[1437:]).double().mean()
    print(f"Accuracy {right:.1%} at a learning rate that the queries found: {tuner.learning_rate:.3g}.")
    theirs = engine.get_epsilon(BUDGET.delta)
    print(f"ε = {finished.record.privacy.epsilon:.3f} here, {theirs:.3f} in Opacus' accountant.")
    print(finished.account)
