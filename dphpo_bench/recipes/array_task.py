"""A task from data and a model of your own.

>>> from torch import nn
>>> task = ArrayTask("fraud", (X, y), nn.Linear(30, 2), training=TrainingOptions(epochs=20))  # doctest: +SKIP
"""

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, dataclass_transform

import torch
from torch import Tensor, nn

from dphpo_bench.base.checks import typed, unexpected
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.tensors import RECORD, Records, Tensors, call, each, leaves
from dphpo_bench.base.text import count, shown
from dphpo_bench.contract.descriptions import DisplayedTask
from dphpo_bench.contract.metrics import OF_CLASSES, OF_NUMBERS, Metric, ModelMetric
from dphpo_bench.contract.registry import task_of
from dphpo_bench.contract.search_space import checked_space, default_search_space
from dphpo_bench.contract.task import Input, Kind, Task, TaskFacts, advice_on_scores, declared_losses
from dphpo_bench.data.arrays import (
    Class,
    as_inputs,
    as_records,
    check_whole,
    column_names,
    declared_classes,
    implied_classes,
    parted,
    refuse_other_order,
    units_of,
)
from dphpo_bench.data.columns import Column
from dphpo_bench.data.encoding import Columns
from dphpo_bench.data.schema import declare
from dphpo_bench.data.tables import consumed_names, encoded_tables
from dphpo_bench.recipes.searched_run import check_values
from dphpo_bench.training.augmentation import Augmentation, Transform, augmentation_of
from dphpo_bench.training.functional import copied
from dphpo_bench.training.losses import IGNORED, Objective, PerRecord, logits, tensors_of
from dphpo_bench.training.model_checks import ASKS_FOR_EXAMPLE, described, refuse_unfit
from dphpo_bench.training.own_model import OwnModel
from dphpo_bench.training.rare_classes import balanced_right
from dphpo_bench.training.structure import weights_hash
from dphpo_bench.training.target_scale import TargetScale

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from dphpo_bench.data.source import DataSource


Group = TypeVar("Group", bound=type)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def _group(cls: Group) -> Group:
    """Make a frozen dataclass whose arguments are named, and checked by their types."""
    group: Any = dataclass(frozen=True, kw_only=True)(cls)
    group.__init__ = typed(group.__init__)
    return group  # type: ignore[no-any-return]


@_group
class Labels:
    """Name and meaning of the labels of an `ArrayTask`.

    Attributes:
        target: the labels' name, where the records are a dictionary or a frame.
        classes: the labels' meaning, in the order of the model's outputs, such as ("no", "yes"): then labels may be
            texts, booleans or any numbers. Default: labels count from 0, or are False and True.
        n_classes: number of classes; default: what the model puts out for an input of zeros.
        class_shares: the share of each class, from public knowledge, such as (0.93, 0.07): scores then follow a first
            metric that counts rare classes, `BALANCED_ACCURACY`, `F1` or `ROC_AUC`.
        class_weights: "balanced" weighs each record's clipped gradient by `class_shares`: 1 for the rarest class, less
            for the others.
        error_bound: of a regression: the error that is as bad as any larger one.
        target_scale: of a regression: (typical, spread) of the targets or a `bench.Number`, from public knowledge; a
            list with an entry for each value, if a target has several. The network learns (y − typical) / spread; all
            else is in the units of y, and `task.target_scale.invert(outputs)` makes predictions of outputs.
    """

    target: str = "labels"
    classes: Sequence[Class] | None = None
    n_classes: int | None = None
    class_shares: Sequence[float] | None = None
    class_weights: Literal["balanced"] | None = None
    error_bound: float | None = None
    target_scale: Any = None


@_group
class Measures:
    """Losses that an `ArrayTask` minimises, scores that searches compare, and metrics of its test records.

    Attributes:
        losses: (outputs, targets) → a record's loss, shape (1,), of a batch of one; default: by kind.
        scores: (outputs, targets) → each record's score in [0, 1], which searches pay to see; default: by kind, and
            with `Labels.class_shares` by the first metric. "balanced": right answers, weighted by `class_shares`.
        metrics: what is measured on the test records; the first is what tables show. Default: by kind.
    """

    losses: PerRecord | None = None
    scores: PerRecord | Literal["balanced"] | None = None
    metrics: Sequence[Metric | ModelMetric] = ()


