"""Files that people write: read them, and name the key of a mistake in one line."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.files import read_whole, text_of
from dphpo_bench.base.text import shown, unknown_name_message

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Place = tuple[str | int, ...]


def bytes_in(path: Path, limit: int, what: str) -> bytes:
    """Return the content of a file of at most `limit` bytes; `what` it is stands in the messages.

    Raises:
        InvalidValueError: if it cannot be read, or is larger.
    """
    try:
        data = read_whole(path, limit)
    except OSError as error:
        raise InvalidValueError(f"Cannot read the {what} {path}: {error.strerror}.") from None
    if len(data) > limit:
        raise InvalidValueError(f"The {what} {path} is larger than {limit} bytes.")
    return data


def toml_values(path: Path, data: bytes) -> dict[str, Any]:
    """Return the values of a file of TOML.

    Raises:
        InvalidValueError: if it is none; the message has the place of the mistake.
    """
    try:
        return tomllib.loads(text_of(data))
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{path} is not TOML: {shown(error, 300)}.") from None


def misplaced(path: Path, place: Place, reason: str) -> InvalidValueError:
    """Return the error of a file, with the place of the key."""
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    return InvalidValueError(f"{path}, {shown(key, 200)}: {reason}")


def misfit(error: "ValidationError", model: "type[BaseModel]", **tables: "type[BaseModel]") -> tuple[Place, str]:
    """Return the place of the first mistake that Pydantic names, and one line about it.

    Args:
        error: of Pydantic.
        model: of the whole file, whose keys a misspelt one is compared with.
        tables: models of the tables inside, by their names.
    """
    # Of a misspelt key pydantic says, too, that the right one is missing: name the misspelt one.
    first = min(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    place = tuple(part for part in first["loc"] if not str(part).startswith("function-"))
    match first["type"]:
        case "missing":
            return place, "This key is missing."
        case "too_short":
            return place, "Expected at least one value, got none."
        case "extra_forbidden":
            names = [part for part in place[:-1] if isinstance(part, str)]
            keys = (tables[names[-1]] if names else model).model_fields
            return place, unknown_name_message("key", str(place[-1]), keys)
    reason = "Expected a list" if first["type"] == "tuple_type" else shown(first["msg"], 300)
    return place, f"{reason}, got {shown(shown(first['input']), 90, repr)}."
