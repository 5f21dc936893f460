"""What other numbers of trials and wider spaces may be worth: searches on measured accuracies (`search_response.py`).

    python tests/benchmarks/search_defaults.py --epsilon 1        # minutes on one core; reads no data

Each setting is calibrated as the method's plan does it. Then many searches are played: the number of trials is drawn,
each trial is a row of the table at the noise that was calibrated, its score gets the noise of the count and that of
the held-out records, and the accuracy of what would be released is averaged. A share of the records that validates is
taken from training, and so raises the noise there. Trials on a sample of the records have as much more noise.
"""

import argparse
import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

import dphpo_bench as bench
from tests.benchmarks.search_response import NOISES, TABLE, TRAINED

PLAYED = 5000
MEANS = (2.0, 3.0, 5.0, 8.0, 12.0)
VALIDATION = (0.05, 0.1, 0.2)
FAMILIES: dict[str, Callable[[float], bench.RunCount]] = {
    "logarithmic": lambda mean: bench.TruncatedNegativeBinomial(mean, 0.0),
    "geometric": bench.geometric,
    "poisson": bench.Poisson,
}


@dataclass(frozen=True)
class Table:
    """The accuracies of one task's candidates, one row each, at the noises of `NOISES`."""

    facts: bench.TaskFacts
    accuracies: "np.ndarray[Any, Any]"

    @classmethod
    def read(cls, task: str, extent: str) -> "Table":
        """The rows of a task and a space."""
        facts, found = bench.make_task(task).facts, {}
        with TABLE.open(newline="") as file:
            for row in csv.DictReader(file):
                if row["task"] == task and row["space"] == extent:
                    found.setdefault(row["hyperparameters"], []).append(float(row["accuracy"]))
        return cls(facts, np.array(list(found.values())))

    def at(self, noise: float) -> "np.ndarray[Any, Any]":
        """Accuracies at a noise, relative to that of one run at ε = 1; between two of the table along the logarithm."""
        place = np.interp(math.log(noise), np.log(NOISES), np.arange(len(NOISES)))
        low = min(int(place), len(NOISES) - 2)
        return self.accuracies[:, low] + (place - low) * (self.accuracies[:, low + 1] - self.accuracies[:, low])


@cache
def one_run(task: str) -> float:
    """σ of one run at ε = 1."""
    facts = bench.make_task(task).facts
    run = bench.DpSgd.of(facts)
    return run.calibrated(bench.PrivacyBudget(1, facts.default_delta)).noise_multiplier


def chosen(
    table: Table, runs: bench.RunCount, noise: float, score_noise: float, validation: float, sample: float = 1.0
) -> tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
    """Which candidate each of many searches chooses, −1 for none, and the accuracy of its trial.

    Args:
        table: of the task.
        runs: the distribution of the number of trials.
        noise: of a trial's training, relative to one run.
        score_noise: multiplier of the count.
        validation: share of the records that validates.
        sample: share of the records that is searched on.
    """
    rng = np.random.default_rng(0)
    accuracies = table.at(noise * TRAINED / (sample * (1 - validation)))
    counts = np.array([runs.sample(uniform) for uniform in rng.random(PLAYED)])
    most = int(np.quantile(counts, 0.999)) + 1  # the longest searches are cut
    tried = rng.integers(len(accuracies), size=(PLAYED, most))
    judges = sample * validation * table.facts.n_records
    reached = accuracies[tried]
    spread = np.sqrt(reached * (1 - reached) / judges + (score_noise / judges) ** 2)
    scores = reached + spread * rng.standard_normal(reached.shape)
    scores[np.arange(most) >= counts[:, None]] = -np.inf
    best = scores.argmax(1)
    winners = np.where(counts > 0, tried[np.arange(PLAYED), best], -1)
    return winners, np.where(counts > 0, reached[np.arange(PLAYED), best], 0.0)


