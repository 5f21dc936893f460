"""Rules for the learning rate of a whole run, scored on the curves of the development set: no training, a minute.

    python -m research.rate_rules              # regret of each rule, by kind of task and by edition
    python -m research.rate_rules --only fashion_mnist    # on tasks whose name has this text: means hide much
    python -m research.rate_rules --measure    # what is missing of data/rate_facts.json; ten minutes

A rule gets public facts of a task, and how much noise its initial weights tolerate: the noise per weight at which half
of the losses rise by a fifth, averaged over both signs (`noise_law`). Its regret is that of a fixed rate, between the
rates of the grid (`development_runs`). Answers are exact, or those of the eight queries of a plan, with their noise and
that of their random directions. Trees choose a rate by what they have learned on other tasks: about the best that any
rule can do that sees as much.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr

import dphpo_bench as bench
from dphpo_bench.recipes import noise_law as law
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.gradients import gradient_engine
from research.development_runs import held, kind_of, references, summary
from research.development_set import EDITIONS, EPSILONS, NUS, Curves, make, read
from research.stacked import initial_model

FACTS = Path(__file__).with_name("data") / "rate_facts.json"
ROWS, DRAWS = 1_024, 8
ONWARD = 10.0
"""How far SGD's momentum moves the weights by gradients of length 1 that all point the same way, at rate 1."""

EXPONENT, FACTOR = {False: 0.3, True: 0.1}, {False: 15.0, True: 2.8}
"""Of the number of weights, and of the rate: for a classifier, and for a regression."""
CONVOLUTIONS, PACE = 2.0, 25.0
"""Factor of the rate where convolutions are trained; how far weights may move in a step, beside how far noise may."""
PRIOR, SPREAD, WIDTH, SCATTER = {False: 0.25, True: 0.08}, 2.0, 0.8, 0.2
"""Of a tolerance that is found by Bayes' rule: a typical one, and the standard deviation of its logarithm over tasks;
that over records, and what a random direction adds to the error of a share."""

Values = NDArray[np.float64]


def measured(name: str) -> dict[str, Any]:
    """What no curve says of a task, from the first 1,024 records: tolerances, and facts that only trees see."""
    task, source = make(name), bench.DataSource.resolve()
    task.prepare(source)
    some = task.load_train(source).rows(slice(ROWS))
    x, y = some.inputs.float(), some.targets  # type: ignore[union-attr]
    model, losses = initial_model(task, 0).float(), task.objective().losses
    weights = [*model.parameters()]
    start = [weight.detach().clone() for weight in weights]
    generator = torch.Generator().manual_seed(1)

    @torch.no_grad()
    def moved(direction: Sequence[torch.Tensor], size: float) -> tuple[torch.Tensor, torch.Tensor]:
        torch._foreach_copy_(weights, torch._foreach_add(start, direction, alpha=size))
        outputs = model(x)
        return outputs, losses(outputs, y)

    before = moved(start, 0.0)[1]
    tolerances = []
    for _ in range(DRAWS):
        direction = [torch.randn(weight.shape, generator=generator) for weight in weights]
        low, high = math.log2(1e-7), math.log2(1e5)
        while high - low > 0.01:
            size = 2 ** (middle := (low + high) / 2)
            average = (moved(direction, size)[1] + moved(direction, -size)[1]) / 2
            rising = (~(average <= law.RISE * before)).float().mean() > 0.5
            low, high = (low, middle) if rising else (middle, high)
        tolerances.append(round(low, 2))
    moved(start, 0.0)
    engine = gradient_engine(model, losses, like=some)
    gradient = [part.float() / len(y) for part in engine.clipped_sum(x, y, AutoS())]
    length = math.sqrt(sum(part.square().sum().item() for part in gradient))
    along = (moved(gradient, 1e-4 / length)[0] - moved(gradient, -1e-4 / length)[0]) / 2e-4
    centred = x.flatten(1) - x.flatten(1).mean(0)
    squares = torch.linalg.svdvals(centred).square()
    return {
        "tolerances": tolerances,
        "gradient": length,
        "along": (along - along.mean(0)).square().mean().sqrt().item(),
        "rank": (squares.sum().square() / squares.square().sum()).item(),
        "offset": (x.flatten(1).mean(0).norm() / centred.norm(dim=1).square().mean().sqrt()).item(),
    }


