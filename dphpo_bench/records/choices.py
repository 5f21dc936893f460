"""Released values, sorted for people: the choices of a run, its path while it trained, its candidates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAST_POINTS = 2
MAX_POINTS = 100_000
LARGEST = 1e300


@dataclass(frozen=True)
class Series:
    """A number over the steps of a run: (step, value), in the order of steps."""

    name: str
    points: tuple[tuple[float, float], ...]


def chosen(released: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in released.items() if value is None or isinstance(value, str | int | float)}


def series(released: Mapping[str, Any]) -> list[Series]:
    """Return the paths: lists of numbers, and the columns of lists of dictionaries that hold a `step`."""
    paths = []
    for name, value in released.items():
        if not isinstance(value, list) or not LEAST_POINTS <= len(value) <= MAX_POINTS:
            continue
        if all(isinstance(point, dict) and is_number(point.get("step")) for point in value):
            columns = dict.fromkeys(column for point in value for column in point if column != "step")
            paths += [
                Series(column, _points((point["step"], point.get(column)) for point in value)) for column in columns
            ]
        else:
            paths.append(Series(name, _points(enumerate(value, 1))))
    return [path for path in paths if len(path.points) >= LEAST_POINTS]


def tried(released: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the candidates that were compared, with scores where these were released; empty if they are secret."""
    candidates = released.get("candidates")
    rows = [chosen(values) for values in candidates if isinstance(values, dict)] if isinstance(candidates, list) else []
    return [row for row in rows if row]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _points(pairs: Any) -> tuple[tuple[float, float], ...]:
    return tuple(sorted(((step, value) for step, value in pairs if is_number(value)), key=lambda point: point[0]))
