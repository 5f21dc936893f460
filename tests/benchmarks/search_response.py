"""Accuracies of many candidates at several noises: what `search_defaults.py` simulates searches on.

    python tests/benchmarks/search_response.py --task digits adult    # minutes on one core

Candidates of both spaces, the learning rate alone and all that is searched, are trained on nine tenths of the records
of a linear task at several noises, and judged by their accuracy on the test records, the mean of three runs where these
are few. Noise is relative to what a single run of that schedule needs at ε = 1. All runs of one schedule are trained at
once: they share their batches and nothing else, which a table of means does not mind. `--check` holds some of them
against the package's own training: on digits nine runs differ by .2 to 2.4 points, and by 7 at the smallest rate.

The table that is kept is older than `search.usual`: its candidates have three batch sizes and three numbers of epochs.
"""

import argparse
import csv
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import dphpo_bench as bench
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.search_space import Space
from dphpo_bench.data.source import DataSource
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.recipes.trial import OWN_CODE
from dphpo_bench.session.session import open_session
from dphpo_bench.training.evaluation import total_score
from dphpo_bench.training.randomness import Streams

TABLE = Path(__file__).with_suffix(".csv")
NOISES = (0.22, 0.4, 0.7, 1.0, 1.6, 2.7, 5.0, 12.0)
CANDIDATES = {"learning_rate": 20, "full": 120}
REPEATED = {"digits": 3}  # few test records
TRAINED = 0.9


