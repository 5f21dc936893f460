"""HyFreeDP against an oracle that tunes the learning rate without privacy, on real data.

    python tests/benchmarks/accuracy.py --task cifar10 --epsilon 1 3 8 --seeds 3

The oracle is `auto_clipping` on the same engine, with the same batch size, epochs and averaging, at each rate of a
grid; its accuracy is that of the best rate on the test data, which is not private and flatters it. The whole grid
runs at seed 0; its best two entries run at the other seeds. Each finished run is a record, and is not run again.
"""

import argparse
import statistics
from pathlib import Path

import torch

import dphpo_bench as bench
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.records.store import RecordStore

GRID = {"AdamW": (0.0003, 0.001, 0.003, 0.01, 0.03), "SGD": (0.1, 0.3, 1.0, 3.0, 10.0)}
DELTA = 1e-5


def accuracy(method: bench.Method, task: bench.Task, epsilon: float, seed: int, results: Path) -> float:
    """Test accuracy in percent, from the record if there is one."""
    budget = bench.PrivacyBudget(epsilon, DELTA)
    source = bench.DataSource.resolve()
    record = RecordStore(results).find(identity_of(method, task_identity(task, task.facts, source), budget, seed))
    if record is None:
        record = bench.run(method, task, budget, seed=seed, source=source, results_dir=results, check=False).record
    if record.status != "ok":
        raise SystemExit(f"{method.name} on {task.name} failed: {record.error}")
    return 100 * record.metrics["accuracy"]


def main() -> None:
    """Print a row for each task and ε."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=["mnist", "fashion_mnist", "cifar10"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 3.0, 8.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", default=None)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="parameters of hyfreedp")
    parser.add_argument("--no-oracle", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    overrides = dict(setting.split("=", 1) for setting in options.set)
    for name in options.task:
        task = bench.make_task(name, options.model)
        for epsilon in options.epsilon:
            hyfreedp = bench.make_method("hyfreedp", overrides)
            ours = [accuracy(hyfreedp, task, epsilon, seed, options.results) for seed in range(options.seeds)]
            row = f"{name} ε={epsilon:g}: hyfreedp {statistics.mean(ours):.2f} {[round(a, 2) for a in ours]}"
            if not options.no_oracle:
                row += _oracle(task, epsilon, options.seeds, options.results, hyfreedp.parameters["averaging"])
            print(row, flush=True)  # noqa: T201


def _oracle(task: bench.Task, epsilon: float, seeds: int, results: Path, averaging: float) -> str:
    grid = {
        (optimizer, rate): bench.make_method(
            "auto_clipping",
            {"optimizer": optimizer, "learning_rate": str(rate), "averaging": str(averaging)},
        )
        for optimizer, rates in GRID.items()
        for rate in rates
    }
    first = {key: accuracy(method, task, epsilon, 0, results) for key, method in grid.items()}
    best_two = sorted(first, key=lambda key: -first[key])[:2]
    means = {
        key: statistics.mean(
            [first[key], *(accuracy(grid[key], task, epsilon, seed, results) for seed in range(1, seeds))]
        )
        for key in best_two
    }
    best = max(means, key=lambda key: means[key])
    curve = ", ".join(f"{optimizer} {rate:g}: {first[optimizer, rate]:.2f}" for optimizer, rate in grid)
    return f" | oracle {means[best]:.2f} at {best[0]} {best[1]:g} | seed 0: {curve}"


if __name__ == "__main__":
    main()
