"""A classifier and a regressor with scikit-learn's conventions; `fit` is a run, and is counted as one.

>>> model = PrivateClassifier(epsilon=3, classes=("no", "yes"), results_dir="results")  # doctest: +SKIP
>>> model.fit(X, y).predict(new)  # doctest: +SKIP
"""

import secrets
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

import joblib  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from dphpo_bench.base.checks import unexpected, whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.progress import NullProgress
from dphpo_bench.base.text import shown
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.metrics import Metric, ModelMetric
from dphpo_bench.data.arrays import (
    Class,
    column_names,
    declared_classes,
    encoded_labels,
    implied_classes,
    in_pandas,
    refuse_other_order,
    without_column,
)
from dphpo_bench.data.columns import Column
from dphpo_bench.data.encoding import Columns
from dphpo_bench.data.schema import declare
from dphpo_bench.data.tables import frame_of
from dphpo_bench.harness.run import ExecutionOptions, run
from dphpo_bench.harness.trained import TrainedModel, check_threshold, write_model
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.array_task import ArrayTask, Labels, Measures, TrainingOptions
from dphpo_bench.recipes.networks import zero_linear
from dphpo_bench.records.record import RunRecord
from dphpo_bench.training.target_scale import TargetScale

Network = str | Sequence[int] | nn.Module | Callable[[], nn.Module]

_MAX_WIDTH = 2**20
_MANY = 50  # predictions, of which a single class is remarked on
_RELEASES = (
    "each is a release of its own, and ε adds up. No ε covers what GridSearchCV, cross_val_score or "
    "CalibratedClassifierCV learn from raw scores; a method that tunes, such as hyfreedp, chooses within its ε."
)


