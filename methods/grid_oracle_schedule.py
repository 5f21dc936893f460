"""The grid oracle with learning rates that fall to zero."""

from dataclasses import dataclass
from typing import Literal

from .grid_oracle import GridOracle


@dataclass(frozen=True)
class GridOracleSchedule(GridOracle):
    """`GridOracle` with cosine decay (Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts).

    Methods that set the learning rate while they train are free to lower it; this reference is, too. All that
    is said there of its ε holds here.
    """

    name = "grid_oracle_schedule"
    summary = "The grid oracle with a learning rate that falls along a cosine; its true ε is infinite."
    reference = "Abadi et al. 2016, Algorithm 1; Loshchilov and Hutter 2017, SGDR, equation 5"

    schedule: Literal["constant", "cosine", "linear"] = "cosine"
