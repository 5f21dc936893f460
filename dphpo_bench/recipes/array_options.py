"""Arguments of an `ArrayTask` that belong together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, dataclass_transform

from dphpo_bench.base.checks import typed
from dphpo_bench.contract.metrics import Metric, ModelMetric
from dphpo_bench.contract.task import Task
from dphpo_bench.data.labels import Class
from dphpo_bench.training.augmentation import Augmentation, Transform
from dphpo_bench.training.losses import PerRecord

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

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
            texts, booleans, any numbers, or rows with one 1 each. Default: labels count from 0, or are False and True.
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
