"""Hide what a trial shows, and give it random numbers of its own: both would tell how many trials there are."""

import logging
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import TextIO

import numpy
import torch

from dphpo_bench.session.copies import process_state
from dphpo_bench.training.randomness import Streams

_WINDOW, _MOST_WORDS = 4, 10**7


@contextmanager
def hidden(streams: Streams) -> Iterator[None]:
    """Hide outputs, start global generators from a trial's streams, and put back the state of the process at the end.

    Standard output and error are dropped, those of child processes too, and all that is logged, in files as well.
    Visible stay progress bars around the loop, displays of a notebook, and warnings that the caller records.

    Args:
        streams: of the trial.
    """
    with ExitStack() as stack:
        stack.enter_context(process_state())
        stack.enter_context(_fresh_randomness(streams.within("global randomness")))
        stack.enter_context(_silence())
        yield


def global_seeds() -> set[int]:
    """Return what torch's global generators were last seeded with."""
    return {torch.initial_seed(), *(generator.initial_seed() for generator in torch.cuda.default_generators)}


def global_states() -> tuple[object, ...]:
    """Return the states of the global generators, torch's on the CPU aside; they differ after a draw."""
    states = (generator.get_state().numpy().tobytes() for generator in torch.cuda.default_generators)
    return random.getstate(), pickle.dumps(numpy.random.get_state()), *states


def has_drawn_more(words: int, since: torch.Tensor) -> bool:
    """Return whether torch's global generator has drawn more than so many words of 32 bits since a state."""
    sources = [torch.Generator().set_state(state) for state in (since, torch.get_rng_state())]
    drawn, ahead = (
        torch.empty(size, dtype=torch.int32, device="cpu").random_(generator=source)
        for size, source in zip((min(words, _MOST_WORDS) + _WINDOW, _WINDOW), sources, strict=True)
    )
    return not (drawn.unfold(0, _WINDOW, 1) == ahead).all(1).any()


@contextmanager
def _fresh_randomness(streams: Streams) -> Iterator[None]:
    """Start the global generators from these streams; `process_state` puts back those of Python and NumPy."""
    # Where nobody has asked for a GPU yet, its generator would start from a seed that is the same everywhere.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        # Noise may be drawn from them: the 32 bits of a seed would be too few (see `Streams.generator`).
        torch.default_generator.set_state(streams.generator("torch").get_state())
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(streams.derive("cuda", str(device)))
        random.seed(streams.name("python"))
        numpy.random.seed([streams.derive("numpy", str(index)) % 2**32 for index in range(8)])
        yield


@contextmanager
def _silence() -> Iterator[None]:
    nowhere, level = _nowhere(), logging.root.manager.disable
    logging.disable(sys.maxsize)
    try:
        with ExitStack() as stack:
            _flush()
            for descriptor in (1, 2):
                stack.callback(_redirected(nowhere.fileno(), descriptor))
            stack.callback(_flush)  # what a trial left in a buffer would come out later
            stack.enter_context(redirect_stdout(nowhere))
            stack.enter_context(redirect_stderr(nowhere))
            yield
    finally:
        logging.disable(level)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(Exception):  # some notebooks have none
            stream.flush()  # type: ignore[union-attr]


@cache
def _nowhere() -> TextIO:
    """Return a file that drops everything; never closed, since a handler made in a trial may hold it."""
    return Path(os.devnull).open("w", encoding="utf-8")


def _redirected(target: int, descriptor: int) -> Callable[[], None]:
    """Point a file descriptor elsewhere, and return a function that puts it back."""
    try:
        before = os.dup(descriptor)
    except OSError:  # a process without a terminal
        return lambda: None
    os.dup2(target, descriptor)

    def restore() -> None:
        os.dup2(before, descriptor)
        os.close(before)

    return restore
