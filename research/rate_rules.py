"""Rules for the learning rate of a whole run, scored on the curves of the development set: no training, a minute.

    python -m research.rate_rules              # regret of each rule, by kind of task and by edition
    python -m research.rate_rules --only fashion_mnist    # on tasks whose name has this text: means hide much
    python -m research.rate_rules --measure    # what is missing of data/rate_facts.json; ten minutes
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
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch.nn.functional import normalize

import dphpo_bench as bench
from dphpo_bench import leaderboard
from dphpo_bench.recipes import noise_law as law
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.gradients import gradient_engine
from research.development_runs import held, kind_of, references, summary
from research.development_set import EDITIONS, EPSILONS, NUS, Curves, make, read
from research.stacked import initial_model

FACTS = Path(__file__).with_name("data") / "rate_facts.json"
KINDS = Path(leaderboard.__file__).with_name("kinds.csv")
FEWEST = 8
"""A kind with fewer tasks goes with the others of real records."""

ROWS, DRAWS = 1_024, 8
SHARE = 0.025
"""The default of `noise_scaled`."""
ONWARD = 10.0
"""How far SGD's momentum moves the weights by gradients of length 1 that all point the same way, at rate 1."""

Values = NDArray[np.float64]


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

    @cached_property
    def rank(self) -> Values:
        """The effective rank, by all moves together."""
        shares = self.moments.mean(1) * law.QUERIES - 1
        return -np.log2(np.clip(shares / (law.QUERIES - 1), 1e-4, 1))

    @cached_property
    def moments(self) -> Values:
        """|S|² of each draw, without what each record has in common with itself."""
        own = 1 / np.minimum(ROWS, 2 ** self.fact("n_records"))
        return np.array([facts["moments"] for _, facts in self.tasks]) - own[:, None]

    def noises(self, is_regression: bool) -> tuple[Values, Values]:
        """Rate of the queries' batch, and the deviation of the noise on a mean of theirs (`Looked` of `hyfreedp`)."""
        n, steps, batch = (2 ** self.fact(key) for key in ("n_records", "steps", "batch_size"))
        rate, queries = np.minimum(1.0, law.QUERIED / n), law.QUERIES * (1 if is_regression else 2)
        affordable = rate * 2**self.sigma * np.sqrt(queries / (SHARE * steps)) * n / batch
        return rate, np.maximum(law.QUIETEST * math.sqrt(law.QUERIES), affordable) / (rate * n)

    def tolerance_answered(self, generator: np.random.Generator, is_regression: bool) -> Values:
        """The tolerance as `noise_law` finds it by noisy queries."""
        rate, deviation = self.noises(is_regression)
        error = np.sqrt((deviation / 2) ** 2 + (1 - rate) / (4 * rate * 2 ** self.fact("n_records")))
        directions = np.array([facts["tolerances"] for _, facts in self.tasks])
        prior = math.log2(law.PRIOR[is_regression])
        spread, width = law.SPREAD / math.log(2), law.WIDTH / math.log(2)
        candidates = prior + np.linspace(-5 * spread, 5 * spread, 401)
        belief = np.tile(-(((candidates - prior) / spread) ** 2) / 2, (len(rate), 1))
        size = np.full(len(rate), prior)
        for _ in range(law.QUERIES - 1):
            of_direction = directions[np.arange(len(rate)), generator.integers(DRAWS, size=len(rate))]
            shares = ndtr((size - of_direction) / width) + error * generator.standard_normal(len(rate))
            expected = ndtr((size[:, None] - candidates) / width)
            belief -= ((shares[:, None] - expected) / np.hypot(error, law.SCATTER)[:, None]) ** 2 / 2
            size = mean(belief, candidates)
        return size

    def rank_answered(self, generator: np.random.Generator, is_regression: bool) -> Values:
        """The effective rank as `noise_law` finds it: noise adds to |S|² its own square and 2 ⟨S, noise⟩."""
        k, count = law.QUERIES, len(self.epsilons)
        rate, deviation = self.noises(is_regression)
        numbers, noise, size = k * (k + 1) // 2, deviation**2, rate * 2 ** self.fact("n_records")
        drawn = (1 + np.sqrt((1 - rate) / size) * generator.standard_normal(count)) ** 2
        heard = self.moments[np.arange(count), generator.integers(DRAWS, size=count)] * drawn
        along, all_of = generator.standard_normal(count), generator.chisquare(numbers, count)
        heard = np.maximum(heard + 2 * np.sqrt(heard * noise) * along + (all_of - numbers) * noise, 1 / k)
        candidates = np.linspace(0, 8, 401)
        expected = (1 + (k - 1) * np.exp(-candidates)) / k
        error = (law.SCATTER * (k - 1) / k * np.exp(-candidates)) ** 2
        error = error + (2 * numbers * noise**2)[:, None] + 4 * noise[:, None] * expected
        error += 4 * ((1 - rate) / size)[:, None] * expected**2
        typical = law.RANK * math.log(2) * self.fact("weights")[:, None]
        belief = -(((candidates - typical) / law.RANK_SPREAD) ** 2) - (heard[:, None] - expected) ** 2 / error
        return mean((belief - np.log(error)) / 2, candidates) / math.log(2)


def mean(belief: Values, candidates: Values) -> Values:
    """The mean of candidates by logarithms of their chances, shape (cells, candidates)."""
    chances = np.exp(belief - belief.max(1, keepdims=True))
    found: Values = (chances * candidates).sum(1) / chances.sum(1)
    return found


def cells_by_kind() -> dict[str, Cells]:
    """All cells of both editions."""
    facts, by_kind = json.loads(FACTS.read_text()), dict[str, list[Any]]()
    for number, edition in EDITIONS.items():
        for curves in read(edition):
            rows = [((curves, facts[curves.name]), e, number) for e in range(len(EPSILONS))]
            by_kind.setdefault(kind_of(curves), []).extend(rows)
    columns = {kind: zip(*rows, strict=True) for kind, rows in sorted(by_kind.items())}
    return {kind: Cells(tasks, np.array(e), np.array(n)) for kind, (tasks, e, n) in columns.items()}


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
    lines, shares, by_kind = ["model_kind,epsilon,kind,tasks,most"], dict[str, float](), cells_by_kind()
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
            parts = [regret[chosen & (cells.of_edition == number)] for number in EDITIONS]
            sys.stdout.write(f"{name} | {' || '.join(summary(part) for part in parts if len(part))}\n")


if __name__ == "__main__":
    main()
