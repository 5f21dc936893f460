"""Released values, sorted for people: the choices of a run, its path while it trained, its candidates."""

from collections.abc import Mapping
from typing import Any

MAX_POINTS = 100_000
LARGEST = 1e300

Points = list[tuple[float, float]]
"""(step, value), in the order of steps."""


def chosen(released: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in released.items() if value is None or isinstance(value, str | int | float)}


def series(released: Mapping[str, Any]) -> dict[str, Points]:
    """Return the paths: lists of numbers, and the columns of lists of dictionaries that hold a `step`."""
    paths: dict[str, Points] = {}
    for name, value in released.items():
        if not isinstance(value, list) or len(value) > MAX_POINTS:
            continue
        if all(isinstance(point, dict) and is_number(point.get("step")) for point in value):
            for column in dict.fromkeys(column for point in value for column in point if column != "step"):
                paths[column] = [(point["step"], point.get(column)) for point in value]
        else:
            paths[name] = list(enumerate(value, 1))
    known = {
        name: sorted((step, value) for step, value in points if is_number(value)) for name, points in paths.items()
    }
    return {name: points for name, points in known.items() if len(points) > 1}


def tried(released: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the candidates that were compared, with scores where these were released; empty if they are secret."""
    candidates = released.get("candidates")
    rows = [chosen(values) for values in candidates if isinstance(values, dict)] if isinstance(candidates, list) else []
    return [row for row in rows if row]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST
