"""Rules for the learning rate of a whole run, scored on the curves of the development set: no training, a minute.

    python -m research.rate_rules              # regret of each rule, by kind of task and by edition
    python -m research.rate_rules --only fashion_mnist    # on tasks whose name has this text: means hide much
    python -m research.rate_rules --measure    # what is missing of the answers; ten minutes
    python -m research.rate_rules --kinds      # regrets by kind of records, which `advise` shows; how they carry over

A rule gets public facts of a task and what queries at its initial weights find: how much noise the weights tolerate,
and an effective rank (`noise_law`). Its regret is that of a fixed rate, between the rates of the grid
(`development_runs`). Answers are exact, or those of a plan's queries, with their noise and that of their random
directions, or those of permuted labels. Trees choose a rate by what they have learned on other tasks: about the best
that any rule can do that sees as much.
"""

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

import dphpo_bench as bench
from dphpo_bench import leaderboard
from dphpo_bench.curves import ANSWERS, DRAWS, EPSILONS, ONWARD, ROWS, Cells, Values, cells_by_kind, summary
from dphpo_bench.recipes import noise_law as law
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.gradients import gradient_engine
from research.development_set import EDITIONS, make
from research.stacked import initial_model

KINDS = Path(leaderboard.__file__).with_name("kinds.csv")
FEWEST = 8
"""A kind with fewer tasks goes with the others of real records."""


