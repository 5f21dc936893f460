"""The best clipping norm C and batch size B: one for all tables and privacy levels, or not (arXiv:2510.20616)?

    python -m research.joint_space --seconds 150     # trains what is missing; may be killed at any time
    python -m research.joint_space --table           # what the stored runs say

Every candidate of the joint space (`search_space.joint`) trains with AdamW, with the noise that the budget buys for its
own sample rate and steps, at ten rates from .001 to 1. All candidates of one schedule are a stack
(`research.stacked`): they have noise of their own, and share initial weights and batches. The metric is the
table's first, on its test records; δ = N^-1.1.

To choose the best of noisy means would flatter it. So a seed is valued at what the other seeds choose: the rate of each
setting, smoothed over neighbours, the best setting (C, B) of each case, which is a table at one ε and number of epochs,
and the best single one, whose mean loss over all cases is least. Such a loss is rather too small, as few seeds choose a
case's best badly; "at most" is the loss if all seeds choose and value, which is rather too large.
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
from dphpo_bench.contract.search_space import SCHEDULE_FACTORS, Space
from dphpo_bench.curves import smoothed
from dphpo_bench.training.clipping import parse_clipping
from dphpo_bench.training.noise import poisson_sample
from dphpo_bench.training.randomness import Streams
from research.development_set import make, measured
from research.stacked import gaussian_noise, stack_of, train

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
Case = tuple[str, float, str]
"""A table, ε and a factor of the table's epochs."""


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
    sizes = [min(round(factor * facts.batch_size), facts.n_records) for factor in SCHEDULE_FACTORS]
    searched = sorted(set(sizes))  # two of the three may be all records
    return np.stack(metrics).reshape(len(searched), len(PASSES), *shape)[[searched.index(size) for size in sizes]]


def read(path: Path = RESULTS) -> dict[str, NDArray[np.float32]]:
    """The runs of each table and seed."""
    if not path.exists():
        return {}
    with np.load(path) as entries:
        return dict(entries)


def compute(seconds: float, seeds: int, names: Sequence[str], path: Path = RESULTS) -> None:
    """Train what is missing, seed by seed, until so many seconds of a core are gone."""
    torch.set_num_threads(1)
    plans: dict[str, list[list[bench.recipes.DpSgd]]] = {}
    for seed in range(seeds):
        for name in names:
            done, start = read(path), time.process_time()
            if f"{name}/{seed}" in done:
                continue
            if start > seconds:
                return
            if name not in plans:
                plans[name] = schedules(name)
            done[f"{name}/{seed}"] = values(name, seed, plans[name])
            replacement = path.with_suffix(".tmp.npz")
            np.savez_compressed(replacement, **done)  # type: ignore[arg-type]
            replacement.replace(path)
            sys.stdout.write(f"{name}, seed {seed}: {time.process_time() - start:.0f} s of a core\n")
            sys.stdout.flush()


def cases(done: dict[str, NDArray[np.float32]], passes: Sequence[str]) -> dict[Case, Array]:
    """By table, ε and epochs, the metric in %, at least −100: shape (seeds, sizes × clippings, rates)."""
    arrays = {}
    for name in TABLES:
        runs = [done[key] for key in sorted(done) if key.startswith(f"{name}/")]
        percent = np.maximum(100 * np.nan_to_num(np.array(runs, dtype=float), nan=-1.0), -100)
        for at, epochs in enumerate(PASSES):
            for index, epsilon in enumerate(EPSILONS):
                if epochs in passes:
                    flat = percent[:, :, at, :, index].reshape(len(runs), -1, len(RATES))
                    arrays[name, epsilon, epochs] = flat
    return arrays


def at_best_rate(chosen_by: Array, valued: Array) -> Array:
    """Metric of each setting at the rate that other means choose, after smoothing over neighbouring rates."""
    rate = smoothed(chosen_by).argmax(-1)[..., None]
    return np.take_along_axis(valued, rate, -1)[..., 0]


def others(metric: Array) -> tuple[Array, Array]:
    """By seed: each setting's metric at the rate that the other seeds choose, as they see it and as the seed does."""
    means = np.array([np.delete(metric, seed, 0).mean(0) for seed in range(len(metric))])
    return at_best_rate(means, means), at_best_rate(means, metric)


def interval(differences: Sequence[Array]) -> str:
    """The mean over tables and seeds, and the half-width of its 95 % interval by Welch's t.

    Args:
        differences: by table, one for each of its seeds, which are independent.
    """
    counts = np.array([len(each) for each in differences])
    variances = np.array([each.var(ddof=1) for each in differences]) / counts
    dof = variances.sum() ** 2 / max((variances**2 / (counts - 1)).sum(), 1e-12)
    width = student.ppf(0.975, max(dof, 1)) * variances.sum() ** 0.5 / len(counts)
    return f"{np.mean([each.mean() for each in differences]):.1f} ± {width:.1f}"


def by_table(differences: dict[Case, Array]) -> list[Array]:
    """The means over the cases of each table, by seed."""
    return [
        np.mean([each for case, each in differences.items() if case[0] == name], axis=0)
        for name in TABLES
        if any(case[0] == name for case in differences)
    ]