@dataclass(eq=False, repr=False)
class PrivateEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Parameters and behaviour of both estimators. The constructor stores its arguments and does nothing else."""

    epsilon: float | None = None
    delta: float | None = None
    method: str | Method = field(default="hyfreedp", kw_only=True)
    network: Network = field(default="linear", kw_only=True)
    columns: Mapping[str, Column | None] | None = field(default=None, kw_only=True)
    unit: str | None = field(default=None, kw_only=True)
    batch_size: int | None = field(default=None, kw_only=True)
    epochs: float = field(default=30, kw_only=True)
    optimizer: str = field(default="AdamW", kw_only=True)
    learning_rate: float = field(default=1e-3, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    public: bool = field(default=False, kw_only=True)
    name: str = field(default="estimator", kw_only=True)
    version: str = field(default="1", kw_only=True)
    results_dir: str | Path | None = field(default=None, kw_only=True)
    account: str | None = field(default=None, kw_only=True)
    device: str = field(default="auto", kw_only=True)
    verbose: bool = field(default=False, kw_only=True)

    def fit(self, X: Any, y: Any) -> Self:
        """Tune and train under one budget: a run, which is counted as any other.

        Args:
            X: shape (n, features), finite numbers; with `columns`, a table. With `unit`, a frame with that column.
            y: shape (n,).

        Returns:
            The estimator.

        Raises:
            InvalidValueError: if a parameter breaks its rule, or what private labels must not tell is not declared.
            DphpoBenchError: as `run`.
        """
        if self.epsilon is None:
            raise InvalidValueError(
                "Expected epsilon=, such as epsilon=3: the budget for tuning and training together."
            )
        task = self._task(X, y)
        if not task.public:
            self._count_fit(X)
        result = run(
            self.method,
            task,
            PrivacyBudget(self.epsilon, task.facts.default_delta if self.delta is None else self.delta),
            seed=self.seed,
            results_dir=self.results_dir,
            account=self.account,
            execution=ExecutionOptions(self.device),
            progress=None if self.verbose else NullProgress(),
        )
        assert result.trained is not None, "run raises an error if there is no model"
        self.trained_: TrainedModel = replace(result.trained, threshold=getattr(self, "threshold", None))
        if self.columns is None and hasattr(self, "feature_names_in_"):
            self.trained_ = replace(self.trained_, input_names=tuple(self.feature_names_in_))
        if not callable(self.network):  # so that predictions of a record alone and among others agree to 1e-7
            self.trained_.network.double()
        self.record_: RunRecord = result.record
        self.epsilon_: float | None = result.trained.epsilon
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict in the labels of `fit`, shape (n,).

        Args:
            X: as in `fit`; the column of units may be missing.
        """
        check_is_fitted(self, "trained_")
        return self.trained_.predict(self._inputs(X))

    def save(self, path: Path | str) -> Path:
        """Write the trained model to a new file that ends in .safetensors; `load_model` reads it. Returns the path.

        Raises:
            InvalidValueError: if the path is unfit.
            DataError: if the disk is full, or the like.
        """
        check_is_fitted(self, "trained_")
        return write_model(self.trained_, Path(path))

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's description of the estimator."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.seed is None or not self.public
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = self.columns is not None
        return tags

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy that counts its fits together with this estimator's; warn of the second copy.

        The process that calls GridSearchCV or cross_val_score makes the copies, whichever processes fit them.
        """
        clone: Self = super().__sklearn_clone__()
        clone.__dict__ |= {"_fits": self.__dict__.setdefault("_fits", [0]), "_is_clone": True}
        self.__dict__["_clones"] = clones = self.__dict__.get("_clones", 0) + 1
        if clones == 2 and not self.public:
            warnings.warn(f"Clone 2 of this estimator, for fits on private records: {_RELEASES}", stacklevel=3)
        return clone

    @abstractmethod
    def _task(self, X: Any, y: Any) -> ArrayTask:
        """Return the records as a task."""

    def _make_task(self, X: Any, y: Any, ids: Any, n_outputs: int, labels: Labels, **declared: Any) -> ArrayTask:
        n_inputs = X.shape[1] if self.columns is None else Columns(self.columns).size
        version = self.version
        if self.results_dir is not None and "_is_clone" in self.__dict__:  # whose records may be a fold
            # A hash of private records would let its reader test guesses at a record.
            version = f"{version} {joblib.hash((X, y)) if self.public else secrets.token_hex(8)}"
        return ArrayTask(
            self.name,
            (X, y),
            _network(self.network, n_inputs, n_outputs),
            columns=self.columns,
            unit=ids,
            labels=labels,
            training=TrainingOptions(
                batch_size=self.batch_size,
                epochs=self.epochs,
                optimizer=self.optimizer,
                learning_rate=self.learning_rate,
            ),
            public=self.public,
            version=version,
            **declared,
        )

    def _checked(self, X: Any, y: Any, **how: Any) -> tuple[Any, Any, Any]:
        """Return X and y of `fit`, as scikit-learn checks them, and ids of units; note number and names of features."""
        refuse_other_order(X, y)
        if not self.public:
            declare("private", X)  # a task sees what is made of it
        if self.columns is not None and column_names(X) is None:
            X = frame_of(X, self.columns)
        X, ids = self._without_units(X)
        if self.unit is not None and ids is None:
            raise InvalidValueError(f"Expected a frame with the column unit={shown(self.unit, form=repr)}, got none.")
        X, y = validate_data(self, X, y, skip_check_array=self.columns is not None, **how)
        return X, y, ids

    def _inputs(self, X: Any) -> Any:
        """Return X of `predict`, as scikit-learn checks it; columns of a table are checked by their encoding."""
        X, _ = self._without_units(X)
        return X if self.columns is not None else validate_data(self, X, reset=False)

    def _without_units(self, X: Any) -> tuple[Any, Any]:
        return (X, None) if self.unit is None else without_column(in_pandas(X), self.unit)

    def _count_fit(self, X: Any) -> None:
        """Warn from the second fit on private records on, clones included, and of a clone's records with copies."""
        fits: list[int] = self.__dict__.setdefault("_fits", [0])
        fits[0] += 1
        if fits[0] > 1:
            warnings.warn(
                f"Fit {fits[0]} of this estimator and its clones on private records: {_RELEASES}", stacklevel=3
            )
        is_drawn = "_is_clone" in self.__dict__ and isinstance(X, np.ndarray)
        if is_drawn and len({*map(hash, map(bytes, X))}) < 0.75 * len(X):
            warnings.warn(
                "Many records have equal copies, as where BaggingClassifier draws with replacement: then ε holds for a "
                "single copy. Pass bootstrap=False.",
                stacklevel=3,
            )


