"""What published settings come to here, at ε = 3 and δ = 1e-5.

    python -m research.published --setting fashion_mnist --seeds 3

Linear models on ScatterNet features and tanh networks of Tramèr and Boneh 2021 (arXiv:2011.11660); the same networks
with AUTO-S of Bu et al. 2023 (arXiv:2206.07136, Table 1). The optimiser is SGD with a momentum of 0.9, as
`optimizer=SGD` is here. They normalise features in groups of one picture's channels (Fashion-MNIST), or by channels'
means and variances over the private pictures, estimated with noise (MNIST, CIFAR-10). Where they do the latter, the
task's own features are taken, which are standardised over synthetic pictures.
"""

import argparse
import statistics
import sys
from dataclasses import dataclass, replace
from typing import Any, Literal

import dphpo_bench as bench
from dphpo_bench.contract.registry import make_method, make_task
from dphpo_bench.zoo.dataset_task import ImageTask

BUDGET = bench.PrivacyBudget(epsilon=3, delta=1e-5)


@dataclass(frozen=True)
class Setting:
    """What was published; the accuracy in %."""

    task: str
    model: str
    accuracy: float
    batch_size: int
    learning_rate: float
    epochs: int
    clipping: str = "abadi:0.1"
    normalisation: Literal["group_norm", "pink_noise"] = "pink_noise"


PUBLISHED = {
    "mnist": Setting("mnist", "linear", 98.7, 4096, 8, 40),
    "fashion_mnist": Setting("fashion_mnist", "linear", 89.7, 8192, 16, 40, normalisation="group_norm"),
    "cifar10": Setting("cifar10", "linear", 67.0, 8192, 4, 60),
    "mnist_cnn": Setting("mnist", "cnn", 98.1, 512, 0.5, 40),
    "mnist_cnn_auto_s": Setting("mnist", "cnn", 98.15, 512, 0.05, 40, "auto_s"),
    "fashion_mnist_cnn": Setting("fashion_mnist", "cnn", 86.0, 2048, 4, 40),
    "fashion_mnist_cnn_auto_s": Setting("fashion_mnist", "cnn", 86.36, 2048, 0.4, 40, "auto_s"),
}


def task_of(setting: Setting) -> bench.Task:
    """Return the task with features that are normalised as published."""
    task: Any = type(make_task(setting.task))
    assert issubclass(task, ImageTask)
    features = replace(task.features, normalisation=setting.normalisation)
    as_published: Any = type(task.__name__, (task,), {"features": features})
    return as_published(setting.model)


def accuracy(setting: Setting, seed: int) -> float:
    """Return the test accuracy of a seed, in %."""
    parameters = {
        "optimizer": "SGD",
        "clipping": setting.clipping,
        "batch_size": setting.batch_size,
        "learning_rate": setting.learning_rate,
        "epochs": setting.epochs,
        "averaging": 0,
    }
    run = bench.run(make_method("dp_sgd", parameters), task_of(setting), BUDGET, seed=seed)
    return 100 * run.record.metrics["accuracy"]


def ceiling(task: str, model: str, seed: int) -> float:
    """Return the test accuracy without privacy, in %: ten epochs of AdamW at .001, batches of 256, along a cosine."""
    run = bench.run(make_method("nonprivate", {"learning_rate": 0.001}), make_task(task, model), BUDGET, seed=seed)
    return 100 * run.record.metrics["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=PUBLISHED, default="fashion_mnist")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, help="instead of the published one")
    asked = parser.parse_args()
    setting = PUBLISHED[asked.setting]
    used = replace(setting, learning_rate=asked.learning_rate or setting.learning_rate)
    values = [accuracy(used, seed) for seed in range(asked.seeds)]
    here = ", ".join(f"{value:.2f}" for value in values)
    sys.stdout.write(f"{asked.setting}: published {setting.accuracy}, here {statistics.mean(values):.2f} ({here})\n")


if __name__ == "__main__":
    main()
