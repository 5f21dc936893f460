"""Losses and scores of rare classes, by shares of the classes that are declared and never counted.

A class c of share s_c has the weight w_c = min(s) / s_c: 1 for the rarest class, less for the others. The weighted
score of a record is w_c · r with r in [0, 1] and constant w. So it is a function of that record alone, in [0, 1] like
r: one record changes a sum of such scores by at most 1, as it does without weights, and no new theorem is needed. If
the declared shares are right, the expected score is k · min(s) times the mean over the k classes of their mean r.

Weights of losses apply after clipping, which would undo a weight before it: a clipped gradient is no longer for a
larger loss. The gradient w_c · clip(g) is no longer than clip(g), so the sensitivity of a sum stays that of the rule.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dphpo_bench.base.tensors import Tensors, single
from dphpo_bench.training.losses import PerRecord, correct_labels, correct_predictions, logits, matched


def class_weights(shares: Sequence[float]) -> tuple[float, ...]:
    """Return the weight min(shares) / share of each class, in (0, 1]."""
    return tuple(min(shares) / share for share in shares)


@dataclass(frozen=True)
class ClassWeighted:
    """Losses or scores with a weight for each class; engines clip the gradients of losses first and weigh them then."""

    plain: PerRecord  # the losses or scores without weights
    shares: tuple[float, ...]  # of each class, from public knowledge

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the weighted values, shape (n,)."""
        values = self.plain(outputs, targets)
        return values * self.weights(targets).to(values)

    def weights(self, targets: Tensors) -> Tensor:
        """Return the weight of each record, float64 of shape (n,), in (0, 1]."""
        classes = single(targets).long()
        return torch.tensor(class_weights(self.shares), dtype=torch.float64, device=classes.device)[classes]


def balanced_right(shares: Sequence[float]) -> PerRecord:
    """Return the score of balanced accuracy: the weight of the record's class if the answer is right, else 0.

    Outputs are of shape (n, classes), or (n,) or (n, 1) of two classes. The mean over records is k · min(shares) times
    the balanced accuracy, if the shares are right.
    """

    def right(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return (correct_labels if _is_margin(outputs, targets) else correct_predictions)(outputs, targets)

    return ClassWeighted(right, tuple(shares))


def balanced_probability(shares: Sequence[float], *, weighted_losses: bool = False) -> PerRecord:
    """Return a score for the area under the ROC curve: the probability of the true class, times the class's weight.

    The probability is the one that a model which has learned from classes of these shares has where all classes are
    equally frequent: p_c / share_c, normalised. Losses with class weights make a model predict that already. For two
    classes the probability is the share of all thresholds in [0, 1] at which the record is on the right side, so the
    mean score is the balanced accuracy averaged over uniform thresholds. It is no area under the curve, whose
    thresholds are the scores of other records: a pair of records has no bounded effect of one record. Unlike that area,
    it depends on how sure a model is.

    Args:
        shares: of each class, from public knowledge.
        weighted_losses: whether the model's losses have the class weights.
    """
    shift = [0.0 if weighted_losses else math.log(share) for share in shares]

    def probability(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> Tensor:
        values, classes = logits(outputs), targets.long()
        if _is_margin(outputs, targets):
            values = matched(outputs, targets)
            values = torch.stack([torch.zeros_like(values), values], dim=1)
        moved = values - torch.tensor(shift, dtype=values.dtype, device=values.device)
        return moved.softmax(1).gather(1, classes[:, None]).squeeze(1)

    return ClassWeighted(probability, tuple(shares))


def _is_margin(outputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> bool:
    """Return whether the outputs are a number for each record, above 0 for the second of two classes."""
    return matched(outputs, targets).shape == targets.shape