@_group
class TrainingOptions:
    """Options for the training of an `ArrayTask`, unless a method tunes them.

    Attributes:
        batch_size: expected batch size; default: `default_batch_size`.
        epochs: passes over the data in expectation. Few epochs need less noise per step, many learn more.
        optimizer: name of a `torch.optim` class.
        learning_rate: for methods that tune none.
        search_space: what searches may vary, as Optuna distributions or lists of choices by name; default: the
            learning rate.
        augment: a random transform of inputs, or an `Augmentation` of a transform and a number of variants a step.
        pretrained: start each run from the module's weights as they are now. They must not have seen these records:
            that training would not be accounted for.
        example: inputs of public records, shape (n, ...) as in `train`, to try the model on. Default: made-up numbers.
        sibling: a task on similar public records, an `ArrayTask` with public=True or the name of a registered one.
    """

    batch_size: int | None = None
    epochs: float = 30
    optimizer: str = "AdamW"
    learning_rate: float = 1e-3
    search_space: "Mapping[str, BaseDistribution] | None" = None
    augment: Augmentation | Transform | None = None
    pretrained: bool = False
    example: Any = None
    sibling: Task | str | None = None


class ArrayTask(DisplayedTask, Task):
    """Your own records and your own model.

    You make public, and do not protect: the number of training records, the names and shapes of inputs, the number of
    classes, and every argument of this class but the data. With `unit`, the number of units is public instead of that
    of records, and N, `batch_size`, `epochs` and δ count units.

    Args:
        name: names the task in records and tables, and files: letters from a to z, digits, _ . and -, at most 64.
        train: private records: (inputs, labels) as arrays, tensors, frames or dictionaries of arrays, a
            `torch.utils.data.Dataset`, or what else `data.arrays.as_records` takes. They are copied, except for inputs
            in read-only arrays, which must not change while the task is in use. Real inputs become float32 unless they
            are half precision; integers stay integers where the model takes them.
        model: a module or a function without arguments that makes one. Initial weights follow the run's seed: those of
            a module are drawn anew for every run, by each layer's `reset_parameters`. A module is copied.
        test: records of the same form, or None: then nothing is measured at the end. They are not protected.
        kind: what is asked of the model, and with it losses, scores and metrics: "classification", "binary",
            "multilabel", "regression", "tokens", or "own" for what `measures` say. See `TaskFacts.kind`.
        columns: how each column of a table becomes inputs, by name. `train` and `test` are then tables, or pairs of a
            table and labels, as `Columns.encode` takes them.
        unit: whose records they are, where one person has several, so that persons and not single records are
            protected: the name of a column of `train`, which is then no input, or a vector of ids, one for each record.
        labels: their name and their meaning.
        measures: losses, scores and metrics of your own.
        training: batch size, epochs, optimiser, search space and the like.
        public: whether anybody may have the training records. If not, runs are not seeded by default.
        version: any text; change it when the data, the code of the model, or weights that its function loads change.
            It stands for the data in a record's identity, because a hash of private records would let anybody test
            guesses at a record.

    Raises:
        InvalidValueError: if the data or the model break a rule above.
        DataError: if a table is not as `columns` declare.
    """

    models = ("own",)
    summary = "Your own data and model."
    fingerprint_is_declared = True

    @typed
    def __init__(
        self,
        name: str,
        train: Any,
        model: nn.Module | Callable[[], nn.Module],
        test: Any = None,
        *,
        kind: Kind = "classification",
        columns: Mapping[str, Column | None] | None = None,
        unit: Any = None,
        labels: Labels | None = None,
        measures: Measures | None = None,
        training: TrainingOptions | None = None,
        public: bool = False,
        version: str = "1",
    ) -> None:
        super().__init__()
        self.name = name
        self.public = public
        labels, measures, training = labels or Labels(), measures or Measures(), training or TrainingOptions()
        self.augment = augmentation_of(training.augment)
        self._version = version
        self._sibling = None if training.sibling is None else task_of(training.sibling)
        check_losses(measures.losses)
        if not callable(model):
            rule = "Expected model to be a torch.nn.Module or a function that makes one"
            raise unexpected(rule, model, "The data come before it: ArrayTask(name, (inputs, labels), model).")
        self._model, self._pretrained = model, training.pretrained
        self._losses, self._scores = measures.losses, measures.scores
        self._metrics = checked_metrics(measures.metrics, kind)
        built = example_of(self.build_model, model)
        refuse_ignored_steps(built, measures.losses)
        if isinstance(model, nn.Module):
            self._model = copied(model)
        refuse_other_order(train, unit)
        refuse_other_order(test)
        if not public:
            declare("private", train)
        target = labels.target
        self.consumed = consumed_names(train, target, unit)
        if columns is not None:
            self.columns = columns if isinstance(columns, Columns) else Columns(columns)
            train, test, unit = encoded_tables(train, test, self.columns, target, unit)
        column = unit if isinstance(unit, str) else None
        inputs, targets, ids = parted(train, "train", kind, target, column)
        test = test if test is None else parted(test, "test", kind, target, column)[:2]
        units, unit_name = (None, RECORD) if unit is None else units_of(unit, ids)
        self.input_names = column_names(inputs)
        train, classes = (inputs, targets), labels.classes
        pairs = [*zip(map(column_names, train), map(column_names, test or ()), strict=False)]
        for place, (expected, got) in enumerate(pairs):
            if place and (classes is not None or len(expected or ()) == 1):
                continue  # declared classes are in their own order, and a single answer in any
            if expected is not None and got is not None and expected != got:
                raise InvalidValueError(
                    "Expected the columns of test to be those of train in the same order, "
                    f"{shown(', '.join(expected), 200)}, got {shown(', '.join(got), 200)}."
                )
        self.classes = implied_classes(train[1], kind) if classes is None else declared_classes(classes, kind)
        train = as_records(train, "train", kind, target, self.classes)
        test = train.rows(slice(0)) if test is None else as_records(test, "test", kind, target, self.classes)
        if (theirs := inputs_of(test)) != (ours := inputs_of(train)):
            raise InvalidValueError(f"Expected test inputs as in train, {ours}, got {theirs}.")
        some = None if training.example is None else as_inputs(training.example, "example")
        self._train, outputs = accepted(built, train, some)
        self.example = None if some is None else of_form(some, self._train)
        masks = any(tensor.dtype == torch.bool for tensor in leaves(self._train.inputs))
        self._test = test if self._train is train else as_real(test, booleans=not masks)
        n_classes = labels.n_classes
        if kind not in ("regression", "own"):
            n_classes = n_classes_of(outputs, kind, n_classes, self.classes)
        scale = TargetScale.of(labels.target_scale)
        for records, which in ((self._train, "train"), (self._test, "test")):
            if kind in ("classification", "tokens", "multilabel"):
                check_labels(records, kind, n_classes or 0, which)
            elif scale is not None and kind == "regression":
                scale.check(records.named()["targets"], which)
        self._train = replace(self._train, units=units)
        n = self._train.n_units
        space = None if training.search_space is None else checked_space(training.search_space)
        self._facts = TaskFacts(
            task=name,
            model=type(built).__name__,
            n_records=n,
            inputs=inputs_of(self._train),
            kind=kind,
            n_classes=n_classes,
            error_bound=labels.error_bound,
            batch_size=default_batch_size(n) if training.batch_size is None else training.batch_size,
            epochs=training.epochs,
            optimizer=training.optimizer,
            learning_rate=training.learning_rate,
            search_space=default_search_space if space is None else lambda: dict(space or {}),
            unit=unit_name,
            class_shares=labels.class_shares,  # type: ignore[arg-type]  # checked there
            class_weights=labels.class_weights,
            target_scale=scale,
        )
        check_values(self._facts, space or {})
        if measures.scores == "balanced" and labels.class_shares is None:
            raise InvalidValueError("Expected class_shares with scores='balanced', such as class_shares=(0.93, 0.07).")
        if self.augment:
            self.augment.check(self._train.inputs)
        if not public:
            warn_of_learned(self._train, built, self._facts)
        with torch.random.fork_rng(devices=[]):
            own_model = OwnModel(self.build_model, self._train, self.objective(), self.example)
            own_model.check(scores=self._scores is not None)

    @property
    def facts(self) -> TaskFacts:
        """The public facts, as declared."""
        return self._facts

    @property
    def sibling(self) -> Task | None:
        """The task on public records, as declared."""
        return self._sibling

    @property
    def metrics(self) -> tuple[Metric | ModelMetric, ...]:
        """The metrics of the test records."""
        return self._metrics or super().metrics

    def losses(self, outputs: Any, targets: Any) -> Tensor:
        """Return each record's loss."""
        return self.objective().losses(outputs, targets)

    def scores(self, outputs: Any, targets: Any) -> Tensor:
        """Return each record's score."""
        scores = self._scores or self.ready("scores")
        if scores == "balanced":
            scores = balanced_right(self._facts.class_shares or ())
        elif self._scores is not None and self.target_scale is not None:
            scores = self.target_scale.scores(scores)
        return scores(outputs, targets)

    def check_scores(self) -> None:
        """See `Task.check_scores`; advise, where runs would be compared by another measure than the first metric."""
        if self._scores is None:
            self.ready("scores")
            if advice := advice_on_scores(self.name, self._facts, next(iter(self.metrics), None)):
                warnings.warn(advice, stacklevel=3)

    def objective(self) -> Objective:
        """Return losses and scores."""
        losses = declared_losses(self._losses, self._facts) if self._losses else self.ready("losses")
        return Objective(losses, self.scores)

    def load_train(self, source: "DataSource") -> Records:
        """Return the private training records."""
        del source
        return self._train

    def load_test(self, source: "DataSource") -> Records:
        """Return the test records, of which there may be none."""
        del source
        return self._test

    def build_model(self) -> nn.Module:
        """Copy the module, with new initial weights unless it is pretrained; or make one by the function.

        Raises:
            InvalidValueError: if the function returns something else, or a layer cannot draw its weights anew.
        """
        model = copied(self._model) if isinstance(self._model, nn.Module) else self._model()
        if not isinstance(model, nn.Module):
            raise unexpected("Expected model to be or to return a torch.nn.Module", model)
        refuse_unfit(model)
        if isinstance(self._model, nn.Module) and not self._pretrained:
            reset(model)
        return model

    def fingerprint(self, source: "DataSource") -> str:
        """Hash `version`, the tensors' names and types, the number of test records, columns, classes; no record."""
        del source
        types = {name: str(tensor.dtype) for name, tensor in self._train.named().items()}
        declared = [self.name, self._version, types, len(self._test)]
        declared += [part for part in (self.columns and self.columns.to_json(), self.classes) if part]  # in their order
        return hashlib.sha256(json.dumps(declared).encode()).hexdigest()

    def model_fingerprint(self) -> str:
        """Hash the structure, and of a pretrained module the weights, from which runs start."""
        is_start = self._pretrained and isinstance(self._model, nn.Module)
        weights = weights_hash(self.build_model()) if is_start else None
        return hashlib.sha256(json.dumps([super().model_fingerprint(), weights]).encode()).hexdigest()


