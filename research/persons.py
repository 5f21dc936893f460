"""What sampling by person or by record costs where persons are protected: `python -m research.persons`.

By record (example-level sampling of Charles et al. 2024, arXiv:2407.07737), a person keeps at most k records, and each
enters a batch by its own coin of chance q. With j of them in a batch, the person moves the sum by j C at most. So a
step is dominated by N(0, σ²) against the mixture of N(j, σ²) with j ~ Binomial(k, q), and steps compose (Choquette-Choo
et al. 2024, arXiv:2310.15526, Corollary 4.7). A person with fewer records is dominated by that with k.

By person (user-level sampling) is what the harness does. Both train the linear model by `dp_sgd` at the rate with the
best mean test metric over two seeds, chosen without privacy. Five further seeds are reported. Rows that
data/persons.csv has are not computed again.
"""

import csv
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_mixture_gaussian_mechanism
from scipy.optimize import brentq
from scipy.stats import binom

import dphpo_bench as bench
from dphpo_bench.contract.registry import make_method
from dphpo_bench.contract.task import usual_delta
from dphpo_bench.data.source import DataSource
from dphpo_bench.records.measure import mean_interval
from dphpo_bench.tasks.persons import Persons, Reviews, Stays

FILE = Path(__file__).parent / "data" / "persons.csv"
HEAD = ("task", "epsilon", "most", "sampled", "noise", "rate", "mean", "half")
LARGEST: dict[type[Persons], int] = {Stays: 12, Reviews: 60}
"""The most records of a person, as the rules of the tasks bound them."""
BOUNDS, EPSILONS, RATES = (1, 2, 4, 8, 0), (1.0, 3.0, 8.0), (0.03, 0.1, 0.3)
CHOOSING, REPORTED = (3400, 3401), (3402, 3403, 3404, 3405, 3406)


def by_record(noise: float, most: int, sample_rate: float, steps: int) -> PrivacyLossDistribution:
    """Return the losses of a person with at most so many records, each with its own coin; never too small."""
    moves = range(most + 1)
    chances = [float(chance) for chance in binom.pmf(moves, most, sample_rate)]
    step = from_mixture_gaussian_mechanism(noise, moves, chances, value_discretization_interval=1e-3)
    return step.self_compose(steps) if steps > 1 else step


def noise_by_record(budget: bench.PrivacyBudget, most: int, sample_rate: float, steps: int) -> float:
    """Return a noise multiplier, relative to one record's bound, at which ε of a person is within the budget."""

    def over(noise: float) -> float:
        return float(by_record(noise, most, sample_rate, steps).get_epsilon_for_delta(budget.delta)) - budget.epsilon

    noise = float(brentq(over, 0.4 + 0.2 * most, 30.0 * most, rtol=1e-3))
    while over(noise) > 0:
        noise *= 1.001
    return noise


def bounded(cls: type[Persons], most: int, by_person: bool) -> bench.Task:
    """Return the task with at most so many records of a person, who is the unit, or whose records are."""
    records = cls().load_train(DataSource.resolve())
    assert records.units is not None
    sizes = torch.bincount(records.units)
    rank = torch.arange(len(records)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    some = records.rows(rank < most)
    some = some if by_person else replace(some, units=None)
    n, unit = some.n_units, cls.unit if by_person else "record"
    name = f"{cls.name}_{most}_by_{unit}"

    class Bounded(cls):  # type: ignore[misc, valid-type]
        facts = replace(cls().facts, task=name, n_records=n, batch_size=n // 4, unit=unit)

        def load_train(self, source: bench.DataSource) -> bench.Records:
            return some

        def fingerprint(self, source: bench.DataSource) -> str:
            return name

    Bounded.name = name
    return Bounded()


def trained(task: bench.Task, budget: bench.PrivacyBudget) -> tuple[float, list[float]]:
    """Return the best rate and the first test metric of each reported seed, in %."""

    def value(rate: float, seed: int) -> float:
        method = make_method("dp_sgd", {"learning_rate": rate})
        record = bench.run(method, task, budget, seed=seed).record
        return 100 * record.metrics[task.metrics[0].name]

    best = max(RATES, key=lambda rate: np.mean([value(rate, seed) for seed in CHOOSING]))
    return best, [value(best, seed) for seed in REPORTED]


def row(cls: type[Persons], epsilon: float, most: int, sampled: str) -> list[str]:
    """Train with this bound on a person's records, 0 for none, sampled by "person" or by "record"."""
    limit = most or LARGEST[cls]
    task = bounded(cls, limit, sampled == "person")
    budget = bench.PrivacyBudget(epsilon, usual_delta(cls().facts.n_records))
    facts = task.facts
    event = partial(bench.recipes.dp_sgd_event, facts.sample_rate, facts.steps)
    if sampled == "person":
        noise = bench.events.calibrate(event, budget)
    else:
        noise = noise_by_record(budget, limit, facts.sample_rate, facts.steps)
        budget = replace(budget, epsilon=bench.events.epsilon(event(noise), budget.delta).epsilon)
    rate, values = trained(task, budget)
    mean = mean_interval(values)
    numbers = (f"{noise:.3f}", f"{rate:g}", f"{mean.mean:.2f}", f"{mean.high - mean.mean:.2f}")
    return [cls.name, f"{epsilon:g}", str(most), sampled, *numbers]


def table(rows: list[list[str]]) -> str:
    """Return the rows as Markdown: a line for each task and bound, a column for each ε and kind of sampling."""
    cells = {tuple(each[:4]): f"{float(each[6]):.1f} ± {float(each[7]):.1f} ({float(each[4]):.2g})" for each in rows}
    columns = [(f"{epsilon:g}", sampled) for epsilon in EPSILONS for sampled in ("person", "record")]
    lines = ["| records | " + " | ".join(f"ε = {epsilon}, by {sampled}" for epsilon, sampled in columns) + " |"]
    lines.append("| --- |" + " --: |" * len(columns))
    for cls in LARGEST:
        for most in map(str, BOUNDS):
            found = [cells.get((cls.name, epsilon, most, sampled), "–") for epsilon, sampled in columns]
            lines.append(f"| `{cls.name}`, {most if most != '0' else 'all'} | " + " | ".join(found) + " |")
    return "\n".join(lines)


def main() -> None:
    """Compute the rows that are missing, and print the table."""
    warnings.simplefilter("ignore")  # such as δ, which is below 1 / persons and not below 1 / records
    rows = list(csv.reader(FILE.open()))[1:] if FILE.exists() else []
    done = {tuple(each[:4]) for each in rows}
    for epsilon in EPSILONS:
        for most in BOUNDS:
            for cls in LARGEST:
                for sampled in ("person", "record"):
                    if (cls.name, f"{epsilon:g}", str(most), sampled) not in done:
                        rows.append(row(cls, epsilon, most, sampled))
                        with FILE.open("w", newline="") as file:
                            csv.writer(file, lineterminator="\n").writerows([HEAD, *rows])
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
