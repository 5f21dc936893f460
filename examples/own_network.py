"""A network of your own, on pictures: what it may look like, what a run would cost, and the run.

    python examples/own_network.py
    dphpo-bench run --method auto_clipping --task-file examples/own_network.py:digits --epsilon 8

The pictures are the digits that scikit-learn packages, 8 × 8 pixels.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import dphpo_bench as bench


class SmallNetwork(nn.Module):
    """Two convolutions. Each record is treated alone, so there is GroupNorm where others have BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3),
            nn.Tanh(),
        )
        self.head = nn.Linear(32 * 2 * 2, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Scores of ten classes."""
        return self.head(self.features(pixels).flatten(1))


def digits() -> bench.ArrayTask:
    """Split the pictures: the first 1,437 to train on, the others to test on."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 1, 8, 8) / 16  # 16 is the largest value that a pixel can have
    return bench.ArrayTask(
        "own_digits",
        train=(images[:1437], labels[:1437]),
        test=(images[1437:], labels[1437:]),
        model=SmallNetwork,  # a function or a class without arguments: initial weights follow the seed
        measures=bench.Measures(metrics=[bench.metrics.ACCURACY, bench.metrics.BALANCED_ACCURACY]),
        training=bench.TrainingOptions(epochs=15, learning_rate=3e-3),
        public=True,  # scikit-learn ships them; leave this out if your records are private
    )


if __name__ == "__main__":
    task, budget = digits(), bench.PrivacyBudget(epsilon=8.0, delta=1e-4)
    planned = bench.plan("auto_clipping", task, budget)  # looks at no data
    print(f"{planned.plan.cost.steps} steps, ε = {planned.epsilon.epsilon:.4f}")

    result = bench.run("auto_clipping", task, budget, seed=0)
    print(", ".join(f"{name} {value:.1%}" for name, value in result.record.metrics.items()))
    torch.save(result.model.state_dict(), "own_network.pt")
