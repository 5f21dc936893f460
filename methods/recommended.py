"""DP-SGD as the literature advises it, for those who tune nothing."""

from dataclasses import dataclass, replace
from typing import ClassVar

import dphpo_bench as bench


@dataclass(frozen=True)
class Recommended(bench.recipes.SingleRun):
    """DP-SGD as in the released configurations of De, Berrada, Hayes, Smith and Balle (2022, arXiv:2204.13650).

    SGD without momentum or weight decay, a constant rate of 2, gradients clipped at 1, an exponential average of the
    weights with decay 0.9999 and the paper's warm-up, the same for every task and ε. Nothing is looked up in the
    data, so all of ε goes into one run, T × Poisson(q; Gaussian σ).

    The paper has one such recipe for networks from random weights, for fine-tuning and for a small perceptron. Its code
    has the rate at 2 (CIFAR-10 at ε = 1, MNIST), 1 (fine-tuning) and 4 (ImageNet). Other advice has no number of its
    own to offer (Ponomareva et al. 2023 search the rate), or one for fine-tuning language models (Li et al. 2022: Adam
    at 5e-4). docs/methods.md compares them on digits and Adult.

    Large batches, which all of them advise, are the tasks' own.

    The other parameters are those of every `SingleRun`.

    Attributes:
        learning_rate: constant.
    """

    name = "recommended"
    summary = "DP-SGD as De et al. advise it: plain SGD at rate 2, clipping at 1, averaged weights; tunes nothing."
    reference = "De et al. 2022, Unlocking High-Accuracy DP Image Classification; its released code"
    tuning: ClassVar[tuple[str, ...]] = ()
    end_to_end_private = True

    clipping: bench.parameters.ClippingRule = "abadi:1"
    averaging: bench.parameters.Decay = 0.9999
    learning_rate: bench.parameters.Positive = 2.0

    def training(self, facts: bench.TaskFacts) -> bench.recipes.DpSgd:
        """Return SGD without momentum, whatever the task's optimiser is."""
        run = super().training(facts)
        return replace(run, optimizer="SGD", momentum=0.0, learning_rate=self.learning_rate)