_WEIGHTS = ("weight", "pos_weight")


def example_of(build: Callable[[], nn.Module], model: Any) -> nn.Module:
    """Return a model that an `ArrayTask` builds; reject a function that fails, or returns one module twice."""
    with torch.random.fork_rng(devices=[]):
        try:
            example = build()
        except DphpoBenchError:
            raise
        except Exception as error:  # whatever a function or a layer raises
            raise InvalidValueError(
                f"Cannot make a model of {shown(model)}: {shown(error, 200)}. Pass a module, or a function without "
                "parameters that makes one."
            ) from error
        if build() is example:
            raise InvalidValueError(
                "Expected model to make a new module at each call, got the same one twice: a run would start where "
                "another ended. Pass the module itself, which is copied."
            )
    return example


def checked_metrics(metrics: Any, kind: str) -> tuple[Metric | ModelMetric, ...]:
    """Return the metrics as a tuple; reject other types, and those of classes for a regression or the reverse."""
    several = tuple(metrics) if isinstance(metrics, list | tuple) else (metrics,)
    for metric in several:
        if not (isinstance(metric, Metric | ModelMetric) and isinstance(metric.name, str)):
            way = 'bench.metrics has them ready, and Metric("name", True, function) makes one of (outputs, targets).'
            raise unexpected("Expected metrics of type Metric or ModelMetric, with texts as names", metric, way)
        if kind == "regression" and any(metric is known for known in OF_CLASSES):  # its own may have the same name
            raise InvalidValueError(f"Expected metrics of a regression, got {metric.name}, which is about classes.")
        if kind not in ("regression", "own") and any(metric is known for known in OF_NUMBERS):
            raise InvalidValueError(f"Expected metrics of classes, got {metric.name}, which is about a regression.")
    return several


