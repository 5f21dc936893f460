"""Curves of fixed learning rates, to score rules for a private rate on: a second for all tasks, without training.

    >>> from dphpo_bench import curves
    >>> def rule(seen):
    ...     return "SGD", 2.8 * seen.tolerance / (seen.walk * seen.rank**0.5)
    >>> print(curves.score(rule))  # doctest: +SKIP

A rule gets what may be known before training: public facts of a task, and the noisy answers of queries at its initial
weights. It returns an optimiser and a rate. docs/curves.md has the rules' board, and what a lookup cannot show.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.recipes import noise_law as law
from dphpo_bench.records.measure import Estimate, mean_interval

EPSILONS = (0.3, 1.0, 3.0, 8.0)
OPTIMIZERS = ("AdamW", "SGD")
NUS = tuple(0.025 * 2**k for k in range(13))
"""Rates have these proportions, from one that depends on the task."""

FILES = {number: Path(__file__).with_name(f"edition_{number}.npz") for number in (1, 2, 3)}
ANSWERS = Path(__file__).with_name("answers.json")
ROWS, DRAWS = 1_024, 8
"""Records that gave the answers, and random directions of each."""

WORST = 100.0
"""Metrics, in %, are held to at least minus this."""

SHARE = 0.025
"""The share of the run's μ² that pays for the answers: the default of `noise_scaled`."""

