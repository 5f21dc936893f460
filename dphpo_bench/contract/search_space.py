"""Check search spaces, Optuna distributions by name, and choose their points without reading any score.

Optuna only draws. No score is reported or stored: a study would keep it in the clear, and a
sampler that learns from raw scores makes every later candidate a release.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from dphpo_bench.base.checks import check_fields, number, short_text
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract.parameters import Name

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def checked_space(space: Mapping[str, Any]) -> "dict[str, BaseDistribution]":
    """Return a search space with a distribution for each hyperparameter; numbers and texts of NumPy become Python's.

    Raises:
        InvalidValueError: if it is empty, or holds anything else, NaN or infinity.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(space, Mapping) or not space:
        raise InvalidValueError(
            f"Expected a search space with at least one hyperparameter, as a dictionary, got {shown(space, form=repr)}."
        )
    checked: dict[str, BaseDistribution] = {}
    for name, values in space.items():
        if isinstance(values, CategoricalDistribution) or (isinstance(values, list) and values):
            choices = values if isinstance(values, list) else values.choices
            values = CategoricalDistribution([_choice(name, value) for value in choices])
        elif isinstance(values, FloatDistribution | IntDistribution):
            _choice(name, values.low), _choice(name, values.high)
        else:
            raise InvalidValueError(
                f"Expected an Optuna distribution or a list of choices for {name}, got {shown(values, form=repr)}. For "
                "a range: optuna.distributions.FloatDistribution(1e-3, 1.0, log=True)."
            )
        checked[short_text("hyperparameter", name)] = values
    return checked


def _choice(name: str, value: Any) -> bool | int | float | str | None:
    plain = value.item() if getattr(value, "ndim", None) == 0 else value
    if type(plain) not in (bool, int, float, str, type(None)):
        raise InvalidValueError(
            f"Expected choices that are numbers, texts, True, False or None for {name}, got {shown(value)} of type "
            f"{type(value).__name__}. Search over a name, and look the value up in training; of an array of NumPy, "
            "take array.tolist()."
        )
    if isinstance(plain, float) and not math.isfinite(plain):
        raise InvalidValueError(f"Expected finite numbers for {name}, got {plain}. Leave it out of the search space.")
    return plain  # type: ignore[no-any-return]


Candidate = dict[str, Any]
"""Hyperparameters by name."""

SCHEDULE = frozenset({"batch_size", "epochs"})
"""Hyperparameters that change what a run costs: searched at few values, each planned with noise of its own."""

MOST_COMBINATIONS = 1_000_000
"""The most combinations of a grid's values; some are one candidate, if they differ for another optimiser alone."""

MOST_VALUES = 3
"""Number of values in the grid of a numeric range: its ends and its middle, logarithmic if the range is."""

CLIPPING_NORMS = (0.1, 1.0, 10.0)
"""Clipping norms C of the joint space, a decade apart; AUTO-S, which needs none, stands beside them."""

SCHEDULE_FACTORS = (0.25, 1, 4)
"""Factors of the task's batch size and of its epochs in the joint space; steps change by 1/16 to 16."""

Extent = Literal["full", "fixed_schedule", "grid", "joint", "learning_rate", "reference", "wide"]
"""Parts of the space that a search varies.

- full: all of it.
- fixed_schedule: all but batch size and epochs, so that every run costs the same.
- grid: learning rate, optimiser and clipping, few enough for a grid.
- joint: learning rate, clipping, batch size and epochs, of the optimiser that trains; `joint` has the values. What the
  task states of these four replaces the usual values.
- learning_rate: the learning rate alone.
- reference: learning rate and clipping; the rate as in `wide`.
- wide: the learning rate alone, over twice as many decades if the task states no space. A reference needs that: its
  grid must not end where it is best.
"""

_VARIED: dict[Extent, frozenset[str]] = {
    "grid": frozenset({"learning_rate", "optimizer", "clipping"}),
    "joint": frozenset({"learning_rate", "clipping"}) | SCHEDULE,
    "learning_rate": frozenset({"learning_rate"}),
    "reference": frozenset({"learning_rate", "clipping"}),
    "wide": frozenset({"learning_rate"}),
}

OF_ONE_OPTIMIZER = frozenset(extent for extent, names in _VARIED.items() if "optimizer" not in names)
"""The extents whose learning rates are those of the optimiser that trains."""


