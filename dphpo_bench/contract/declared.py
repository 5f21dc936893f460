"""Losses and scores by what a task declares of its targets: shares of the classes, the scale of a regression."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract.metrics import BALANCED_ACCURACY, F1, ROC_AUC, Metric, ModelMetric

if TYPE_CHECKING:
    from dphpo_bench.training.losses import PerRecord
    from dphpo_bench.training.target_scale import TargetScale

OF_RARE_CLASSES = (BALANCED_ACCURACY, F1, ROC_AUC)
"""Metrics that count a rare class as much as a frequent one; a count of right answers says little about them."""

SUM_TOLERANCE = 0.011
"""Shares may be rounded to two digits."""


class Declared(Protocol):
    """The declarations of `TaskFacts`."""

    @property
    def kind(self) -> str:
        """See `TaskFacts`."""

    @property
    def n_classes(self) -> int | None:
        """See `TaskFacts`."""

    @property
    def class_shares(self) -> tuple[float, ...] | None:
        """See `TaskFacts`."""

    @property
    def class_weights(self) -> str | None:
        """See `TaskFacts`."""

    @property
    def target_scale(self) -> "TargetScale | None":
        """See `TaskFacts`."""


def checked_shares(facts: Declared) -> tuple[float, ...] | None:
    """Return the declared shares of the classes as floats; None if there are none.

    Raises:
        InvalidValueError: if they are not a positive share of each class, the kind of task has no classes, or class
            weights are of an unknown form or lack shares.
    """
    shares: Any = facts.class_shares
    if facts.class_weights not in (None, "balanced"):
        raise InvalidValueError(
            f"Expected class_weights='balanced' or None, got {shown(facts.class_weights, form=repr)}."
        )
    if shares is None:
        if facts.class_weights:
            raise InvalidValueError(
                "Expected class_shares with class_weights='balanced', such as class_shares=(0.93, 0.07), from public "
                "knowledge: shares that are counted in private records would be a release."
            )
        return None
    classes = {"classification": facts.n_classes, "binary": 2}.get(facts.kind)
    if classes is None:
        raise InvalidValueError(f"Expected class_shares of a classification or a binary task, got {facts.kind!r}.")
    shares = shares.tolist() if hasattr(shares, "tolist") else shares  # NumPy's, pandas'
    numbers = isinstance(shares, Sequence) and all(isinstance(share, Real) for share in shares)
    if not numbers or len(shares) != classes or not all(0 < share < 1 for share in shares):
        raise InvalidValueError(
            f"Expected class_shares with a share between 0 and 1 for each of {classes} classes, in their order, such "
            f"as (0.93, 0.07), got {shown(shares, form=repr)}."
        )
    if not math.isclose(math.fsum(shares), 1, abs_tol=SUM_TOLERANCE):
        raise InvalidValueError(f"Expected class_shares that add up to 1, got {math.fsum(shares):.4g}.")
    return tuple(map(float, shares))


def check_balanced(scores: Any, shares: object) -> None:
    """Reject scores that are neither a function nor "balanced" with declared shares."""
    if scores is not None and not callable(scores) and scores != "balanced":
        raise InvalidValueError(
            f"Expected scores to be a function of outputs and targets, or 'balanced', got {shown(scores, form=repr)}."
        )
    if scores == "balanced" and shares is None:
        raise InvalidValueError(
            "Expected class_shares with scores='balanced', such as class_shares=(0.93, 0.07), from public knowledge."
        )


def declared_losses(losses: "PerRecord", facts: Declared) -> "PerRecord":
    """Return losses on the scale of the targets and with the class weights that facts declare; else as they are."""
    if facts.target_scale is not None:
        losses = facts.target_scale.losses(losses)
    if facts.class_weights and facts.class_shares:
        from dphpo_bench.training.rare_classes import ClassWeighted

        losses = ClassWeighted(losses, facts.class_shares)
    return losses


def declared_scores(facts: Declared, first: Metric | ModelMetric | None) -> "PerRecord | None":
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


def advice_on_scores(task: str, facts: Declared, first: Metric | ModelMetric | None) -> str | None:
    """Return a sentence for a task whose searches count right answers though its first metric does not; else None."""
    if facts.kind not in ("classification", "binary") or facts.class_shares or first not in OF_RARE_CLASSES:
        return None
    return (
        f"Searches on {task} compare runs by right answers, while its first metric is {first.name}: if a class is "
        "rare, all runs tie. Declare the shares of the classes from public knowledge, such as "
        "class_shares=(0.93, 0.07), and scores follow the metric."
    )
