"""What a run released, sorted for people: what it chose, its path while it trained, what it tried."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAST_POINTS = 2
MAX_POINTS = 100_000
LARGEST = 1e300


@dataclass(frozen=True)
class Series:
    """One number over the steps of a run.

    Attributes:
        name: such as "learning_rate".
        points: steps and values, in the order of steps.
    """

    name: str
    points: tuple[tuple[float, float], ...]


def chosen(released: Mapping[str, Any]) -> dict[str, Any]:
    """The single values: learning rates and the like."""
    return {name: value for name, value in released.items() if value is None or isinstance(value, str | int | float)}


def series(released: Mapping[str, Any]) -> list[Series]:
    """The paths: lists of numbers, and the columns of lists of dictionaries that hold a `step`."""
    found = []
    for name, value in released.items():
        if not isinstance(value, list) or not LEAST_POINTS <= len(value) <= MAX_POINTS:
            continue
        if all(isinstance(one, dict) and is_number(one.get("step")) for one in value):
            columns = dict.fromkeys(column for one in value for column in one if column != "step")
            found += [Series(column, _points((one["step"], one.get(column)) for one in value)) for column in columns]
        else:
            found.append(Series(name, _points(enumerate(value, 1))))
    return [one for one in found if len(one.points) >= LEAST_POINTS]


def tried(released: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The candidates that were compared, with scores where these were released; empty if they are secret."""
    told = released.get("candidates")
    rows = [chosen(one) for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    return [row for row in rows if row]


def is_number(value: Any) -> bool:
    """Whether a value of a record is a number that one can draw."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _points(pairs: Any) -> tuple[tuple[float, float], ...]:
    found = [(step, value) for step, value in pairs if is_number(value)]
    return tuple(sorted(found, key=lambda point: point[0]))
