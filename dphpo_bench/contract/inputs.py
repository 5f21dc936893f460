"""Shapes and types of a model's inputs, and their JSON values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Input:
    """Shape and type of an input of a model.

    Attributes:
        shape: of one record's.
        dtype: real numbers of any precision, integers, or booleans, as in masks.
        vocabulary: integers, such as token ids, are from 0 to below this; None: unknown.
    """

    shape: tuple[int, ...]
    dtype: Literal["float", "int", "bool"] = "float"
    vocabulary: int | None = None


def inputs_json(inputs: Input | Mapping[str, Input]) -> Any:
    """Return descriptions of inputs as JSON values."""
    if isinstance(inputs, Mapping):
        return {name: inputs_json(item) for name, item in inputs.items()}
    return {"shape": [int(size) for size in inputs.shape], "dtype": inputs.dtype, "vocabulary": inputs.vocabulary}


def inputs_of_json(value: Any) -> Input | dict[str, Input]:
    """Return the descriptions that `inputs_json` wrote; raise an error of Python's if they are none."""
    if set(value) == {"shape", "dtype", "vocabulary"}:
        dtype, vocabulary = value["dtype"], value["vocabulary"]
        if dtype not in ("float", "int", "bool"):
            raise ValueError(f"dtype {dtype}")
        return Input(tuple(map(int, value["shape"])), dtype, None if vocabulary is None else int(vocabulary))
    return {str(name): inputs_of_json(item) for name, item in value.items()}  # type: ignore[misc]
