"""The contract of a task: public facts, private training data, test data for the harness alone, a model."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

from dphpo_bench.base.errors import InvalidValueError, SealedDataError, UnknownNameError
from dphpo_bench.base.text import shown, unknown_name_message
from dphpo_bench.contract import search_space as search

if TYPE_CHECKING:
    import torch
    from optuna.distributions import BaseDistribution

    from dphpo_bench.contract.search_space import Candidate
    from dphpo_bench.data.datasets import HubDataset
    from dphpo_bench.data.source import DataSource

MAX_STEPS = 10**9
"""An event is repeated so often at most."""


@dataclass(frozen=True)
class Metric:
    """What a task measures on its test data.

    Attributes:
        name: such as "accuracy".
        higher_is_better: the direction.
    """

    name: str
    higher_is_better: bool


ACCURACY = Metric("accuracy", higher_is_better=True)


def default_search_space() -> "dict[str, BaseDistribution]":
    """The learning rate, from 1e-4 to 1, logarithmically: four decades around what suits AdamW and SGD."""
    from optuna.distributions import FloatDistribution

    return {"learning_rate": FloatDistribution(1e-4, 1.0, log=True)}


@dataclass(frozen=True)
class TaskFacts:
    """What is public about a task: all that a plan may depend on.

    Attributes:
        task: the task's name.
        model: the name of the task's model.
        n_records: number of training records N, a public constant.
        input_shape: shape of one input as the model gets it.
        n_classes: number of classes.
        batch_size: expected size B of a Poisson batch; the sample rate is B / N.
        epochs: passes over the data in expectation; steps = round(epochs · N / B).
        optimizer: name of a `torch.optim` class.
        learning_rate: default for methods that tune none.
        metric: what the harness measures on test data: the accuracy. There is no other yet.
        loss_bound: an upper bound of one record's loss if there is a public one.
        search_space: hyperparameters a tuning method may search, as Optuna distributions by name. A function,
            because importing Optuna takes longer than listing all tasks.
    """

    task: str
    model: str
    n_records: int
    input_shape: tuple[int, ...]
    n_classes: int
    batch_size: int
    epochs: float
    optimizer: str
    learning_rate: float
    metric: Metric = ACCURACY
    loss_bound: float | None = None
    search_space: "Callable[[], dict[str, BaseDistribution]]" = default_search_space

    def __post_init__(self) -> None:
        if self.n_records < 1:
            raise InvalidValueError(f"Expected n_records >= 1, got {self.n_records}.")
        if not 1 <= self.batch_size <= self.n_records:
            raise InvalidValueError(
                f"Expected 1 <= batch_size <= n_records={self.n_records}, got batch_size={self.batch_size}."
            )
        if not 0 < self.epochs < math.inf:
            raise InvalidValueError(f"Expected epochs > 0, got {self.epochs}.")
        if self.epochs > MAX_STEPS or self.epochs / self.sample_rate > MAX_STEPS:
            raise InvalidValueError(
                f"Expected at most {MAX_STEPS} steps, got epochs={shown(self.epochs)} of batch_size={self.batch_size}."
            )
        if self.metric != ACCURACY:
            raise InvalidValueError(
                f"Expected metric={ACCURACY}, the only one that the harness computes, got metric={self.metric}. "
                "Leave it out."
            )

    def with_schedule(self, batch_size: int | None = None, epochs: float | None = None) -> "TaskFacts":
        """The facts with another expected batch size or number of epochs; None keeps what is there.

        Raises:
            InvalidValueError: if a value is out of range.
        """
        return replace(
            self,
            batch_size=self.batch_size if batch_size is None else batch_size,
            epochs=self.epochs if epochs is None else epochs,
        )

    def to_json(self) -> dict[str, Any]:
        """All facts as JSON values, distributions in Optuna's own JSON form: part of a run's identity."""
        from optuna.distributions import distribution_to_json

        space = self.search_space().items()
        return {
            "task": self.task,
            "model": self.model,
            "n_records": int(self.n_records),
            "input_shape": [int(size) for size in self.input_shape],
            "n_classes": int(self.n_classes),
            "batch_size": int(self.batch_size),
            "epochs": float(self.epochs),
            "optimizer": self.optimizer,
            "learning_rate": float(self.learning_rate),
            "metric": asdict(self.metric),
            "loss_bound": None if self.loss_bound is None else float(self.loss_bound),
            "search_space": {name: json.loads(distribution_to_json(one)) for name, one in space},
        }

    @property
    def sample_rate(self) -> float:
        """Poisson sample rate q = B / N."""
        return self.batch_size / self.n_records

    @property
    def steps(self) -> int:
        """Number of optimiser steps T, at least 1."""
        return max(1, round(self.epochs / self.sample_rate))

    def grid(self, points: int) -> "list[Candidate]":
        """Evenly spaced points of the search space; see `search.grid`."""
        return search.grid(self.search_space(), points)

    @property
    def default_delta(self) -> float:
        """δ = N^-1.1, the convention of the field's benchmarks (smaller than 1/N)."""
        return float(self.n_records**-1.1)