@dataclass(frozen=True)
class Space:
    """Part of a task's search space that a search varies: names only, since sessions get it.

    Attributes:
        extent: how much is searched.
        without: hyperparameters that were set by hand, and are not searched.
        optimizer: the one that was set by hand; None: it is searched, or the task's.

    Raises:
        UnknownNameError: if there is no such extent.
    """

    extent: Extent = "full"
    without: tuple[str, ...] = ()
    optimizer: Name | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "without", tuple(short_text("without", name) for name in tuple(self.without)))

    def of(self, stated: "Mapping[str, BaseDistribution]") -> "dict[str, BaseDistribution]":
        """Return the part of a space that is searched.

        Raises:
            InvalidValueError: if nothing is left.
        """
        space = dict(stated)
        if self.optimizer is not None or self.extent in OF_ONE_OPTIMIZER:
            for name in [name for name in space if ":" in name]:  # what holds for one optimiser only
                distribution = space.pop(name)
                if name.endswith(f":{str(self.optimizer).lower()}"):
                    space[hyperparameter(name)] = distribution
        fixed = {*self.without, *(() if self.optimizer is None else ("optimizer",))}
        unvaried = fixed | SCHEDULE if self.extent == "fixed_schedule" else fixed
        varied = _VARIED.get(self.extent, set(map(hyperparameter, space))) - unvaried
        searched = {name: space[name] for name in space if hyperparameter(name) in varied}
        if not searched:
            raise InvalidValueError(
                f"Expected a hyperparameter to search, got none: space={self.extent} of {sorted(stated)}, "
                f"{sorted(fixed)} set by hand. Set fewer, or another space."
            )
        return searched


def default_search_space() -> "dict[str, BaseDistribution]":
    """Return a learning rate from 1e-4 to 1, logarithmically: four decades around the usual ones of AdamW and SGD."""
    from optuna.distributions import FloatDistribution

    return {"learning_rate": FloatDistribution(1e-4, 1.0, log=True)}


NAIVE_RATE = 1e-3
"""AdamW's own default, which tasks have that know no better one."""


def usual(
    n_records: int, batch_size: int, epochs: float, learning_rate: float = NAIVE_RATE, *, decades: int = 1
) -> "dict[str, BaseDistribution]":
    """Return what people tune, for a task that states no search space: public, and the same for all tasks.

    Learning rates span the two decades around .03 for AdamW and .3 for SGD with momentum, where runs under privacy do
    best; wider ranges lose more to bad draws than they gain (docs/methods.md). A task with a learning rate of its own,
    as for fine-tuning, has a decade either side of it, for its own optimiser. Batches are the task's or twice as
    large, epochs half or twice as many: four combinations, since each is planned with noise of its own.

    Args:
        n_records: N; no batch is larger.
        decades: on either side of these rates.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    def around(rate: float) -> "BaseDistribution":
        return FloatDistribution(rate / 10**decades, rate * 10**decades, log=True)

    rates: dict[str, BaseDistribution] = {
        "optimizer": CategoricalDistribution(["AdamW", "SGD"]),
        "learning_rate": around(0.03),
        "learning_rate:sgd": around(0.3),
    }
    if learning_rate != NAIVE_RATE:
        rates = {"learning_rate": around(learning_rate)}
    batches = sorted({batch_size, min(2 * batch_size, n_records)})
    return {
        **rates,
        "clipping": CategoricalDistribution(["auto_s", "abadi:1"]),
        "weight_decay": CategoricalDistribution([0.0, 0.001, 0.01]),
        "batch_size": CategoricalDistribution(batches),
        "epochs": CategoricalDistribution([epochs / 2, epochs * 2]),
    }


def joint(
    n_records: int,
    batch_size: int,
    epochs: float,
    learning_rate: float = NAIVE_RATE,
    *,
    stated: "Mapping[str, BaseDistribution]" = MappingProxyType({}),
) -> "dict[str, BaseDistribution]":
    """Return the joint space: clipping × batch size × learning rate × epochs; public facts fix it, as for `usual`.

    Clipping is AUTO-S, or at a norm C of `CLIPPING_NORMS`. Batch size and epochs are a quarter of the task's, the
    task's, and four times as many, a batch at most all records. Learning rates are the usual ones, SGD's over four
    decades: a step of SGD is as long as C, one of AdamW is not.

    Args:
        n_records: N; no batch is larger.
        stated: hyperparameters that the task states, which replace the values here.
    """
    from optuna.distributions import CategoricalDistribution

    narrow, wide = (usual(n_records, batch_size, epochs, learning_rate, decades=decades) for decades in (1, 2))
    batches = {min(max(1, round(factor * batch_size)), n_records) for factor in SCHEDULE_FACTORS}
    space = {
        "learning_rate": narrow["learning_rate"],
        **({"learning_rate:sgd": wide["learning_rate:sgd"]} if "learning_rate:sgd" in wide else {}),
        "clipping": CategoricalDistribution(["auto_s", *(f"abadi:{norm:g}" for norm in CLIPPING_NORMS)]),
        "batch_size": CategoricalDistribution(sorted(batches)),
        "epochs": CategoricalDistribution([factor * epochs for factor in SCHEDULE_FACTORS]),
    }
    names = set(map(hyperparameter, stated))
    return {name: values for name, values in space.items() if hyperparameter(name) not in names} | dict(stated)


def hyperparameter(name: str) -> str:
    """Return the hyperparameter of an entry: "learning_rate:sgd" is the learning rate where the optimiser is SGD."""
    return name.partition(":")[0]


def _resolved(drawn: Candidate) -> Candidate:
    """Return a candidate without the entries of other optimisers than its own."""
    suffix = f":{str(drawn.get('optimizer')).lower()}"
    plain = {name: value for name, value in drawn.items() if ":" not in name}
    of_its_optimizer = {hyperparameter(name): value for name, value in drawn.items() if name.endswith(suffix)}
    return {**plain, **of_its_optimizer}


def distribution_of(space: "Mapping[str, BaseDistribution]", name: str, candidate: Candidate) -> "BaseDistribution":
    """Return the distribution that a candidate's value of a hyperparameter was drawn from."""
    return space.get(f"{name}:{str(candidate.get('optimizer')).lower()}", space[name])


