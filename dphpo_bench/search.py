"""Candidates of a search: points of a space of Optuna distributions, chosen without looking at any score.

Optuna is only ever asked. No score is told, reported or stored: a study would keep it in the clear, and a
sampler that learns from raw scores makes every later candidate a release.
"""

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dphpo_bench.errors import InvalidValueError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Candidate = dict[str, Any]


def draw(space: "Mapping[str, BaseDistribution]", seed: int) -> Candidate:
    """One candidate, uniform over the space (in the logarithm where a distribution says so).

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
        return dict(study.ask(dict(space)).params)
    finally:
        optuna.logging.set_verbosity(verbosity)


def grid(space: "Mapping[str, BaseDistribution]", points: int) -> list[Candidate]:
    """The product of `points` evenly spaced values of every number and all choices of every category.

    Args:
        space: hyperparameters by name.
        points: values of each numeric hyperparameter, both ends included; 1 takes the middle.

    Raises:
        InvalidValueError: if `points` < 1, or a distribution is of an unknown kind.
    """
    if points < 1:
        raise InvalidValueError(f"Expected points >= 1, got {points}.")
    axes = [_values(name, distribution, points) for name, distribution in space.items()]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*axes)]


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