def selections(task: str, epsilon: float) -> Iterator[tuple[str, float, "bench.RunCount", float, float]]:
    """Distributions of the number of trials, each with the noise of training, relative, and of scores."""
    facts = bench.make_task(task).facts
    budget = bench.PrivacyBudget(epsilon, facts.default_delta)
    for family, make in FAMILIES.items():
        for mean in MEANS:
            runs = make(mean)
            trial = bench.Trial.calibrated(
                lambda event, runs=runs: bench.best_of(event, runs), bench.DpSgd.of(facts), budget, validation=0.1
            )
            yield family, mean, runs, trial.training.noise_multiplier / one_run(task), trial.score_noise


def simulate_selections(task: str, epsilon: float) -> None:
    """The best of a random number of trials, released as it is."""
    spaces = {extent: Table.read(task, extent) for extent in ("learning_rate", "full")}
    alone = noise_at(task, epsilon)
    for extent, table in spaces.items():
        found = table.at(alone * TRAINED)
        say(f"{task} ε={epsilon:g} {extent}: best {100 * found.max():.1f}, a blind draw {100 * found.mean():.1f}")
    for family, mean, runs, noise, score_noise in selections(task, epsilon):
        cells = [
            f"{100 * chosen(table, runs, noise, score_noise, validation)[1].mean():.1f}"
            for table in spaces.values()
            for validation in VALIDATION
        ]
        say(f"{task} ε={epsilon:g} | {family} | {mean:g} | {noise:.2f} | {score_noise:.2f} | {' | '.join(cells)}")


def noise_at(task: str, epsilon: float) -> float:
    """The noise of a single run at this ε, relative to that at ε = 1."""
    facts = bench.make_task(task).facts
    run = bench.DpSgd.of(facts)
    return run.calibrated(bench.PrivacyBudget(epsilon, facts.default_delta)).noise_multiplier / one_run(task)


def simulate_final_runs(task: str, epsilon: float) -> None:
    """A search, on a sample or on everything, and a final run with what it found."""
    facts = bench.make_task(task).facts
    budget = bench.PrivacyBudget(epsilon, facts.default_delta)
    spaces = {extent: Table.read(task, extent) for extent in ("learning_rate", "full")}
    for sample in (1.0, 0.5, 0.2):
        for share in (0.7, 0.8, 0.85, 0.9):
            for mean in (3.0, 5.0, 10.0, 20.0):
                whole_share = replace(budget, epsilon=share * epsilon)
                final = bench.DpSgd.of(facts).calibrated(whole_share)
                runs = bench.geometric(mean)

                def whole(trial: Any, runs: Any = runs, final: Any = final, sample: float = sample) -> Any:
                    search = bench.best_of(trial, runs)
                    search = search if sample == 1 else bench.poisson_sampled(sample, search)
                    return bench.compose(search, final.event)

                trial = bench.Trial.calibrated(whole, bench.DpSgd.of(facts), budget, validation=0.1)
                noise, last = (run.noise_multiplier / one_run(task) for run in (trial.training, final))
                cells = []
                for table in spaces.values():
                    for validation in VALIDATION:
                        winners, _ = chosen(table, runs, noise, trial.score_noise, validation, sample)
                        cells.append(f"{100 * table.at(last * TRAINED)[winners].mean():.1f}")
                setting = f"{sample} | {share} | {mean:g} | {noise:.2f} | {last:.2f}"
                say(f"{task} ε={epsilon:g} | {setting} | {' | '.join(cells)}")


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)  # noqa: T201


def main() -> None:
    """Simulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=["digits"])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--what", choices=("selections", "final_runs"), nargs="+", default=["selections", "final_runs"])
    options = parser.parse_args()
    for task in options.task:
        for epsilon in options.epsilon:
            for what, simulate in (("selections", simulate_selections), ("final_runs", simulate_final_runs)):
                if what in options.what:
                    simulate(task, epsilon)


if __name__ == "__main__":
    main()
