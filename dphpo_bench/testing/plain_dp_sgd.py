"""The plainest private method, to try tasks with: one DP-SGD run at the task's defaults."""

from dataclasses import dataclass
from typing import ClassVar

from dphpo_bench.recipes.single_run import SingleRun


@dataclass(frozen=True)
class PlainDpSgd(SingleRun):
    """T steps of DP-SGD with the task's learning rate; tunes nothing."""

    name = "plain_dp_sgd"
    summary = "DP-SGD at the task's defaults."
    reference = "Abadi et al. 2016, Deep Learning with Differential Privacy, Algorithm 1"
    tuning: ClassVar[tuple[str, ...]] = ()
    end_to_end_private = True
