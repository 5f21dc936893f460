"""What a cell of a sweep needs."""

from dataclasses import dataclass

DEFAULT_TIME_LIMIT_S = 12 * 3600.0


@dataclass(frozen=True)
class Resources:
    """What one cell needs; none of it is part of a cell's identity.

    Attributes:
        threads: computing threads. Sums are rounded in another order by another number of threads, so this, and
            not the machine, decides.
        gpus: GPUs, also parts of one; 0 trains on the CPU.
        memory_gb: memory in 10⁹ bytes beyond which the cell fails, None for no limit. Files that are mapped, such
            as cached features, count in full.
        time_limit_s: seconds after which the cell is stopped and counts as failed.
    """

    threads: int = 1
    gpus: float = 0
    memory_gb: float | None = None
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
