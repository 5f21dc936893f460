"""Figures and tables of the four papers that run here in seconds to minutes: numbers for research/four_papers.md.

    python -m research.figures rounds
    python -m research.figures steps --seeds 5

Each writes research/data/figure_NAME.csv and prints it; docs/figures/draw.py draws the pictures. Intervals are 95 %
intervals over seeds. Grids train all their models in one stack (`research.stacked`), with common noise: differences
between cells of a seed are not those of unlike noise. Nothing here is private: the data are public.

- rounds: Figures 1 and 2 of Ding and Wu, and what their search chooses by k ε₀.
- noise: Figures 3 and 6 of HyFreeDP, with the ε that its noise has; bias: its Figure 7.
- intervals: its Figure 4 and Table 4 in kind; digits, by the update interval K.
- dp_hyper: its simulated baseline: .85 ε at a rate near the best.
- steps: the linear scaling rule's heatmaps of learning rate and steps, with what the rule chooses;
  steps_fashion_mnist and steps_cifar10: of pretrained features.
- ablations: its Tables 1, 12, 13 and 15, and its free step; joint: its search of batch and threshold (A.4).
- zeroth: its Table 14, the rule on DP-ZO; blur: its CIFAR-10-C, in Tables 5 and 10.
- thresholds: Figure 1 of automatic clipping; its stability constant γ; thresholds_e2e: of a language model.
- encodings: what encoding, clipping, rate and batch are worth on four tables, for docs/tasks.md;
  chosen_encodings: a private choice among the encodings, on two.
- table_1: its Table 1 on MNIST and Fashion-MNIST, over hours. It and thresholds_e2e append each row at once.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from dp_accounting.dp_event import DpEvent
from scipy.stats import norm
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.methods.dp_zo import DpZo, ZerothOrder
from dphpo_bench.methods.linear_scaling import LinearScaling, on_line
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.calibration import calibrate
from dphpo_bench.privacy.events import compose, gaussian, laplace, poisson_sampled, repeat
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.recipes.networks import perceptron
from dphpo_bench.records.measure import mean_interval
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.session.session import open_session
from dphpo_bench.training.clipping import Clipping, parse_clipping
from dphpo_bench.training.randomness import Streams
from dphpo_bench.zoo.dataset_task import Corruptions
from research.development_set import measured
from research.published import PUBLISHED, accuracy, ceiling
from research.stacked import stack_of, train

DATA = Path(__file__).parent / "data"
DELTA = 1e-5
Rows = list[dict[str, Any]]


def interval(values: Sequence[float], name: str = "accuracy") -> dict[str, float]:
    """Mean and 95 % interval over seeds, as columns."""
    estimate = mean_interval([float(value) for value in values])
    ends = {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return {name: estimate.mean, **{end: math.nan if value is None else value for end, value in ends.items()}}


# Ding and Wu 2022: Algorithm 1 in its simulation.

K_EPSILONS = (1, 3, 10, 30, 100, 300, 1000)
"""k ε₀; the paper's is 10 times .1."""
DRAWS = 4000
"""Simulated searches; the paper's are 1,000."""
RESOLUTIONS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


class Search(NamedTuple):
    """A search: (step, utility asked for) of each round, and the candidate that the last success named."""

    path: list[tuple[int, float]]
    chosen: int | None


def search(test: Callable[[float], int | None], g: float) -> Search:
    """Algorithm 1: steps of g, doubled while the test names a candidate and halved while it names none."""
    step, reached, chosen = 1, 0, None
    path = []
    while step and reached * g < 1:
        path.append((step, (reached + step) * g))
        named = test((reached + step) * g)
        if named is None:
            step //= 2
        else:
            reached, step, chosen = reached + step, 2 * step, named
    return Search(path, chosen)


def simulated(k_epsilon: float, g: float, generator: np.random.Generator) -> tuple[Search, float, float]:
    """A search among 100 uniform utilities; the utility that it chooses, and the best."""
    utilities = generator.uniform(size=100)

    def test(threshold: float) -> int | None:
        noisy = utilities + generator.laplace(scale=4 / k_epsilon, size=100)
        above = np.flatnonzero(noisy >= threshold + generator.laplace(scale=2 / k_epsilon))
        return int(above[0]) if len(above) else None

    result = search(test, g)
    chosen = math.nan if result.chosen is None else float(utilities[result.chosen])
    return result, chosen, float(utilities.max())


def rounds(seeds: int) -> Rows:
    """Figure 1: step and utility by round; Figure 2: rounds by g; and what is chosen."""
    del seeds
    generator, rows = np.random.default_rng(0), Rows()
    for k_epsilon in K_EPSILONS:
        results = [simulated(k_epsilon, 0.01, generator) for _ in range(DRAWS)]
        chosen = [0.0 if math.isnan(value) else value for _, value, _ in results]
        lengths = [len(result.path) for result, _, _ in results]
        rows.append(
            {"figure": "choice", "k_epsilon": k_epsilon, "rounds": statistics.mean(lengths)}
            | interval(chosen, "chosen") | {"best": statistics.mean(best for *_, best in results)}
        )  # fmt: skip
        if k_epsilon in (1, 1000):
            for at in range(max(lengths)):
                there = [result.path[at] for result, _, _ in results if len(result.path) > at]
                step, reached = (statistics.mean(values) for values in zip(*there, strict=True))
                rows.append({"figure": "1", "k_epsilon": k_epsilon, "round": at + 1, "share": len(there) / DRAWS,
                             "step": step, "asked": reached})  # fmt: skip
    for g in RESOLUTIONS:
        lengths = [len(simulated(1, g, generator)[0].path) for _ in range(200)]
        rows.append({"figure": "2", "g": g, "rounds": statistics.mean(lengths), "formula": doublings(g)})
    return rows


def doublings(g: float) -> int:
    """Rounds of a search in which each round succeeds."""
    return math.ceil(math.log2(1 / g + 1))


