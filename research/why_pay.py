"""What a choice among unpaid trials leaks beyond the winner's ε: `python -m research.why_pay`, into data/why_pay.csv.

Fifty trials of DP-SGD, a rate or a seed each, on all records of a training part; the best raw score on held-out records
wins, and its model and rate are published with the ε of its own run. Attacks guess from this whether a record was
there. A bound holds with 95 %: Clopper-Pearson for an event that half of the repetitions choose and the others count.
Rows that the file has are not computed again.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import beta
from torch import Tensor

import dphpo_bench as bench
from dphpo_bench.data.source import DataSource
from dphpo_bench.privacy.calibration import calibrate

FILE = Path(__file__).parent / "data" / "why_pay.csv"
DELTA, TRIALS, STEPS, REPETITIONS, CHUNK = 1e-5, 50, 8, 150, 10
SIZES = {"digits": (800, 200), "adult": (2000, 500)}
"""Records that train and that judge."""


def trained(x: Tensor, y: Tensor, rates: Tensor, sigma: float, noise: torch.Generator) -> Tensor:
    """Return weights, shape (rates, inputs, classes), of softmax regressions in full batches, clipped at 1."""
    weights = torch.zeros(len(rates), x.shape[1], y.shape[1])
    lengths = x.norm(dim=1, keepdim=True)
    for _ in range(STEPS):
        slopes = torch.softmax(x @ weights, dim=2) - y
        slopes /= (slopes.norm(dim=2, keepdim=True) * lengths).clamp(min=1.0)
        total = x.T @ slopes + sigma * torch.randn(weights.shape, generator=noise)
        weights -= rates[:, None, None] / len(x) * total
    return weights


def bound(inside: np.ndarray, outside: np.ndarray) -> tuple[float, float]:
    """Return a lower bound on ε from scores of repetitions with the record and without it, and the event's share."""
    half = len(inside) // 2
    levels = np.unique(np.quantile(np.concatenate([inside[:half], outside[:half]]), np.linspace(0, 1, 201)))
    events = [(sign, sign * level) for sign in (1.0, -1.0) for level in levels]

    def counts(event: tuple[float, float], part: slice) -> list[int]:
        return [int((event[0] * some[part] >= event[1]).sum()) for some in (inside, outside)]

    def shown(event: tuple[float, float], part: slice) -> float:
        p, q = counts(event, part)
        return max(least(p, q, len(inside[part])), least(q, p, len(inside[part])))

    chosen = max(events, key=lambda event: shown(event, slice(half)))
    rest = slice(half, None)
    return shown(chosen, rest), max(counts(chosen, rest)) / len(inside[rest])


def least(p: int, q: int, n: int) -> float:
    """Return the ε that p of n against q of n show, with 95 % for both counts, and for both directions, at once."""
    low = beta.ppf(0.05 / 4, p, n - p + 1) if p else 0.0
    high = beta.ppf(1 - 0.05 / 4, q + 1, n - q) if q < n else 1.0
    return float(np.log((low - DELTA) / high)) if low - DELTA > high else 0.0