ONWARD = 10.0
"""Distance that SGD's momentum moves weights by gradients of length 1 that all point the same way, at rate 1."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """Metrics of fixed rates on a task.

    Attributes:
        name: task and model.
        stratum: kind of task and model; the name of a real one.
        facts: N, batch size, steps, trained weights, and the metric.
        spread: J.
        nus: ν of the rates, by optimiser.
        sigmas: noise multipliers, by ε.
        seconds: of a core, for all seeds.
        rates: learning rates, shape (optimisers, ε, 13).
        metric: shape (seeds, optimisers, ε, 13); larger is better, NaN where outputs were not finite.
    """

    name: str
    stratum: str
    facts: dict[str, Any]
    spread: float
    nus: tuple[tuple[float, ...], ...]
    sigmas: tuple[float, ...]
    seconds: float
    rates: NDArray[np.float32] = field(repr=False)
    metric: NDArray[np.float32] = field(repr=False)

    def header(self) -> dict[str, Any]:
        """Return all but the arrays."""
        return {key: value for key, value in asdict(self).items() if key not in ("rates", "metric")}

    @property
    def network(self) -> bool:
        return any(model in self.stratum for model in ("mlp", "cnn", "gru"))

    @property
    def kind(self) -> str:
        """Kind of what is predicted and of the model, such as "classes, linear"."""
        predicted = "numbers" if self.facts["metric"] == "r2" else "classes"
        return f"{predicted}, {'networks' if self.network else 'linear'}"


def read(path: Path) -> tuple[dict[str, Any], list[Curves]]:
    """Return the header of a file of curves, and the curves."""
    data = np.load(path)
    header = json.loads(str(data["header"]))
    curves = []
    for entry, rates, metric in zip(header["tasks"], data["rates"], data["metric"], strict=True):
        seeds = entry.pop("seeds")
        entry |= {"sigmas": tuple(entry["sigmas"]), "nus": tuple(map(tuple, entry["nus"]))}
        curves.append(Curves(**entry, rates=rates, metric=metric[:seeds]))
    return header, curves


def held(metric: Any) -> Any:
    """Return metrics in %; what diverged counts as the worst."""
    return np.maximum(100 * np.nan_to_num(np.asarray(metric, dtype=float), nan=-WORST), -WORST)


def smoothed(metric: Values) -> Values:
    """Return averages over neighbouring rates, with weights 1/4, 1/2, 1/4."""
    padded = np.pad(metric, [(0, 0)] * (metric.ndim - 1) + [(1, 1)], mode="edge")
    smooth: Values = padded[..., :-2] / 4 + padded[..., 1:-1] / 2 + padded[..., 2:] / 4
    return smooth


def references(curves: Curves) -> list[float]:
    """Return the metric of the better grid at each ε, in %: chosen on half of the seeds, valued on the others."""
    halves = [held(curves.metric[part::2]).mean(0) for part in (0, 1)]
    of_epsilon = []
    for index in range(len(EPSILONS)):
        chosen = [np.unravel_index(smoothed(half)[:, index].argmax(), half[:, index].shape) for half in halves]
        valued = [halves[1 - part][optimizer, index, rate] for part, (optimizer, rate) in enumerate(chosen)]
        of_epsilon.append(float(np.mean(valued)))
    return of_epsilon


@dataclass(frozen=True)
class Seen:
    """All that a rule may see of a task before it trains.

    Attributes:
        classes: whether classes are predicted; else a number, by the squared error.
        network: whether the model is one; else it is linear.
        convolutions: whether it has any.
        n_records: N.
        batch_size: expected number of records in a batch.
        steps: T.
        weights: number of trained weights.
        epsilon: of the whole run.
        noise_multiplier: σ of the gradients, whose clipping is `auto_s`.
        walk: how far the noise of the whole run moves a weight at rate 1, by SGD with momentum .9.
        tolerance: a noisy answer: how much noise on each initial weight raises half of the losses by a fifth.
        rank: a noisy answer: the effective rank of records' gradients.
    """

    classes: bool
    network: bool
    convolutions: bool
    n_records: int
    batch_size: int
    steps: int
    weights: int
    epsilon: float
    noise_multiplier: float
    walk: float
    tolerance: float
    rank: float


@dataclass(frozen=True)
class Cells:
    """Cells of one kind, each a task at an ε: logarithms to base 2 of what rules see, and the curves.

    Attributes:
        tasks: curves and facts of each cell.
        epsilons: number of ε of each.
    """

    tasks: tuple[tuple[Curves, dict[str, Any]], ...]
    epsilons: Values

    def fact(self, key: str) -> Values:
        """Return a fact of each cell."""
        return np.log2([max(facts.get(key) or curves.facts.get(key, 0), 1e-9) for curves, facts in self.tasks])

    @cached_property
    def names(self) -> list[str]:
        return [curves.name for curves, _ in self.tasks]

    @cached_property
    def tolerance(self) -> Values:
        """The median over directions."""
        return np.array([np.median(facts["tolerances"]) for _, facts in self.tasks])

    @cached_property
    def sigma(self) -> Values:
        """Noise multiplier."""
        return np.log2([curves.sigmas[int(e)] for (curves, _), e in zip(self.tasks, self.epsilons, strict=True)])

    @cached_property
    def walk(self) -> Values:
        """Distance that the noise of a whole run of SGD moves a weight at rate 1."""
        nus = np.log2([curves.nus[1][0] / curves.spread for curves, _ in self.tasks])
        walk: Values = nus - self.curves[1][:, 1]  # by which the rates of the grid were made
        return walk

    @cached_property
    def convolutions(self) -> Values:
        """Cells of models that have any are 1."""
        return np.array(["cnn" in curves.stratum for curves, _ in self.tasks], dtype=float)

    @cached_property
    def curves(self) -> tuple[Values, Values, Values]:
        """Metrics in %, shape (cells, optimisers, 13), logarithms of the first rates, and the reference."""
        rows = [
            (held(curves.metric).mean(0)[:, int(e)], np.log2(curves.rates[:, int(e), 0]), references(curves)[int(e)])
            for (curves, _), e in zip(self.tasks, self.epsilons, strict=True)
        ]
        metrics, firsts, best = zip(*rows, strict=True)
        return np.stack(metrics), np.stack(firsts), np.array(best)

    def regret(self, rates: Values, optimizer: int | NDArray[np.int64] = 1) -> Values:
        """Return the regret of rates, given as logarithms; beyond the grid that of its ends."""
        metrics, first, best = self.curves
        cells = np.arange(len(best))
        place = np.clip(rates - first[cells, optimizer], 0, len(NUS) - 1.001)
        column = place.astype(int)
        share = place - column
        regret: Values = best - (1 - share) * metrics[cells, optimizer, column]
        regret -= share * metrics[cells, optimizer, column + 1]
        return regret

    @cached_property
    def rank(self) -> Values:
        """The effective rank, by all moves together."""
        shares = self.moments.mean(1) * law.QUERIES - 1
        rank: Values = -np.log2(np.clip(shares / (law.QUERIES - 1), 1e-4, 1))
        return rank

    @cached_property
    def moments(self) -> Values:
        """|S|² of each draw, without what each record has in common with itself."""
        shared = 1 / np.minimum(ROWS, 2 ** self.fact("n_records"))
        return np.array([facts["moments"] for _, facts in self.tasks]) - shared[:, None]

    def noises(self, is_regression: bool) -> tuple[Values, Values]:
        """Return the rate of the queries' batch, and the deviation of the noise on a mean of theirs (`Looked`)."""
        n, steps, batch = (2 ** self.fact(key) for key in ("n_records", "steps", "batch_size"))
        rate, queries = np.minimum(1.0, law.QUERIED / n), law.QUERIES * (1 if is_regression else 2)
        affordable = rate * 2**self.sigma * np.sqrt(queries / (SHARE * steps)) * n / batch
        return rate, np.maximum(law.QUIETEST * math.sqrt(law.QUERIES), affordable) / (rate * n)

    def tolerance_answered(self, generator: np.random.Generator, is_regression: bool) -> Values:
        """Return the tolerance as `noise_law` finds it by noisy queries."""
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
            size = _mean(belief, candidates)
        return size

    def rank_answered(self, generator: np.random.Generator, is_regression: bool) -> Values:
        """Return the effective rank as `noise_law` finds it: noise adds to |S|² its own square and 2 ⟨S, noise⟩."""
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
        return _mean((belief - np.log(error)) / 2, candidates) / math.log(2)

    def seen(self, generator: np.random.Generator) -> Iterator[Seen]:
        """Yield what a rule sees of each cell, with answers drawn anew."""
        numbers = "numbers" in self.tasks[0][0].kind
        answers = 2 ** self.tolerance_answered(generator, numbers), 2 ** self.rank_answered(generator, numbers)
        columns = (self.tasks, self.epsilons, self.convolutions, 2**self.sigma, 2**self.walk, *answers)
        for (curves, _), epsilon, convolutions, sigma, walk, tolerance, rank in zip(*columns, strict=True):
            facts: Any = {key: curves.facts[key] for key in ("n_records", "batch_size", "steps", "weights")}
            yield Seen(
                classes=not numbers,
                network=curves.network,
                convolutions=bool(convolutions),
                epsilon=EPSILONS[int(epsilon)],
                **facts,
                noise_multiplier=float(sigma),
                walk=float(walk),
                tolerance=float(tolerance),
                rank=float(rank),
            )


