"""Copies of a trial's function, so that no trial can leave anything to the next one."""

import pickle
from collections.abc import Callable
from io import BytesIO
from typing import Any, TypeVar

import cloudpickle
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.session.unique import Unique

T = TypeVar("T")


class _Writer(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes an object, but for the parts of some types, which it lists."""

    def __init__(self, file: BytesIO, listed: tuple[type, ...]) -> None:
        super().__init__(file)
        self._listed = listed
        self.parts: list[Any] = []

    def persistent_id(self, part: object) -> int | None:
        if not isinstance(part, self._listed):
            return None
        self.parts.append(part)
        return len(self.parts) - 1


def copier(original: T) -> Callable[[], T]:
    """Return a function that copies an object, with all that it holds, as it is now.

    Sessions and batches stay as they are, since their accounts must not be copied. Modules and classes that can be
    imported stay, too: what a trial changes there remains (`dphpo-bench check` finds that).

    Raises:
        InvalidValueError: if the object cannot be copied.
    """
    file = BytesIO()
    writer = _Writer(file, (Unique,))

    def copy() -> T:
        reader = pickle.Unpickler(BytesIO(file.getvalue()))
        reader.persistent_load = writer.parts.__getitem__  # type: ignore[method-assign]
        result: T = reader.load()
        return result

    try:
        writer.dump(original)
        copy()
    except Exception as error:
        raise InvalidValueError(
            f"Expected a trial that pickle can write, since each trial gets a copy of it: {type(error).__name__}: "
            f"{error}. Open files, locks and the like inside of the function."
        ) from error
    return copy


def can_be_written(outcome: object) -> bool:
    """Return whether pickle can write a trial's outcome, models aside: a session, or what holds one, it cannot."""
    try:
        _Writer(BytesIO(), (Tensor, nn.Module)).dump(outcome)
    except Exception:
        return False
    return True