def measured(name: str) -> dict[str, Any]:
    """What no curve says of a task, from the first 1,024 records: tolerances, moments, and what only trees see."""
    task, source = make(name), bench.DataSource.resolve()
    task.prepare(source)
    some = task.load_train(source).rows(slice(ROWS))
    x, y = some.inputs.float(), some.targets  # type: ignore[union-attr]
    model, losses = initial_model(task, 0).float(), task.objective().losses
    weights = [*model.parameters()]
    start = [weight.detach().clone() for weight in weights]
    generator = torch.Generator()

    @torch.no_grad()
    def moved(direction: Sequence[torch.Tensor], size: float, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch._foreach_copy_(weights, torch._foreach_add(start, direction, alpha=size))
        outputs = model(x)
        return outputs, losses(outputs, y)

    def drawn() -> list[torch.Tensor]:
        return [torch.randn(weight.shape, generator=generator) for weight in weights]

    def answers(y: torch.Tensor) -> dict[str, list[float]]:
        generator.manual_seed(1)
        before, tolerances, moments = moved(start, 0.0, y)[1], list[float](), list[float]()
        for direction in [drawn() for _ in range(DRAWS)]:
            low, high = math.log2(1e-7), math.log2(1e5)
            while high - low > 0.01:
                size = 2 ** (middle := (low + high) / 2)
                average = (moved(direction, size, y)[1] + moved(direction, -size, y)[1]) / 2
                rising = (~(average <= law.RISE * before)).float().mean() > 0.5
                low, high = (low, middle) if rising else (middle, high)
            tolerances.append(round(low, 2))
        size = law.MOVE * 2 ** float(np.median(tolerances))
        for _ in range(DRAWS):
            ways = [drawn() for _ in range(law.QUERIES)]
            changes = torch.stack([moved(way, size, y)[1] - moved(way, -size, y)[1] for way in ways], dim=1)
            u = normalize(changes.double(), eps=1e-300)
            moments.append(round((u.T @ u / len(u)).square().sum().item(), 5))
        moved(start, 0.0, y)
        return {"tolerances": tolerances, "moments": moments}

    asked = answers(y)
    permuted = answers(y[torch.randperm(len(y), generator=torch.Generator().manual_seed(3))])
    engine = gradient_engine(model, losses, like=some)
    gradient = [part.float() / len(y) for part in engine.clipped_sum(x, y, AutoS())]
    length = math.sqrt(sum(part.square().sum().item() for part in gradient))
    along = (moved(gradient, 1e-4 / length, y)[0] - moved(gradient, -1e-4 / length, y)[0]) / 2e-4
    centred = x.flatten(1) - x.flatten(1).mean(0)
    squares = torch.linalg.svdvals(centred).square()
    return {
        **asked,
        "permuted": permuted,
        "gradient": length,
        "along": (along - along.mean(0)).square().mean().sqrt().item(),
        "input_rank": (squares.sum().square() / squares.square().sum()).item(),
        "offset": (x.flatten(1).mean(0).norm() / centred.norm(dim=1).square().mean().sqrt()).item(),
    }


Rule = Callable[[Cells, Values, Values, str], Values]
"""(cells, logarithms of tolerances, of ranks, kind) → logarithms of rates."""


def version_12(cells: Cells, tolerance: Values, _: Values, kind: str) -> Values:
    """The first rate of `hyfreedp` 12: without its growth in regressions."""
    if kind == "classes, linear":
        return tolerance - cells.walk + math.log2(6)
    return np.minimum(tolerance - cells.walk, -1.0 if "numbers" in kind else 1.0)


def rule(*, pace: bool = True, factors: bool = True, drawn: bool = True) -> Rule:
    """c s / (M √r + P / (25 √r)), perhaps without the pace, with one c for all models, or with ranks as they are."""

    def rates(cells: Cells, tolerance: Values, rank: Values, kind: str) -> Values:
        common = math.log2(law.COMMON)
        rank = common + (rank - common) / (1 + 2 ** cells.fact("n_records") / law.MANY) if drawn else rank
        heads = kind == "classes, linear"
        bounded = math.log2(ONWARD / law.PACE) - rank / 2 if pace and not heads else -np.inf
        factor = np.full(len(rank), math.log2(law.FACTOR))
        if factors and "classes" in kind:
            factor += math.log2(law.HEAD) if heads else cells.convolutions * math.log2(law.CONVOLUTIONS)
        slow = np.logaddexp2(cells.walk + rank / 2, bounded)
        return tolerance + factor - slow

    return rates


def without_rank(cells: Cells, tolerance: Values, rank: Values, kind: str) -> Values:
    """The rule with the same rank everywhere."""
    return rule()(cells, tolerance, np.full_like(rank, np.median(rank)), kind)


def by_weights(cells: Cells, tolerance: Values, _: Values, kind: str) -> Values:
    """c s / (M pᵃ + P / 25): the number of weights p in place of the rank, and no factor of heads."""
    exponent, factor = (0.1, 2.8) if "numbers" in kind else (0.3, 15.0)
    slow = np.logaddexp2(cells.walk + exponent * cells.fact("weights"), math.log2(ONWARD / 25))
    return tolerance + math.log2(factor) + ("classes" in kind) * cells.convolutions - slow


def trees(cells: Cells, labels: bool) -> Values:
    """Regret of trees of which each is asked about tasks that it has not seen."""
    from sklearn.ensemble import ExtraTreesRegressor

    keys = (
        "weights",
        "n_records",
        "batch_size",
        "steps",
        *(("gradient", "along", "input_rank", "offset") if labels else ()),
    )
    spread = np.log2([curves.spread for curves, _ in cells.tasks])
    seen = np.stack([cells.tolerance, cells.walk, cells.sigma, spread, *map(cells.fact, keys)], 1)
    octaves = np.arange(-6, 6.5, 0.5)
    base = cells.tolerance - cells.walk
    regrets = np.stack([cells.regret(base + octave).clip(max=40) for octave in octaves], 1)
    names = [curves.name for curves, _ in cells.tasks]
    fold = np.array([sorted(set(names)).index(name) for name in names]) % 8
    found = np.zeros(len(names))
    for part in range(8):
        others, own = fold != part, fold == part
        forest = ExtraTreesRegressor(300, min_samples_leaf=4, max_features=0.5, random_state=0)
        forest.fit(seen[others], np.sqrt(regrets[others].clip(min=0) + 0.05))
        best = base.copy()
        best[own] += octaves[forest.predict(seen[own]).argmin(1)]
        found[own] = cells.regret(best)[own]
    return found


def by_noisy_answers(name: str, cells: Cells, kind: str) -> Values:
    """Regrets of twelve draws of the answers, shape (12, cells)."""
    generator, is_regression = np.random.default_rng(0), "numbers" in kind
    answers = [
        (cells.tolerance_answered(generator, is_regression), cells.rank_answered(generator, is_regression))
        for _ in range(12)
    ]
    return np.stack([cells.regret(RULES[name](cells, *each, kind)) for each in answers])


def write_kinds() -> dict[str, float]:
    """Write what 19 of 20 tasks of a kind lose at most; return how often that of the worst other kind holds for it."""
    lines, shares, by_kind = ["model_kind,epsilon,kind,tasks,most"], dict[str, float](), cells_by_kind((1, 2))
    for kind, model_kind in (("classes, linear", "linear"), ("classes, networks", "network")):
        cells = by_kind[kind]
        regrets = by_noisy_answers("noise, rank and pace", cells, kind)
        strata = [curves.stratum.rpartition("-")[0] for curves, _ in cells.tasks]
        few = {name for name, count in Counter(strata).items() if count < FEWEST * len(EPSILONS)}
        names = np.array(["real" if name in few else name for name in strata])
        below = defaultdict[str, list[float]](list)
        for at, epsilon in enumerate(EPSILONS):
            of_kind = {name: regrets[:, (names == name) & (cells.epsilons == at)] for name in sorted({*names})}
            most = {name: float(np.quantile(found, 0.95)) for name, found in of_kind.items()}
            for name, found in of_kind.items():
                lines.append(f"{model_kind},{epsilon:g},{name},{found.shape[1]},{most[name]:.1f}")
                below[name].append(float((found <= max(most[other] for other in most if other != name)).mean()))
        shares |= {f"{model_kind}, {name}": float(np.mean(found)) for name, found in below.items()}
    KINDS.write_text("\n".join(lines) + "\n")
    return shares


RULES: dict[str, Rule] = {
    "version 12, its first rate": version_12,
    "noise, rank and pace": rule(),
    "without the rank": without_rank,
    "without the pace": rule(pace=False),
    "without the factors of heads and convolutions": rule(factors=False),
    "ranks as they are, however many records": rule(drawn=False),
    "weights in place of the rank": by_weights,
}


def main() -> None:
    """Measure what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="facts that are missing")
    parser.add_argument("--only", default="", metavar="TEXT", help="tasks whose name has this text")
    parser.add_argument("--kinds", action="store_true", help="write the table of `advise`")
    asked = parser.parse_args()
    if asked.kinds:
        sys.stdout.writelines(f"{name}: {100 * share:.0f} %\n" for name, share in write_kinds().items())
        return
    if asked.measure:
        torch.set_num_threads(1)
        facts = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
        for name in [name for edition in EDITIONS.values() for name in edition.names if name not in facts]:
            facts[name] = measured(name)
            ANSWERS.write_text(json.dumps(facts))
        return
    for kind, cells in cells_by_kind((1, 2)).items():
        chosen = np.array([asked.only in curves.name for curves, _ in cells.tasks])
        if not chosen.any():
            continue
        sys.stdout.write(f"\n{kind} | edition 1: mean, within 1, 90th, worst | edition 2\n")
        rows = {name: cells.regret(each(cells, cells.tolerance, cells.rank, kind)) for name, each in RULES.items()}
        facts = tuple((curves, facts | facts["permuted"]) for curves, facts in cells.tasks)
        other = replace(cells, tasks=facts)
        rows["noise, rank and pace, labels permuted"] = cells.regret(rule()(cells, other.tolerance, other.rank, kind))
        rows |= {
            f"{name}, by noisy answers": by_noisy_answers(name, cells, kind).mean(0)
            for name in ("noise, rank and pace", "weights in place of the rank")
        }
        rows |= {f"trees{' that see labels' * labels}": trees(cells, labels) for labels in (False, True)}
        for name, regret in rows.items():
            parts = [regret[chosen & np.isin(cells.names, EDITIONS[number].names)] for number in (1, 2)]
            sys.stdout.write(f"{name} | {' || '.join(summary(part) for part in parts if len(part))}\n")


if __name__ == "__main__":
    main()
