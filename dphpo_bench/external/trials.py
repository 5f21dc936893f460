"""A trial of a study, as the caller's training code sees it, and the space that it draws from."""

import logging
import os
import pickle
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from torch import nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.search_space import SCHEDULE, Candidate, hyperparameter
from dphpo_bench.session.copies import process_state
from dphpo_bench.training.randomness import Streams

_WINDOW, _MOST_WORDS = 4, 10**7


@contextmanager
def hidden(streams: Streams) -> Iterator[None]:
    """Hide outputs, start global generators from a trial's streams, and put back the state of the process at the end.

    Standard output and error are dropped, those of child processes too, and all that is logged, in files as well.
    Visible stay progress bars around the loop, displays of a notebook, and warnings that the caller records.
    """
    nowhere, secrets = _nowhere(), streams.within("global randomness")
    # Where nobody has asked for a GPU yet, its generator would start from a seed that is the same everywhere.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with ExitStack() as stack:
        stack.enter_context(process_state())
        stack.enter_context(torch.random.fork_rng(devices))
        # Noise may be drawn from it: the 32 bits of a seed would be too few (see `Streams.generator`).
        torch.default_generator.set_state(secrets.generator("torch").get_state())
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(secrets.derive("cuda", str(device)))
        random.seed(secrets.name("python"))
        numpy.random.seed([secrets.derive("numpy", str(index)) % 2**32 for index in range(8)])
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(sys.maxsize)
        _flush()
        for descriptor in (1, 2):
            try:
                before = os.dup(descriptor)
            except OSError:  # a process without a terminal
                continue
            stack.callback(os.close, before)
            stack.callback(os.dup2, before, descriptor)
            os.dup2(nowhere.fileno(), descriptor)
        stack.callback(_flush)  # what a trial left in a buffer would come out later
        stack.enter_context(redirect_stdout(nowhere))
        stack.enter_context(redirect_stderr(nowhere))
        yield


def has_drawn_more(words: int, since: torch.Tensor) -> bool:
    """Return whether torch's global generator has drawn more than so many words of 32 bits since a state."""
    sources = [torch.Generator().set_state(state) for state in (since, torch.get_rng_state())]
    drawn, ahead = (
        torch.empty(size, dtype=torch.int32, device="cpu").random_(generator=source)
        for size, source in zip((min(words, _MOST_WORDS) + _WINDOW, _WINDOW), sources, strict=True)
    )
    return not (drawn.unfold(0, _WINDOW, 1) == ahead).all(1).any()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(Exception):  # some notebooks have none
            stream.flush()  # type: ignore[union-attr]


@cache
def _nowhere() -> TextIO:
    """Return a file that drops everything; never closed, since a handler made in a trial may hold it."""
    return Path(os.devnull).open("w", encoding="utf-8")


_OF_EVENT = SCHEDULE | {
    *("noise_multiplier", "sample_rate", "per_device_train_batch_size"),
    *("steps", "max_steps", "num_epochs", "num_train_epochs"),
}


class OneOfAKind:
    """An object of which there must be no copy."""

    def __reduce__(self) -> NoReturn:
        raise InvalidValueError(
            f"Expected no copy of a {type(self).__name__}, in this process or another: its draws would repeat. Train "
            "in the process of the loop, and hand its params, noise_multiplier and seed on to workers."
        )


class MisuseError(InvalidValueError, AttributeError):
    """A mistake in code that uses a trial, which says nothing of records and must not pass for a failed training."""