def refuse_ignored_steps(model: nn.Module, losses: PerRecord | None) -> None:
    """Reject a LightningModule whose loss is unknown; warn of what its training loop would do besides.

    Args:
        model: as it is built; its network is what `forward` computes.
        losses: those of the task, if declared: they stand for the loss of `training_step`.
    """
    if not any(base.__name__ == "LightningModule" for base in type(model).__mro__):
        return
    if losses is None:
        raise InvalidValueError(
            f"Expected a network, got the LightningModule {type(model).__name__}, whose training_step and optimizers "
            f"would be ignored. Pass the torch.nn.Module in it, or say its loss to ArrayTask, such as "
            'losses=nn.CrossEntropyLoss(reduction="none"): then forward is the network.'
        )
    warnings.warn(
        f"Of {type(model).__name__} only forward is used: losses=, optimizer= and learning_rate= of the task stand for "
        "its training_step and configure_optimizers.",
        stacklevel=4,
    )


def check_losses(losses: Any) -> None:
    """Reject class weights that clipping undoes, and losses with weights to train, which no step would change.

    Args:
        losses: as a task gets them: a function, a module of torch, a `functools.partial`, or None.
    """
    settings = losses.keywords if isinstance(losses, partial) else {}
    if isinstance(losses, nn.Module):
        settings = {key: getattr(losses, key, None) for key in _WEIGHTS}
        if any(parameter.requires_grad for parameter in losses.parameters()):
            raise InvalidValueError(
                f"Expected losses without weights to train, got {type(losses).__name__} with some, which no step would "
                "change. Put them into the model, which then returns what the losses need."
            )
    for key in _WEIGHTS:
        if settings.get(key) is not None:
            raise InvalidValueError(
                f"Expected losses without {key}=, got class weights: gradients are clipped after them, which undoes "
                'them. Leave it out, and declare class_weights="balanced" with class_shares=(0.93, 0.07) from public '
                "knowledge, which weigh clipped gradients."
            )


