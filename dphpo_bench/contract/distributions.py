"""Search spaces as people state them: Optuna distributions by name, or lists of choices, with Python's values."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.checks import short_text
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def checked_space(space: Mapping[str, Any]) -> "dict[str, BaseDistribution]":
    """Return a search space with a distribution for each hyperparameter; numbers and texts of NumPy become Python's.

    Raises:
        InvalidValueError: if it is empty, or holds anything else, NaN or infinity.
    """
    if not isinstance(space, Mapping) or not space:
        raise InvalidValueError(
            f"Expected a search space with at least one hyperparameter, as a dictionary, got {shown(space, form=repr)}."
        )
    return {short_text("hyperparameter", name): _distribution(name, values) for name, values in space.items()}


def _distribution(name: str, values: Any) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(values, CategoricalDistribution) or (isinstance(values, list) and values):
        choices = values if isinstance(values, list) else values.choices
        return CategoricalDistribution([_choice(name, value) for value in choices])
    if isinstance(values, FloatDistribution | IntDistribution):
        _choice(name, values.low), _choice(name, values.high)
        return values
    raise InvalidValueError(
        f"Expected an Optuna distribution or a list of choices for {name}, got {shown(values, form=repr)}. For a "
        "range: optuna.distributions.FloatDistribution(1e-3, 1.0, log=True)."
    )


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