@dataclass(frozen=True)
class Proposals:
    """Rule by which a search learns from its trials: earlier scores may shape the density of candidates, within bounds.

    Attributes:
        prior: the candidates, all equally likely before anything is known.
        weights: (indices of the candidates tried so far, their scores) → how promising each candidate of the prior is,
            positive numbers. A trial that failed has the score NaN. Each call is one of a copy of the function.
        low: c in (0, 1], and
        high: C ≥ 1: the density of a candidate relative to the prior is held between them.

    Raises:
        InvalidValueError: if a bound is out of range, or there is no candidate.
    """

    prior: tuple[Candidate, ...]
    weights: Callable[[list[int], list[float]], Sequence[float]]
    low: float
    high: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "prior", tuple(map(dict, self.prior)))
        object.__setattr__(self, "low", number("low", self.low, low=1e-9, high=1))
        object.__setattr__(self, "high", number("high", self.high, low=1, high=1e9))
        if not self.prior:
            raise InvalidValueError("Expected at least one candidate in the prior.")


def promise(proposals: Proposals, tried: list[int], scores: list[float]) -> list[float]:
    """Compute the weights of all candidates after these trials by the method's own function."""
    weights = [float(weight) for weight in proposals.weights(tried, scores)]
    if len(weights) != len(proposals.prior) or not all(0 < weight < math.inf for weight in weights):
        raise InvalidValueError(f"Expected {len(proposals.prior)} positive weights, got {shown(weights, 200)}.")
    return weights


def choose(densities: Sequence[float], uniform: float) -> int:
    """Return the index whose share of the total a uniform number in [0, 1) falls into."""
    left = uniform * sum(densities)
    for index, density in enumerate(densities):
        left -= density
        if left < 0:
            return index
    return len(densities) - 1


def bounded(weights: Sequence[float], low: float, high: float) -> list[float]:
    """Return densities relative to a uniform prior, of mean 1, within [low, high]: `weights` times a factor, clamped.

    Args:
        weights: positive, one for each point of the prior.
    """
    # Rounding must not lead out of the bounds that are accounted for.
    low, high = min(low * (1 + 1e-9), 1.0), max(high * (1 - 1e-9), 1.0)

    logarithms, least, most = [math.log(weight) for weight in weights], math.log(low), math.log(high)

    def clamped(factor: float) -> list[float]:
        shifted = [factor + logarithm for logarithm in logarithms]
        return [low if point <= least else high if point >= most else math.exp(point) for point in shifted]

    # By the logarithm of the factor: weights may lie three hundred powers of ten apart.
    start, end = least - max(logarithms), most - min(logarithms)
    for _ in range(200):
        middle = (start + end) / 2
        if sum(clamped(middle)) < len(weights):
            start = middle
        else:
            end = middle
    return clamped(end)