@dataclass(frozen=True)
class Cells:
    """Cells of one kind, each a task at an ε: logarithms to base 2 of what rules see, and the curves of SGD.

    Attributes:
        tasks: curves and facts of each cell.
        epsilons: number of ε of each.
        of_edition: 1 or 2.
    """

    tasks: tuple[tuple[Curves, dict[str, Any]], ...]
    epsilons: Values
    of_edition: Values

    def fact(self, key: str) -> Values:
        """A fact of each cell."""
        return np.log2([max(facts.get(key) or curves.facts.get(key, 0), 1e-9) for curves, facts in self.tasks])

    @cached_property
    def tolerance(self) -> Values:
        """The median over directions."""
        return np.array([np.median(facts["tolerances"]) for _, facts in self.tasks])

    @cached_property
    def sigma(self) -> Values:
        """The noise multiplier."""
        return np.log2([curves.sigmas[int(e)] for (curves, _), e in zip(self.tasks, self.epsilons, strict=True)])

    @cached_property
    def walk(self) -> Values:
        """How far the noise of a whole run moves a weight at rate 1."""
        nus = np.log2([curves.nus[1][0] / curves.spread for curves, _ in self.tasks])
        return nus - self.curves[1]  # by which the rates of the grid were made

    @cached_property
    def convolutions(self) -> Values:
        """Whether there are any."""
        return np.array(["cnn" in curves.stratum for curves, _ in self.tasks], dtype=float)

    @cached_property
    def curves(self) -> tuple[Values, Values, Values]:
        """Metrics in %, shape (cells, 13), logarithm of the first rate, and the reference."""
        rows = [
            (held(curves.metric).mean(0)[1, int(e)], math.log2(curves.rates[1, int(e), 0]), references(curves)[int(e)])
            for (curves, _), e in zip(self.tasks, self.epsilons, strict=True)
        ]
        metrics, firsts, best = zip(*rows, strict=True)
        return np.stack(metrics), np.array(firsts), np.array(best)

    def regret(self, rates: Values) -> Values:
        """Regret of rates, given as logarithms; beyond the grid that of its ends."""
        metrics, first, best = self.curves
        place = np.clip(rates - first, 0, len(NUS) - 1.001)
        column, cells = place.astype(int), np.arange(len(place))
        share = place - column
        found: Values = best - (1 - share) * metrics[cells, column] - share * metrics[cells, column + 1]
        return found

    def answered(self, generator: np.random.Generator, is_regression: bool) -> Values:
        """The tolerance as eight noisy queries find it by Bayes' rule, each asked at the mean of what is believed."""
        n, steps, batch = (2 ** self.fact(key) for key in ("n_records", "steps", "batch_size"))
        rate = np.minimum(1.0, law.QUERIED / n)
        noise = rate * 2**self.sigma * np.sqrt(law.QUERIES / (0.03 * steps)) * n / batch
        deviation = np.maximum(law.QUIETEST * math.sqrt(law.QUERIES), noise) / (rate * n)
        error = np.sqrt((deviation / 2) ** 2 + (1 - rate) / (4 * rate * n))
        directions = np.array([facts["tolerances"] for _, facts in self.tasks])
        prior, spread, width = math.log2(PRIOR[is_regression]), SPREAD / math.log(2), WIDTH / math.log(2)
        candidates = prior + np.linspace(-5 * spread, 5 * spread, 401)
        belief = np.tile(-(((candidates - prior) / spread) ** 2) / 2, (len(n), 1))
        size = np.full(len(n), prior)
        for _ in range(law.QUERIES):
            of_direction = directions[np.arange(len(n)), generator.integers(DRAWS, size=len(n))]
            shares = ndtr((size - of_direction) / width) + error * generator.standard_normal(len(n))
            expected = ndtr((size[:, None] - candidates) / width)
            belief -= ((shares[:, None] - expected) / np.hypot(error, SCATTER)[:, None]) ** 2 / 2
            chances = np.exp(belief - belief.max(1, keepdims=True))
            size = (chances * candidates).sum(1) / chances.sum(1)
        return size


