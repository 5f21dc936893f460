"""The development set of methods without hyperparameters: what each of 13 fixed learning rates comes to on each task.

    python -m research.development_set --dry-run          # tasks, seeds and hours; trains nothing
    python -m research.development_set                    # computes what is missing; may be killed at any time
    python -m research.development_set --only digits      # tasks whose name has this text
    python -m research.development_set --edition 2                    # or 3

Tasks of the first edition: the draws `made_up.DEVELOPMENT`, the two named ones, digits, Adult, Fashion-MNIST,
CIFAR-10's pretrained features and scikit-learn's tables. Of the second: the draws `made_up_labels.DEVELOPMENT`, and
Adult's first records. Of the third, for which nothing is developed: the untouched tables (research/untouched.md). A run
is one of `auto_clipping`: DP-SGD on the task's schedule with AUTO-S, at a fixed rate, the average of the weights,
δ = N^-1.1. All runs of a task at one seed are a stack
(`research.stacked`): they have noise of their own, and share initial weights and batches.

Rates follow the law ν = J · (what the noise of a whole run moves a weight by). J is the standard deviation, centred
over records, of the outputs when each weight moves by a standard normal number, linearised at the initial weights.
AdamW's noise moves a weight by η √T, that of SGD with momentum by η (σ / B) √Σ ((1 - .9^k) / .1)². `NUS` go from .025
to 102; in regressions and where a class is rare they are shifted by `SHIFTS`, so that the best is inside.

`read()` returns the curves from the file in the repository: means and seeds of the test metric that ranks the task.
"""

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench import curves
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Task
from dphpo_bench.curves import EPSILONS, NUS, OPTIMIZERS, Curves
from dphpo_bench.recipes.networks import zero_linear
from dphpo_bench.recipes.noise_law import output_spread
from dphpo_bench.recipes.synthetic import VERSION
from dphpo_bench.training.noise import poisson_sample
from dphpo_bench.training.randomness import Streams
from research import made_up, made_up_labels
from research.made_up import CASES, DEVELOPMENT, Draw, set_hash
from research.stacked import Stack, gaussian_noise, initial_model, perceptron_layers, stack_of, train
from tests.own_task import array_task

SHIFTS = {"regression": (1 / 4, 1 / 16), "binary": (4.0, 2.0)}
"""Factors of `NUS` by kind of task and optimiser. With little noise SGD diverges at small ν; rare classes take long."""
RUNS = len(OPTIMIZERS) * len(EPSILONS) * len(NUS)
SEEDS = {300: 16, 1_000: 8, 10_000: 4, math.inf: 2}
"""Seeds of tasks with fewer records than this."""
FLOOR = -10.0
"""Metrics below are stored as this: an R² has no bound. NaN: the outputs were not finite."""
MADE_UP = {"synthetic": made_up.task, "labels": made_up_labels.task}
TABLES = ("tumours", "wine")
REAL = ("diabetes-linear", "digits-linear", "digits-mlp", "adult-linear", "adult-mlp")
LARGE = ("cifar10-pretrained", "fashion_mnist-linear")
UNTOUCHED = (
    "affairs", "marriages", "visits", "housing", "patches", "rare_class", "wrong_labels", "wide", "topics", "shells",
    "friedman", "heavy_tails",
)  # fmt: skip
FEW = tuple(f"adult_few-{model}_{n}" for model in ("linear", "mlp") for n in (300, 1_000, 3_000, 10_000))


@dataclass(frozen=True)
class Edition:
    """Tasks whose curves are in one file, and the draws among them."""

    names: tuple[str, ...]
    draws: tuple[Draw, ...]
    results: Path

    @property
    def key(self) -> str:
        """A hash of the draws and of the grid: what has another one is of no use."""
        of = [set_hash(self.draws), NUS, SHIFTS, EPSILONS, OPTIMIZERS]
        return hashlib.sha256(json.dumps(of).encode()).hexdigest()