def _mean(belief: Values, candidates: Values) -> Values:
    """Return the mean of candidates by logarithms of their chances, shape (cells, candidates)."""
    chances = np.exp(belief - belief.max(1, keepdims=True))
    means: Values = (chances * candidates).sum(1) / chances.sum(1)
    return means


@cache
def cells_by_kind(editions: tuple[int, ...] = (*FILES,)) -> dict[str, Cells]:
    """Return all cells of some editions."""
    facts, by_kind = json.loads(ANSWERS.read_text()), dict[str, list[Any]]()
    for number in editions:
        for curves in read(FILES[number])[1]:
            by_kind.setdefault(curves.kind, []).append((curves, facts[curves.name]))
    n = len(EPSILONS)
    return {
        kind: Cells(tuple(task for task in tasks for _ in range(n)), np.tile(np.arange(n), len(tasks)))
        for kind, tasks in sorted(by_kind.items())
    }


Rule = Callable[[Seen], tuple[str, float]]
"""An optimiser of `OPTIMIZERS`, and a learning rate, from what may be seen."""


def constant(_: Seen) -> tuple[str, float]:
    """Return the one rate that is best for the first edition, whatever the task is."""
    return "AdamW", 1 / 64


def linear_scaling(seen: Seen) -> tuple[str, float]:
    """Return a rate of which r = η T grows with ε (Panda et al. 2024), by the best factor for the first edition."""
    return "SGD", 2.8 * seen.epsilon / seen.steps


