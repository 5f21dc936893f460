"""Private selection around a training loop that you have: the learning rate, paid for.

    python examples/select_loop.py

The loop is one of Opacus, on the digits that scikit-learn packages. It knows nothing of dphpo-bench: `train` hands it
a learning rate, a noise multiplier and a generator, and hands back the model and the scores of the held-out records.
"""

import torch
from opacus import PrivacyEngine
from optuna.distributions import FloatDistribution
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import dphpo_bench as bench

BUDGET = bench.PrivacyBudget(3, 1e-4)
BATCH_SIZE, EPOCHS = 256, 10

images, labels = load_digits(return_X_y=True)
inputs, targets = torch.tensor(images / 16).float(), torch.tensor(labels)
scores_only = torch.rand(len(targets), generator=torch.Generator().manual_seed(0)) < 0.1  # a coin for each record
records = TensorDataset(inputs[~scores_only], targets[~scores_only])


def loop(learning_rate: float, noise_multiplier: float, generator: torch.Generator) -> torch.nn.Module:
    """Train with Opacus."""
    model = torch.nn.Linear(64, 10)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=learning_rate),
        data_loader=DataLoader(records, batch_size=BATCH_SIZE, generator=generator),
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
        noise_generator=generator,
    )
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def train(trial: bench.search.StudyTrial) -> tuple[torch.nn.Module, torch.Tensor]:
    """Train once; score the records that never train."""
    model = loop(trial.params["learning_rate"], trial.noise_multiplier, trial.generator)
    return model, model(inputs[scores_only]).argmax(1) == targets[scores_only]


batches = len(DataLoader(records, batch_size=BATCH_SIZE))


def event(noise_multiplier: float) -> object:
    """Declare one training: Poisson batches of rate 1 / batches, as Opacus draws them."""
    return bench.recipes.dp_sgd_event(1 / batches, EPOCHS * batches, noise_multiplier)


if __name__ == "__main__":
    result = bench.select(
        train,
        {"learning_rate": FloatDistribution(1e-3, 1, log=True)},
        budget=BUDGET,
        event=event,
        held_out=0.1,
        n_scored=180,
        name="digits",
        results_dir="results",
    )
    print(f"ε = {result.epsilon:.2f} for {result.params}: noisy score {result.score:.2f}. {result.account}")