def _editions() -> dict[int, Edition]:
    first = tuple(Draw.of(name) for name in (*CASES, *map(str, DEVELOPMENT)))
    second = tuple(map(made_up_labels.draw_of, made_up_labels.DEVELOPMENT))
    names = {
        1: (*TABLES, *(f"synthetic-{draw.name}" for draw in first), *REAL, *LARGE),
        2: (*(f"labels-{draw.name}" for draw in second), *FEW),
        3: tuple(f"{table}-{model}" for table in UNTOUCHED for model in ("linear", "mlp")),
    }
    draws = {1: first, 2: second, 3: ()}
    return {number: Edition(names[number], draws[number], curves.FILES[number]) for number in names}


EDITIONS = _editions()


def make(name: str, seed: int = 0) -> Task:
    """The task of this name; scikit-learn's small tables are split anew for each seed."""
    prefix, _, rest = name.partition("-")
    if prefix in MADE_UP:
        return MADE_UP[prefix](rest)
    if name not in TABLES:
        return bench.make_task(*name.split("-"))
    from sklearn.datasets import load_breast_cancer, load_wine

    values, labels = (load_wine if name == "wine" else load_breast_cancer)(return_X_y=True)
    inputs = np.log(0.01 + values) if name == "tumours" else (values - values.mean(0)) / values.std(0)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(labels))
    split = 128 if name == "wine" else 469
    parts = [
        (torch.from_numpy(inputs[rows]).float(), torch.from_numpy(labels[rows])) for rows in np.split(order, [split])
    ]
    shape = (inputs.shape[1], int(labels.max()) + 1)
    return array_task(
        name, parts[0], lambda: zero_linear(*shape), parts[1], batch_size=split // 4, epochs=20, public=True
    )


def n_seeds(task: Task) -> int:
    """Number of seeds: small tasks are noisy, and cheap but for networks that no stack takes."""
    count = next(count for size, count in SEEDS.items() if task.facts.n_records < size)
    most = 2 if isinstance(_draw_of(task), made_up_labels.LabelDraw) else 4
    return count if is_stacked(initial_model(task, 0)) else min(count, most)


def is_stacked(model: nn.Module) -> bool:
    """Whether a stack takes the model; else it has convolutions or a state."""
    return perceptron_layers(model) is not None


def weights_of(task: Task) -> int:
    """Number of trained numbers; of a network that no stack takes, of their uses."""
    model = initial_model(task, 0)
    uses = 1 if is_stacked(model) else math.prod(task.facts.inputs.shape)  # type: ignore[union-attr]
    return uses * sum(parameter.numel() for parameter in model.parameters())


def work(task: Task) -> float:
    """About how many seconds the curves of a task take: a part for each step, and one for each product."""
    facts, runs = task.facts, 1 if is_stacked(initial_model(task, 0)) else RUNS
    return n_seeds(task) * (1 + facts.steps * (0.004 * runs + 4e-8 * facts.batch_size * weights_of(task)))


def nus_of(task: Task) -> tuple[tuple[float, ...], ...]:
    """ν of the rates, by optimiser."""
    shifts, unit = SHIFTS.get(task.facts.kind, (1.0,) * len(OPTIMIZERS)), getattr(_draw_of(task), "unit", 1.0)
    return tuple(tuple(nu * shift * unit for nu in NUS) for shift in shifts)


def _draw_of(task: Task) -> Draw | None:
    return getattr(task, "draw", None)


def learning_rates(task: Task, spread: float, sigmas: tuple[float, ...]) -> Tensor:
    """Rates by the law: shape (optimisers, ε, 13)."""
    steps, size = task.facts.steps, task.facts.batch_size
    momentum = math.sqrt(sum(((1 - 0.9**k) / 0.1) ** 2 for k in range(1, steps + 1)))
    moves = torch.tensor([[math.sqrt(steps)] * len(sigmas), [momentum * sigma / size for sigma in sigmas]])
    return torch.tensor(nus_of(task))[:, None] / (spread * moves[..., None])


