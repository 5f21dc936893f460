"""Search spaces of the caller: Optuna distributions, or lists of choices."""

import json
from collections.abc import Mapping
from typing import Any

import numpy
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from dphpo_bench.base.checks import short_text
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract.search_space import SCHEDULE, hyperparameter

_OF_EVENT = SCHEDULE | {
    "max_steps",
    "noise_multiplier",
    "num_epochs",
    "num_train_epochs",
    "per_device_train_batch_size",
    "sample_rate",
    "steps",
}


def checked_space(space: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """Return a space with a distribution for each hyperparameter.

    Raises:
        InvalidValueError: if it is empty, or holds something else, or what changes the event of a training.
    """
    if not space:
        raise InvalidValueError("Expected a search space with at least one hyperparameter, got none.")
    return {short_text("hyperparameter", name): _distribution(name, values) for name, values in space.items()}


def space_json(space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Return a space as JSON values."""
    return {name: json.loads(distribution_to_json(values)) for name, values in space.items()}


def _distribution(name: str, values: Any) -> BaseDistribution:
    if name in ("score", "winner"):
        raise InvalidValueError(f"Expected a hyperparameter of another name than {name}, which a record has already.")
    if hyperparameter(name) in _OF_EVENT:
        raise InvalidValueError(
            f"Expected hyperparameters that leave the event of a training as it is, got {name}: sample rate, steps and "
            "noise are the same in all trials, as event(noise) states. Fix it."
        )
    if isinstance(values, list) and values:
        values = CategoricalDistribution([each.item() if isinstance(each, numpy.generic) else each for each in values])
    if not isinstance(values, CategoricalDistribution | FloatDistribution | IntDistribution):
        raise InvalidValueError(
            f"Expected an Optuna distribution or a list of choices for {name}, got {shown(values, form=repr)}. For a "
            "range: optuna.distributions.FloatDistribution(1e-3, 1.0, log=True)."
        )
    strange = [
        choice for choice in getattr(values, "choices", ()) if type(choice) not in (bool, int, float, str, type(None))
    ]
    if strange:
        raise InvalidValueError(
            f"Expected choices that are numbers, texts, True, False or None for {name}, got {shown(strange[0])} "
            f"of type {type(strange[0]).__name__}. Search over a name, and look the value up in training; of an array "
            "of NumPy, take array.tolist()."
        )
    return values
