"""When a seed is right: it tells the noise, so that whoever knows it can subtract that."""

import secrets
import warnings

from dphpo_bench.contract.task import Task
from dphpo_bench.harness.journal import Journal
from dphpo_bench.records.record import Identity

PUBLIC_SEED = 0


def default_seed(task: Task) -> int | None:
    """The seed of a run that names none: repeatable where the data are public, else without a seed."""
    return PUBLIC_SEED if task.public else None


def warn_of_seeds(task: Task, seeds: str) -> None:
    """Warn who seeds runs on private data.

    Args:
        task: whose data may be private.
        seeds: what to call them, such as "seed=3".
    """
    if not task.public:
        warnings.warn(
            f"Task {task.name} has private data, and {seeds}: whoever learns a seed can subtract the noise. Leave the "
            "seed out, or keep it and the records secret.",
            stacklevel=3,
        )


def told_apart(identity: Identity, journal: Journal) -> Identity:
    """The identity as it is recorded: runs without a seed are all different, so each gets a number of its own.

    The number comes from the journal, so that a run which is interrupted after it was recorded does not count twice.
    """
    if identity.seed is not None:
        return identity
    return identity.model_copy(update={"run": f"{journal.once('run', new_number):016x}"})


def new_number() -> int:
    """A random number of 64 bits. It says nothing about the seed."""
    return secrets.randbits(64)
