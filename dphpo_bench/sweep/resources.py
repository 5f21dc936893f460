"""State the resources that a cell of a sweep needs."""

from dataclasses import dataclass

DEFAULT_TIME_LIMIT_S = 12 * 3600.0


@dataclass(frozen=True)
class Resources:
    """Needs of a cell, which are not part of its identity."""

    threads: int = 1  # their number changes the rounding of sums, so it does not depend on the machine
    gpus: float = 0  # GPUs, or a part of one; 0 trains on the CPU
    memory_gb: float | None = None  # limit in 10⁹ bytes; mapped files, such as cached features, count in full
    time_limit_s: float = DEFAULT_TIME_LIMIT_S  # seconds after which the cell is stopped and counts as failed
