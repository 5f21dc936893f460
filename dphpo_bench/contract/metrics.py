"""Metrics on test data, mostly by scikit-learn. They are not private, and no search sees them."""

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.checks import short_text
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, each, gathered
from dphpo_bench.base.text import shown
from dphpo_bench.contract.seals import refuse_sealed

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from dphpo_bench.data.source import DataSource
    from dphpo_bench.training.target_scale import TargetScale


@dataclass(frozen=True)
class Metric:
    """A number about a model's outputs on the test records.

    Attributes:
        name: such as "accuracy".
        higher_is_better: the direction.
        compute: (outputs, targets) of all test records, on the CPU → the number. It gets copies, and raises or returns
            NaN where it is undefined, such as the area under the curve of a single class.
        is_share: whether the number is a share in [0, 1], which tables and the board show in per cent.
    """

    name: str
    higher_is_better: bool
    compute: Callable[[Any, Any], float] = field(compare=False, repr=False)
    is_share: bool = field(default=False, kw_only=True)

    def of(self, outputs: Any, targets: Any) -> float:
        """Compute the metric.

        Raises:
            InvalidValueError: if the metric is undefined, or a share outside of [0, 1].
        """
        copies = each(gathered, outputs), each(gathered, targets)
        return _values((self.name,), lambda: [self.compute(*copies)], self.is_share)[self.name]


@dataclass(frozen=True)
class ModelMetric:
    """A number about a model beyond its outputs on the test records, such as the quality of its texts.

    Attributes:
        name: such as "bleu".
        higher_is_better: the direction.
        compute: (model, test records as `Task.load_test` gives them) → the number. The model is on its device, the
            records are on the CPU; both are copies. It raises or returns NaN where it is undefined.
        is_share: as for `Metric`.
    """

    name: str
    higher_is_better: bool
    compute: "Callable[[nn.Module, Records], float]" = field(compare=False, repr=False)
    is_share: bool = field(default=False, kw_only=True)

    def of(self, model: "nn.Module", test: Records) -> float:
        """Compute the metric.

        Raises:
            InvalidValueError: if the metric is undefined, or a share outside of [0, 1].
        """
        copies = copy.deepcopy(model), test.copied()
        return _values((self.name,), lambda: [self.compute(*copies)], self.is_share)[self.name]


def quality(metric: Metric | ModelMetric, scale: "TargetScale | None", model: "nn.Module", records: Records) -> float:
    """Return a metric of a model, negative if less is better; NaN where it is undefined.

    Args:
        scale: of the task's targets, if it has one.
        model: on any device.
        records: with targets, at least one.
    """
    from dphpo_bench.training.evaluation import all_outputs

    try:
        if isinstance(metric, ModelMetric):
            value = metric.of(model, records)
        else:
            outputs = all_outputs(model, records)
            value = metric.of(outputs if scale is None else scale.invert(outputs), records.targets)
    except InvalidValueError:
        return math.nan
    return value if metric.higher_is_better else -value


@dataclass(frozen=True)
class ModelMetrics:
    """Several numbers about a model, computed together, as from texts that take long to write. Larger ones are better.

    Attributes:
        names: of the numbers, such as "nist" and "cider".
        compute: (model, records) → the numbers in that order; see `ModelMetric`.
    """

    names: tuple[str, ...]
    compute: "Callable[[nn.Module, Records], Sequence[float]]" = field(compare=False, repr=False)

    def of(self, model: "nn.Module", test: Records) -> dict[str, float]:
        """Compute the metrics.

        Raises:
            InvalidValueError: if a metric is undefined.
        """
        copies = copy.deepcopy(model), test.copied()
        return _values(self.names, lambda: self.compute(*copies))


