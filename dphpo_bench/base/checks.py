"""Check numbers and names from outside, and turn them into the types that everything else relies on."""

import math
import operator
from typing import Any

from annotated_types import Interval

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown

MAX_NAME = 64

SMALLEST_BOUND, LARGEST_BOUND = 1e-30, 1e30
"""Bounds on what one record adds to a sum, far from where numbers become 0 or infinite."""


def number(name: str, value: Any, *, low: float, high: float = math.inf) -> float:
    """Return `value` as a finite float in [low, high]; reject anything else, such as a text or a boolean."""
    return float(ranged(name, value, float, Interval(ge=low, le=None if high == math.inf else high)))


def positive(name: str, value: Any) -> float:
    """Return `value` as a finite float above 0; reject anything else."""
    return float(ranged(name, value, float, Interval(gt=0)))


def bound(name: str, value: Any) -> float:
    """Return `value` as a float in [1e-30, 1e30]; reject anything else.

    For sensitivities, and bounds that values are clipped to. Beyond, a sum of a few records is infinite whatever noise
    is added to it, or the noise is rounded to 0.
    """
    return number(name, value, low=SMALLEST_BOUND, high=LARGEST_BOUND)


def inside(name: str, value: Any) -> float:
    """Return `value` as a float above 0 and below 1; reject anything else."""
    return float(ranged(name, value, float, Interval(gt=0, lt=1)))


def ranged(name: str, value: Any, kind: type, interval: Interval) -> Any:
    """Return `value` as exactly a finite float or an int, whichever `kind` is, within an interval.

    Raises:
        InvalidValueError: if it is anything else.
    """
    exact = exact_int(value) if kind is int else _finite(value)
    above, over, below, under = (getattr(interval, side) for side in ("gt", "ge", "lt", "le"))
    if (
        exact is None
        or (above is not None and exact <= above)
        or (over is not None and exact < over)
        or (below is not None and exact >= below)
        or (under is not None and exact > under)
    ):
        raise InvalidValueError(f"Expected {_rule(name, kind, interval)}, got {name}={quoted(value)}.")
    return exact


def _finite(value: Any) -> float | None:
    if isinstance(value, bool | str):
        return None
    try:
        converted = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return converted if math.isfinite(converted) else None


def _rule(name: str, kind: type, interval: Interval) -> str:
    """Return a rule such as "0 < share < 1"."""
    low = interval.ge if interval.gt is None else interval.gt
    high = interval.le if interval.lt is None else interval.lt
    above, below = "<=" if interval.gt is None else "<", "<=" if interval.lt is None else "<"
    if low is not None and high is not None:
        return f"{low} {above} {name} {below} {high}"
    finite = "a finite " if kind is float else ""
    if low is not None:
        return f"{finite}{name} {above.replace('<', '>')} {low}"
    return f"{finite}{name}" if high is None else f"{finite}{name} {below} {high}"


def whole(name: str, value: Any, *, low: int, high: int) -> int:
    """Return `value` as an int in [low, high]; reject anything else, such as a float with a whole value."""
    exact = exact_int(value)
    if exact is None or not low <= exact <= high:
        raise InvalidValueError(f"Expected a whole {name} from {low} to {high}, got {name}={quoted(value)}.")
    return exact


def exact_int(value: Any) -> int | None:
    """Return `value` as an int if its type is an integer of Python, NumPy or torch; None for anything else."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")) or getattr(value, "ndim", 0) > 0:
        return None
    try:
        return int(operator.index(value))
    except (TypeError, RuntimeError):  # the second: a tensor without a value
        return None


def quoted(value: Any) -> str:
    """Return a value for a message; a text in quotes."""
    return shown(value, form=repr if isinstance(value, str) else str)


def short_text(name: str, value: Any) -> str:
    """Return `value` if it is a text of 1 to `MAX_NAME` printable characters; reject anything else."""
    if not (isinstance(value, str) and 1 <= len(value) <= MAX_NAME and value.isprintable()):
        raise InvalidValueError(
            f"Expected {name} to be a text of 1 to {MAX_NAME} printable characters, got {shown(value, form=repr)}."
        )
    return str.__str__(value)  # a subclass could claim to equal another