def output_noise(seen: Seen) -> tuple[str, float]:
    """Return the first rate of `hyfreedp` and `noise_scaled`: the one whose noise the initial weights tolerate."""
    head, convolutions = seen.classes and not seen.network, seen.classes and seen.convolutions
    answers = seen.tolerance, seen.rank, seen.n_records, seen.walk, ONWARD
    return "SGD", law.tolerated_rate(*answers, head=head, convolutions=convolutions)


RULES: dict[str, Rule] = {"constant": constant, "linear_scaling": linear_scaling, "output_noise": output_noise}


@dataclass(frozen=True)
class Score:
    """Regrets of a rule: points of accuracy, ROC-AUC or R² behind the better grid of 13 rates.

    Attributes:
        regrets: by kind of task and model, shape (draws of the answers, cells).
        names: of the cells' tasks, by kind.
    """

    regrets: dict[str, Values]
    names: dict[str, list[str]]

    @property
    def mean(self) -> Estimate:
        """The mean over tasks, with the interval of Student's t over them."""
        of_task: dict[str, list[float]] = {}
        for kind, regrets in self.regrets.items():
            for name, regret in zip(self.names[kind], regrets.mean(0).tolist(), strict=True):
                of_task.setdefault(name, []).append(regret)
        return mean_interval([float(np.mean(each)) for each in of_task.values()])

    @property
    def every(self) -> Values:
        """The regret of each cell, the mean over draws."""
        return np.concatenate([regrets.mean(0) for regrets in self.regrets.values()])

    @property
    def within_point(self) -> float:
        return float((self.every <= 1).mean())

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.every, share))

    def __str__(self) -> str:
        kinds = [f"{kind}: {summary(regrets.mean(0))}" for kind, regrets in self.regrets.items()]
        return "\n".join(["mean | within 1 | 90th | worst", f"all: {summary(self.every)}", *kinds])


def score(rule: Rule, edition: int | None = None, draws: int = 4) -> Score:
    """Score a rule on all tasks at all ε.

    Args:
        rule: from what may be seen to an optimiser and a rate.
        edition: 1 or 2, on which a rule may be fitted; 3, of tables that nothing here was fitted on; None for all.
        draws: how often the answers are drawn.

    Raises:
        InvalidValueError: if the rule returns something else than an optimiser of `OPTIMIZERS` and a rate above 0, or
            there is no such edition.
    """
    if edition not in (None, *FILES) or draws < 1:
        raise InvalidValueError(f"Expected edition 1, 2, 3 or None, and 1 <= draws, got {edition!r} and {draws!r}.")
    regrets, names = {}, {}
    for kind, cells in cells_by_kind((edition,) if edition else (*FILES,)).items():
        generator, rows = np.random.default_rng(0), []
        for _ in range(draws):
            answers = [_checked(rule(seen), seen) for seen in cells.seen(generator)]
            optimizers, rates = zip(*answers, strict=True)
            rows.append(cells.regret(np.log2(rates), np.array([*map(OPTIMIZERS.index, optimizers)])))
        regrets[kind], names[kind] = np.stack(rows), cells.names
    return Score(regrets, names)


def _checked(answer: Any, seen: Seen) -> tuple[str, float]:
    with suppress(TypeError, ValueError, OverflowError):
        optimizer, rate = answer
        if optimizer in OPTIMIZERS and isinstance(rate, SupportsFloat) and 0 < float(rate) < math.inf:
            return optimizer, float(rate)
    raise InvalidValueError(
        f"Expected ('AdamW' or 'SGD', a rate above 0) of the rule, got {answer!r} for {seen}. Return both, finite."
    )


def summary(values: Sequence[float] | Values) -> str:
    """Return the mean, the share within a point, the 90th percentile and the worst."""
    array = np.array(values)
    return f"{array.mean():.1f} | {100 * (array <= 1).mean():.0f} % | {np.quantile(array, 0.9):.1f} | {array.max():.0f}"