@dataclass(frozen=True)
class Data:
    """A task's records, with a column of ones for the bias."""

    facts: bench.TaskFacts
    train: Tensor
    train_targets: Tensor
    test: Tensor
    test_targets: Tensor

    @classmethod
    def of(cls, task: bench.Task) -> "Data":
        """The records of a task whose model is linear."""
        source = DataSource.resolve()
        train, test = task.load_train(source), task.load_test(source)
        kept = torch.rand(len(train), generator=torch.Generator().manual_seed(0)) < TRAINED
        ones = [torch.cat([part.inputs, torch.ones(len(part), 1)], 1) for part in (train, test)]
        return cls(task.facts, ones[0][kept], train.targets[kept], ones[1], test.targets)

    @property
    def outputs(self) -> int:
        """One for a binary task, else one for each class."""
        return 1 if self.facts.kind == "binary" else int(self.facts.n_classes or 0)

    def residuals(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Gradients of the losses by the outputs, shape (models, records, outputs)."""
        if self.outputs == 1:
            return logits.sigmoid() - targets[:, None]
        return logits.softmax(-1) - torch.nn.functional.one_hot(targets, self.outputs)

    def accuracies(self, weights: Tensor) -> Tensor:
        """Test accuracy of each model."""
        logits = self.test @ weights
        said = (logits > 0).squeeze(-1).float() if self.outputs == 1 else logits.argmax(-1)
        return (said == self.test_targets).float().mean(-1)


def candidates_of(facts: bench.TaskFacts, extent: search.Extent, count: int) -> list[bench.Candidate]:
    """Candidates of the learning rate alone lie on a grid; those of larger spaces are drawn."""
    if extent == "full":
        return [search.draw(facts.searched(Space(extent)), index) for index in range(count)]
    space = Space(extent, optimizer=facts.optimizer)
    return [{**candidate, "optimizer": facts.optimizer} for candidate in facts.grid(count, space)]


def trained(
    data: Data, some: list[tuple[bench.Candidate, float]], steps: int, rate: float, sigma: float, seed: int
) -> Tensor:
    """Test accuracies of these candidates, each at a noise relative to `sigma`; all have one schedule."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values)[:, None, None]

    candidates = [candidate for candidate, _ in some]
    learning_rate = column([one["learning_rate"] for one in candidates])
    adam = column([float(one["optimizer"] == "AdamW") for one in candidates]) > 0
    decay = column([one.get("weight_decay", 0.01 * (one["optimizer"] == "AdamW")) for one in candidates])
    auto = column([float(one.get("clipping", "auto_s") == "auto_s") for one in candidates]) > 0
    batch = rate * data.facts.n_records * TRAINED
    noise = sigma * column([relative for _, relative in some]) / batch
    generator = torch.Generator().manual_seed(seed)
    weights = torch.zeros(len(some), data.train.shape[1], data.outputs)
    first, second, average = (torch.zeros_like(weights) for _ in range(3))
    lengths = data.train.norm(dim=1)
    for step in range(steps):
        rows = (torch.rand(len(data.train), generator=generator) < rate).nonzero().squeeze(1)
        x = data.train[rows]
        residuals = data.residuals(x @ weights, data.train_targets[rows])
        norms = (residuals.norm(dim=-1) * lengths[rows])[..., None]
        factors = torch.where(auto, 1 / (norms + 0.01), (1 / norms).clamp(max=1))
        gradient = x.t() @ (residuals * factors) / batch
        gradient += noise * torch.randn(gradient.shape, generator=generator)
        first = torch.where(adam, 0.9 * first + 0.1 * gradient, 0.9 * first + gradient + decay * weights)
        second = 0.999 * second + 0.001 * gradient**2
        root = (second / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
        direction = torch.where(adam, first / (1 - 0.9 ** (step + 1)) / root + decay * weights, first)
        weights = weights - learning_rate * direction
        average += (1 - min(0.99, (1 + step) / (10 + step)) if step else 1.0) * (weights - average)
    return data.accuracies(average)


def measure(name: str, write: "csv._writer") -> None:
    """A row for each candidate and noise."""
    task = bench.make_task(name)
    data = Data.of(task)
    schedules = defaultdict(list)
    for extent, count in CANDIDATES.items():
        for candidate in candidates_of(data.facts, extent, count):
            schedule = (candidate.get("batch_size"), candidate.get("epochs"))
            schedules[schedule] += [(extent, candidate, noise) for noise in NOISES]
    for schedule, rows in schedules.items():
        facts, sigma = data.facts.with_schedule(*schedule), noise_of_one_run(data.facts.with_schedule(*schedule))
        some = [(candidate, noise) for _, candidate, noise in rows]
        seeds = range(REPEATED.get(name, 1))
        found = [trained(data, some, facts.steps, facts.sample_rate, sigma, seed) for seed in seeds]
        means = torch.stack(found).mean(0).tolist()
        for (extent, candidate, noise), accuracy in zip(rows, means, strict=True):
            write.writerow([name, extent, json.dumps(candidate), noise, f"{accuracy:.4f}"])


def noise_of_one_run(facts: bench.TaskFacts) -> float:
    """σ of a run at ε = 1."""
    run = bench.DpSgd.of(facts)
    return run.calibrated(bench.PrivacyBudget(1, facts.default_delta)).noise_multiplier


def check(name: str, count: int = 8) -> None:
    """Print some accuracies of the table beside those of the package's own training."""
    task, source = bench.make_task(name), DataSource.resolve()
    train, test = task.load_train(source), task.load_test(source)
    with TABLE.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == name and row["noise"] == "1.0"]
    for row in rows[:: len(rows) // count]:
        candidate = json.loads(row["hyperparameters"])
        facts = task.facts.with_schedule(candidate.get("batch_size"), candidate.get("epochs"))
        free = {name: value for name, value in candidate.items() if name not in search.SCHEDULE}
        run = bench.DpSgd.of(facts).having(free).with_noise(noise_of_one_run(facts))
        session = open_session(task, train, Ledger(), Streams(0), own_code=OWN_CODE)
        model = run.train(session.holdout(1 - TRAINED)[0])
        print(row["accuracy"], f"{total_score(model, task.scores, test) / len(test):.4f}", candidate, flush=True)  # noqa: T201


def main() -> None:
    """Write the table anew, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=["digits"])
    parser.add_argument("--check", action="store_true", help="train some candidates by the package instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.check:
        for name in options.task:
            check(name)
        return
    with TABLE.open("w", newline="") as file:
        write = csv.writer(file, lineterminator="\n")
        write.writerow(["task", "space", "hyperparameters", "noise", "accuracy"])
        for name in options.task:
            measure(name, write)


if __name__ == "__main__":
    main()