def batches(task: Task, generator: torch.Generator, steps: int | None = None) -> Iterator[Tensor]:
    """Numbers of the records of each step."""
    facts = task.facts
    return (poisson_sample(facts.n_records, facts.sample_rate, generator) for _ in range(steps or facts.steps))


def measured(task: Task, stack: Stack, test: Records) -> NDArray[np.float32]:
    """The metric that ranks the task, of each run."""
    metric: Any = task.metrics[0]
    assert metric.higher_is_better
    outputs = torch.cat([stack.outputs(part.float()) for part in test.inputs.split(4_096)], dim=1)  # type: ignore[union-attr]
    values = [max(FLOOR, metric.of(some, test.targets)) if some.isfinite().all() else math.nan for some in outputs]
    return np.array(values, dtype=np.float32)


def curve(name: str, seed: int, sigmas: tuple[float, ...], rates: Tensor) -> NDArray[np.float32]:
    """The metric of all runs at one seed: shape (optimisers, ε, 13)."""
    torch.set_num_threads(1)
    task, source = make(name, seed), bench.DataSource.resolve()
    task.prepare(source)
    records, streams = task.load_train(source), Streams(seed)
    stack = stack_of(task, records, RUNS, seed)
    of_runs = torch.tensor(sigmas).repeat_interleave(len(NUS)).repeat(len(OPTIMIZERS))
    noise = gaussian_noise(stack, of_runs, streams.generator("noise", name))
    drawn = batches(task, streams.generator("batches", name))
    train(stack, records, task.facts.batch_size, drawn, noise, rates.flatten(), OPTIMIZERS)
    return measured(task, stack, task.load_test(source)).reshape(rates.shape)


def compute(name: str, folder: Path, key: str) -> Curves:
    """The curves of a task of the edition with this key; each seed is kept in the folder once it is done."""
    torch.set_num_threads(1)
    start, task, source = time.process_time(), make(name), bench.DataSource.resolve()
    kept = folder / f"{name}.npz"
    done = dict(np.load(kept)) if kept.exists() else {}
    done = done if str(done.get("key")) == key else {}
    seconds = float(done.get("seconds", 0.0))
    if done:
        spread, sigmas = float(done["spread"]), tuple(map(float, done["sigmas"]))
    else:
        task.prepare(source)
        spread = output_spread(initial_model(task, 0), task.load_train(source).inputs, draws=16)
        budgets = [bench.PrivacyBudget(epsilon, task.facts.default_delta) for epsilon in EPSILONS]
        sigmas = tuple(bench.recipes.DpSgd.of(task.facts).calibrated(budget).noise_multiplier for budget in budgets)
    rates = learning_rates(task, spread, sigmas)
    metrics = [*done.get("metric", [])]
    while len(metrics) < n_seeds(task):
        metrics.append(curve(name, len(metrics), sigmas, rates))
        entry = {"key": key, "spread": spread, "sigmas": sigmas, "rates": rates.numpy(), "metric": np.stack(metrics)}
        replacement = kept.with_suffix(".tmp.npz")
        np.savez_compressed(replacement, seconds=seconds + time.process_time() - start, **entry)  # type: ignore[arg-type]
        replacement.replace(kept)
        seconds = float(np.load(kept)["seconds"])
        start = time.process_time()
    return curves_of(name, dict(np.load(kept)))


def curves_of(name: str, entry: dict[str, Any]) -> Curves:
    """Curves of what the folder keeps of a task."""
    task = make(name)
    facts = {
        "n_records": task.facts.n_records,
        "batch_size": task.facts.batch_size,
        "steps": task.facts.steps,
        "weights": sum(parameter.numel() for parameter in initial_model(task, 0).parameters()),
        "metric": task.metrics[0].name,
    }
    draw = _draw_of(task)
    spread, seconds = (float(entry[key]) for key in ("spread", "seconds"))
    sigmas = tuple(map(float, entry["sigmas"]))
    stratum = draw.stratum if draw else name
    return Curves(name, stratum, facts, spread, nus_of(task), sigmas, seconds, entry["rates"], entry["metric"])