def default_batch_size(n_records: int) -> int:
    """Return a quarter of the records, at most 8,192: under privacy large batches are better, at a price in time.

    Source: De et al., "Unlocking high-accuracy differentially private image classification through
    scale", 2022.
    """
    return min(8192, math.ceil(n_records / 4))


def reset(model: nn.Module) -> None:
    """Draw initial weights anew, from torch's global generator."""
    for name, layer in model.named_modules():
        if next(layer.parameters(recurse=False), None) is None and next(layer.buffers(recurse=False), None) is None:
            continue
        reset = None if layer._forward_pre_hooks else getattr(layer, "reset_parameters", None)
        if reset is None:  # of a layer whose hook makes its weights, it would draw others
            reason = "has weights that a hook makes" if layer._forward_pre_hooks else "has none"
            raise InvalidValueError(
                f"Expected layers with reset_parameters, so that initial weights follow a run's seed; "
                f"{name or 'the model'} ({type(layer).__name__}) {reason}. Pass a function that makes the model, or "
                "pretrained=True to start from the present weights."
            )
        reset()


def accepted(model: nn.Module, records: Records, example: Tensors | None = None) -> tuple[Records, Any]:
    """Return the records as the model takes them, and its outputs for an example, or for a record of zeros.

    Integers are token ids for a model that takes them, booleans are masks; they are numbers for others.
    """
    failures: list[Exception] = []
    for convert in (lambda same: same, as_real, partial(as_real, booleans=True)):
        try:
            some = convert(records)
            return some, _outputs(model, some, example)
        except InvalidValueError:
            raise
        except Exception as error:  # whatever a model raises
            failures.append(error)
    parts = records.inputs
    shapes = {name: (1, *part.shape[1:]) for name, part in parts.items()} if isinstance(parts, Mapping) else None
    what = shapes or (1, *records.named()["inputs"].shape[1:])
    text = f"The model does not accept inputs of shape {what}: {described(failures[-1])}"
    raise InvalidValueError(text if example is not None else f"{text} {ASKS_FOR_EXAMPLE}") from None


