"""The contract of a task: public facts, private training data, test data for the harness alone, a model."""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dphpo_bench.base.checks import check_fields, check_file_name, positive
from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.tensors import RECORD, Records, Tensors
from dphpo_bench.base.text import shown, unknown_name_message
from dphpo_bench.contract import metrics
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.metrics import BALANCED_ACCURACY, F1, ROC_AUC, FurtherTest, Metric, ModelMetric
from dphpo_bench.contract.parameters import Count, Name, Positive
from dphpo_bench.contract.seals import guarded
from dphpo_bench.contract.search_space import checked_space
from dphpo_bench.training.optimizer_names import OptimizerName
from dphpo_bench.training.target_scale import TargetScale

if TYPE_CHECKING:
    import torch
    from optuna.distributions import BaseDistribution
    from torch import Tensor

    from dphpo_bench.contract.search_space import Candidate
    from dphpo_bench.data.encoding import Columns
    from dphpo_bench.data.source import Dataset, DataSource, Weights
    from dphpo_bench.training.augmentation import Augmentation
    from dphpo_bench.training.losses import Objective, PerRecord

MAX_STEPS = 10**9
"""Largest number of steps of a run."""

MAX_DELTA = 1e-3
"""Largest δ of a record that a board takes."""

OF_RARE_CLASSES = (BALANCED_ACCURACY, F1, ROC_AUC)
"""Metrics that count a rare class as much as a frequent one; a count of right answers says little about them."""

SUM_TOLERANCE = 0.011
"""Shares may be rounded to two digits."""

Kind = Literal["classification", "binary", "multilabel", "regression", "tokens", "own"]
"""Kind of a model's output, with ready-made losses, scores and metrics; "own": none of them."""


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
    """Return the descriptions that `inputs_json` wrote; raise a ValueError if they are none."""
    from pydantic import TypeAdapter

    inputs: Input | dict[str, Input] = TypeAdapter(Input | dict[str, Input]).validate_python(value)
    return inputs


def usual_delta(n_records: int) -> float:
    """Return δ = N^-1.1, the convention of the field's benchmarks (smaller than 1/N), or the most that boards take."""
    return min(float(n_records**-1.1), MAX_DELTA)