def pack(all_of: list[Curves], edition: Edition, path: Path) -> None:
    """Write all curves of an edition into one file."""
    most = max(len(each.metric) for each in all_of)
    metric = np.full((len(all_of), most, len(OPTIMIZERS), len(EPSILONS), len(NUS)), np.nan, np.float32)
    for row, each in zip(metric, all_of, strict=True):
        row[: len(each.metric)] = np.round(each.metric, 4)
    header = {
        "generator": VERSION, "draws": set_hash(edition.draws), "key": edition.key, "torch": torch.__version__,
        "numpy": np.__version__, "epsilons": EPSILONS, "optimizers": OPTIMIZERS, "nus": NUS, "of": len(edition.names),
        "tasks": [{**each.header(), "seeds": len(each.metric)} for each in all_of],
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, header=json.dumps(header), metric=metric, rates=np.stack([each.rates for each in all_of]))


def read(edition: Edition = EDITIONS[1], path: Path | None = None) -> list[Curves]:
    """All curves of an edition's file, in the order of its names; those of other draws or another grid are refused."""
    header, found = curves.read(path or edition.results)
    if header["key"] != edition.key:
        raise ValueError(f"{path} has curves of other draws or another grid. Remove it, and compute them anew.")
    return found


def seconds_of(name: str, steps: int = 2) -> float:
    """How long the curves of a task will take on one core, from two steps on made-up records of its shape."""
    task = make(name)
    facts: Any = task.facts
    n = min(facts.n_records, 2 * facts.batch_size)
    targets = torch.zeros(n, dtype=torch.long) if facts.kind == "classification" else torch.zeros(n)
    records = Records(torch.randn(n, *facts.inputs.shape), targets)
    stack = stack_of(task, records, RUNS, 0)
    noise = gaussian_noise(stack, torch.ones(RUNS), torch.Generator())
    some = [torch.arange(n)[: facts.batch_size]] * steps
    start = time.perf_counter()
    train(stack, records, facts.batch_size, iter(some), noise, torch.ones(RUNS), OPTIMIZERS)
    return n_seeds(task) * facts.steps * (time.perf_counter() - start) / steps


def main() -> None:
    """Compute what is missing, cheap tasks first, and pack all that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="how long it will take")
    parser.add_argument("--edition", type=int, choices=EDITIONS, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="tasks whose name has this text")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("build/development_set"), help="of what is done so far")
    parser.add_argument("--results", type=Path, help="the file to pack into, in place of the repository's")
    asked = parser.parse_args()
    edition = EDITIONS[asked.edition]
    results: Path = asked.results or edition.results
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    have = {each.name: each for each in read(edition, results)} if results.exists() else {}
    names = [name for name in edition.names if asked.only in name]
    missing = sorted((name for name in names if name not in have), key=lambda name: work(make(name)))
    sys.stdout.write(f"{len(names)} tasks, {len(missing)} to compute, {RUNS} runs a seed\n")
    if asked.dry_run:
        hours = sum(map(seconds_of, missing)) / 3600
        sys.stdout.write(f"about {hours:.1f} hours of one core\n")
        return
    total, done, start = sum(work(make(name)) for name in missing), 0.0, time.perf_counter()
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(compute, name, asked.folder, edition.key): name for name in missing}
        for count, job in enumerate(as_completed(jobs), start=1):
            try:
                have[jobs[job]] = each = job.result()
            except bench.errors.DataError as error:  # of a file that this machine lacks
                sys.stdout.write(f"{count}/{len(missing)} {jobs[job]} left out: {error}\n")
                continue
            done += work(make(each.name))
            hours = (time.perf_counter() - start) / 3600
            sys.stdout.write(
                f"{count}/{len(missing)} {each.name} ({each.stratum}): {each.seconds:.0f} s; {hours:.2f} h so far, "
                f"about {hours * (total / done - 1):.2f} h to go by work\n"
            )
            sys.stdout.flush()
            pack([have[name] for name in edition.names if name in have], edition, results)


if __name__ == "__main__":
    main()
