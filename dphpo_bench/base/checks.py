"""Numbers and names from outside, checked and turned into the types that everything else relies on."""

import math
import operator
from typing import Any

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown

MAX_NAME = 64

SMALLEST_BOUND, LARGEST_BOUND = 1e-30, 1e30
"""Bounds on what one record adds to a sum, far from where numbers become 0 or infinite."""


def number(name: str, value: Any, *, low: float, high: float = math.inf) -> float:
    """`value` as a finite float in [low, high]; refused if it is anything else, such as a text or a boolean."""
    try:
        found = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not (math.isfinite(found) and low <= found <= high):
        rule = f"a finite {name} >= {low}" if high == math.inf else f"{low} <= {name} <= {high}"
        raise InvalidValueError(f"Expected {rule}, got {name}={told(value)}.")
    return found


def positive(name: str, value: Any) -> float:
    """`value` as a finite float above 0; refused if it is anything else."""
    return _strictly(name, value, f"a finite {name} > 0", math.inf)


def bound(name: str, value: Any) -> float:
    """`value` as a float in [1e-30, 1e30]; refused if it is anything else.

    For sensitivities, and bounds that values are clipped to. Beyond, a sum of a few records is infinite whatever noise
    is added to it, or the noise is rounded to 0.
    """
    return number(name, value, low=SMALLEST_BOUND, high=LARGEST_BOUND)


def inside(name: str, value: Any) -> float:
    """`value` as a float above 0 and below 1; refused if it is anything else."""
    return _strictly(name, value, f"0 < {name} < 1", 1)


def _strictly(name: str, value: Any, rule: str, high: float) -> float:
    try:
        found = number(name, value, low=0)
    except InvalidValueError:
        found = math.nan
    if not 0 < found < high:
        raise InvalidValueError(f"Expected {rule}, got {name}={told(value)}.")
    return found


def whole(name: str, value: Any, *, low: int, high: int) -> int:
    """`value` as an int in [low, high]; refused if it is anything else, such as a float with a whole value."""
    found = exact_int(value)
    if found is None or not low <= found <= high:
        raise InvalidValueError(f"Expected a whole {name} from {low} to {high}, got {name}={told(value)}.")
    return found


def exact_int(value: Any) -> int | None:
    """`value` as an int if its type is one of whole numbers, of Python, NumPy or torch; None for anything else."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")) or getattr(value, "ndim", 0) > 0:
        return None
    try:
        return int(operator.index(value))
    except (TypeError, RuntimeError):  # the second: a tensor without a value
        return None


def told(value: Any) -> str:
    """A value for a message; a text in quotes."""
    return shown(value, form=repr if isinstance(value, str) else str)


def short_text(name: str, value: Any) -> str:
    """`value` if it is a text of 1 to `MAX_NAME` printable characters; refused if it is anything else."""
    if not (isinstance(value, str) and 1 <= len(value) <= MAX_NAME and value.isprintable()):
        raise InvalidValueError(
            f"Expected {name} to be a text of 1 to {MAX_NAME} printable characters, got {shown(value, form=repr)}."
        )
    return str.__str__(value)  # a subclass could claim to equal another
