"""A task from data and a model of your own.

>>> from torch import nn
>>> task = ArrayTask("fraud", (X, y), nn.Linear(30, 2), training=TrainingOptions(epochs=20))  # doctest: +SKIP
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.checks import typed, unexpected
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import RECORD, Records, leaves
from dphpo_bench.contract.descriptions import DisplayedTask
from dphpo_bench.contract.distributions import checked_space
from dphpo_bench.contract.metrics import Metric, ModelMetric
from dphpo_bench.contract.registry import task_of
from dphpo_bench.contract.search_space import default_search_space
from dphpo_bench.contract.task import Kind, Task, TaskFacts, advice_on_scores, check_balanced, declared_losses
from dphpo_bench.data.arrays import as_inputs, as_records, column_names, parted, parted_units, without_column
from dphpo_bench.data.columns import Column
from dphpo_bench.data.encoding import Columns
from dphpo_bench.data.labels import declared_classes, implied_classes
from dphpo_bench.data.schema import declare
from dphpo_bench.data.tables import consumed_names, encoded_tables
from dphpo_bench.recipes.array_checks import (
    accepted,
    as_real,
    check_columns,
    check_labels,
    check_losses,
    checked_metrics,
    default_batch_size,
    example_of,
    inputs_of,
    n_classes_of,
    of_form,
    refuse_ignored_steps,
    reset,
    shapes_of,
)
from dphpo_bench.recipes.array_options import Labels, Measures, TrainingOptions
from dphpo_bench.recipes.searched_run import check_values
from dphpo_bench.training.augmentation import augmentation_of
from dphpo_bench.training.functional import copied
from dphpo_bench.training.losses import Objective
from dphpo_bench.training.model_checks import refuse_unfit
from dphpo_bench.training.own_model import OwnModel
from dphpo_bench.training.rare_classes import balanced_right
from dphpo_bench.training.structure import weights_hash
from dphpo_bench.training.target_scale import TargetScale

if TYPE_CHECKING:
    from dphpo_bench.data.source import DataSource


class ArrayTask(DisplayedTask, Task):
    """Your own records and your own model.

    You make public, and do not protect: the number of training records, the names and shapes of inputs, the number of
    classes, and every argument of this class but the data. With `unit`, the number of units is public instead of that
    of records, and N, `batch_size`, `epochs` and δ count units.

    Args:
        name: names the task in records and tables, and files: letters from a to z, digits, _ . and -, at most 64.
        train: private records: (inputs, labels) as arrays, tensors, frames or dictionaries of arrays, a
            `torch.utils.data.Dataset`, or what else `data.arrays.as_records` takes. They are copied. Real inputs become
            float32 unless they are half precision; integers stay integers where the model takes them.
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
        if not public:
            declare("private", train)
        target = labels.target
        self.consumed = consumed_names(train, target, unit)
        if columns is not None:
            self.columns = columns if isinstance(columns, Columns) else Columns(columns)
            train, test, unit = encoded_tables(train, test, self.columns, target, unit)
        units, unit_name = None, RECORD
        if unit is not None:
            train, units, unit_name = parted_units(train, unit, target)
            test = without_column(test, unit)[0] if isinstance(unit, str) else test
        check_columns(column_names(train, target), column_names(test, target))
        self.input_names = column_names(train, target)
        train = parted(train, "train", kind, target)
        classes = labels.classes
        self.classes = implied_classes(train[1], kind) if classes is None else declared_classes(classes, kind)
        train = as_records(train, "train", kind, target, self.classes)
        test = train.rows(slice(0)) if test is None else as_records(test, "test", kind, target, self.classes)
        if inputs_of(test) != inputs_of(train):
            raise InvalidValueError(
                f"Expected test inputs of shape {shapes_of(train)} as in train, got {shapes_of(test)}."
            )
        some = None if training.example is None else as_inputs(training.example, "example")
        self._train, outputs = accepted(built, train, some)
        self.example = None if some is None else of_form(some, self._train)
        masks = any(tensor.dtype == torch.bool for tensor in leaves(self._train.inputs))
        self._test = test if self._train is train else as_real(test, booleans=not masks)
        n_classes = labels.n_classes
        if kind not in ("regression", "own"):
            n_classes = n_classes_of(outputs, kind, n_classes, self.classes)
        if kind in ("classification", "tokens", "multilabel"):
            for records, which in ((self._train, "train"), (self._test, "test")):
                check_labels(records, kind, n_classes or 0, which)
        self._train = replace(self._train, units=units)
        scale = TargetScale.of(labels.target_scale)
        if scale is not None and kind == "regression":
            for records, which in ((self._train, "train"), (self._test, "test")):
                scale.check(records.named()["targets"], which)
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
        check_balanced(measures.scores, labels.class_shares)
        if self.augment:
            self.augment.check(self._train.inputs)
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