def as_real(records: Records, *, booleans: bool = False) -> Records:
    """Return the records with integer inputs as float32, and `booleans`, if these are no masks."""

    def real(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() or (tensor.dtype == torch.bool and not booleans):
            return tensor
        check_whole(tensor, "the inputs")
        return tensor.float()

    return Records(each(real, records.inputs), records.targets)


def _outputs(model: nn.Module, records: Records, example: Tensors | None) -> Any:
    like = next(model.parameters(), torch.zeros(1))
    model.eval()
    single = records.rows(slice(1)).each(torch.zeros_like)
    single = single if example is None else Records(of_form(example, records), example).rows(slice(1))
    with torch.no_grad():
        return tensors_of(call(model, single.to(like.device, like.dtype).inputs))


def of_form(example: Tensors, records: Records) -> Tensors:
    """Return example inputs in the types of the records' inputs; reject other names or shapes."""
    ours, theirs = (part if isinstance(part, Mapping) else {"": part} for part in (example, records.inputs))
    forms = [{name: tuple(part.shape[1:]) for name, part in parts.items()} for parts in (ours, theirs)]
    if forms[0] != forms[1]:
        raise InvalidValueError(f"Expected an example with rows of shapes {forms[1]}, as in train, got {forms[0]}.")
    converted = {name: part.to(theirs[name].dtype) for name, part in ours.items()}
    return converted if isinstance(example, Mapping) else converted[""]


def n_classes_of(outputs: Any, kind: str, expected: int | None, classes: tuple[Class, ...] | None = None) -> int | None:
    """Return the number of classes that a model puts out; reject another expected number, or one of `classes`.

    A binary task has a single output, and no number but an expected one.
    """
    if classes is not None and expected not in (None, len(classes)):
        raise InvalidValueError(
            f"Expected n_classes={len(classes)}, the number of classes={shown(classes, form=repr)}, got {expected}; "
            "leave n_classes out."
        )
    values = logits(outputs)
    if kind == "binary":
        if isinstance(values, Tensor) and values.numel() != 1:
            raise InvalidValueError(
                f"Expected a model with one output for kind='binary', got shape {tuple(values.shape)}; "
                "kind='classification' takes an output for each class."
            )
        return expected
    expected = expected if classes is None else len(classes)
    dimensions, least = (3 if kind == "tokens" else 2), (1 if kind == "multilabel" else 2)
    if not isinstance(values, Tensor) or values.ndim != dimensions or values.shape[-1] < least:
        shape = "1, length" if kind == "tokens" else "1"
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise InvalidValueError(f"Expected model outputs of shape ({shape}, n_classes >= {least}), got {got}.")
    if expected not in (None, values.shape[-1]):
        raise InvalidValueError(
            f"Expected a model with n_classes={expected} outputs, got {values.shape[-1]}; change one of them."
        )
    return values.shape[-1]


def check_labels(records: Records, kind: str, n_classes: int, which: str) -> None:
    """Reject labels that are no class, or not in as many columns; those of tokens may be `IGNORED`."""
    labels = records.named()["targets"]
    if kind == "multilabel":
        if labels.shape[1] != n_classes:
            raise InvalidValueError(
                f"Expected {which} labels in a column for each of the model's {n_classes} outputs, got "
                f"{labels.shape[1]}; change one of them."
            )
        return
    labels = labels[labels != IGNORED] if kind == "tokens" else labels
    if not len(labels):
        return
    low, high = int(labels.min()), int(labels.max())
    if low >= 0 and high < n_classes:
        return
    way = "renumber them"
    if kind == "classification" and n_classes == 2 and bool(((labels == low) | (labels == high)).all()) and low < high:
        way = f"declare what they mean, classes=({low}, {high})"
    elif kind == "classification" and high - low < n_classes:
        way = f"declare them, as classes=range({low}, {low + n_classes})"
    raise InvalidValueError(
        f"Expected {which} labels from 0 to {n_classes - 1}, got {low} to {high}; {way}, or widen the model."
    )


_DIGITS = 1e-5
"""Relative difference of a constant from a statistic that it equals by no chance."""


def warn_of_learned(train: Records, model: nn.Module, facts: TaskFacts) -> None:
    """Warn of scales, shares and weights that were computed from the private records: they equal their statistics."""
    learned, scale = list[str](), facts.target_scale if facts.kind == "regression" else None
    parts = [(part, "target" if name == "targets" else "input") for name, part in train.named().items()]
    for part, noun in parts:
        if not part.is_floating_point() or part.ndim > 2 or len(train) < 3:
            continue
        columns = part.reshape(len(part), -1)
        columns = scale.apply(columns) if scale is not None and noun == "target" else columns
        sums = torch.zeros(2, columns.shape[1], dtype=torch.float64)
        for rows in torch.split(columns, max(1, 2**20 // max(1, columns.shape[1]))):  # no second table in memory
            sums += torch.stack([rows.sum(0, dtype=torch.float64), rows.double().square_().sum(0)])
        mean, squares = sums / len(part)
        deviation = (squares - mean**2).clamp(min=0).sqrt()
        deviations = deviation, deviation * math.sqrt(len(part) / (len(part) - 1))
        of_one = torch.stack([(each - 1).abs() < _DIGITS for each in deviations]).any(0) & (mean.abs() < _DIGITS)
        some = columns[:1000, of_one]
        if n := int((some != some.round()).any(0).sum()):  # as many 1 as -1 have this scale, too
            learned.append(f"{count(n, noun)} of mean 0 and deviation 1")
        varied = [each for each in (mean, *deviations) if bool((each != each[:1]).any())]
        for name, weight in (*model.named_parameters(), *model.named_buffers()):
            same = weight.numel() == len(mean) and any(
                torch.allclose(weight.flatten().to(each), each, _DIGITS, 0) for each in varied
            )
            learned += [f"{name} of the model"] * same
    if facts.class_shares and facts.class_shares != tuple(round(share, 3) for share in facts.class_shares):
        counts = train.named()["targets"].long().bincount(minlength=len(facts.class_shares))
        if torch.allclose(counts / len(train), torch.tensor(facts.class_shares), _DIGITS, 0):
            learned.append("class_shares")
    if learned:
        warnings.warn(
            f"Expected constants from public knowledge, got {shown(', '.join(learned))} as in these private records: "
            "what is computed from them is a release that no ε covers. Declare typical values, such as "
            "Number(typical=50, spread=20) or class_shares=(0.9, 0.1).",
            stacklevel=4,
        )


def inputs_of(records: Records) -> Input | dict[str, Input]:
    """Return the description of the inputs of records."""
    if isinstance(records.inputs, Mapping):
        return {name: _input(tensor) for name, tensor in records.inputs.items()}
    return _input(records.inputs)


def _input(tensor: Tensor) -> Input:
    shape = tuple(tensor.shape[1:])
    return Input(shape, "float" if tensor.is_floating_point() else "bool" if tensor.dtype == torch.bool else "int")