def checked_space(space: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """Return a space with a distribution for each hyperparameter.

    Raises:
        InvalidValueError: if it is empty, or holds something else, or what changes the event of a training.
    """
    checked = search.checked_space(space)
    for name in checked:
        if name in ("score", "winner"):
            raise InvalidValueError(
                f"Expected a hyperparameter of another name than {name}, which a record has already."
            )
        if hyperparameter(name) in _OF_EVENT:
            raise InvalidValueError(
                f"Expected hyperparameters that leave the event of a training as it is, got {name}: sample rate, steps "
                "and noise are the same in all trials, as event(noise) states. Fix it."
            )
    return checked


def networks_in(model: Any) -> "list[nn.Module]":
    """Return the networks that a model is, or holds as an item or an attribute."""
    inside = model.values() if isinstance(model, Mapping) else model if isinstance(model, list | tuple) else ()
    return [each for each in (model, *inside, *getattr(model, "__dict__", {}).values()) if isinstance(each, nn.Module)]


class StudyTrial(OneOfAKind):
    """One training, to be done by the caller.

    Its draws are secrets: whoever knows them can subtract the noise. Draw Poisson batches and noise from `generator`,
    or from the global generators of torch, NumPy and Python, which each trial starts anew.

    Attributes:
        params: hyperparameters, drawn independently of everything.
        noise_multiplier: σ of this training: standard deviation of the noise / sensitivity.
        is_final: whether this is the final run of dp_hyper, with the hyperparameters of the trial that won. Its score
            is ignored.
        generator: a torch generator on the CPU.
        seed: an integer below 2^63, for generators elsewhere: `torch.Generator("cuda").manual_seed(trial.seed)`. On a
            CPU, torch takes 32 bits of a seed, too few for noise: use `generator`.
    """

    def __init__(self, params: Candidate, noise_multiplier: float, streams: Streams, *, is_final: bool = False) -> None:
        self._params = dict(params)
        self._distributions: dict[str, BaseDistribution] = {}
        self._noise_multiplier, self._lacks_noise = noise_multiplier, True
        self.is_final = is_final
        self._streams = streams
        self._seed = streams.derive("seed")
        self._gave_seed = False
        self.generator: torch.Generator = streams.generator("trial")

    def __getattr__(self, name: str) -> NoReturn:
        raise MisuseError(
            f"A trial of a study has no {shown(name)}. It has params, noise_multiplier, generator, seed, is_final, "
            "draw, suggest_float and its kin; a hyperparameter is trial.params[name]."
        )

    @property
    def seed(self) -> int:
        """See above."""
        self._gave_seed = True
        return self._seed

    @property
    def noise_multiplier(self) -> float:
        """See above."""
        self._lacks_noise = False
        return self._noise_multiplier

    @property
    def params(self) -> Candidate:
        """See above; a copy."""
        return dict(self._params)

    def draw(self, name: str, values: Any) -> Any:
        """Draw a hyperparameter while training goes on, so that the space may depend on what was drawn before.

        The draw is independent of everything but the trial's secret, and of the order of draws. Another draw of a name
        gives the same value; so does the final run, with the winner's.

        Args:
            name: of the hyperparameter.
            values: an Optuna distribution, or a list of choices.

        Raises:
            MisuseError: if it is neither, was another one at an earlier draw of this name, or is of what changes the
                event of a training.
        """
        try:
            distribution = checked_space({name: values})[name]
        except InvalidValueError as error:
            raise MisuseError(str(error)) from None
        if self._distributions.setdefault(name, distribution) != distribution:
            raise MisuseError(
                f"Expected {shown(name, form=repr)} to be drawn from one distribution in a trial, "
                f"{shown(self._distributions[name])}, got {shown(distribution)}. Use another name."
            )
        if name not in self._params:
            seed = self._streams.derive("candidate", name)
            self._params[name] = search.draw({"value": distribution}, seed)["value"]
        return self._params[name]

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Draw a number from [low, high], as `draw` does and Optuna's trials are asked."""
        return float(self._suggested(name, FloatDistribution, low, high, log=log, step=step))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Draw a whole number from [low, high]; see `suggest_float`."""
        return int(self._suggested(name, IntDistribution, low, high, log=log, step=step))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Draw one of the choices, all equally likely; see `suggest_float`."""
        return self._suggested(name, CategoricalDistribution, choices)

    def report(self, value: float, step: int) -> None:
        """Ignore a score during training, which is raw."""

    def should_prune(self) -> bool:
        """Return False: nobody saw the trial's scores."""
        return False

    def _suggested(self, name: str, kind: type[BaseDistribution], *values: Any, **options: Any) -> Any:
        try:
            distribution = kind(*values, **options)
        except (TypeError, ValueError) as error:  # as a failed training, it would spend the budget unseen
            raise MisuseError(f"Cannot draw {shown(name, form=repr)}: {shown(error, 200)}") from None
        return self.draw(name, distribution)

    def begin(self) -> None:
        """Note the seeds and states of its generator and of the global ones, before training."""
        self._seeds = self._present_seeds()
        self._states, self._global_state = self._present_states(), torch.get_rng_state()

    def check_use(self) -> None:
        """Reject training that has seeded torch: anybody can draw noise and batches of a known seed again."""
        shorter = {self._seed % 2**bits for bits in (63, 32, 31)}  # as other libraries take them
        if not self._present_seeds() <= self._seeds | shorter:
            raise InvalidValueError(
                "Training seeded torch by a seed of its own: noise and batches that it drew after that are known. "
                "Leave the seed out, since each trial starts torch's generator anew; or seed with trial.seed, or "
                "trial.seed % 2**32; or put what may be known, such as initial weights, inside of "
                "torch.random.fork_rng()."
            )

    def _present_seeds(self) -> set[int]:
        generators = (self.generator, torch.default_generator, *torch.cuda.default_generators)
        return {generator.initial_seed() for generator in generators}

    def _present_states(self) -> tuple[object, ...]:
        """Return states that differ after a draw, of all generators but torch's global one on the CPU."""
        generators = (self.generator, *torch.cuda.default_generators)
        states = (generator.get_state().numpy().tobytes() for generator in generators)
        return random.getstate(), pickle.dumps(numpy.random.get_state()), *states

    def has_drawn(self, model: Any) -> bool:
        """Return whether training drew more from the trial's and the global generators than initial weights need.

        Args:
            model: of the trial. Initial weights take a word of 32 bits each, noise as much in every step.
        """
        words = sum(3 * weight.numel() // 2 for network in networks_in(model) for weight in network.parameters())
        moved = self._gave_seed or self._states != self._present_states()
        return moved or has_drawn_more(words, self._global_state)

    def check_noised(self) -> None:
        """Reject training that has not asked how much noise to add."""
        if self._lacks_noise:
            raise InvalidValueError(
                "Expected training with trial.noise_multiplier, which ε is computed for; this trial has not asked for "
                "it. With Opacus: make_private(..., noise_multiplier=trial.noise_multiplier)."
            )
