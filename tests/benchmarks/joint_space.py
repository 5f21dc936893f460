"""The best clipping norm C and batch size B: one for all tables and privacy levels, or not (arXiv:2510.20616)?

    python -m tests.benchmarks.joint_space --seconds 150     # trains what is missing; may be killed at any time
    python -m tests.benchmarks.joint_space --table           # what the kept runs say

Every candidate of the joint space (`search_space.joint`) trains with AdamW, with the noise that the budget buys for its
own sample rate and steps, at ten rates from .001 to 1. All candidates of one schedule are a stack
(`tests.benchmarks.stacked`): they have noise of their own, and share initial weights and batches. The metric is the
table's first, on its test records; δ = N^-1.1.

To choose the best of noisy means would flatter it. So a seed is valued at what the other seeds choose: the rate of each
setting, the best setting (C, B) of each case, which is a table at one ε and number of epochs, and the best single one,
whose mean loss over all cases is least.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student

import dphpo_bench as bench
from dphpo_bench.contract.search_space import Space
from dphpo_bench.training.clipping import parse_clipping
from dphpo_bench.training.randomness import Streams
from dphpo_bench.training.sampling import poisson_sample
from tests.benchmarks.development_set import make, measured
from tests.benchmarks.stacked import gaussian_noise, stack_of, train

RESULTS = Path(__file__).with_name("data") / "joint_space.npz"
TABLES = ("digits-linear", "digits-mlp", "adult-linear", "diabetes-linear")
EPSILONS = (1.0, 8.0)
CLIPPINGS = ("auto_s", "abadi:0.1", "abadi:1", "abadi:10")
SHORT = ("AUTO-S", ".1", "1", "10")
SIZES = ("B/4", "B", "4B")
PASSES = ("1/4", "1", "4")
RATES = tuple(10.0 ** (k / 3 - 3) for k in range(10))
SEEDS = 5

Array = NDArray[np.float64]


def schedules(name: str) -> list[list[bench.recipes.DpSgd]]:
    """The runs of each batch size and number of epochs, in this order, at each ε, with the package's own noise."""
    facts = make(name).facts
    by_epsilon = []
    for epsilon in EPSILONS:
        budget = bench.PrivacyBudget(epsilon, facts.default_delta)
        space = Space("joint", optimizer="AdamW")
        searched = bench.search.searched_run(
            bench.recipes.DpSgd.of(facts), facts, budget, drawn=False, space=space
        ).calibrated(budget)
        assert isinstance(searched, bench.search.SearchedRun)
        by_epsilon.append(searched.runs)
    return [list(runs) for runs in zip(*by_epsilon, strict=True)]


def values(name: str, seed: int, plans: Sequence[Sequence[bench.recipes.DpSgd]]) -> NDArray[np.float32]:
    """The metric of all runs at one seed: shape (sizes, passes, clippings, ε, rates)."""
    task, source = make(name), bench.DataSource.resolve()
    task.prepare(source)
    records, test, facts = task.load_train(source), task.load_test(source), task.facts
    rules = [parse_clipping(text) for text in CLIPPINGS]
    shape = len(rules), len(EPSILONS), len(RATES)
    rates = torch.tensor(RATES).expand(shape).flatten()
    metrics = []
    for index, runs in enumerate(plans):
        streams = Streams(seed).within("schedule", str(index))
        stack = stack_of(task, records, rates.numel(), seed, rules)
        noise = torch.tensor([run.noise_multiplier for run in runs])[:, None]
        lengths = torch.tensor([rule.sensitivity for rule in rules])[:, None, None]
        sigmas = (lengths * noise).expand(shape).flatten()
        rate, generator = runs[0].sample_rate, streams.generator("batches", name)
        drawn = (poisson_sample(facts.n_records, rate, generator) for _ in range(runs[0].steps))
        noise_of = gaussian_noise(stack, sigmas, streams.generator("noise", name))
        train(stack, records, rate * facts.n_records, drawn, noise_of, rates, ("AdamW",))
        metrics.append(measured(task, stack, test).reshape(shape))
    return np.stack(metrics).reshape(len(SIZES), len(PASSES), *shape)


def read(path: Path = RESULTS) -> dict[str, NDArray[np.float32]]:
    """The runs of each table and seed."""
    if not path.exists():
        return {}
    with np.load(path) as entries:
        return dict(entries)


def compute(seconds: float, seeds: int, path: Path = RESULTS) -> None:
    """Train what is missing, seed by seed, until so many seconds of a core are gone."""
    torch.set_num_threads(1)
    plans: dict[str, list[list[bench.recipes.DpSgd]]] = {}
    for seed in range(seeds):
        for name in TABLES:
            kept, start = read(path), time.process_time()
            if f"{name}/{seed}" in kept:
                continue
            if start > seconds:
                return
            if name not in plans:
                plans[name] = schedules(name)
            kept[f"{name}/{seed}"] = values(name, seed, plans[name])
            replacement = path.with_suffix(".tmp.npz")
            np.savez_compressed(replacement, **kept)  # type: ignore[arg-type]
            replacement.replace(path)
            sys.stdout.write(f"{name}, seed {seed}: {time.process_time() - start:.0f} s of a core\n")
            sys.stdout.flush()


def cases(kept: dict[str, NDArray[np.float32]], passes: Sequence[str]) -> dict[tuple[str, float, str], Array]:
    """By table, ε and epochs, the metric in %, at least −100: shape (seeds, sizes × clippings, rates)."""
    arrays = {}
    for name in TABLES:
        runs = [kept[key] for key in sorted(kept) if key.startswith(f"{name}/")]
        percent = np.maximum(100 * np.nan_to_num(np.array(runs, dtype=float), nan=-1.0), -100)
        for at, epochs in enumerate(PASSES):
            for index, epsilon in enumerate(EPSILONS):
                if epochs in passes:
                    flat = percent[:, :, at, :, index].reshape(len(runs), -1, len(RATES))
                    arrays[name, epsilon, epochs] = flat
    return arrays


