"""The state of the process that code may change without a word, and that outlives a trial unless it is put back."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch


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