def real(name: str) -> Iterator[list[object]]:
    """Attack 50 rates on real records: a record that trains, and a record that judges."""
    task = bench.make_task(name)
    records = task.load_train(DataSource.resolve())
    train, judge = SIZES[name]
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.pad(records.inputs[order].flatten(1).float(), (0, 1), value=1.0)
    labels = records.targets[order].long().flatten()
    y = torch.nn.functional.one_hot(labels, task.facts.n_classes or 2).float()
    sigma = calibrate(lambda s: bench.recipes.dp_sgd_event(1.0, STEPS, s), bench.PrivacyBudget(1.0, DELTA))
    rates = torch.logspace(-1, 2, TRIALS).repeat(CHUNK)
    canary = x[train - 1].clone()  # a wrong label, far out: the longest gradient that clipping leaves
    canary[:-1] *= 3
    wrong = y[train - 1].roll(1)
    pool = slice(train + judge, train + judge + 300)
    noise = torch.Generator().manual_seed(1)
    along = torch.outer(canary, wrong - 1 / y.shape[1])
    seen = {world: [] for world in (True, False)}  # (score of each trial, place along the canary, right on the pool)
    for chunk in range(2 * REPETITIONS // CHUNK):
        world = bool(chunk % 2)
        xs, ys = (x[:train].clone(), y[:train].clone()) if world else (x[: train - 1], y[: train - 1])
        if world:
            xs[-1], ys[-1] = canary, wrong
        weights = trained(xs, ys, rates, sigma, noise)
        right = (x[train : pool.stop] @ weights).argmax(2) == labels[train : pool.stop]
        place = (weights * along).sum((1, 2)) / along.norm() / (rates / train * sigma * STEPS**0.5)
        shape = (CHUNK, TRIALS)
        seen[world].append((right[:, :judge].sum(1).view(shape), place.view(shape), right[:, judge:].view(*shape, -1)))
        sys.stderr.write(f"\r{name} {chunk + 1} of {2 * REPETITIONS // CHUNK} ")
    scores, places, rights = ({w: torch.cat([s[i] for s in seen[w]]) for w in seen} for i in range(3))
    at = torch.arange(REPETITIONS)
    fixed = scores[False][: REPETITIONS // 2].float().mean(0).argmax()
    one = {w: places[w][:, fixed].numpy() for w in seen}
    yield ["a record that trains, one trial", 1.0, *bound(one[True], one[False])]
    winner = {w: scores[w].argmax(1) for w in seen}
    chosen = {w: places[w][at, winner[w]].numpy() for w in seen}
    yield ["a record that trains, best of 50", 1.0, *bound(chosen[True], chosen[False])]
    half = REPETITIONS // 2
    often = {w: np.bincount(winner[w][:half], minlength=TRIALS) + 1 for w in seen}
    ratio = np.log(often[True] / often[False])
    yield ["a record that trains, rate of the best", 1.0, *bound(*(ratio[winner[w]] for w in (True, False)))]
    # A record that judges: trials are the same with it and without it, but for its point.
    base, right = scores[False], rights[False]
    joined = [(base + right[:, :, i]).argmax(1) for i in range(right.shape[2])]
    before = right[at, winner[False]].float()
    gains = [(right[at, joined[i], i].float() - before[:, i])[:half].mean() for i in range(len(joined))]
    best = int(np.argmax(gains))
    pair = (right[at, joined[best], best].double().numpy(), right[at, winner[False], best].double().numpy())
    yield ["a record that judges: is the winner right about it?", 1.0, *bound(*pair)]


def constructed(claim: float) -> Iterator[list[object]]:
    """Attack 50 seeds where nothing but the record moves one weight, and the held-out loss is that weight."""
    sigma = calibrate(bench.events.gaussian, bench.PrivacyBudget(claim, DELTA))
    noise, n = np.random.default_rng(0), 20_000
    without, with_record = (noise.standard_normal((n, TRIALS)) + there / sigma for there in (0, 1))
    yield ["one seed", claim, *bound(with_record[:, 0], without[:, 0])]
    yield ["best of 50 seeds", claim, *bound(with_record.max(1), without.max(1))]
    yield ["best of 50 seeds, exactly", claim, exact(1 / sigma), 1.0]


def exact(mu: float) -> float:
    """Return ε at δ of the largest of 50 numbers from N(0, 1), against 50 from N(μ, 1)."""
    t = np.linspace(-12, 14, 200_001)
    both = [-((t - m) ** 2) / 2 + (TRIALS - 1) * log_ndtr(t - m) for m in (0.0, mu)]
    scale = TRIALS / np.sqrt(2 * np.pi) * (t[1] - t[0])

    def excess(epsilon: float) -> float:
        ways = (np.maximum(np.exp(a) - np.exp(epsilon + b), 0).sum() for a, b in (both, both[::-1]))
        return float(scale * max(ways)) - DELTA

    return float(brentq(excess, 0, 200))


def main() -> None:
    """Compute the rows that are missing."""
    rows = list(csv.reader(FILE.open()))[1:] if FILE.exists() else []
    parts = [(f"constructed, ε = {claim:g}", constructed, claim) for claim in (0.1, 1.0, 3.0)]
    for name, compute, argument in [*parts, *((name, real, name) for name in SIZES)]:
        if name not in [row[0] for row in rows]:
            for row in compute(argument):
                rows.append([f"{value:.3f}" if isinstance(value, float) else str(value) for value in (name, *row)])
            with FILE.open("w", newline="") as file:
                csv.writer(file).writerows([["data", "attack", "claimed", "shown", "share"], *rows])
    sys.stdout.writelines(f"{' | '.join(row)}\n" for row in rows)


if __name__ == "__main__":
    main()