def others(metric: Array) -> tuple[Array, Array]:
    """By seed: each setting's metric at the rate that the other seeds choose, as they see it and as the seed does."""
    seen, valued = np.empty(metric.shape[:2]), np.empty(metric.shape[:2])
    for seed in range(len(metric)):
        mean = np.delete(metric, seed, 0).mean(0)
        rate = mean.argmax(1)[:, None]
        seen[seed] = np.take_along_axis(mean, rate, 1)[:, 0]
        valued[seed] = np.take_along_axis(metric[seed], rate, 1)[:, 0]
    return seen, valued


def interval(differences: Array) -> tuple[float, float]:
    """The mean over seeds, and the half-width of its 95 % interval by Student's t."""
    n = len(differences)
    return float(differences.mean()), float(student.ppf(0.975, n - 1) * differences.std(ddof=1) / n**0.5)


def setting(index: int) -> str:
    """A setting in words."""
    size, clipping = divmod(index, len(CLIPPINGS))
    return f"{SHORT[clipping]}, {SIZES[size]}"


def rows(arrays: dict[tuple[str, float, str], Array]) -> Iterator[str]:
    """A row of each case: the best setting, its metric, and what other rules to choose the setting lose."""
    tuned = {case: others(metric) for case, metric in arrays.items()}
    seeds = range(len(next(iter(arrays.values()))))
    regrets = {case: seen.max(1, keepdims=True) - seen for case, (seen, _) in tuned.items()}

    def chosen(among: Sequence[tuple[str, float, str]]) -> list[int]:
        """By seed, the single setting whose mean loss over these cases is least for the other seeds."""
        mean = np.mean([regrets[case] for case in among], axis=0)
        return [int(mean[seed].argmin()) for seed in seeds]

    single = chosen(list(arrays))
    losses: dict[str, list[Array]] = {"single": [], "elsewhere": []}
    yield "table, ε, epochs | best (C, B) | metric | within .5 | one for all loses | best of other tables loses"
    for case, (seen, valued) in tuned.items():
        best = [int(seen[seed].argmax()) for seed in seeds]
        own = np.array([valued[seed, best[seed]] for seed in seeds])
        mean = arrays[case].mean(0).max(1)
        near = [setting(index) for index in np.argsort(-mean) if mean[index] > mean.max() - 0.5]
        columns = []
        elsewhere = chosen([other for other in arrays if other[0] != case[0]])
        for rule, choice in (("single", single), ("elsewhere", elsewhere)):
            losses[rule].append(own - np.array([valued[seed, choice[seed]] for seed in seeds]))
            columns.append("{:.1f} ± {:.1f}".format(*interval(losses[rule][-1])))
        metric = "{:.1f} ± {:.1f}".format(*interval(own))
        shown = f"{setting(int(mean.argmax()))} | {metric} | {len(near)}"
        yield f"{case[0]}, {case[1]:g}, {case[2]} | {shown} | {' | '.join(columns)}"
    means = ["{:.1f} ± {:.1f}".format(*interval(np.mean(of_rule, axis=0))) for of_rule in losses.values()]
    yield f"mean | {', '.join(sorted({setting(index) for index in single}))} for all | | | {' | '.join(means)}"


def moved(arrays: dict[tuple[str, float, str], Array]) -> Iterator[str]:
    """The best setting and rate of one ε at the other, of one number of epochs at another, of one table at another."""
    tuned = {case: others(metric) for case, metric in arrays.items()}
    seeds = range(len(next(iter(arrays.values()))))
    differing: dict[str, list[Array]] = {}
    for case, (seen, valued) in tuned.items():
        own = np.array([valued[seed, seen[seed].argmax()] for seed in seeds])
        for other, (theirs, _) in tuned.items():
            changed = [what for what, a, b in zip(("table", "ε", "epochs"), case, other, strict=True) if a != b]
            if len(changed) == 1:
                taken = np.array([valued[seed, theirs[seed].argmax()] for seed in seeds])
                differing.setdefault(changed[0], []).append(own - taken)
    yield "the best (C, B) of a case that differs in | loses, mean | worst of the cases"
    for what, lost in differing.items():
        worst = max(lost, key=lambda each: each.mean())
        yield "{} | {:.1f} ± {:.1f} | {:.1f} ± {:.1f}".format(what, *interval(np.mean(lost, axis=0)), *interval(worst))


def grids(arrays: dict[tuple[str, float, str], Array]) -> Iterator[str]:
    """What each setting loses to the best of its case, at its best rate: the mean over seeds; and that rate."""
    for case, metric in arrays.items():
        mean = metric.mean(0)
        loss = mean.max() - mean.max(1)
        cells = [f"{setting(i)}: {loss[i]:.1f} at {RATES[mean[i].argmax()]:.2g}" for i in range(len(loss))]
        yield f"{case[0]}, {case[1]:g}, {case[2]} | {' | '.join(cells)}"


def main() -> None:
    """Train what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.0, help="of a core, after which no new stack begins")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--grids", action="store_true", help="the loss and the best rate of every setting, too")
    asked = parser.parse_args()
    if asked.seconds:
        compute(asked.seconds, asked.seeds)
    if asked.table or asked.grids:
        kept = read()
        fixed, free = cases(kept, ("1",)), cases(kept, PASSES)
        lines = [*rows(fixed), "", *rows(free), "", *moved(free), *(["", *grids(free)] if asked.grids else [])]
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