@dataclass(frozen=True)
class TaskFacts:
    """Public facts of a task: all that a plan may depend on.

    Attributes:
        task: the task's name.
        model: the name of the task's model.
        n_records: number of training records N, a public constant; of units, where these hold several records.
        inputs: what the model takes: one input, or several by name.
        batch_size: expected size B of a Poisson batch; the sample rate is B / N.
        epochs: passes over the data in expectation; steps = round(epochs · N / B).
        optimizer: name of a `torch.optim` class.
        learning_rate: default for methods that tune none.
        kind: of the model's output: a class; "binary", a label of 0 or 1; "multilabel", several of them;
            "regression", numbers; "tokens", the class of each token; "own", something else.
        n_classes: number of classes; of labels where a record has several; of tokens in a vocabulary. None without.
        error_bound: of a regression: the error that is as bad as any larger one. Scores need it.
        loss_bound: an upper bound of one record's loss if there is a public one.
        search_space: hyperparameters a tuning method may search, as Optuna distributions by name. Where the optimiser
            is one of them, "learning_rate:sgd" is the learning rate of SGD. A function, because importing Optuna takes
            longer than listing all tasks.
        unit: what is protected as a whole, and counted by N, B and δ: "record", or the name of units that hold several
            records each, such as "patient". See `Records.units`.
        class_shares: of a classification or a binary task: the share of each class, from public knowledge. With them
            scores follow a first metric of rare classes; see `declared_scores`.
        class_weights: "balanced": losses have weights by `class_shares`, 1 for the rarest class; None: no weights.
        target_scale: of a regression: the constants by which its targets are scaled; see `TargetScale.of`.
    """

    task: str
    model: Name
    n_records: Count
    inputs: Input | Mapping[str, Input]
    batch_size: Count
    epochs: float
    optimizer: OptimizerName
    learning_rate: Positive
    kind: Kind = "classification"
    n_classes: Count | None = None
    error_bound: Positive | None = None
    loss_bound: Positive | None = None
    search_space: Callable[[], dict[str, Any]] = search.default_search_space
    unit: Name = RECORD
    class_shares: tuple[float, ...] | None = None
    class_weights: Literal["balanced"] | None = None
    target_scale: TargetScale | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        positive("epochs", self.epochs)  # which stays whole if it is, in spaces made of it
        check_file_name("a task's name", self.task)
        if self.batch_size > self.n_records:
            most = f"n_records={self.n_records}{'' if self.unit == RECORD else f' units of {self.unit}'}"
            raise InvalidValueError(f"Expected 1 <= batch_size <= {most}, got batch_size={self.batch_size}.")
        if self.epochs > MAX_STEPS or self.epochs / self.sample_rate > MAX_STEPS:
            raise InvalidValueError(
                f"Expected at most {MAX_STEPS} steps, got epochs={self.epochs} of batch_size={self.batch_size}."
            )
        if self.kind in ("classification", "multilabel", "tokens") and self.n_classes is None:
            raise InvalidValueError(f"Expected n_classes of a task of kind {self.kind!r}, got none.")
        object.__setattr__(self, "class_shares", checked_shares(self))
        object.__setattr__(self, "target_scale", TargetScale.of(self.target_scale, self.kind))

    def with_schedule(self, batch_size: int | None = None, epochs: float | None = None) -> "TaskFacts":
        """Return the facts with another expected batch size or number of epochs; None keeps the present value.

        Raises:
            InvalidValueError: if a value is out of range.
        """
        return replace(
            self,
            batch_size=self.batch_size if batch_size is None else batch_size,
            epochs=self.epochs if epochs is None else epochs,
        )

    def to_json(self) -> dict[str, Any]:
        """Return all facts as JSON values, distributions in Optuna's own JSON form: part of a run's identity."""
        from optuna.distributions import distribution_to_json

        space = checked_space(self.search_space()).items()
        values = {item.name: getattr(self, item.name) for item in fields(self)} | {
            "inputs": inputs_json(self.inputs),
            "epochs": float(self.epochs),
            "search_space": {name: json.loads(distribution_to_json(item)) for name, item in space},
            "class_shares": self.class_shares and list(self.class_shares),
            "target_scale": self.target_scale and self.target_scale.to_json(),
        }
        later = {"unit", "class_shares", "class_weights", "target_scale"}  # which no older record has
        defaults = {item.name: item.default for item in fields(self) if item.name in later}
        return {name: value for name, value in values.items() if name not in later or value != defaults[name]}

    @property
    def sample_rate(self) -> float:
        """Poisson sample rate q = B / N."""
        return self.batch_size / self.n_records

    @property
    def steps(self) -> int:
        """Number of optimiser steps T, at least 1."""
        return max(1, round(self.epochs / self.sample_rate))

    def searched(self, space: "search.Space | None" = None) -> "dict[str, BaseDistribution]":
        """Return the hyperparameters that a search varies.

        They are `search_space`, or a part of it, or of `search.usual` if the task states none; or `search.joint`.

        Args:
            space: the part; None: `search_space` as it is.

        Raises:
            InvalidValueError: if there are none, or the task states something else than a search space.
        """
        stated = checked_space(self.search_space())
        if space is None:
            return stated
        stated = stated if self.states_a_space else {}
        # A rate for AdamW says nothing of SGD's, nor the reverse.
        is_same_kind = space.optimizer is None or (space.optimizer == "SGD") == (self.optimizer == "SGD")
        rate = self.learning_rate if is_same_kind else search.NAIVE_RATE
        schedule = self.n_records, self.batch_size, self.epochs, rate
        if space.extent == "joint":
            return space.of(search.joint(*schedule, stated=stated))
        decades = 2 if space.extent in ("reference", "wide") else 1
        return space.of(stated if self.states_a_space else search.usual(*schedule, decades=decades))

    @property
    def states_a_space(self) -> bool:
        """True if the task states what searches may vary."""
        return self.search_space is not search.default_search_space

    def grid(self, points: int, space: "search.Space | None" = None) -> "list[Candidate]":
        """Return evenly spaced points of the search space; see `search.grid`."""
        return search.grid(self.searched(space), points)

    @property
    def default_delta(self) -> float:
        """See `usual_delta`."""
        return usual_delta(self.n_records)


def checked_shares(facts: TaskFacts) -> tuple[float, ...] | None:
    """Return the declared shares of the classes as floats; None if there are none."""
    if facts.class_shares is None:
        if facts.class_weights:
            raise InvalidValueError(
                "Expected class_shares with class_weights='balanced', such as class_shares=(0.93, 0.07), from public "
                "knowledge: shares that are counted in private records would be a release."
            )
        return None
    classes = {"classification": facts.n_classes, "binary": 2}.get(facts.kind)
    if classes is None:
        raise InvalidValueError(f"Expected class_shares of a classification or a binary task, got {facts.kind!r}.")
    try:
        shares = tuple(map(float, facts.class_shares))
    except (TypeError, ValueError):
        shares = ()
    whole = math.isclose(math.fsum(shares), 1, abs_tol=SUM_TOLERANCE)
    fit = len(shares) == classes and all(0 < share < 1 for share in shares) and whole
    by_name = hasattr(facts.class_shares, "keys")  # as of `value_counts`, whose order is that of its counts
    if not fit or by_name or isinstance(facts.class_shares, Set):  # whose order is another in each process
        raise InvalidValueError(
            f"Expected class_shares with a share between 0 and 1 for each of {classes} classes, in their order, that "
            f"add up to 1, such as (0.93, 0.07), got {shown(facts.class_shares, form=repr)}."
        )
    return shares