def setting(index: int) -> str:
    """A setting in words."""
    size, clipping = divmod(index, len(CLIPPINGS))
    return f"{SHORT[clipping]}, {SIZES[size]}"


def rows(arrays: dict[Case, Array]) -> Iterator[str]:
    """A row of each case: the best setting, its metric, and what a setting loses that other cases choose."""
    tuned = {case: others(metric) for case, metric in arrays.items()}
    means = {case: at_best_rate(metric.mean(0), metric.mean(0)) for case, metric in arrays.items()}

    def chosen(case: Case, among: Sequence[Case]) -> list[int]:
        """By seed of a case, the setting of least mean loss over these cases, without the seed where it is theirs."""
        losses = []
        for other in among:
            seen = tuned[other][0] if other[0] == case[0] else means[other][None]
            losses.append(np.broadcast_to(seen.max(1, keepdims=True) - seen, tuned[case][0].shape))
        return [int(index) for index in np.mean(losses, axis=0).argmin(1)]

    common = int(np.mean([mean.max() - mean for mean in means.values()], axis=0).argmin())
    lost: list[dict[Case, Array]] = [{}, {}]
    yield "table, ε, epochs | best (C, B) | its metric | one for all loses | at most | best of other tables loses"
    for case, (seen, valued) in tuned.items():
        at = np.arange(len(valued))
        value = valued[at, seen.argmax(1)]
        for losses, among in zip(lost, (arrays, [other for other in arrays if other[0] != case[0]]), strict=True):
            losses[case] = value - valued[at, chosen(case, list(among))]
        best = f"{setting(int(means[case].argmax()))} | {interval([value])}"
        flattered = f"{means[case].max() - means[case][common]:.1f}"
        loss = f"{interval([lost[0][case]])} | {flattered} | {interval([lost[1][case]])}"
        yield f"{case[0]}, {case[1]:g}, {case[2]} | {best} | {loss}"
    flattered = f"{np.mean([mean.max() - mean[common] for mean in means.values()]):.1f}"
    overall = [interval(by_table(losses)) for losses in lost]
    yield f"mean | for all: {setting(common)} | | {overall[0]} | {flattered} | {overall[1]}"


def moved(arrays: dict[Case, Array]) -> Iterator[str]:
    """Losses of the best setting of a case at the other ε, at other numbers of epochs."""
    tuned = {case: others(metric) for case, metric in arrays.items()}
    differing: dict[str, dict[tuple[Case, Case], Array]] = {}
    for case, (seen, valued) in tuned.items():
        at = np.arange(len(valued))
        for other, (theirs, _) in tuned.items():
            changed = [index for index in range(3) if case[index] != other[index]]
            if changed in ([1], [2]):
                what = f"{('ε', 'epochs')[changed[0] - 1]} {other[changed[0]]}, at {case[changed[0]]}"
                loss = valued[at, seen.argmax(1)] - valued[at, theirs.argmax(1)]
                differing.setdefault(what, {})[other, case] = loss
    yield "the best (C, B) of another | loses, mean | worst | where"
    for what, lost in differing.items():
        worst = max(lost, key=lambda pair: lost[pair].mean())
        tables = {name: [loss for (_, case), loss in lost.items() if case[0] == name] for name in TABLES}
        mean = interval([np.mean(losses, axis=0) for losses in tables.values()])
        yield f"{what} | {mean} | {interval([lost[worst]])} | {' '.join(map(str, worst[1]))}"


def settings(arrays: dict[Case, Array]) -> Iterator[str]:
    """Losses of each setting to the best of a case, each at its best rate: all seeds choose and value."""
    means = {case: at_best_rate(metric.mean(0), metric.mean(0)) for case, metric in arrays.items()}
    losses = {case: mean.max() - mean for case, mean in means.items()}
    yield "C, B | mean loss | ε = 1 | ε = 8 | epochs 1/4 | 1 | 4 | worst | where"
    groups = [(1, 1.0), (1, 8.0), (2, "1/4"), (2, "1"), (2, "4")]
    for index in range(len(SIZES) * len(CLIPPINGS)):
        of_setting = {case: float(loss[index]) for case, loss in losses.items()}
        worst = max(of_setting, key=lambda case: of_setting[case])
        columns = [np.mean([loss for case, loss in of_setting.items() if case[at] == of]) for at, of in groups]
        parts = [np.mean([*of_setting.values()]), *columns, of_setting[worst]]
        yield f"{setting(index)} | {' | '.join(f'{part:.1f}' for part in parts)} | {' '.join(map(str, worst))}"


def main() -> None:
    """Train what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.0, help="of a core, after which no new stack begins")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--tables", nargs="*", default=TABLES, choices=TABLES)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.seconds:
        compute(asked.seconds, asked.seeds, asked.tables)
    if asked.table:
        done = read()
        fixed, free = cases(done, ("1",)), cases(done, PASSES)
        lines = [*rows(fixed), "", *rows(free), "", *moved(free), "", *settings(free)]
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
