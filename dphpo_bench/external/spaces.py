"""Search spaces of the caller: Optuna distributions, or lists of choices."""

import json
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract import distributions
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
    checked = distributions.checked_space(space)
    for name in checked:
        if name in ("score", "winner"):
            raise InvalidValueError(
                f"Expected a hyperparameter of another name than {name}, which a record has already."
            )
        if hyperparameter(name) in _OF_EVENT:
            raise InvalidValueError(
                f"Expected hyperparameters that leave the event of a training as it is, got {name}: sample rate, steps "
                "and noise are the same in all trials, as event(noise) states. Fix it."
            )
    return checked


def space_json(space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Return a space as JSON values."""
    return {name: json.loads(distribution_to_json(values)) for name, values in space.items()}
