"""Private selection among three public encodings of a table, paid from the budget of the training.

    python examples/select_encoding.py

Numbers come as they are, in public bins, or both. A trial draws an encoding, trains a logistic regression on nine
records of ten, and scores the others. No constant is learned from the records, so encoding itself costs nothing.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import dphpo_bench as bench
from dphpo_bench.tasks.readmissions import COLUMNS, stays

EDGES = torch.logit(torch.arange(1, 8) / 8)  # of eight bins, equally likely if a number is logistic


def encodings(inputs: Tensor, columns: bench.Columns | None) -> dict[str, Tensor]:
    """Return inputs of declared columns in each of the encodings; without columns, all inputs are numbers."""
    kinds = [column for column in (columns or {}).values() if column for _ in range(column.size)]
    is_number = torch.tensor([not isinstance(kind, bench.Category) for kind in kinds] or [True] * inputs.shape[1])
    bins = one_hot(torch.bucketize(inputs[:, is_number], EDGES), 8).flatten(1)
    return {
        "numbers": inputs,
        "bins": torch.cat([inputs[:, ~is_number], bins], 1),
        "both": torch.cat([inputs, bins], 1),
    }


def descend(
    inputs: Tensor, labels: Tensor, noise: float, generator: torch.Generator, move: float, share: float, steps: int
) -> Tensor:
    """Return weights and a bias of DP-SGD with momentum .9: Poisson batches of a share, gradients clipped at 1."""
    inputs = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
    weights, velocity = torch.zeros(2, inputs.shape[1])
    for _ in range(steps):
        drawn = torch.rand(len(inputs), generator=generator) < share
        gradients = inputs[drawn] * ((inputs[drawn] @ weights).sigmoid() - labels[drawn])[:, None]
        total = (gradients / gradients.norm(dim=1, keepdim=True).clamp(min=1)).sum(0)
        velocity.mul_(0.9).add_(total).add_(torch.randn(len(weights), generator=generator), alpha=noise)
        weights -= move * velocity
    return weights


def choose(
    encoded: dict[str, Tensor],
    labels: Tensor,
    budget: bench.PrivacyBudget,
    move: float,
    share: float,
    steps: int,
    results_dir: str | None = None,
) -> bench.search.StudyResult:
    """Return the best of a secret number of trials, by the held-out records' mean probability of the true label."""
    scores_only = torch.rand(len(labels)) < 0.1  # a coin for each record

    def train(trial: bench.search.StudyTrial) -> tuple[Tensor, Tensor]:
        inputs = encoded[trial.params["encoding"]]
        settings = trial.noise_multiplier, trial.generator, move, share, steps
        weights = descend(inputs[~scores_only], labels[~scores_only], *settings)
        positive = (inputs[scores_only] @ weights[:-1] + weights[-1]).sigmoid()
        return weights, 1 - (positive - labels[scores_only]).abs()

    return bench.select(
        train,
        {"encoding": list(encoded)},
        budget=budget,
        event=lambda noise: bench.recipes.dp_sgd_event(share, steps, noise),
        held_out=0.1,
        n_scored=len(labels) // 10,
        name="encodings",
        results_dir=results_dir,
    )


if __name__ == "__main__":
    rows = stays()
    answers = torch.tensor([float(row.pop("readmitted")) for row in rows])
    tables = encodings(COLUMNS.encode(rows), COLUMNS)
    train_only = {name: inputs[:8000] for name, inputs in tables.items()}
    result = choose(train_only, answers[:8000], bench.PrivacyBudget(1, 1e-5), 4 / 2000, 0.25, 160, "results")
    if result.params:
        outputs = tables[result.params["encoding"]][8000:] @ result.model[:-1] + result.model[-1]
        area = bench.metrics.ROC_AUC.of(outputs[:, None], answers[8000:])
        print(f"ε = {result.epsilon:.2f} for {result.params}: ROC-AUC {area:.1%}")
