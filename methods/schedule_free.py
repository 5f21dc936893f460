"""Schedule-Free AdamW on private gradients: an average of the weights in place of a falling learning rate."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import dphpo_bench as bench

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class ScheduleFree(bench.recipes.OptimizerRun):
    """Schedule-Free AdamW (Defazio et al. 2024, arXiv:2405.15682, Algorithm 1) fed with noisy gradients.

    The published optimiser at its package's defaults: gradients are taken between the weights z of AdamW and their mean
    x, and x is released. It tunes no learning rate; it does without a schedule.

    Since x is an average, no other may be taken: `averaging` is 0.

    The other parameters are those of every `SingleRun`.

    Attributes:
        learning_rate: of AdamW; the package's.
    """

    name = "schedule_free"
    package = "schedulefree"
    summary = "Schedule-Free AdamW on private gradients, at its package's learning rate of 0.0025."
    reference = "Defazio et al. 2024, The Road Less Scheduled, Algorithm 1; package schedulefree"
    tuning = ("learning rate schedule", "clipping threshold")
    end_to_end_private = True

    averaging: bench.parameters.Decay = 0.0
    learning_rate: bench.parameters.Positive = 0.0025

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.averaging:
            raise bench.errors.InvalidValueError(
                f"Expected averaging=0, got {self.averaging}: Schedule-Free averages its weights itself."
            )

    def training(self, facts: bench.TaskFacts) -> bench.recipes.DpSgd:
        """Return the run without its noise."""
        return replace(super().training(facts), learning_rate=self.learning_rate)

    def published(self, weights: "list[Tensor]") -> "torch.optim.Optimizer":
        """Return the authors' optimiser, in the mode in which it steps."""
        from schedulefree import AdamWScheduleFree

        optimizer = AdamWScheduleFree(weights, lr=self.learning_rate)
        optimizer.train()
        return cast("torch.optim.Optimizer", optimizer)

    def estimates(self, optimizer: "torch.optim.Optimizer") -> dict[str, float]:
        """Return the learning rate that was given."""
        return {"learning_rate": float(optimizer.param_groups[0]["scheduled_lr"])}

    def finish(self, optimizer: "torch.optim.Optimizer") -> None:
        """Replace the weights by the average x."""
        cast(Any, optimizer).eval()
