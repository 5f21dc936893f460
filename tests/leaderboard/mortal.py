"""What recomputes ledgers in processes of their own, gone wrong; a process that imports this imports little else."""

import os
import signal
import time

from dphpo_bench.leaderboard import recompute

DEADLY = 4.2
COMPUTE = recompute.compute


def compute_or_die(job: str) -> str:
    if str(DEADLY) in job:
        os.kill(os.getpid(), signal.SIGKILL)
    return COMPUTE(job)


def compute_slowly(job: str) -> str:
    """As on a machine that has other things to do when a short job comes."""
    if len(job) < 1000:
        time.sleep(1.2)
    return COMPUTE(job)