@dataclass(eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """A classifier that is tuned and trained under differential privacy, with scikit-learn's conventions.

    Args:
        epsilon: ε of a fit, tuning included; there is no default.
        delta: δ; None: `TaskFacts.default_delta`, by the number of records, which is public.
        classes: all labels that there may be, in the order of `classes_` and `predict_proba`. They are not learned
            from private labels; None is enough where y is an array of booleans, or with `public`.
        class_shares, class_weights, metrics: see `ArrayTask`; with shares, searches score by the first metric.
        threshold: of two classes: predict the second from this probability on. It is public, such as its share from
            public knowledge, or what a private selection released. None: predict the more probable class.
        method: a method or its name.
        network: "linear"; widths of hidden layers with tanh between, such as (64,); a module; or a function without
            arguments that makes one. It puts out a number for each class.
        columns: how columns of a table become inputs, by public constants; None: X is numbers, scaled already. A
            scaler that is fitted on private records, as in a Pipeline, is a release that no ε covers.
        unit: name of the column of X with ids of persons, if ε is to protect each with all their records.
        batch_size: expected batch size; None: a quarter of the records, at most 8,192.
        epochs: passes over the data in expectation.
        optimizer: name of a `torch.optim` class.
        learning_rate: for methods that tune none.
        seed: makes a fit on public records repeatable, noise included.
        public: whether anybody may have the records: then seeds do no harm, and no account counts the fit.
        name: names the records in results and accounts.
        version: of the records; change it with them, if `results_dir` stays.
        results_dir: folder for the record of each fit, and for the account of the private records.
        account: which account in `results_dir` counts the fit; None: "main".
        device: "auto", "cpu" or "cuda".
        verbose: show the progress of a fit.

    scikit-learn takes classes as sorted. With others, its scorers of probabilities ("roc_auc", "neg_log_loss",
    "neg_brier_score", "average_precision", "top_k_accuracy"), `cross_val_predict`, `OneVsRestClassifier`, soft voting,
    `BaggingClassifier` and temperature scaling exchange columns silently, and `CalibratedClassifierCV` fails. So a
    clone warns. `score`, scorers of predictions, stacking, hard voting and tuned thresholds are right in any order.

    Ensembles number the labels from 0 in the sorted order of those in y: their parts need classes=range(n).
    `BaggingClassifier` needs bootstrap=False: a record drawn twice counts as two, each with this ε.

    Attributes:
        classes_: the classes, in their declared order.
        trained_: the `TrainedModel`.
        record_: the run's record.
        epsilon_: ε of the run, computed from what was released.
        n_features_in_: number of columns of X.
        feature_names_in_: their names, if all are texts.
    """

    classes: Sequence[Class] | None = field(default=None, kw_only=True)
    class_shares: Sequence[float] | None = field(default=None, kw_only=True)
    class_weights: Literal["balanced"] | None = field(default=None, kw_only=True)
    metrics: Sequence[Metric | ModelMetric] = field(default=(), kw_only=True)
    threshold: float | None = field(default=None, kw_only=True)

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict in the labels of `fit`, shape (n,); warn if many predictions are all of one class.

        Args:
            X: as in `fit`; the column of units may be missing.
        """
        labels = super().predict(X)
        if len(labels) >= _MANY and len(set(labels.tolist())) == 1:
            warnings.warn(
                f"All {len(labels):,} predictions are {shown(labels.tolist()[0], form=repr)}: a constant guess, of "
                f'balanced accuracy {1 / len(self.classes_):.3f}. class_weights="balanced" or threshold= may help.',
                stacklevel=2,
            )
        return labels

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy; warn of an order of classes that scikit-learn's tools do not expect."""
        if self.classes is not None and not np.array_equal(np.unique(self.classes), self.classes):
            warnings.warn(
                f"scikit-learn takes classes as sorted, and classes={shown(self.classes, form=repr)} are not: "
                'scorers such as "roc_auc" and "neg_log_loss", soft voting, Bagging and OneVsRest exchange columns. '
                "Inside its tools declare them sorted, or score by `predict` only.",
                stacklevel=3,
            )
        return super().__sklearn_clone__()

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Predict the probability of each class, shape (n, classes), in the order of `classes_`.

        Args:
            X: see `predict`.
        """
        check_is_fitted(self, "trained_")
        return self.trained_.predict_proba(self._inputs(X))

    def _task(self, X: Any, y: Any) -> ArrayTask:
        X, y, ids = self._checked(X, y)
        if self.columns is None:
            check_classification_targets(y)
        classes = self._classes(y)
        if np.asarray(y).dtype.kind in "iu" and all(isinstance(label, str) for label in classes):
            raise InvalidValueError(
                f"Expected y to hold classes={shown(classes, form=repr)}, got integers. Ensembles, such as Voting-, "
                f"Stacking- and BaggingClassifier, number the labels of y from 0: declare classes=range({len(classes)})"
                " of their parts, and bootstrap=False of Bagging."
            )
        if self.threshold is not None:
            check_threshold(self.threshold, len(classes))
        labels = Labels(classes=classes, class_shares=self.class_shares, class_weights=self.class_weights)
        task = self._make_task(X, y, ids, len(classes), labels, measures=Measures(metrics=self.metrics))
        self.classes_ = np.array(classes, dtype=None if len(set(map(type, classes))) == 1 else object)
        return task

    def _classes(self, y: Any) -> tuple[Class, ...]:
        if self.classes is not None:
            classes = declared_classes(self.classes, "classification")
        elif self.public:
            values = np.unique(np.asarray(y))
            if len(values) < 2:
                raise InvalidValueError(f"Expected at least two classes in y, got {len(values)} class.")
            classes = declared_classes(values, "classification")
        else:
            classes = implied_classes(y, "classification") or ()
        if not classes:
            raise InvalidValueError(
                'Expected classes=, such as classes=("no", "yes"), of private records: learned from y they would be a '
                "release that no ε covers. With public=True, of records that anybody may have, they are learned."
            )
        return classes


@dataclass(eq=False, repr=False)
class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A regressor that is tuned and trained under differential privacy, with scikit-learn's conventions.

    Its further parameters and attributes are those of `PrivateClassifier`.

    Args:
        epsilon: ε of a fit, tuning included; there is no default.
        delta: δ; None: by the number of records, which is public.
        target_scale: (typical, spread) of y or a `Number`, from public knowledge: the network learns
            (y − typical) / spread. None is enough with `public`: then mean and standard deviation of y.
        error_bound: the error that is as bad as any larger one, in units of y, for methods that compare runs; None:
            twice the spread, if that is in units of y.
    """

    target_scale: Any = field(default=None, kw_only=True)
    error_bound: float | None = field(default=None, kw_only=True)

    def _task(self, X: Any, y: Any) -> ArrayTask:
        X, y, ids = self._checked(X, y, y_numeric=True)
        scale = self.target_scale
        if scale is None and not self.public:
            raise InvalidValueError(
                "Expected target_scale=(typical, spread) of private records, from public knowledge, such as (0, 1): "
                "learned from y it would be a release that no ε covers. With public=True it is learned."
            )
        if scale is None:
            encoded_labels(y, "train", "regression")  # which are numbers
            typical = float(np.mean(y))
            scale = typical, float(np.std(y)) or max(1.0, abs(typical))
        scale, bound = TargetScale.of(scale), self.error_bound
        if bound is None and scale is not None and not any(scale.logarithmic):
            bound = 2 * max(scale.spread)
        return self._make_task(X, y, ids, 1, Labels(target_scale=scale, error_bound=bound), kind="regression")


def _network(network: Any, n_inputs: int, n_outputs: int) -> nn.Module | Callable[[], nn.Module]:
    """Return the network, or a function that makes it, as `ArrayTask` takes it."""
    if isinstance(network, str) and network == "linear":
        return lambda: zero_linear(n_inputs, n_outputs)
    if callable(network):
        return network  # type: ignore[no-any-return]
    if isinstance(network, str | bytes) or not hasattr(network, "__iter__"):
        raise unexpected(
            'Expected network to be "linear", widths of hidden layers such as (64,), a module or a function for one',
            network,
        )
    widths = [n_inputs, *(whole("width in network", width, low=1, high=_MAX_WIDTH) for width in network)]
    layers = [layer for width, following in pairwise(widths) for layer in (nn.Linear(width, following), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], n_outputs))
