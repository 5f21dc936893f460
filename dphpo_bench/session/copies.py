"""Copies of functions, and the state of the process put back, so that no trial leaves anything to the next one."""

import os
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, TypeVar

import cloudpickle
import numpy
import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.session.interfaces import Unique

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
            f"Expected a function that pickle can write, since each trial gets a copy of it: {type(error).__name__}: "
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


@contextmanager
def process_state() -> Iterator[None]:
    """Put back the generators of Python and NumPy, torch's defaults and the environment's variables at the end."""
    generators = random.getstate(), numpy.random.get_state()
    dtype, device, threads = torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()
    environment = dict(os.environ)
    try:
        yield
    finally:
        random.setstate(generators[0])
        numpy.random.set_state(generators[1])
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:  # to set it slows down all of torch; None, the CPU, does not
            torch.set_default_device(None if device.type == "cpu" else device)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if environment != dict(os.environ):
            os.environ.clear()
            os.environ.update(environment)
