"""What methods without hyperparameters come to on the development set, beside the best of its fixed rates.

    python -m research.development_runs --methods noise_scaled hyfreedp        # runs what is missing
    python -m research.development_runs --table                                # regrets by kind, worst tasks
    python -m research.development_runs --table --methods hyfreedp --seconds 0  # of these alone; runs nothing
    python -m research.development_runs --edition 2 --table                     # on the second edition

A method's name may have variants after it, such as `hyfreedp:LIMIT=inf` or `hyfreedp:optimizer=AdamW`: a constant of
`noise_law` or `tuned_training`, or a parameter. Runs go through the harness, as on the board, with δ = N^-1.1.

Regret is the reference minus the metric, in points of accuracy, ROC-AUC or R², each metric held to at least −100 %. The
reference is the better grid of 13 fixed rates, AdamW's or SGD's. To choose the best of noisy means would flatter it. So
half of the seeds choose optimiser and rate, after smoothing over neighbouring rates, the others value them, and vice
versa.
"""

import argparse
import contextlib
import io
import json
import math
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dphpo_bench as bench
from dphpo_bench.curves import EPSILONS, Curves, held, references, summary
from dphpo_bench.recipes import noise_law, tuned_training
from research.development_set import EDITIONS, make, read

DATA = Path(__file__).with_name("data")
RUNS = {1: DATA / "development_runs.json", 2: DATA / "development_runs_2.json"}

Results = dict[str, dict[str, list[list[float]]]]
"""By method and task: metric in % and seconds of each run, in the order of seeds and, within a seed, of ε."""


def regret_at(curves: Curves, optimizer: int, rates: Sequence[float]) -> list[float]:
    """Regret of a fixed rate at each ε, between the rates of the grid."""
    means = held(curves.metric).mean(0)[optimizer]
    grids = np.log2(curves.rates[optimizer])
    of_rate = [np.interp(math.log2(rate), grid, mean) for rate, grid, mean in zip(rates, grids, means, strict=True)]
    return [best - float(metric) for best, metric in zip(references(curves), of_rate, strict=True)]


def made(variant: str) -> Any:
    """The method of a name, perhaps with another value of a parameter or of a constant."""
    name, _, setting = variant.partition(":")
    parameters = {}
    for each in setting.split(",") if setting else ():
        key, _, value = each.partition("=")
        modules = [module for module in (noise_law, tuned_training) if hasattr(module, key)]
        for module in modules:
            setattr(module, key, type(getattr(module, key))(float(value)))
        if not modules:
            parameters[key] = value
    return bench.make_method(name, parameters)


def run(variant: str, task_name: str, seed: int) -> list[list[float]]:
    """Metric and seconds of a run at each ε."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    method, results = made(variant), []
    for epsilon in EPSILONS:
        task = make(task_name, seed)
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            record = bench.run(method, task, bench.PrivacyBudget(epsilon, task.facts.default_delta), seed=seed).record
        metric = record.metrics.get(task.metrics[0].name)
        results.append([math.nan if metric is None else round(100 * metric, 3), round(record.seconds["train"], 2)])
    return results


def run_missing(variants: Sequence[str], names: Sequence[str], seeds: int, results: Results, path: Path) -> None:
    """Run what is missing, each variant in processes of its own, since constants stay changed."""
    for variant in variants:
        of_task = results.setdefault(variant, {})
        jobs = [(name, seed) for name in names for seed in range(len(of_task.get(name, [])) // len(EPSILONS), seeds)]
        start = time.perf_counter()
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            pending = {pool.submit(run, variant, *job): job for job in jobs}
            for count, job in enumerate(as_completed(pending), start=1):
                of_task.setdefault(pending[job][0], []).extend(job.result())
                if count % 20 == 0 or count == len(jobs):
                    minutes = (time.perf_counter() - start) / 60
                    sys.stdout.write(f"{variant}: {count} of {len(jobs)}, {minutes:.1f} min so far\n")
                    sys.stdout.flush()
                    path.write_text(json.dumps(results))


def regrets(results: dict[str, list[list[float]]], curves: Sequence[Curves]) -> Iterator[tuple[Curves, float, float]]:
    """Regret of a method on each task and at each ε, with the curves and ε."""
    for each in curves:
        if each.name in results:
            metric = np.array(results[each.name])[:, 0].reshape(-1, len(EPSILONS))
            for epsilon, best, mean in zip(EPSILONS, references(each), held(metric / 100).mean(0), strict=True):
                yield each, epsilon, best - float(mean)


def table(results: Results, curves: Sequence[Curves], worst: int = 10) -> str:
    """Regrets of all methods on the tasks that all have run, by kind; and the worst of each."""
    common = [each for each in curves if all(each.name in of_task for of_task in results.values())]
    lines = [f"{len(common)} tasks, ε = {', '.join(map(str, EPSILONS))}", ""]
    for variant, of_task in results.items():
        rows: dict[str, list[float]] = defaultdict(list)
        found = list(regrets(of_task, common))
        for each, _, regret in found:
            rows[each.kind].append(regret)
            rows["all"].append(regret)
        lines += [
            f"{variant} | mean | within 1 | 90th | worst",
            *(f"{k} ({len(v)}) | {summary(v)}" for k, v in sorted(rows.items())),
        ]
        for each, epsilon, regret in sorted(found, key=lambda row: -row[2])[:worst]:
            lines.append(f"  {regret:.1f} {each.name} ({each.stratum}, N = {each.facts['n_records']}, ε = {epsilon})")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", default=[], help="names, perhaps with a variant")
    parser.add_argument("--seconds", type=float, default=3.0, help="tasks whose curves took at most this, a seed")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--edition", type=int, choices=EDITIONS, default=1)
    parser.add_argument("--results", type=Path, help="a file in place of the repository's")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    edition = EDITIONS[asked.edition]
    path: Path = asked.results or RUNS[asked.edition]
    results: Results = json.loads(path.read_text()) if path.exists() else {}
    curves = read(edition)
    names = [each.name for each in curves if each.seconds <= asked.seconds * len(each.metric)]
    run_missing(asked.methods, names, asked.seeds, results, path)
    if asked.table:
        sys.stdout.write(table({name: results[name] for name in asked.methods or results}, curves))


if __name__ == "__main__":
    main()
