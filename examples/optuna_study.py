"""An Optuna objective around an Opacus loop, tuned within one budget: of its trials only the winner is released.

    python examples/optuna_study.py

Before, this file ended in three lines, and an ε of one training:

    study = optuna.create_study(direction="maximize")
    study.optimize(objective, n_trials=20)
    print(study.best_params, study.best_value)

Twenty raw scores, and the winner that they chose, cost far more: `dphpo-bench price` says how much. Changed in the
objective: noise multiplier and noise come from the trial, and it returns its model. The pictures are the digits that
scikit-learn packages.
"""

import warnings

import opacus
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import dphpo_bench as bench

images, labels = load_digits(return_X_y=True)
inputs, targets = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
scores_only = torch.rand(len(inputs), generator=torch.Generator().manual_seed(0)) < 0.2  # a coin for each record
train = DataLoader(TensorDataset(inputs[~scores_only], targets[~scores_only]), batch_size=200)
EPOCHS = 4


def event(noise_multiplier: float) -> object:
    """Declare one training: Poisson batches with rate 1 / len(train), as Opacus draws them."""
    return bench.recipes.dp_sgd_event(1 / len(train), EPOCHS * len(train), noise_multiplier)


def objective(trial: bench.search.StudyTrial) -> tuple[float, nn.Module]:
    """Train with Opacus; return the accuracy on records that only score, and the model."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    name = trial.suggest_categorical("optimizer", ["SGD", "Adam"])
    low, high = (0.1, 10.0) if name == "SGD" else (1e-3, 1e-1)
    optimizer = getattr(torch.optim, name)(
        model.parameters(), lr=trial.suggest_float(f"lr_{name}", low, high, log=True)
    )
    private, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train,
        noise_multiplier=trial.noise_multiplier,  # was: 1.1
        max_grad_norm=1.0,
        noise_generator=trial.generator,
    )
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(private(x), y).backward()
            optimizer.step()
    model = private.to_standard_module()
    accuracy = (model(inputs[scores_only]).argmax(1) == targets[scores_only]).float().mean()
    return accuracy.item(), model


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="opacus")
    study = bench.optuna.PrivateStudy(
        budget=bench.PrivacyBudget(epsilon=3, delta=1e-4),  # for all trials together, and their scores
        event=event,
        held_out=0.2,
        n_scored=300,  # at least so many records score; public
        name="digits",
    )
    study.optimize(objective)  # no n_trials: their number is drawn in secret
    print(f"{study.best_params}, noisy accuracy {study.best_value:.1%}, ε = {study.epsilon:.2f}")
    torch.save(study.best_model.state_dict(), "optuna_study.pt")
