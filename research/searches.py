"""What a search should search, how often, and how many records should score: simulated on public tasks.

    python -m research.searches train --task digits --epsilon 1 --table digits.npz
    python -m research.searches search --table digits.npz

`train` trains each candidate of a wide space at several levels of noise, on all records, and keeps which test records
it gets right. `search` replays whole searches from that table, thousands a second: K candidates of a space, trained
with the noise that the search leaves, scored by a noisy count of half of the test records, resampled to as many as are
held out; the winner is judged on the other half. Neither is private, so this is for public data.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

import dphpo_bench as bench
from dphpo_bench.contract.search_space import draw
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.run_counts import Poisson, RunCount, TruncatedNegativeBinomial, UniformCount, geometric
from dphpo_bench.recipes.networks import zero_linear
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.session.session import open_session
from dphpo_bench.training.evaluation import all_outputs
from dphpo_bench.training.randomness import Streams
from tests.own_task import array_task

LEVELS = (1.0, 1.6, 2.6, 6.5)
"""Noise relative to that of one run with the whole budget."""


MOST_FEATURES = 500
"""Of wider records, every so many; time is what a table costs."""


def wide(facts: bench.TaskFacts) -> dict[str, BaseDistribution]:
    """Wider than any space a search would take: those are parts of it."""
    size, epochs = facts.batch_size, facts.epochs
    return {
        "optimizer": CategoricalDistribution(["AdamW", "SGD"]),
        "learning_rate": FloatDistribution(1e-4, 1.0, log=True),
        "learning_rate:sgd": FloatDistribution(1e-3, 10.0, log=True),
        "clipping": CategoricalDistribution(["auto_s", "abadi:1"]),
        "weight_decay": CategoricalDistribution([0.0, 0.001, 0.01]),
        "batch_size": CategoricalDistribution([size, min(2 * size, facts.n_records)]),
        "epochs": CategoricalDistribution([epochs / 2, epochs, epochs * 2]),
    }


def sampled(name: str, records: int) -> bench.Task:
    """A built-in task, or this many records of it, with as many steps as the task has."""
    source, task = bench.DataSource.resolve(), bench.make_task(name)
    task.prepare(source)
    if task.facts.n_records <= records:
        return task
    parts = (task.load_train(source), task.load_test(source))
    rows = [torch.randperm(len(part), generator=torch.Generator().manual_seed(0))[:records] for part in parts]
    every = math.ceil(parts[0].inputs.shape[1] / MOST_FEATURES)  # type: ignore[union-attr]
    train, test = (
        (part.inputs[row, ::every].float(), part.targets[row])  # type: ignore[index]
        for part, row in zip(parts, rows, strict=True)
    )
    width, outputs = train[0].shape[1], task.facts.n_classes or 1
    return array_task(
        f"{name}_{records}",
        train,
        lambda: zero_linear(width, outputs),
        test,
        kind=task.facts.kind,
        n_classes=task.facts.n_classes,
        batch_size=round(task.facts.sample_rate * records),
        epochs=task.facts.epochs,
        public=True,
    )


def candidates(facts: bench.TaskFacts, draws: int, rates: int) -> list[dict[str, Any]]:
    """Draws of the wide space; learning rates alone, AdamW's and SGD's; half as many draws at the task's schedule."""
    schedule = {"batch_size": facts.batch_size, "epochs": facts.epochs}
    adamw = {"optimizer": "AdamW", "clipping": "auto_s", "weight_decay": 0.01, **schedule}
    sgd = {"optimizer": "SGD", "clipping": "abadi:1", "weight_decay": 0.0, **schedule}
    space = wide(facts)
    fixed = {name: one for name, one in space.items() if name not in schedule} | {
        "learning_rate": FloatDistribution(1e-3, 1.0, log=True),
        "learning_rate:sgd": FloatDistribution(1e-2, 10.0, log=True),
    }
    return [
        *(draw(space, seed) for seed in range(draws)),
        *({**adamw, "learning_rate": float(rate)} for rate in np.geomspace(1e-4, 1, rates)),
        *({**sgd, "learning_rate": float(rate)} for rate in np.geomspace(1e-3, 10, rates)),
        *({**draw(fixed, seed), **schedule} for seed in range(draws // 2)),
    ]


def train(task: bench.Task, epsilon: float, draws: int, rates: int, table: Path) -> None:
    facts = replace(task.facts, search_space=lambda: wide(task.facts))
    budget, source = bench.PrivacyBudget(epsilon, facts.default_delta), bench.DataSource.resolve()
    single = bench.recipes.DpSgd.of(facts)
    several = bench.search.searched_run(single, facts, budget, drawn=True)
    assert isinstance(several, bench.search.SearchedRun)
    records, test = task.load_train(source), task.load_test(source)

    def score(model: torch.nn.Module) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(task.ready("scores")(all_outputs(model.eval(), test), test.targets))

    found, tried = [], candidates(facts, draws, rates)
    for index, candidate in enumerate(tried):
        free = {name: value for name, value in candidate.items() if name not in ("batch_size", "epochs")}
        schedule = {name: candidate[name] for name in ("batch_size", "epochs")}
        (run,) = (one.run for one in several.combinations if one.schedule == schedule)
        for level, relative in enumerate(LEVELS):
            session = open_session(RawRecords(task, records, "cpu"), Ledger(), Streams(100 * index + level))
            model = run.having(free).with_noise(relative * run.noise_multiplier).train(session)
            found.append(score(model))
    untrained = float(score(open_session(RawRecords(task, records, "cpu"), Ledger(), Streams(0)).build_model()).mean())
    right = np.array(found).reshape(len(tried), len(LEVELS), -1)
    parts = ["full"] * draws + ["learning_rate"] * 2 * rates + ["fixed_schedule"] * (draws // 2)
    about = {
        **{"task": task.name, "n": facts.n_records, "epsilon": epsilon, "delta": budget.delta},
        **{"q": facts.sample_rate, "steps": facts.steps, "candidates": tried, "parts": parts},
        "untrained": untrained,
    }
    np.savez_compressed(table, right=right, about=json.dumps(about))


@dataclass(frozen=True)
class Table:
    """What `train` wrote."""

    right: np.ndarray
    about: dict[str, Any]
    prices: Path

    @classmethod
    def load(cls, path: Path) -> "Table":
        with np.load(path) as found:
            return cls(found["right"], json.loads(str(found["about"])), path.with_suffix(".prices.json"))

    def kept(self, name: str, compute: Callable[[], list[float]]) -> list[float]:
        """What takes seconds to calibrate, from the file if it was asked before."""
        known = json.loads(self.prices.read_text()) if self.prices.exists() else {}
        if name not in known:
            known[name] = compute()
            self.prices.write_text(json.dumps(known, indent=1))
        return list(known[name])

    def run(self, share: float = 1.0) -> bench.recipes.DpSgd:
        budget = bench.PrivacyBudget(share * self.about["epsilon"], self.about["delta"])
        return bench.recipes.DpSgd(self.about["q"], self.about["steps"], 1.0, 1.0).calibrated(budget)

    def levels(self, noise: float, count: int, random: np.random.Generator) -> np.ndarray:
        """The levels of noise above or below this one, at random so that the mean of their logarithms is its own."""
        place = np.interp(math.log(noise), np.log(LEVELS), np.arange(len(LEVELS)))
        return (place + random.random(count)).astype(int)


@dataclass(frozen=True)
class Search:
    """A way to search."""

    runs: RunCount
    validation: float
    final: float = 0.0
    sample: float = 1.0

    def simulated(self, table: Table, rows: np.ndarray, searches: int = 1000) -> np.ndarray:
        """The accuracies that many searches end with."""
        random, about = np.random.default_rng(0), table.about
        noise, last_noise, score_noise = self.noise(table)
        noise /= self.sample * (1 - self.validation)  # of a mean over fewer records
        held_out = round(self.validation * self.sample * about["n"])
        n_test, found = table.right.shape[-1], []
        for _ in range(searches):
            k = self.runs.sample(random.random())
            order = random.permutation(n_test)
            judges = order[: n_test // 2]
            scoring = random.choice(order[n_test // 2 :], held_out)
            if k == 0:
                found.append(about["untrained"])
                continue
            tried, level = random.choice(rows, k), table.levels(noise, k, random)
            scores = table.right[tried[:, None], level[:, None], scoring].mean(1)
            winner = int(np.argmax(scores + score_noise / held_out * random.standard_normal(k)))
            last = level[winner]
            if self.final:
                last = table.levels(last_noise, 1, random)[0]
            found.append(float(table.right[tried[winner], last, judges].mean()))
        return np.array(found)

    def noise(self, table: Table) -> tuple[float, float, float]:
        """Noise of a trial and of the final run, relative to one run with all of the budget, and σ of a score."""

        def price() -> list[float]:
            single, budget = table.run(), bench.PrivacyBudget(table.about["epsilon"], table.about["delta"])
            final = table.run(self.final) if self.final else None

            def whole(trial: Any) -> Any:
                event = bench.events.best_of(trial, self.runs)
                event = bench.events.poisson_sampled(self.sample, event) if self.sample < 1 else event
                return bench.events.compose(event, final.event) if final else event

            trial = bench.search.Trial.calibrated(whole, single, budget, validation=self.validation)
            noise = [trial.training.noise_multiplier, final.noise_multiplier if final else 0.0]
            return [noise[0] / single.noise_multiplier, noise[1] / single.noise_multiplier, trial.score_noise]

        trial, final, score = table.kept(
            f"{self.runs.describe()}, {self.validation}, {self.final}, {self.sample}", price
        )
        return trial, final, score


RANGES = {"before": ((3e-4, 0.3), (0.01, 10.0)), "now": ((0.003, 0.3), (0.03, 3.0))}
"""Learning rates of AdamW and of SGD."""


def spaces(table: Table) -> dict[str, np.ndarray]:
    """Rows of the candidates in each space, by the space's name."""
    rows = list(enumerate(zip(table.about["candidates"], table.about["parts"], strict=True)))

    def within(extent: str, adamw: tuple[float, float], sgd: tuple[float, float]) -> np.ndarray:
        ranges = {"AdamW": adamw, "SGD": sgd}
        return np.array(
            [
                row
                for row, (candidate, part) in rows
                if part == extent and 0.95 * ranges[candidate["optimizer"]][0] <= candidate["learning_rate"]
                if candidate["learning_rate"] <= 1.1 * ranges[candidate["optimizer"]][1]
            ],
            dtype=int,
        )

    nothing = (math.inf, 0.0)
    found = {f"{extent} {when}": within(extent, *both) for extent in EXTENTS for when, both in RANGES.items()}
    found["learning_rate before"] = within("learning_rate", (1e-4, 1.0), nothing)
    found["learning_rate now"] = within("learning_rate", RANGES["now"][0], nothing)
    found["of SGD alone"] = within("learning_rate", nothing, RANGES["now"][1])
    return {name: one for name, one in found.items() if len(one)}


EXTENTS = ("full", "fixed_schedule")
COUNTS: tuple[RunCount, ...] = (
    *(geometric(mean) for mean in (1.5, 2, 3, 4, 5, 10)),
    *(TruncatedNegativeBinomial(mean, 0) for mean in (3, 5)),
    TruncatedNegativeBinomial(4, 3),
    *(Poisson(mean) for mean in (4, 8)),
    UniformCount(1, 7),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "search"])
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--records", type=int, default=5000, help="at most so many of the task")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--draws", type=int, default=96)
    parser.add_argument("--rates", type=int, default=17)
    parser.add_argument("--validation", type=float, default=0.1)
    parser.add_argument("--final", type=float, default=0.0, help="share of ε of a final run")
    parser.add_argument("--sample", type=float, default=1.0, help="share of the records to search on")
    options = parser.parse_args()
    if options.what == "train":
        task = sampled(options.task, options.records)
        return train(task, options.epsilon, options.draws, options.rates, options.table)
    table = Table.load(options.table)
    found = spaces(table)
    sys.stdout.write(f"{'':24}" + "".join(f"{name:>24}" for name in found) + "\n")
    for runs in COUNTS:
        search = Search(runs, options.validation, options.final, options.sample)
        cells = [100 * search.simulated(table, rows) for rows in found.values()]
        line = "".join(f"{cell.mean():17.1f} ± {cell.std():4.1f}" for cell in cells)
        sys.stdout.write(f"{runs.describe():24}{line}\n")
        sys.stdout.flush()
    return None


if __name__ == "__main__":
    main()
