"""Digits, eight or not: an imbalanced task from scikit-learn's packaged pictures."""

import dataclasses
import hashlib
from typing import TYPE_CHECKING

import dphpo_bench as bench

from .digits import Digits

if TYPE_CHECKING:
    import torch


class DigitsEight(Digits):
    """Digits that are eights, one in ten, and digits that are not.

    Whoever says "none" has 90 % right, so the area under the ROC curve counts. The records and the models are those of
    `digits`, with one output.
    """

    name = "digits_eight"
    summary = "scikit-learn's digits, eight or not: binary, one in ten; packaged, seconds per run."
    n_outputs = 1

    @property
    def facts(self) -> bench.TaskFacts:
        return dataclasses.replace(super().facts, task=self.name, kind="binary", n_classes=None)

    @property
    def metrics(self) -> tuple[bench.metrics.Metric, ...]:
        """The area under the ROC curve first: accuracy says little where one class is rare."""
        return (bench.metrics.ROC_AUC, bench.metrics.F1, bench.metrics.BALANCED_ACCURACY, bench.metrics.ACCURACY)

    def scores(self, outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        """Return the probability of the true answer: by accuracy many models are as good as saying "none"."""
        return 1 - (outputs.squeeze(-1).sigmoid() - targets).abs()

    def fingerprint(self, source: bench.DataSource) -> str:
        """Hash what identifies the inputs and the labels."""
        return hashlib.sha256(f"{super().fingerprint(source)} eight".encode()).hexdigest()

    def _load(self, train: bool) -> bench.Records:
        records = super()._load(train)
        return bench.Records(records.inputs, (records.named()["targets"] == 8).float())