# HyFreeDP, Liu and Bu 2025.

CASE = {"N": 50_000, "B": 1_000, "T": 500, "K": 5}
INTERVALS = (1, 2, 5, 10, 20)
INFLATIONS = (1.001, 1.003, 1.01, 1.02, 1.05)


def hyfreedp_event(case: Mapping[str, float], *, joint: bool) -> DpEvent:
    """Gradients at every step and three losses at every K-th, on one batch or, as the paper counts, on many."""
    steps, rate = int(case["T"]), case["B"] / case["N"]
    loss_steps = -(-steps // int(case["K"]))
    gradient, loss = gaussian(case["sigma_g"]), gaussian(case["sigma_l"])
    if joint:
        return compose(
            repeat(poisson_sampled(rate, gradient), steps - loss_steps),
            repeat(poisson_sampled(rate, compose(gradient, repeat(loss, 3))), loss_steps),
        )
    return compose(repeat(poisson_sampled(rate, gradient), steps), repeat(poisson_sampled(rate, loss), 3 * loss_steps))


def noise(seeds: int) -> Rows:
    """σ_g and σ_l by K and by γ: the paper's, and those of joint accounting; the ε of the paper's; equal noise."""
    del seeds
    points = [(target, interval, 1.01) for target in (1, 3, 8) for interval in INTERVALS]
    points += [(3, CASE["K"], inflation) for inflation in INFLATIONS if inflation != 1.01]
    return [noises(*point) for point in points]


def noises(target: float, interval: int, inflation: float) -> dict[str, float]:
    """One point of Figures 3 and 6."""
    budget, case = bench.PrivacyBudget(target, DELTA), CASE | {"K": interval}

    @cache
    def alone(accountant: str) -> float:
        """σ of gradients without losses."""
        rate, steps = case["B"] / case["N"], case["T"]
        return calibrate(
            lambda sigma: repeat(poisson_sampled(rate, gaussian(sigma)), steps), budget, accountant=accountant
        )

    def least(accountant: str, joint: bool, equal: bool = False) -> float:
        """σ_l beside γσ, or both where they are to be equal."""
        sigma = inflation * alone(accountant)
        return calibrate(
            lambda loss: hyfreedp_event(case | {"sigma_g": loss if equal else sigma, "sigma_l": loss}, joint=joint),
            budget,
            accountant=accountant,
        )

    def laplacian() -> float:
        """Standard deviation of Laplace noise on the losses, as the paper counts, beside γσ."""
        rate, count = case["B"] / case["N"], 3 * -(-case["T"] // case["K"])
        gradients = repeat(poisson_sampled(rate, gaussian(inflation * alone("rdp"))), case["T"])
        return math.sqrt(2) * calibrate(
            lambda scale: compose(gradients, repeat(poisson_sampled(rate, laplace(scale)), count)),
            budget,
            accountant="rdp",
        )

    paper = {"sigma_g": inflation * alone("rdp"), "sigma_l": least("rdp", False)}
    return {
        "epsilon": target,
        "interval": interval,
        "inflation": inflation,
        "sigma_g_paper": paper["sigma_g"],
        "sigma_l_paper": paper["sigma_l"],
        "laplace_paper": laplacian(),
        "equal_paper": least("rdp", False, equal=True),
        "epsilon_of_paper": epsilon(hyfreedp_event(case | paper, joint=True), DELTA, coarseness=4).epsilon,
        "sigma_g_joint": inflation * alone("pld"),
        "sigma_l_joint": least("pld", True),
        "equal_joint": least("pld", True, equal=True),
    }


def clipping_bias(alpha: float) -> float:
    """Corollary 1, in standard deviations of the loss: φ(α) − α (1 − Φ(α))."""
    return float(norm.pdf(alpha) - alpha * norm.sf(alpha))


def bias(seeds: int) -> Rows:
    """Figure 7."""
    del seeds
    return [{"alpha": alpha, "bias": clipping_bias(alpha)} for alpha in np.linspace(-3, 3, 25).tolist()]


def resumed(name: str, keys: Sequence[dict[str, Any]], values: Callable[..., dict[str, float]]) -> Rows:
    """Rows of a table whose every row takes minutes: those that its file lacks are computed, and appended at once."""
    file = DATA / f"figure_{name}.csv"
    for key in keys:
        rows = pd.read_csv(file).to_dict("records") if file.exists() else []
        if not any(key.items() <= row.items() for row in rows):
            row = pd.DataFrame([key | values(**key)])
            row.to_csv(file, mode="a", header=not rows, index=False, float_format="%.4g")
    return Rows(pd.read_csv(file).to_dict("records"))


def run(task: bench.Task, method: str | bench.Method[Any], target: float, seed: int, **parameters: Any) -> Any:
    """The record of one run; of a method's name with these parameters."""
    made = bench.make_method(method, parameters) if isinstance(method, str) else method
    return bench.run(made, task, bench.PrivacyBudget(target, DELTA), seed=seed).record


def intervals(seeds: int) -> Rows:
    """Table 4 and Figure 4 in kind: seconds of training in turn with `auto_clipping`; the path of η and R."""
    task, rows = bench.make_task("digits"), Rows()
    kinds = [(batch, each) for batch in ("same", "fresh") for each in (1, 5, 10)]
    run(task, "auto_clipping", 3, 0)
    records = []
    for seed in range(seeds):
        base = run(task, "auto_clipping", 3, seed)
        records.append(
            (base, [run(task, "hyfreedp_paper", 3, seed, update_interval=each, loss_batch=batch)
                    for batch, each in kinds])
        )  # fmt: skip
    rows.append({"what": "auto_clipping"} | interval([100 * base.metrics["accuracy"] for base, _ in records]))
    for at, (batch, each) in enumerate(kinds):
        ratios = [some[at].seconds["train"] / base.seconds["train"] for base, some in records]
        rows.append(
            {"what": "hyfreedp_paper", "losses": batch, "interval": each, "time_ratio": statistics.median(ratios)}
            | interval([100 * some[at].metrics["accuracy"] for _, some in records])
        )
        path = records[0][1][at].released["path"]
        if batch == "fresh":
            rows += [
                {"what": "path", "losses": batch, "interval": each, "step": point["step"],
                 "rate": point["learning_rate"], "bound": point["loss_bound"]}
                for point in path[:: max(1, len(path) // 12)]
            ]  # fmt: skip
    return rows


# Grids of runs, in stacks.


@dataclass(frozen=True)
class Schedule:
    """Batches of a stack: `steps` Poisson samples at a rate, from a share of the records."""

    rate: float
    steps: int
    share: float = 1.0

    def event(self, sigma: float) -> DpEvent:
        """What a run releases of the records in the share."""
        return repeat(poisson_sampled(self.rate, gaussian(sigma)), self.steps)

    def noise(self, target: float) -> float:
        """The noise multiplier at an ε."""
        return calibrate(self.event, bench.PrivacyBudget(target, DELTA))


def scores(
    task: bench.Task,
    seed: int,
    schedule: Schedule,
    rates: Mapping[str, Sequence[float]],
    sigmas: Sequence[float],
    clippings: Sequence[Clipping],
    averaging: float = 0.0,
    first: int | None = None,
) -> np.ndarray:
    """Test accuracies in %: shape (optimisers, clippings, sigmas, rates).

    Args:
        rates: by optimiser, as many for each.
    """
    torch.set_num_threads(1)
    source = bench.DataSource.resolve()
    task.prepare(source)
    records, streams = task.load_train(source), Streams(seed)
    shape = len(rates), len(clippings), len(sigmas), len(next(iter(rates.values())))
    stack = stack_of(task, records, math.prod(shape), seed, [*clippings] * len(rates))
    scales = torch.tensor([[sigma * rule.sensitivity for sigma in sigmas] for rule in clippings])
    scales = scales[None, :, :, None].expand(shape).flatten()
    generator, batches = streams.generator("noise", "figures"), streams.generator("batches", "figures")

    def noise() -> list[Tensor]:
        return [
            torch.randn(parameter.shape[1:], generator=generator) * scales.view(-1, *(1,) * (parameter.ndim - 1))
            for parameter in stack.parameters
        ]

    pool = torch.randperm(task.facts.n_records, generator=batches)[: round(schedule.share * task.facts.n_records)]
    drawn = (pool[torch.rand(len(pool), generator=batches) < schedule.rate] for _ in range(schedule.steps))
    of_runs = torch.tensor([*rates.values()])[:, None, None].expand(shape).flatten()
    train(stack, records, schedule.rate * len(pool), drawn, noise, of_runs, [*rates], averaging, first)
    test = task.load_test(source)
    return 100 * np.nan_to_num(measured(task, stack, test)).astype(float).round(5).reshape(shape)


UNIT = parse_clipping("abadi:1")
STEP_COUNTS = (1, 5, *range(10, 101, 10))
STEP_RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
CIFAR10_COUNTS = (5, 10, 20, 60, 100)
CIFAR10_RATES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
STEP_EPSILONS = (0.3, 1.0, 3.0, 8.0)


def steps(
    seeds: int,
    task: bench.Task | None = None,
    epsilons: Sequence[float] = STEP_EPSILONS,
    counts: Sequence[int] = STEP_COUNTS,
    rates: Sequence[float] = STEP_RATES,
) -> Rows:
    """Accuracy by rate and steps; the best cell; the linear scaling rule's r and accuracy; exponents of best rates."""
    task = task or bench.make_task("digits")
    grid = np.stack([
        np.stack([
            scores(task, seed, plan, {"SGD": rates}, [plan.noise(each) for each in epsilons], [UNIT])[0, 0]
            for plan in (Schedule(1.0, count) for count in counts)
        ], axis=1)
        for seed in range(seeds)
    ])  # fmt: skip  # seeds, ε, steps, rates
    rows = Rows()
    for at, target in enumerate(epsilons):
        best = best_cell(grid[:, at].mean(0))
        for i, count in enumerate(counts):
            for j, rate in enumerate(rates):
                rows.append({"what": "cell", "epsilon": target, "steps": count, "rate": rate}
                            | interval(grid[:, at, i, j]))  # fmt: skip
        cell = counts[best[0]], rates[best[1]]
        rows.append({"what": "best", "epsilon": target, "steps": cell[0], "rate": cell[1], "r": math.prod(cell)}
                    | interval(grid[:, at, best[0], best[1]]))  # fmt: skip
        rows.append(
            {"what": "lost within a factor 2 of r", "epsilon": target} | gaps(grid[:, at].mean(0), best, counts, rates)
        )
        records = [run(task, "linear_scaling", target, seed, **ALONE) for seed in range(seeds)]
        sizes = [record.released["total_step_size"] for record in records]
        reached = [100 * record.metrics["accuracy"] for record in records]
        rows.append({"what": "rule", "epsilon": target, "steps": 60, "r": statistics.median(sizes)} | interval(reached))
        lost = grid[:, at, best[0], best[1]] - reached
        rows.append({"what": "lost by the rule", "epsilon": target} | interval(lost))
        sizes, reached = zip(
            *(unpaid(task, seed, target, grid[seed, at, counts.index(60)], rates) for seed in range(seeds)), strict=True
        )
        rows.append({"what": "line of grids", "epsilon": target, "steps": 60, "r": statistics.median(sizes)}
                    | interval(reached))  # fmt: skip
        rows.append({"what": "lost by the line of grids", "epsilon": target}
                    | interval(grid[:, at, best[0], best[1]] - reached))  # fmt: skip
        late = [at for at, count in enumerate(counts) if count >= 10]
        for name, taken in (("steps", counts), ("steps, with momentum", [*map(carried, counts)])):
            slopes = [slope(np.array(taken)[late], centres(cells, rates)[late]) for cells in grid[:, at]]
            rows.append({"what": f"exponent of the best rate in {name}", "epsilon": target} | interval(slopes))
    growth = (
        [slope(epsilons, centres(cells[:, counts.index(60)], rates)) for cells in grid] if len(epsilons) > 1 else []
    )
    return [*rows, *({"what": "exponent of the best r in epsilon, 60 steps"} | interval(growth) for _ in growth[:1])]


def steps_fashion_mnist(seeds: int) -> Rows:
    """The same on features of Fashion-MNIST, some minutes a seed."""
    return steps(seeds, bench.make_task("fashion_mnist", "small_vit_head"), (0.1, 1.0))


def steps_cifar10(seeds: int) -> Rows:
    """The same on pretrained features of CIFAR-10, fewer cells."""
    cifar10: Any = type(bench.make_task("cifar10"))
    without_shifted_test = type(cifar10.__name__, (cifar10,), {"corruptions": None})
    return steps(seeds, without_shifted_test("pretrained"), (0.1, 1.0), CIFAR10_COUNTS, CIFAR10_RATES)


def gaps(values: np.ndarray, best: tuple[int, ...], counts: Sequence[int], rates: Sequence[float]) -> dict[str, float]:
    """Mean, least and largest loss, from 10 steps on, where rate times steps is near that of the best cell."""
    totals = np.outer(counts, rates)
    near = (np.abs(np.log2(totals / totals[best])) <= 1) & (np.array(counts) >= 10)[:, None]
    lost = values.max() - values[near]
    return {"accuracy": lost.mean(), "accuracy_low": lost.min(), "accuracy_high": lost.max()}


def unpaid(task: bench.Task, seed: int, target: float, row: np.ndarray, rates: Sequence[float]) -> tuple[float, float]:
    """The rule's r if its sweeps were whole grids that cost nothing, and the accuracy there, between cells."""
    plan, shares = Schedule(1.0, 60), (0.1, 0.2)
    sigmas = [plan.noise(share * target) for share in shares]
    swept = scores(task, seed, plan, {"SGD": rates}, sigmas, [UNIT])[0, 0]
    sizes = 60 * np.exp(centres(swept, rates))
    points = [(share * target, float(size)) for share, size in zip(shares, sizes, strict=True)]
    total = on_line(points, target, (60 * rates[0], 60 * rates[-1]))
    return total, float(np.interp(math.log(total / 60), np.log(rates), row))


def carried(count: int) -> float:
    """Sum of 1 - .9^k: a tenth of how often the gradients of so many steps are taken, with momentum .9."""
    return sum(1 - 0.9**k for k in range(1, count + 1))


def best_cell(values: np.ndarray) -> tuple[int, ...]:
    """Place of the largest value; of several, the first."""
    return tuple(int(place) for place in np.unravel_index(int(values.argmax()), values.shape))


def centres(cells: np.ndarray, rates: Sequence[float] = STEP_RATES) -> np.ndarray:
    """Mean log rate of what lies within a point of the best, for each row of accuracies by rate."""
    near = cells >= cells.max(-1, keepdims=True) - 1
    return (near * np.log(rates)).sum(-1) / near.sum(-1)


def slope(values: Sequence[float], logs: np.ndarray) -> float:
    """Exponent of a power law through values and logarithms."""
    return float(np.polyfit(np.log(values), logs, 1)[0])


# Automatic clipping, Bu et al. 2023.

THRESHOLDS = tuple(float(f"{10**power:.3g}") for power in np.arange(-3, 2.1, 0.5))
GAMMAS = (0.0001, 0.001, 0.01, 0.1, 1.0)
THRESHOLD_RATES = {
    "SGD": tuple(float(f"{10**power:.3g}") for power in np.arange(-3, 3.1, 0.5)),
    "AdamW": tuple(float(f"{10**power:.3g}") for power in np.arange(-5, 1.1, 0.5)),
}


def thresholds(seeds: int, task: bench.Task | None = None, target: float = 3.0) -> Rows:
    """Accuracy by clipping rule and rate, on the task's schedule; at best rates, how far a rule is ahead of AUTO-S."""
    task = task or bench.make_task("digits")
    names = [*(f"abadi:{bound:g}" for bound in THRESHOLDS), *(f"auto_s:{gamma:g}" for gamma in GAMMAS), "auto_v"]
    plan = Schedule(task.facts.sample_rate, task.facts.steps)
    clippings, sigma = [parse_clipping(name) for name in names], plan.noise(target)
    grid = np.stack([scores(task, seed, plan, THRESHOLD_RATES, [sigma], clippings)[:, :, 0] for seed in range(seeds)])
    rows, base = Rows(), names.index("auto_s:0.01")
    for i, (optimizer, rates) in enumerate(THRESHOLD_RATES.items()):
        peaks = grid[:, i].mean(0).argmax(-1)
        for j, name in enumerate(names):
            rows += [{"optimizer": optimizer, "clipping": name, "rate": rate} | interval(grid[:, i, j, k])
                     for k, rate in enumerate(rates)]  # fmt: skip
            rows[peaks[j] - len(rates)] |= interval(grid[:, i, j, peaks[j]] - grid[:, i, base, peaks[base]], "ahead")
    return rows


E2E_CLIPPINGS = ("abadi:0.1", "abadi:1", "abadi:10", "abadi:100", "auto_s")
E2E_RATES = (0.003, 0.001, 0.01, 0.0003)


def thresholds_e2e(seeds: int) -> Rows:
    """BLEU and perplexity of a small GPT-2 on E2E by threshold and rate, ε = 3, two minutes a cell."""
    keys = [{"seed": seed, "rate": rate, "clipping": clipping}
            for seed in range(seeds) for rate in E2E_RATES for clipping in E2E_CLIPPINGS]  # fmt: skip

    def cell(seed: int, rate: float, clipping: str) -> dict[str, float]:
        record = run(bench.make_task("e2e", "small_gpt2"), "dp_sgd", 3, seed, clipping=clipping, learning_rate=rate,
                     averaging=0)  # fmt: skip
        return {name: record.metrics[name] for name in ("bleu", "perplexity")}

    return resumed("thresholds_e2e", keys, cell)


TABLE_1 = ("mnist_cnn_auto_s", "mnist_cnn", "fashion_mnist_cnn_auto_s", "fashion_mnist_cnn")


def table_1(seeds: int) -> Rows:
    """Table 1 on MNIST and Fashion-MNIST, four minutes a cell, with Abadi's clipping and without privacy."""
    settings = [*TABLE_1, "mnist without privacy", "fashion_mnist without privacy"]
    keys = [{"setting": setting, "seed": seed} for seed in range(seeds) for setting in settings]

    def cell(setting: str, seed: int) -> dict[str, float]:
        of_private = {"accuracy": accuracy(PUBLISHED[setting], seed)} if setting in PUBLISHED else {}
        return of_private or {"accuracy": ceiling(setting.split()[0], "cnn", seed)}

    rows = resumed("table_1", keys, cell)
    means = [{"setting": setting} | interval([row["accuracy"] for row in rows if row["setting"] == setting])
             for setting in settings]  # fmt: skip
    sys.stdout.write(pd.DataFrame(means).to_string(index=False, float_format="%.4g") + "\n")
    return rows


NEAR = tuple(float(f"{10**power:.3g}") for power in np.arange(-4.5, 0.6, 0.5))
"""Rates in steps of √10."""


def dp_hyper(seeds: int) -> Rows:
    """What a simulation without a search loses: .85 ε, at the best of three rates around the best, or at any of them.

    The best rate is that of the mean over seeds; as in the oracles here, nobody pays for it.
    """
    rows = Rows()
    for model in ("linear", "mlp"):
        task = bench.make_task("digits", model)
        plan = Schedule(task.facts.sample_rate, task.facts.steps)
        for target in (1.0, 3.0, 8.0):
            sigmas, rule = [plan.noise(target), plan.noise(0.85 * target)], [parse_clipping("auto_s")]
            grid = np.stack([
                scores(task, seed, plan, {"AdamW": NEAR}, sigmas, rule, 0.99)[0, 0] for seed in range(seeds)
            ])  # fmt: skip
            best = int(grid[:, 0].mean(0).argmax())
            oracle, near = grid[:, 0, best], grid[:, 1, max(0, best - 1) : best + 2]
            rows.append(
                {"model": model, "epsilon": target, "rate": NEAR[best]}
                | interval(oracle, "oracle")
                | interval(oracle - near[:, near.mean(0).argmax()], "lost_at_best")
                | interval(oracle - near.mean(1), "lost_at_any")
            )
    return rows


# The linear scaling rule, Panda et al. 2024: its ablations.

TOTALS = tuple(float(f"{10**power:.3g}") for power in np.arange(0, 3.6, 0.25))
"""r of the grids, 60 steps; the weights' own unit is a mean gradient of norm 1."""
ABLATION_EPSILONS = (1.0, 3.0, 8.0)


def digits_with(layer: Callable[[], nn.Module], name: str) -> bench.Task:
    """The digits with another linear layer."""
    digits: Any = type(bench.make_task("digits"))
    return type(name, (digits,), {"build_model": staticmethod(layer)})("linear")


def without_bias() -> nn.Module:
    """A linear layer from zero, without a bias."""
    layer = nn.Linear(64, 10, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def he() -> nn.Module:
    """A linear layer whose weights He's normal distribution draws, of variance 2/64."""
    layer = nn.Linear(64, 10)
    nn.init.kaiming_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def by_rdp(target: float) -> float:
    """ε of a full-batch run whose noise RDP calibrates."""
    return epsilon(gaussian(calibrate(gaussian, bench.PrivacyBudget(target, DELTA), accountant="rdp")), DELTA).epsilon


ALONE = {"free_step": False}
"""The rule, a grid and ablations are compared without the free step."""


class Ablation(NamedTuple):
    """A choice of the paper, undone; what undoing it costs in the paper, in points; parameters of `linear_scaling`."""

    name: str
    published: float
    parameters: dict[str, Any]
    layer: Callable[[], nn.Module] | None = None
    share: Callable[[float], float] = float


ABLATIONS = (
    Ablation("as published", 0.0, {}),
    Ablation("He's first weights", 6.81, {}, he),
    Ablation("without bias", -0.36, {}, without_bias),
    Ablation("noise by RDP", 3.23, {}, share=by_rdp),
    Ablation("no momentum", 2.09, {"momentum": 0.0}),
    Ablation("C = 0.01", 0.46, {"clipping": "abadi:0.01"}),
    Ablation("batches of 360", 1.46, {"batch_size": 360, "steps": 240}),
    Ablation("batches of 360, 60 steps", math.nan, {"batch_size": 360}),
    Ablation("free step", math.nan, {"free_step": True}),
    Ablation("averages of weights, .9", math.nan, {"averaging": 0.9}),
    Ablation("line through three points", -1.12, {"third_share": 0.3}),
    Ablation("parabola through three", 0.05, {"third_share": 0.3, "degree": 2}),
)


def accuracies(task: bench.Task, run: bench.recipes.DpSgd, rates: Sequence[float], seed: int) -> list[float]:
    """Test accuracy in % at each rate, with common batches and noise."""
    source = bench.DataSource.resolve()
    task.prepare(source)
    raw, test = RawRecords(task, task.load_train(source), "cpu"), task.load_test(source)
    sessions = [open_session(raw, Ledger(), Streams(seed)) for _ in rates]
    models = bench.recipes.DpSgd.train_together(sessions, [replace(run, learning_rate=rate) for rate in rates])
    return [100 * float(right(model, test).mean()) for model in models]


def right(model: nn.Module, test: Any) -> Tensor:
    """1 for each test record that the model classifies right, else 0."""
    with torch.no_grad():
        return (model(test.inputs.float()).argmax(1) == test.targets).double()


def ablations(seeds: int) -> Rows:
    """Each choice undone: at the best r of a grid, and at what the rule finds. Then Table 12."""
    rows = Rows()
    for target in ABLATION_EPSILONS:
        base: dict[str, np.ndarray] = {}
        for choice in ABLATIONS:
            each = choice._replace(parameters=ALONE | choice.parameters)
            task = bench.make_task("digits") if each.layer is None else digits_with(each.layer, each.name)
            spent = each.share(target)
            row: dict[str, Any] = {"table": "1", "epsilon": target, "choice": each.name, "published": each.published}
            results = {}
            if "third_share" not in each.parameters:
                results["best"] = of_grid(task, spent, each, seeds, row)
            records = [run(task, "linear_scaling", spent, seed, **each.parameters) for seed in range(seeds)]
            results["rule"] = np.array([100 * record.metrics["accuracy"] for record in records])
            row["r_rule"] = statistics.median(record.released["total_step_size"] for record in records)
            base = base or results
            for name, values in results.items():
                row |= {name: values.mean()} | interval((base[name] - values).round(5), f"{name}_lost")
            rows.append(row)
    return rows + less_data(seeds)


def of_grid(task: bench.Task, target: float, each: Ablation, seeds: int, row: dict[str, Any]) -> np.ndarray:
    """Accuracies of the seeds at the r that is best on average, which the row notes."""
    method: Any = bench.make_method("linear_scaling", each.parameters)
    budget = bench.PrivacyBudget(target, DELTA)
    descent = method.descent(task.facts, budget).calibrated(budget)
    unit = parse_clipping(method.clipping).sensitivity * method.steps
    rates = [total / unit for total in TOTALS]
    grid = np.array([accuracies(task, descent, rates, seed) for seed in range(seeds)])
    best = int(grid.mean(0).argmax())
    row["r_best"] = TOTALS[best]
    return grid[:, best]


def less_data(seeds: int) -> Rows:
    """Table 12: from ε = 1 to .7 by half of the data, by sampling, and by noise; at the best rate of each."""
    task, rows = bench.make_task("digits"), Rows()
    plans = {
        "epsilon 1": (Schedule(1.0, 60), 1.0, math.nan),
        "more noise": (Schedule(1.0, 60), 0.7, 2.93),
        "half of the records at every step": (Schedule(0.5, 60), 0.7, 45.66),
        "half of the records for good, noise of epsilon 1": (Schedule(1.0, 60, share=0.5), 1.0, 45.66),
    }
    base = None
    for name, (plan, target, published) in plans.items():
        grid = np.stack([
            scores(task, seed, plan, {"SGD": STEP_RATES}, [plan.noise(target)], [UNIT])[0, 0, 0]
            for seed in range(seeds)
        ])  # fmt: skip
        best = int(grid.mean(0).argmax())
        values = grid[:, best]
        base = values if base is None else base
        rows.append({"table": "12", "epsilon": target, "choice": name, "published": published,
                     "r_best": 60 * STEP_RATES[best], "best": values.mean()}
                    | interval(base - values, "best_lost"))  # fmt: skip
    return rows


SEARCHED: dict[str, dict[str, Any]] = {
    "rate": {},
    "rate, T": {"steps": 15, "most_steps": 240},
    "rate, T, B, C": {"steps": 15, "most_steps": 240, "batch_size": 360, "joint": True, "clipping": "abadi:0.125"},
}


def joint(seeds: int) -> Rows:
    """A.4: the rule by what is searched, and how far it is behind rate and T, 89.10 for 87.9 in the paper."""
    task, rows = bench.make_task("digits"), Rows()
    for target in ABLATION_EPSILONS:
        runs = {
            name: [run(task, "linear_scaling", target, seed, **parameters) for seed in range(seeds)]
            for name, parameters in SEARCHED.items()
        }
        reached = {name: np.array([100 * each.metrics["accuracy"] for each in some]) for name, some in runs.items()}
        rows += [
            {"epsilon": target, "searched": name, "epsilon_spent": some[0].privacy.recomputed.epsilon,
             "r": statistics.median(each.released["total_step_size"] for each in some)}
            | interval(reached[name]) | interval((reached["rate, T"] - reached[name]).round(5), "behind")
            for name, some in runs.items()
        ]  # fmt: skip
    return rows


@dataclass(frozen=True)
class ZerothScaling(LinearScaling):
    """The rule on DP-ZO: r = η d T, without momentum or a free step; `steps` are to be those of `dp_zo`."""

    name = "zeroth_scaling"
    summary = "The linear scaling rule on DP-ZO."

    def descent(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> ZerothOrder:
        """A run of `dp_zo`."""
        return DpZo().plan(facts, budget).parameters


ZEROTH_RATES = tuple(100 * 300 ** (power / 6 - 0.5) for power in range(7))
"""η d: as many decades as the rule's r has, around the default of `dp_zo`."""


def zeroth(seeds: int) -> Rows:
    """Table 14: DP-ZO at a drawn rate, by the rule, and at the best rate of a grid, which nobody pays for."""
    task, rows = bench.make_task("digits"), Rows()
    for target in (1.0, 3.0):
        steps = DpZo().plan(task.facts, bench.PrivacyBudget(target, DELTA)).parameters.steps
        rule = ZerothScaling(steps=steps, smallest=ZEROTH_RATES[0] * steps, largest=ZEROTH_RATES[-1] * steps)
        drawn = [100 * 300 ** np.random.default_rng(seed).uniform(-0.5, 0.5) for seed in range(seeds)]
        ruled = [run(task, rule, target, seed) for seed in range(seeds)]
        ways = {
            "random search": [run(task, "dp_zo", target, seed, learning_rate=rate) for seed, rate in enumerate(drawn)],
            "the rule": ruled,
        } | {f"{rate:.3g}": [run(task, "dp_zo", target, seed, learning_rate=rate) for seed in range(seeds)]
             for rate in ZEROTH_RATES}  # fmt: skip
        reached = {name: np.array([100 * each.metrics["accuracy"] for each in some]) for name, some in ways.items()}
        best = max([*ways][2:], key=lambda name: reached[name].mean())
        of_rule = statistics.median(each.released["learning_rate"] for each in ruled)
        rates = {"random search": statistics.median(drawn), "the rule": of_rule}
        rows += [
            {"epsilon": target, "way": "grid search" if name == best else name, "rate": rates.get(name) or float(name)}
            | interval(values) | interval((reached[best] - values).round(5), "behind")
            for name, values in reached.items()
        ]  # fmt: skip
    return rows


class Choice(NamedTuple):
    """Rate of Poisson batches, steps, threshold, and an average of weights, from step `first` on if it is uniform."""

    name: str
    share: float = 1.0
    steps: int = 60
    bound: float = 1.0
    averaging: float = 0.0
    first: int | None = None


CHOICES = (
    Choice("as published"),
    *(Choice(f"B = N/{part}, 60 steps", 1 / part) for part in (2, 4, 16)),
    *(Choice(f"B = N/{part}, {60 * part} steps", 1 / part, 60 * part) for part in (2, 4, 16)),
    *(Choice(f"C = {bound:g}", bound=bound) for bound in (0.1, 0.01)),
    *(Choice(f"average, decay {decay:g}", averaging=decay) for decay in (0.9, 0.99)),
    Choice("average, last half", first=30),
    Choice("average, all steps", first=0),
)


SMALL_RATES = (0.005, 0.01, *STEP_RATES)


def choices(seeds: int) -> Rows:
    """Figures 8, 10 and 11 by more values: at the best rate of what is published, and at the best of each."""
    rows, task = Rows(), bench.make_task("digits")
    for target in ABLATION_EPSILONS:
        base, at_base = np.zeros(seeds), 0.0
        for each in CHOICES:
            rates = sorted({*SMALL_RATES, *(float(f"{rate / each.bound:g}") for rate in SMALL_RATES)})
            plan, rule = Schedule(each.share, each.steps), parse_clipping(f"abadi:{each.bound:g}")
            of_each = {"SGD": rates}, [plan.noise(target)], [rule], each.averaging, each.first
            grid = np.stack([scores(task, seed, plan, *of_each)[0, 0, 0] for seed in range(seeds)])
            best = int(grid.mean(0).argmax())
            if each is CHOICES[0]:
                base, at_base = grid[:, best], rates[best]
            rows.append({"epsilon": target, "choice": each.name, "rate": rates[best], "best": grid[:, best].mean()}
                        | interval((base - grid[:, best]).round(5), "best_lost")
                        | interval((base - grid[:, rates.index(at_base)]).round(5), "kept_lost"))  # fmt: skip
    return rows


BLURS = Corruptions(turns=tuple(("Gaussian blur", severity) for severity in range(1, 6)))


def blur(seeds: int) -> Rows:
    """Accuracy at ε = 1 under blur, and points lost to it on the same pictures, by severity; then their mean."""
    cifar10: Any = type(bench.make_task("cifar10"))
    task, source = type("Blurred", (cifar10,), {"corruptions": BLURS})("pretrained"), bench.DataSource.resolve()
    (shifted,), rows = task.further_tests, Rows()
    for method, parameters in (("linear_scaling", {}), ("recommended", {}), ("nonprivate", {})):
        made, budget = bench.make_method(method, parameters), bench.PrivacyBudget(1, DELTA)
        models = [bench.run(made, task, budget, seed=seed).model for seed in range(400, 400 + seeds)]
        tests = task.load_test(source), shifted.records(task.name, source)
        clean, blurred = (
            np.array([100 * right(model, test).view(-1, 5).mean(0).numpy() for model in models]) for test in tests
        )
        for severity, part in {**{str(turn + 1): [turn] for turn in range(5)}, "mean": [*range(5)]}.items():
            rows.append({"method": method, "severity": severity}
                        | interval(clean[:, part].mean(1), "clean") | interval(blurred[:, part].mean(1))
                        | interval((clean - blurred)[:, part].mean(1), "lost"))  # fmt: skip
    return rows


# Encodings, beside what is usually searched.

TABLES = {"readmissions": ("readmissions", "linear"), "Adult": ("adult", "linear"), "digits": ("digits", "linear"),
          "synthetic": ("synthetic", "rule_10000")}  # fmt: skip
FIRST_SEED = 1500
select_encoding = SimpleNamespace(**run_path(str(Path(__file__).parents[1] / "examples/select_encoding.py")))


def encoded(task: bench.Task) -> dict[str, bench.Task]:
    """The task with its numbers as they are, in public bins, and both; its linear model and its schedule."""
    source, facts = bench.DataSource.resolve(), task.facts
    task.prepare(source)
    train, test = (records.named() for records in (task.load_train(source), task.load_test(source)))
    ways = [select_encoding.encodings(records["inputs"].float(), task.columns) for records in (train, test)]
    schedule = bench.TrainingOptions(batch_size=facts.batch_size, epochs=facts.epochs)
    return {
        way: bench.ArrayTask(
            f"{task.name}_{way}", (inputs, train["targets"]),
            partial(perceptron, inputs.shape[1], facts.n_classes or 1), (ways[1][way], test["targets"]),
            kind=facts.kind, measures=bench.Measures(metrics=task.metrics), training=schedule, public=True,
        )
        for way, inputs in ways[0].items()
    }  # fmt: skip


def rate_of(task: bench.Task) -> float:
    """The rate that a run of `noise_scaled` chooses at ε = 1."""
    return run(task, "noise_scaled", 1.0, FIRST_SEED, clipping="abadi:1").released["learning_rate"]


def encodings(seeds: int) -> Rows:
    """Points by each single change of a run at ε = 1, and from the worst of three values to the best.

    The run is SGD with momentum at the rate of `noise_scaled`, for which nothing is paid, clipped at 1, on the task's
    schedule. Beside it, "chance" has the run itself at three groups of seeds: of three, one is the best by chance.
    """
    rows = Rows()
    for name, which in TABLES.items():
        task = bench.make_task(*which)
        rate, ways = rate_of(task), encoded(task)

        def cells(
            task: bench.Task, batch: float = 1.0, first: int = FIRST_SEED, *factors: Sequence[float], rate: float = rate
        ) -> np.ndarray:
            """Shape (thresholds, rates, seeds)."""
            share, (bounds, rates) = min(1.0, batch * task.facts.sample_rate), factors or ((1.0,), (1.0,))
            plan = Schedule(share, round(task.facts.epochs / share))
            rules = [parse_clipping(f"abadi:{bound}") for bound in bounds]
            of_rates, sigmas = {"SGD": [rate * each for each in rates]}, [plan.noise(1.0)]
            return np.stack([scores(task, first + seed, plan, of_rates, sigmas, rules, 0.99)[0, :, 0]
                             for seed in range(seeds)], axis=-1)  # fmt: skip

        thirds, quarters = (1.0, 1 / 3, 3.0), (1.0, 0.25, 4.0)
        own = cells(ways["numbers"], 1.0, FIRST_SEED, quarters, thirds)
        default = own[0, 0]
        panels: dict[str, dict[Any, np.ndarray]] = {
            "encoding": {"numbers": default, **{way: cells(ways[way])[0, 0] for way in ("bins", "both")}},
            "clipping": dict(zip(quarters, own[:, 0], strict=True)),
            "rate": dict(zip(thirds, own[0], strict=True)),
            "batch": {1.0: default, **{batch: cells(ways["numbers"], batch)[0, 0] for batch in (0.25, 4.0)}},
            "chance": {1500: default, **{seed: cells(ways["numbers"], 1.0, seed)[0, 0] for seed in (1600, 1700)}},
        }
        for what, values in panels.items():
            of_table = {"table": name, "rate": rate, "what": what}
            rows += [of_table | {"value": value} | interval(points, "points") for value, points in values.items()]
            rows.append(of_table | {"value": "range"} | interval(from_worst_to_best([*values.values()]), "points"))
    return rows


def from_worst_to_best(values: Sequence[np.ndarray]) -> np.ndarray:
    """Differences by seed between the settings of the largest and the smallest mean."""
    ordered = sorted(values, key=np.mean)
    return ordered[-1] - ordered[0]


def chosen_encodings(seeds: int) -> Rows:
    """ROC-AUC in % of each encoding at ε = 1, of the private choice, and how far that is behind; seeds are secret."""
    rows, budget = Rows(), bench.PrivacyBudget(1.0, DELTA)
    for name in ("Adult", "readmissions"):
        task = bench.make_task(*TABLES[name])
        ways, source, schedule = encoded(task), bench.DataSource.resolve(), (task.facts.sample_rate, task.facts.steps)
        move = rate_of(task) / task.facts.batch_size
        train = {way: each.load_train(source).named() for way, each in ways.items()}
        test = {way: each.load_test(source).named() for way, each in ways.items()}
        inputs, labels = {way: each["inputs"] for way, each in train.items()}, train["numbers"]["targets"]

        def area(way: str, weights: Tensor, test: Any = test) -> float:
            outputs = test[way]["inputs"] @ weights[:-1] + weights[-1]
            return 100 * bench.metrics.ROC_AUC.of(outputs[:, None], test[way]["targets"])

        noise, reached = Schedule(*schedule).noise(1.0), dict[str, np.ndarray]()
        for way in ways:
            generators = [torch.Generator().manual_seed(FIRST_SEED + seed) for seed in range(seeds)]
            reached[way] = np.array([
                area(way, select_encoding.descend(inputs[way], labels, noise, generator, move, *schedule))
                for generator in generators
            ])  # fmt: skip
        results = [select_encoding.choose(inputs, labels, budget, move, *schedule) for _ in range(seeds)]
        taken = [str(result.params["encoding"]) for result in results]
        reached["private choice"] = np.array([area(way, each.model) for way, each in zip(taken, results, strict=True)])
        rows += [
            {"table": name, "way": way, "chosen": taken.count(way)} | interval(values, "points")
            | interval(values - reached["private choice"], "ahead_of_choice")
            for way, values in reached.items()
        ]  # fmt: skip
    return rows


FIGURES: dict[str, Callable[[int], Rows]] = {
    "rounds": rounds,
    "noise": noise,
    "bias": bias,
    "intervals": intervals,
    "dp_hyper": dp_hyper,
    "steps": steps,
    "steps_fashion_mnist": steps_fashion_mnist,
    "steps_cifar10": steps_cifar10,
    "ablations": ablations,
    "joint": joint,
    "zeroth": zeroth,
    "choices": choices,
    "blur": blur,
    "encodings": encodings,
    "chosen_encodings": chosen_encodings,
    "thresholds": thresholds,
    "thresholds_e2e": thresholds_e2e,
    "table_1": table_1,
}


def main() -> None:
    """Write the table of a figure, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=FIGURES)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    table = pd.DataFrame(FIGURES[asked.name](asked.seeds))
    table.to_csv(DATA / f"figure_{asked.name}.csv", index=False, float_format="%.4g")
    sys.stdout.write(table.to_string(index=False, float_format="%.4g", na_rep="") + "\n")


if __name__ == "__main__":
    main()