def declared_losses(losses: "PerRecord", facts: TaskFacts) -> "PerRecord":
    """Return losses on the scale of the targets and with the class weights that facts declare; else as they are."""
    if facts.target_scale is not None:
        losses = facts.target_scale.losses(losses)
    if facts.class_weights and facts.class_shares:
        from dphpo_bench.training.rare_classes import ClassWeighted

        losses = ClassWeighted(losses, facts.class_shares)
    return losses


def declared_scores(facts: TaskFacts, first: Metric | ModelMetric | None) -> "PerRecord | None":
    """Return the scores that follow the first metric where classes are rare and their shares are declared.

    Balanced accuracy and F1 have balanced counts of right answers, the area under the ROC curve has balanced
    probabilities. None: scores are those of the kind.
    """
    if facts.class_shares is None or first not in OF_RARE_CLASSES:
        return None
    from dphpo_bench.training.rare_classes import balanced_probability, balanced_right

    if first == ROC_AUC:
        return balanced_probability(facts.class_shares, weighted_losses=facts.class_weights is not None)
    return balanced_right(facts.class_shares)


def advice_on_scores(task: str, facts: TaskFacts, first: Metric | ModelMetric | None) -> str | None:
    """Return a sentence for a task whose searches count right answers though its first metric does not; else None."""
    if facts.kind not in ("classification", "binary") or facts.class_shares or first not in OF_RARE_CLASSES:
        return None
    return (
        f"Searches on {task} compare runs by right answers, while its first metric is {first.name}: if a class is "
        "rare, all runs tie. Declare the shares of the classes from public knowledge, such as "
        "class_shares=(0.93, 0.07), and scores follow the metric."
    )


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
            harmless, and only then does a run's identity have the fingerprint of the records.
        columns: how a table became the inputs; None: they are of no table, or the task tells nothing of it.
        fingerprint_is_declared: whether `fingerprint` holds what the curator declares and nothing of the records.
        classes: what the labels mean, in the order of the model's outputs, or of the labels 0 and 1 of a binary task:
            predictions of a saved model are these. None: labels are numbers from 0.
        input_names: of the columns of a table that is the model's input, in their order; None: unknown.
        augment: a random transform of which each step draws variants for gradients: a part of a run's identity.
        example: inputs of public records, to try the model on. None: they are made up, which some models do not take.

    Raises:
        UnknownNameError: if there is no such model.
    """

    name: str
    summary: str
    models: ClassVar[tuple[str, ...]]
    version: ClassVar[int] = 1
    datasets: "ClassVar[tuple[Dataset, ...]]" = ()
    public: bool = False
    columns: "Columns | None" = None
    fingerprint_is_declared: ClassVar[bool] = False
    classes: "tuple[str | bool | int | float, ...] | None" = None
    input_names: Sequence[str] | None = None
    augment: "Augmentation | None" = None
    example: Tensors | None = None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name in ("prepare", "load_train", "load_test"):
            load = getattr(cls, name)  # its own, or inherited from a class that is not a task
            if not hasattr(load, "is_guarded"):
                setattr(cls, name, guarded(load))

    def __init__(self, model: str | None = None) -> None:
        self.model_name = self.models[0] if model is None else model
        if self.model_name not in self.models:
            raise UnknownNameError(unknown_name_message("model", self.model_name, self.models))

    @property
    @abstractmethod
    def facts(self) -> TaskFacts:
        """Public facts; reads no data."""

    def prepare(self, source: "DataSource") -> None:
        """Download what is missing, and put into the cache what takes long, for both splits.

        The harness calls it once, after planning and before `load_train`. Report the work to `source.progress` as one
        piece, so that whoever waits sees how long. A DataError, as of a missing file, stops the run before any budget
        is spent. Loading must work without it, too. Default: the files of `datasets`.
        """
        for dataset in self.datasets:
            for split in dataset.published:
                source.files(dataset, split)

    @abstractmethod
    def load_train(self, source: "DataSource") -> Records:
        """Return the private training records. The harness calls this, and hands them to the session only."""

    @abstractmethod
    def load_test(self, source: "DataSource") -> Records:
        """Return the test records, an empty split if there are none. The harness opens them once, after the run."""

    @abstractmethod
    def build_model(self) -> "torch.nn.Module":
        """Return a model with initial weights from torch's global generator, which the harness has seeded.

        The model takes the inputs, `model(inputs)`, or the inputs by name, `model(**inputs)`, and returns a tensor, or
        tensors by name.
        """

    @property
    def pretrained_models(self) -> "tuple[Weights, ...]":
        """The public pretrained models that this model starts from or gets its inputs from. Default: none."""
        return ()

    @property
    def sibling(self) -> "Task | None":
        """A task of the same kind on similar public records, on which methods may tune at no ε. Default: none.

        It must hold none of this task's records, nor be made from them. It is no public fact: only runs of methods
        that tune on it name it in their identity.
        """
        return None

    @property
    def metrics(self) -> tuple[Metric | ModelMetric, ...]:
        """Metrics on the test records; a board shows the first. Default: by kind."""
        return metrics.READY.get(self.facts.kind, ())

    @property
    def further_tests(self) -> "tuple[FurtherTest, ...]":
        """Other tests of the trained model, such as on shifted records. Default: none."""
        return ()

    @property
    def target_scale(self) -> TargetScale | None:
        """The scale of a regression's targets, as the facts declare it: `invert` makes predictions of outputs."""
        return self.facts.target_scale

    def losses(self, outputs: Any, targets: Any) -> "Tensor":
        """Return each record's loss, shape (n,), a function of that record alone. Default: by kind."""
        return self.ready("losses")(outputs, targets)

    def scores(self, outputs: Any, targets: Any) -> "Tensor":
        """Return each record's score in [0, 1], shape (n,), higher being better. Default: by kind and first metric.

        Searches pay to see scores. NaN counts as 0, and a number outside of [0, 1] as the nearer end.
        """
        return self.ready("scores")(outputs, targets)

    def check_scores(self) -> None:
        """Raise InvalidValueError if there are no scores, neither of the task nor of its kind."""
        if getattr(self.scores, "__func__", None) is Task.scores:
            self.ready("scores")

    def objective(self) -> "Objective":
        """Return losses and scores. Ready-made losses stay as they are: engines know closed forms for some."""
        from dphpo_bench.training.losses import Objective

        is_default = getattr(self.losses, "__func__", None) is Task.losses
        return Objective(self.ready("losses") if is_default else self.losses, self.scores)

    def ready(self, which: Literal["losses", "scores"]) -> "PerRecord":
        """Return the ready-made function of the task's kind, by what the task declares of its targets.

        Raises:
            InvalidValueError: if there is none.
        """
        from dphpo_bench.training.losses import READY, one_minus_error, squared_error

        facts, kind, bound = self.facts, self.facts.kind, self.facts.error_bound
        if kind in READY and which == "losses":
            return declared_losses(READY[kind].losses, facts)
        if kind in READY:
            return declared_scores(facts, next(iter(self.metrics), None)) or READY[kind].scores
        if kind == "regression" and which == "losses":
            return declared_losses(squared_error, facts)
        if kind == "regression" and bound is not None:
            scores = one_minus_error(bound)
            return scores if facts.target_scale is None else facts.target_scale.scores(scores)
        if kind == "regression":
            raise InvalidValueError(
                f"Expected an error_bound of task {self.name}, in units of the target, or scores of its own: from that "
                "error on a record's score is 0, and methods that compare runs do so by scores."
            )
        raise InvalidValueError(f"Expected {which} of its own of task {self.name}, of kind {kind!r}.")

    def fingerprint(self, source: "DataSource") -> str:
        """Return a hash of the data as the model gets them: part of a run's identity where the data are public.

        The harness never asks it of private data, unless `fingerprint_is_declared`: whoever has the hash of private
        records can test guesses at any one of them, at any ε. There `version` stands for the data, and the folder of
        results keeps a digest under a secret key, which tells whether the records changed.

        Raises:
            InvalidValueError: if the task's data are public and it has none.
        """
        del source
        raise InvalidValueError(f"Expected a fingerprint of task {self.name}, whose data are public: a hash of them.")

    def data_fingerprint(self, source: "DataSource") -> str:
        """Return what a run's identity says of the data: `fingerprint`, or the task's name where that is a secret."""
        if self.public or self.fingerprint_is_declared:
            return self.fingerprint(source)
        return hashlib.sha256(f"private records of {self.name}".encode()).hexdigest()

    def model_fingerprint(self) -> str:
        """Return a hash of the model's structure: part of a run's identity."""
        from dphpo_bench.training.randomness import global_randomness
        from dphpo_bench.training.structure import structure_hash

        with global_randomness(0):
            return structure_hash(self.build_model())