def draw(space: "Mapping[str, BaseDistribution]", seed: int) -> Candidate:
    """Draw a candidate, uniform over the space (in the logarithm where a distribution says so).

    Batch size and epochs take one of at most `MOST_VALUES` values of a numeric range.

    Draws with different seeds are independent, as the theorems of private selection ask.
    """
    import optuna

    # Without a study, which announces itself and each trial: whoever listened would know how many trials there are.
    sampler: Any = optuna.samplers.RandomSampler(seed=seed % 2**32)

    def value(name: str, distribution: Any) -> Any:
        if distribution.single():
            return distribution.choices[0] if hasattr(distribution, "choices") else distribution.low
        return sampler.sample_independent(None, None, name, distribution)

    return _resolved({name: value(name, distribution) for name, distribution in _planned(space).items()})


def grid(space: "Mapping[str, BaseDistribution]", points: int) -> list[Candidate]:
    """Return the product of `points` evenly spaced values of every number and all choices of every category.

    Args:
        points: values of each numeric hyperparameter, both ends included; 1 takes the middle. Batch size and epochs
            have all of the values that `draw` may give, whatever `points` is.

    Raises:
        InvalidValueError: if `points` is below 1, there are more than `MOST_COMBINATIONS`, or a distribution is of an
            unknown kind.
    """
    if not 1 <= points <= MOST_COMBINATIONS:
        raise InvalidValueError(f"Expected 1 <= points <= {MOST_COMBINATIONS:,}, got {points}.")
    axes = [_values(name, distribution, points) for name, distribution in _planned(space).items()]
    if (size := math.prod(map(len, axes))) > MOST_COMBINATIONS:
        raise InvalidValueError(
            f"Expected at most {MOST_COMBINATIONS:,} combinations of a grid's values, got {size:,}; take fewer points."
        )
    candidates = [_resolved(dict(zip(space, values, strict=True))) for values in itertools.product(*axes)]
    # Candidates that differ only in what holds for another optimiser are equal.
    return list({repr(candidate): candidate for candidate in candidates}.values())


def beside(space: "Mapping[str, BaseDistribution]", candidate: Candidate, points: int) -> list[Candidate]:
    """Return candidates that differ from one in one real number, by a step of a grid with so many values of it.

    Batch size and epochs stay.

    Args:
        points: see `grid`. The candidate's numbers should be on this grid.
    """
    from optuna.distributions import FloatDistribution

    neighbours = []
    for name in space:
        distribution = distribution_of(space, name, candidate)
        varies = isinstance(distribution, FloatDistribution) and not distribution.single()
        if varies and name in candidate and name not in SCHEDULE:
            values = _values(name, distribution, points)
            place = min(range(points), key=lambda i: abs(values[i] - candidate[name]))
            neighbours += [{**candidate, name: values[i]} for i in (place - 1, place + 1) if 0 <= i < points]
    return neighbours


def _planned(space: "Mapping[str, BaseDistribution]") -> "dict[str, BaseDistribution]":
    """Return the space with finitely many batch sizes and numbers of epochs."""
    from optuna.distributions import CategoricalDistribution

    return {
        name: CategoricalDistribution(_values(name, values, MOST_VALUES)) if name in SCHEDULE else values
        for name, values in space.items()
    }


def _values(name: str, distribution: "BaseDistribution", points: int) -> list[Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match distribution:
        case CategoricalDistribution(choices=choices):
            return list(choices)
        case FloatDistribution(low=low, high=high, log=log) | IntDistribution(low=low, high=high, log=log):
            there, back = (math.log, math.exp) if log else (float, float)
            fractions = [i / (points - 1) for i in range(points)] if points > 1 else [0.5]
            values = [back(there(low) + fraction * (there(high) - there(low))) for fraction in fractions]
            if isinstance(distribution, IntDistribution):
                return sorted({round(value) for value in values})
            # Twelve digits, so that 1e-4 does not end in ...09.
            return [min(max(float(f"{value:.12g}"), low), high) for value in values]
        case _:
            raise InvalidValueError(f"Expected a number or a category, got {type(distribution).__name__} for {name!r}.")