@dataclass(frozen=True)
class Split:
    """Labelled records as tensors.

    Attributes:
        inputs: shape (n, *input_shape), any floating dtype.
        targets: shape (n,), int64 class indices.
    """

    inputs: "torch.Tensor"
    targets: "torch.Tensor"

    def __len__(self) -> int:
        return len(self.targets)


_seals: list[list[str]] = []  # of this process: another thread or context opens no records either


@contextmanager
def sealed() -> Iterator[list[str]]:
    """While this lasts, no task of this process gives out its records: neither the private ones nor the test data.

    Yields:
        The complaints: what was asked for all the same, also if the error was swallowed.
    """
    complaints: list[str] = []
    _seals.append(complaints)
    try:
        yield complaints
    finally:
        _seals[:] = [seal for seal in _seals if seal is not complaints]


def _guarded(load: "Callable[[Any, DataSource], Split]") -> "Callable[[Any, DataSource], Split]":
    @wraps(load)
    def load_unless_sealed(self: "Task", source: "DataSource") -> Split:
        if _seals:
            complaint = (
                f"{load.__name__} of task {self.name} was called by the method, or by a model. A method sees no data "
                "while it plans, and only the session while it runs. The harness alone opens the test data, afterwards."
            )
            for complaints in _seals:
                complaints.append(complaint)
            raise SealedDataError(complaint)
        return load(self, source)

    del load_unless_sealed.__wrapped__  # the way around
    load_unless_sealed.is_guarded = True  # type: ignore[attr-defined]
    return load_unless_sealed


class Task(ABC):
    """One learning problem.

    A plug-in author subclasses this, sets the class attributes, and registers the class under the entry
    point group `dphpo_bench.tasks`. Importing the module must be cheap: import torch inside the methods.

    Args:
        model: one of `models`; the first is the default.

    Attributes:
        version: an integer from 1, part of a run's identity. Raise it when results change though neither facts,
            fingerprint nor the model's structure do: other initial weights, another loss or forward pass.
        datasets: what is read from the hub or a mirror, for `dphpo-bench data`; none by default.
        public: whether anybody may have the training records. Only then is a run's seed, which tells its noise,
            harmless.

    Raises:
        UnknownNameError: if there is no such model.
    """

    name: str
    summary: str
    models: ClassVar[tuple[str, ...]]
    version: ClassVar[int] = 1
    datasets: "ClassVar[tuple[HubDataset, ...]]" = ()
    public: bool = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name in ("load_train", "load_test"):
            load = getattr(cls, name)  # its own, or that of a class which is no task
            if not hasattr(load, "is_guarded"):
                setattr(cls, name, _guarded(load))

    def __init__(self, model: str | None = None) -> None:
        self.model_name = model or self.models[0]
        if self.model_name not in self.models:
            raise UnknownNameError(unknown_name_message("model", self.model_name, self.models))

    @property
    @abstractmethod
    def facts(self) -> TaskFacts:
        """Public facts; reads no data."""

    @abstractmethod
    def load_train(self, source: "DataSource") -> Split:
        """The private training records. Called by the harness, which hands them to the session only."""

    @abstractmethod
    def load_test(self, source: "DataSource") -> Split:
        """The test records, an empty split if there are none. The harness opens them once, after the run."""

    @abstractmethod
    def build_model(self) -> "torch.nn.Module":
        """A model with initial weights drawn from torch's global generator, which the harness has seeded."""

    @abstractmethod
    def fingerprint(self, source: "DataSource") -> str:
        """A hash of the data as the model gets them: part of a run's identity."""

    def model_fingerprint(self) -> str:
        """A hash of the model's structure: part of a run's identity."""
        import torch

        from dphpo_bench.training.structure import structure_hash

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return structure_hash(self.build_model())
