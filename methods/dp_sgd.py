"""DP-SGD with hyperparameters fixed beforehand: what every other method is compared with."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import dphpo_bench as bench


@dataclass(frozen=True)
class FixedDpSgd(bench.recipes.SingleRun):
    """DP-SGD (Abadi et al. 2016, arXiv:1607.00133, Algorithm 1) at given hyperparameters.

    T steps at sample rate q and noise multiplier σ are T × Poisson(q; Gaussian σ). The guarantee covers the
    run, not how its hyperparameters were found: it is end-to-end as long as they were fixed without looking
    at the data, as the defaults were. The paper chose its threshold, learning rate and batch size by trying
    several on the private data, and does not account for it.

    The other parameters are those of every `SingleRun`.

    Attributes:
        learning_rate: default: the task's.
        optimizer: a `torch.optim` name; default: the task's.
        schedule: of the learning rate: "constant", or falling to zero: "cosine" or "linear".
    """

    name = "dp_sgd"
    summary = "DP-SGD at fixed hyperparameters; tunes nothing."
    reference = "Abadi et al. 2016, Deep Learning with Differential Privacy, Algorithm 1"
    tuning: ClassVar[tuple[str, ...]] = ()
    end_to_end_private = True

    clipping: bench.parameters.ClippingRule = "abadi:1"
    learning_rate: bench.parameters.Positive | None = None
    optimizer: bench.parameters.OptimizerName | None = None
    schedule: Literal["constant", "cosine", "linear"] = field(default="constant", metadata=bench.parameters.LATER)

    def training(self, facts: bench.TaskFacts) -> bench.recipes.DpSgd:
        """Return the task's learning rate and optimiser, unless told others."""
        return replace(
            super().training(facts),
            learning_rate=self.learning_rate or facts.learning_rate,
            optimizer=self.optimizer or facts.optimizer,
            schedule=self.schedule,
        )