def cells_by_kind() -> dict[str, Cells]:
    """All cells of both editions."""
    facts, by_kind = json.loads(FACTS.read_text()), dict[str, list[Any]]()
    for number, edition in EDITIONS.items():
        for curves in read(edition):
            rows = [((curves, facts[curves.name]), e, number) for e in range(len(EPSILONS))]
            by_kind.setdefault(kind_of(curves), []).extend(rows)
    columns = {kind: zip(*rows, strict=True) for kind, rows in sorted(by_kind.items())}
    return {kind: Cells(tasks, np.array(e), np.array(n)) for kind, (tasks, e, n) in columns.items()}


Rule = Callable[[Cells, Values, str], Values]
"""(cells, logarithms of tolerances, kind) → logarithms of rates."""


def version_12(cells: Cells, tolerance: Values, kind: str) -> Values:
    """The first rate of `hyfreedp` 12: without its growth in regressions."""
    if kind == "classes, linear":
        return tolerance - cells.walk + math.log2(6)
    return np.minimum(tolerance - cells.walk, -1.0 if "numbers" in kind else 1.0)


def rule(*, weights: bool = True, pace: bool = True, faster: bool = True) -> Rule:
    """c s / (M pᵃ + P/25), perhaps without the number of weights p, the pace P, or the factor of convolutions in c."""

    def rates(cells: Cells, tolerance: Values, kind: str) -> Values:
        is_regression = "numbers" in kind
        exponent = EXPONENT[is_regression]
        count = cells.fact("weights")
        count = count if weights else np.full_like(count, np.median(count))
        slow = np.logaddexp2(cells.walk + exponent * count, math.log2(ONWARD / PACE) if pace else -np.inf)
        factor = cells.convolutions * math.log2(CONVOLUTIONS) if faster and not is_regression else 0.0
        return tolerance + math.log2(FACTOR[is_regression]) + factor - slow

    return rates


def by_rank(cells: Cells) -> Values:
    """13.5 s / (M √rank), of linear classifiers: the effective rank of the inputs in place of the number of weights."""
    return cells.tolerance - cells.walk - cells.fact("rank") / 2 + math.log2(13.5)


def trees(cells: Cells, labels: bool) -> Values:
    """Regret of trees of which each is asked about tasks that it has not seen."""
    from sklearn.ensemble import ExtraTreesRegressor

    keys = ("weights", "n_records", "batch_size", "steps", *(("gradient", "along", "rank", "offset") if labels else ()))
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


RULES: dict[str, Rule] = {
    "version 12, its first rate": version_12,
    "noise, weights and pace": rule(),
    "without the number of weights": rule(weights=False),
    "without the pace": rule(pace=False),
    "without the factor of convolutions": rule(faster=False),
}


def main() -> None:
    """Measure what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="facts that are missing")
    parser.add_argument("--only", default="", metavar="TEXT", help="tasks whose name has this text")
    asked = parser.parse_args()
    if asked.measure:
        torch.set_num_threads(1)
        facts = json.loads(FACTS.read_text()) if FACTS.exists() else {}
        for name in [name for edition in EDITIONS.values() for name in edition.names if name not in facts]:
            facts[name] = measured(name)
            FACTS.write_text(json.dumps(facts))
        return
    for kind, cells in cells_by_kind().items():
        chosen = np.array([asked.only in curves.name for curves, _ in cells.tasks])
        if not chosen.any():
            continue
        sys.stdout.write(f"\n{kind} | edition 1: mean, within 1, 90th, worst | edition 2\n")
        generator = np.random.default_rng(0)
        rows = {name: cells.regret(each(cells, cells.tolerance, kind)) for name, each in RULES.items()}
        found = [rule()(cells, cells.answered(generator, "numbers" in kind), kind) for _ in range(12)]
        rows["noise, weights and pace, by noisy answers"] = np.mean([cells.regret(rates) for rates in found], axis=0)
        rows |= {"noise and rank": cells.regret(by_rank(cells))} if kind == "classes, linear" else {}
        rows |= {f"trees{' that see labels' * labels}": trees(cells, labels) for labels in (False, True)}
        for name, regret in rows.items():
            parts = [regret[chosen & (cells.of_edition == number)] for number in EDITIONS]
            sys.stdout.write(f"{name} | {' || '.join(summary(part) for part in parts if len(part))}\n")


if __name__ == "__main__":
    main()
