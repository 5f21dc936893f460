"""What hyperparameters from CIFAR-10's own other classes are worth: tune on vehicles, train on animals, or the reverse.

    python -m research.public_classes --private animals --seeds 3

The model is linear on the features of the task's "pretrained", with its batch size and epochs. Beside `public_proxy`
stand methods that pay, methods that tune nothing, and both oracles.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping

import torch

import dphpo_bench as bench
from dphpo_bench.contract.registry import make_method, make_task
from dphpo_bench.recipes.networks import zero_linear
from tests.own_task import array_task

CLASSES = {"animals": (2, 3, 4, 5, 6, 7), "vehicles": (0, 1, 8, 9)}
SGD = {"optimizer": "SGD", "space": "wide"}
METHODS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("public_proxy", {}),
    ("public_proxy", SGD),
    ("recommended", {}),
    ("noise_scaled", {}),
    ("hyfreedp", {}),
    ("grid_oracle", {}),
    ("grid_oracle", SGD),
)


def part(which: str, source: bench.DataSource, sibling: bench.Task | None = None) -> bench.Task:
    """Return the task on some of the classes of CIFAR-10."""
    whole, classes = make_task("cifar10", "pretrained"), torch.tensor(CLASSES[which])

    def chosen(records: bench.Records) -> tuple[torch.Tensor, torch.Tensor]:
        named = records.rows(torch.isin(records.named()["targets"], classes)).named()
        return named["inputs"], torch.searchsorted(classes, named["targets"])

    whole.prepare(source)
    train, test = chosen(whole.load_train(source)), chosen(whole.load_test(source))
    return array_task(
        f"cifar10_{which}",
        train,
        lambda: zero_linear(train[0].shape[1], len(classes)),
        test,
        n_classes=len(classes),
        batch_size=whole.facts.batch_size,
        epochs=whole.facts.epochs,
        public=True,
        sibling=sibling,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--private", choices=CLASSES, default="animals")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    (public,) = CLASSES.keys() - {asked.private}
    source = bench.DataSource.resolve()
    task = part(asked.private, source, sibling=part(public, source))
    sys.stdout.write(f"{asked.private}, N = {task.facts.n_records:,}: accuracy in %, and the rates that were taken\n")
    for name, parameters in METHODS:
        for epsilon in (1, 3, 8):
            budget = bench.PrivacyBudget(epsilon, task.facts.default_delta)
            method = make_method(name, parameters)
            runs = [
                bench.run(method, task, budget, seed=seed, execution=bench.ExecutionOptions(source=source))
                for seed in range(asked.seeds)
            ]
            accuracy = statistics.mean(run.record.metrics["accuracy"] for run in runs)
            rates = ", ".join(f"{run.record.released.get('learning_rate', 0):.3g}" for run in runs)
            label = f"{name} {parameters.get('optimizer', '')}".strip()
            sys.stdout.write(f"{label:17} ε = {epsilon}: {100 * accuracy:.1f} ({rates})\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
