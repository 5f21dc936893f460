"""Candidates of a search: points of a space of Optuna distributions, chosen without looking at any score.

Optuna is only ever asked. No score is told, reported or stored: a study would keep it in the clear, and a
sampler that learns from raw scores makes every later candidate a release.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.checks import number
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Candidate = dict[str, Any]

SCHEDULE = frozenset({"batch_size", "epochs"})
"""Hyperparameters that change what a run costs: searched at few values, each planned with noise of its own."""

MOST_VALUES = 3
"""How many values a numeric range of these has: the ends and the middle, in the logarithm where the range says so."""


@dataclass(frozen=True)
class Proposals:
    """How a search learns from its trials: earlier scores may shape the density of candidates, within bounds.

    Attributes:
        prior: the candidates, all equally likely before anything is known.
        weights: (indices of the candidates tried so far, their scores) → how promising each candidate of the prior is,
            positive numbers. A trial that failed has the score NaN. It is called in a copy of the process.
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
        object.__setattr__(self, "prior", tuple(map(_exact, self.prior)))
        object.__setattr__(self, "low", number("low", self.low, low=1e-9, high=1))
        object.__setattr__(self, "high", number("high", self.high, low=1, high=1e9))
        if not self.prior:
            raise InvalidValueError("Expected at least one candidate in the prior.")


def _exact(candidate: Any) -> Candidate:
    """A candidate of exact types: a subclass could run code when it is read."""
    found = {str.__str__(name): value for name, value in dict.items(candidate)}
    for name, value in found.items():
        if type(value) not in (bool, int, float, str, type(None)):
            raise InvalidValueError(f"Expected a number or a text as {name}, got a {type(value).__name__}.")
    return found


def promise(proposals: Proposals, tried: list[int], scores: list[float]) -> list[float]:
    """The weights of all candidates after these trials, computed by the method's own function.

    Raises:
        InvalidValueError: if they are not positive numbers, one for each candidate.
    """
    weights = [float(weight) for weight in proposals.weights(tried, scores)]
    if len(weights) != len(proposals.prior) or not all(0 < weight < math.inf for weight in weights):
        raise InvalidValueError(f"Expected {len(proposals.prior)} positive weights, got {shown(weights, 200)}.")
    return weights


def choose(densities: Sequence[float], uniform: float) -> int:
    """The index whose share of the total a uniform number in [0, 1) falls into."""
    left = uniform * sum(densities)
    for index, density in enumerate(densities):
        left -= density
        if left < 0:
            return index
    return len(densities) - 1


def bounded(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Densities relative to a uniform prior, of mean 1 and within [low, high]: `wanted` times a factor, clamped.

    Args:
        wanted: positive weights, one for each point of the prior.
        low: c ≤ 1.
        high: C ≥ 1.
    """
    # Rounding must not lead out of the bounds that are accounted for.
    low, high = min(low * (1 + 1e-9), 1.0), max(high * (1 - 1e-9), 1.0)

    def clamped(factor: float) -> list[float]:
        return [min(max(factor * weight, low), high) for weight in wanted]

    start, end = 0.0, high / min(wanted)
    for _ in range(200):
        middle = (start + end) / 2
        if sum(clamped(middle)) < len(wanted):
            start = middle
        else:
            end = middle
    return clamped(end)


def draw(space: "Mapping[str, BaseDistribution]", seed: int) -> Candidate:
    """One candidate, uniform over the space (in the logarithm where a distribution says so).

    Batch size and epochs take one of at most `MOST_VALUES` values of a numeric range.

    Draws with different seeds are independent, as the theorems of private selection ask.

    Args:
        space: hyperparameters by name.
        seed: a non-negative integer.
    """
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study announces itself
    try:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed % 2**32))
        return dict(study.ask(_planned(space)).params)
    finally:
        optuna.logging.set_verbosity(verbosity)


def grid(space: "Mapping[str, BaseDistribution]", points: int) -> list[Candidate]:
    """The product of `points` evenly spaced values of every number and all choices of every category.

    Args:
        space: hyperparameters by name.
        points: values of each numeric hyperparameter, both ends included; 1 takes the middle. Batch size and epochs
            have all of the values that `draw` may give, whatever `points` is.

    Raises:
        InvalidValueError: if `points` < 1, or a distribution is of an unknown kind.
    """
    if points < 1:
        raise InvalidValueError(f"Expected points >= 1, got {points}.")
    axes = [_values(name, distribution, points) for name, distribution in _planned(space).items()]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*axes)]


def _planned(space: "Mapping[str, BaseDistribution]") -> "dict[str, BaseDistribution]":
    """The space with finitely many batch sizes and numbers of epochs."""
    from optuna.distributions import CategoricalDistribution

    return {
        name: CategoricalDistribution(_values(name, one, MOST_VALUES)) if name in SCHEDULE else one
        for name, one in space.items()
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