def _values(names: Sequence[str], compute: Callable[[], Sequence[float]], is_share: bool = False) -> dict[str, float]:
    """Compute numbers by name; reject what is none, and shares outside of [0, 1]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where scikit-learn warns it returns NaN, which is refused below
        try:
            values = dict(zip(names, map(float, compute()), strict=True))
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise InvalidValueError(f"The metric {', '.join(names)} cannot be computed: {reason}.") from None
    for name, value in values.items():
        if math.isnan(value):
            raise InvalidValueError(
                f"The metric {name} is no number on these test records. Have they several targets? See metrics=."
            )
        if is_share and not 0 <= value <= 1:
            raise InvalidValueError(
                f"The metric {name} is a share: expected 0 <= value <= 1, got {value:g}. Divide it, or leave out "
                "is_share."
            )
    return values


def _predictions(outputs: Any, targets: Any) -> "tuple[NDArray[Any], NDArray[Any]]":
    """Return predicted and true classes, labels or tokens, flat; the prediction is −1 if an output is not finite."""
    import torch

    from dphpo_bench.training.losses import IGNORED, logits, matched

    values = matched(outputs, targets)
    if values.shape == targets.shape:
        predicted, true = (values > 0).long(), (targets > 0.5).long()
        finite = values.isfinite()
    else:
        predicted, true = logits(outputs).argmax(-1), targets
        finite = values.isfinite().all(-1)
    if predicted.shape != true.shape:
        raise InvalidValueError(f"outputs of shape {tuple(values.shape)} for targets of {tuple(targets.shape)}")
    counts = true != IGNORED
    return torch.where(finite, predicted, -1)[counts].numpy(), true[counts].numpy()


def _accuracy(outputs: Any, targets: Any) -> float:
    predicted, true = _predictions(outputs, targets)
    return float((predicted == true).mean()) if len(true) else math.nan


def _balanced_accuracy(outputs: Any, targets: Any) -> float:
    from sklearn.metrics import balanced_accuracy_score

    predicted, true = _predictions(outputs, targets)
    return float(balanced_accuracy_score(true, predicted))


def _f1(outputs: Any, targets: Any) -> float:
    from sklearn.metrics import f1_score

    from dphpo_bench.training.losses import matched

    values = matched(outputs, targets)
    if targets.ndim == 2 and values.shape == targets.shape:  # labels: the mean of one F1 for each
        both = list(zip(outputs.T, targets.T, strict=True))
        return math.fsum(_f1(column, target) for column, target in both) / len(both)
    predicted, true = _predictions(outputs, targets)
    two = values.shape == targets.shape or values.shape[-1] == 2
    return float(f1_score(true, predicted, average="binary" if two else "macro", zero_division=math.nan))


def _roc_auc(outputs: Any, targets: Any) -> float:
    from sklearn.metrics import roc_auc_score

    from dphpo_bench.training.losses import logits, matched

    values = matched(outputs, targets).double()
    if values.shape == targets.shape:
        return float(roc_auc_score(targets.numpy(), values.numpy(), average="macro"))
    chances = logits(outputs).double().softmax(-1)
    if chances.shape[-1] == 2:
        return float(roc_auc_score(targets.numpy(), (values[:, 1] - values[:, 0]).numpy()))
    return float(roc_auc_score(targets.numpy(), chances.numpy(), multi_class="ovr"))


def _r2(outputs: Any, targets: Any) -> float:
    from sklearn.metrics import r2_score

    from dphpo_bench.training.losses import matched

    values = matched(outputs, targets).double().numpy()
    value = float(r2_score(targets.double().numpy(), values, force_finite=False))
    return value if math.isfinite(value) else math.nan  # all targets are the same


def _mean_squared_error(outputs: Any, targets: Any) -> float:
    from sklearn.metrics import mean_squared_error

    from dphpo_bench.training.losses import matched

    return float(mean_squared_error(targets.double().numpy(), matched(outputs, targets).double().numpy()))


def _cross_entropy(outputs: Any, targets: Any) -> float:
    """Return the mean over records, labels or tokens in nats; infinite where an output is not finite."""
    from torch.nn import functional

    from dphpo_bench.training.losses import IGNORED, logits, matched

    values = matched(outputs, targets)
    if values.shape == targets.shape:
        losses = functional.binary_cross_entropy_with_logits(values, targets.to(values.dtype), reduction="none")
    else:
        flat = logits(outputs).flatten(0, -2), targets.flatten()
        losses = functional.cross_entropy(*flat, reduction="none", ignore_index=IGNORED)[flat[1] != IGNORED]
    return float(losses.double().nan_to_num(nan=math.inf, posinf=math.inf).mean())


def _perplexity(outputs: Any, targets: Any) -> float:
    mean = _cross_entropy(outputs, targets)
    return math.exp(mean) if mean < 700 else math.inf if mean > 0 else math.nan


ACCURACY = Metric("accuracy", True, _accuracy, is_share=True)
"""Share of right classes, labels or tokens. An output that is not finite is wrong."""
BALANCED_ACCURACY = Metric("balanced_accuracy", True, _balanced_accuracy, is_share=True)
"""Mean over the classes of the share of their records that are right."""
F1 = Metric("f1", True, _f1, is_share=True)
"""F1 of the positive class, the second of two; of more classes, or of labels, the mean."""
ROC_AUC = Metric("roc_auc", True, _roc_auc, is_share=True)
"""Area under the ROC curve; of several classes the mean of one against the rest, of labels the mean."""
R2 = Metric("r2", True, _r2)
"""Coefficient of determination."""
MEAN_SQUARED_ERROR = Metric("mean_squared_error", False, _mean_squared_error)
CROSS_ENTROPY = Metric("cross_entropy", False, _cross_entropy)
"""In nats, for each record, label or token."""
PERPLEXITY = Metric("perplexity", False, _perplexity)
"""exp of the cross-entropy of all tokens together."""

OF_CLASSES = (ACCURACY, BALANCED_ACCURACY, F1, ROC_AUC, CROSS_ENTROPY, PERPLEXITY)
"""Metrics of classes, labels or tokens, which mean nothing for a regression."""

OF_NUMBERS = (R2, MEAN_SQUARED_ERROR)
"""Metrics of a regression."""

READY: dict[str, tuple[Metric, ...]] = {
    "classification": (ACCURACY, CROSS_ENTROPY),
    "binary": (ACCURACY, CROSS_ENTROPY),
    "multilabel": (ACCURACY, CROSS_ENTROPY),
    "regression": OF_NUMBERS,
    "tokens": (PERPLEXITY, ACCURACY),
}
"""Metrics by kind of task."""


AnyMetric = Metric | ModelMetric | ModelMetrics

SHIFTED = "shifted"
"""Name of the further test that the board shows: records that differ from those that were trained on."""


@dataclass(frozen=True)
class FurtherTest:
    """A test of the released model on other records, or by other metrics, than the task's own.

    The harness runs it after the metrics on the test records. It costs no ε, as long as `load` gives no training
    records. It is no part of a run's identity: records with and without it are compared.

    Attributes:
        name: such as "shifted"; letters, digits and underscores.
        about: what is measured, in a line. It stands in the record. Change it with the
            records or the metrics: boards compare values only where it is the same.
        load: source → records, in a fixed order, without chance.
        metrics: beside others; None: those of the task.

    Raises:
        InvalidValueError: if the name is unfit.
    """

    name: str
    about: str
    load: "Callable[[DataSource], Records]"
    metrics: tuple[AnyMetric, ...] | None = None

    def __post_init__(self) -> None:
        if not short_text("name", self.name).isidentifier():
            raise InvalidValueError(f"Expected a name of letters, digits and underscores, got {shown(self.name)}.")

    def records(self, task: str, source: "DataSource") -> Records:
        """Return the records.

        Raises:
            SealedDataError: if a method plans or runs, or a model is measured.
        """
        refuse_sealed(f"The test {self.name!r}", task)
        return self.load(source)
